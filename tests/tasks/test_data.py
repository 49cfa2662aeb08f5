"""Data files: strict reading with the line that is wrong, queries without gold, and the check of golds."""

import json

import pytest

from coterie.errors import ConfigError, DataError
from coterie.tasks.data import check, prompt, read_items, to_query
from coterie.tasks.items import Case, Item, lines

CANARY = "c4n4ry"


def row(**changes):
    table = {"id": "a", "source": "s", "task": "math", "question": "1 + 1?", "answer": "2", "meta": {}}
    return {key: value for key, value in {**table, **changes}.items() if value is not ...}


def write(path, *rows, newline="\n"):
    texts = [text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in rows]
    path.write_bytes(newline.join(texts).encode())
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "items.jsonl"


# --- reading ------------------------------------------------------------------------------------------


def test_items_are_read_with_their_types(file):
    tests = [{"input": "1", "output": "2"}]
    write(file, row(question="één?"), row(id="b", task="code_stdio", answer=None, tests=tests, context=None))
    first, second = read_items(file)
    assert (first.question, first.answer, first.choices, first.meta) == ("één?", "2", None, {})
    assert second.tests == [Case(input="1", output="2")]


def test_a_byte_order_mark_crlf_and_blank_lines_are_tolerated(file):
    write(file, "\ufeff" + json.dumps(row()), "", "   ", json.dumps(row(id="b")), "", newline="\r\n")
    assert [item.id for item in read_items(file)] == ["a", "b"]
    assert [number for number, _ in lines(file)] == [1, 4]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (row(anwser="2"), "unknown key 'anwser'; did you mean 'answer'?"),
        (row(question=..., qestion="?"), "unknown key 'qestion'; did you mean 'question'?"),
        (row(question=...), "key 'question' is missing"),
        (row(answer=2), "key 'answer': input should be a valid string"),
        (row(task="maths"), "unknown task 'maths'; did you mean 'math'?"),
        (row(task="reasoning_gym"), "unknown task 'reasoning_gym'"),
        (row(context=[{"title": "t", "txt": "x"}]), "unknown key 'context.0.txt'; did you mean 'text'?"),
        (row(tests=[{"input": "1", "ouput": "2"}]), "unknown key 'tests.0.ouput'; did you mean 'output'?"),
        (row(choices="AB"), "key 'choices': input should be a valid list"),
        ("{'id': 1}", "not valid JSON: Expecting property name enclosed in double quotes (column 2)"),
        ('{"id": "a", "id": "b"}', "key 'id' twice"),
        ('{"id": NaN}', "NaN is not JSON"),
        ("[1, 2]", "expected one JSON object a line, found list"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_key(file, bad, said):
    write(file, row(), "", bad, row(id="c"))
    with pytest.raises(DataError) as error:
        read_items(file)
    assert str(error.value).startswith(f"{file}:3: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_text_that_is_not_utf8_is_named_with_its_line(file):
    file.write_bytes(json.dumps(row()).encode() + b'\n{"id": "\xff"}\n')
    with pytest.raises(DataError, match=r"items\.jsonl:2: not UTF-8 text \(byte 8\)"):
        read_items(file)
    file.write_text(json.dumps(row()), encoding="utf-16")
    with pytest.raises(DataError, match=r"items\.jsonl:1: not UTF-8 text"):
        read_items(file)


def test_an_id_twice_is_an_error_that_names_both_lines(file):
    write(file, row(), row(id="b"), row())
    with pytest.raises(DataError, match=r":3: id 'a' is already on line 1"):
        read_items(file)


def test_a_missing_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl: cannot be read \(No such file"):
        read_items(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        read_items(tmp_path)


# --- queries ------------------------------------------------------------------------------------------

GOLD = {
    "math": {"answer": CANARY},
    "choice": {"answer": CANARY, "choices": ["red", "blue"]},
    "qa": {"answer": [CANARY]},
    "code_function": {"answer": None, "tests": [f"assert f({CANARY}) == 1"], "fn_name": "f"},
    "code_stdio": {"answer": None, "tests": [{"input": CANARY, "output": CANARY}]},
    "instruction": {
        "answer": None,
        "instruction_id_list": ["keywords:existence"],
        "instruction_kwargs": [{"keywords": [CANARY]}],
    },
    "chat": {"answer": CANARY},
}
META = {
    key: [CANARY]
    for key in ("solution", "reference_solution", "facts", "decomposition", "supporting_titles", "supporting_facts")
} | {"target": CANARY, "test_setup": f"# {CANARY}", "evidence_triples": [[CANARY]]}


@pytest.mark.parametrize("task", sorted(GOLD))
def test_nothing_of_the_gold_enters_the_messages(task):
    item = Item.model_validate(row(task=task, meta=META, **GOLD[task]))
    query = to_query(item)
    assert item.question in query.text
    assert CANARY not in "".join(message.content for message in query.messages)
    assert CANARY not in json.dumps(dict(query.metadata))
    assert (query.reference is None) == (task == "chat")
    if query.reference is not None:
        assert CANARY in json.dumps(query.reference)


def test_references_have_the_shape_that_the_verifiers_read():
    def reference(task, **changes):
        return to_query(Item.model_validate(row(task=task, **changes))).reference

    assert reference("math") == {"answer": "2"}
    assert reference("choice", answer="B", choices=["x", "y"]) == {"answer": "B", "choices": ["x", "y"]}
    assert reference("qa", answer=["x"], meta={"metric": "f1"}) == {"answers": ["x"], "metric": "f1"}
    assert reference("qa", answer="x") == {"answers": ["x"], "metric": None}
    assert reference("code_function", tests=["assert f()"], fn_name="f", meta={"test_setup": "import x"}) == {
        "tests": ["assert f()"],
        "test_setup": "import x",
        "fn_name": "f",
    }
    prefixed = reference("code_function", tests=["f()"], meta={"prompt_is_code_prefix": True})
    assert prefixed["prefix"] == "1 + 1?"
    assert reference("code_stdio", tests=[{"input": "1", "output": "2"}]) == {
        "tests": [{"input": "1", "output": "2"}]
    }
    assert reference("instruction", instruction_id_list=["a"], instruction_kwargs=[{}]) == {
        "prompt": "1 + 1?",
        "instruction_id_list": ["a"],
        "instruction_kwargs": [{}],
    }


def test_options_context_and_the_contracts_suffix_are_in_the_prompt():
    context = [{"title": "Rome", "text": "A city."}, {"title": "", "text": "No title."}]
    item = Item.model_validate(row(task="choice", answer="A", choices=["x", "y"], context=context))
    (message,) = to_query(item).messages
    assert message.content.startswith("Rome\nA city.\n\nNo title.\n\n1 + 1?\n")
    assert "A. x\nB. y" in message.content
    assert message.content.endswith("ANSWER: X")


def test_a_contract_with_a_prefill_ends_in_an_assistant_message():
    query = to_query(Item.model_validate(row()), "answer")
    assert [(m.role, m.content) for m in query.messages] == [("user", "1 + 1?"), ("assistant", "Answer:")]
    assert query.contract == "answer"


def test_instructions_are_passed_on_unchanged():
    """docs/methods.md, rewards: a suffix would change what the constraints are about."""
    item = Item.model_validate(row(task="instruction", answer=None))
    assert [m.content for m in to_query(item).messages] == ["1 + 1?"]
    assert to_query(item).contract == "raw"


def test_an_unknown_contract_names_the_nearest():
    with pytest.raises(ConfigError, match="unknown contract 'boxd'; did you mean 'boxed'"):
        prompt("x", "boxd")


@pytest.mark.parametrize(
    ("meta", "domain"),
    [({}, "s"), ({"subtask": "u"}, "u"), ({"category": "c", "src": "x"}, "c"), ({"subject": "j", "level": 3}, "j")],
)
def test_the_domain_is_the_finest_label_there_is(meta, domain):
    query = to_query(Item.model_validate(row(meta=meta)))
    assert query.metadata == {"source": "s", "domain": domain}
    assert query.domain == domain


# --- checking -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answer": " "}, "the answer is not a text"),
        ({"answer": ["2"]}, "the answer is not a text"),
        ({"task": "choice", "answer": "C", "choices": ["x", "y"]}, "'C' is not the letter of an option (A to B)"),
        ({"task": "choice", "answer": "AB", "choices": ["x", "y"]}, "'AB' is not the letter of an option"),
        ({"task": "choice", "answer": "A", "choices": None}, "fewer than two options"),
        ({"task": "choice", "answer": "A", "choices": ["x", " "]}, "or an empty one"),
        ({"task": "choice", "answer": "A", "choices": ["x", "y", "x"]}, "the right option stands twice: A and C"),
        ({"task": "qa", "answer": []}, "there is no accepted answer"),
        ({"task": "qa", "answer": ["x"], "meta": {"metric": "f2"}}, "unknown metric 'f2'"),
        ({"task": "qa", "answer": ["[1"], "meta": {"metric": "python_literal"}}, "'[1' is not a Python literal"),
        ({"task": "code_function", "tests": []}, "there is no test"),
        ({"task": "code_function", "tests": None}, "there is no test"),
        ({"task": "code_function", "tests": ["assert f("]}, "the tests do not parse"),
        ({"task": "code_stdio", "tests": []}, "there is no test"),
        ({"task": "code_stdio", "tests": ["assert x"]}, "one without input and output"),
        (
            {"task": "instruction", "instruction_id_list": ["x:y"], "instruction_kwargs": [{}]},
            "unknown instruction",
        ),
        (
            {"task": "instruction", "instruction_id_list": ["punctuation:no_comma"], "instruction_kwargs": []},
            "1 instruction ids but 0 sets of arguments",
        ),
    ],
)
def test_golds_that_cannot_be_graded_are_found(file, changes, said):
    write(file, row(id="good"), row(question="other", **changes))
    report = check(file)
    assert report.items == 2
    (problem,) = report.problems
    assert (problem.line, problem.id) == (2, "a")
    assert said in problem.message
    assert f"{file}:2: a: {problem.message}" in str(report)


def test_a_bad_line_does_not_end_the_check(file):
    write(file, "{", row(), row(id="b", extra=1), row(id="c", question="?", answer=""))
    report = check(file)
    assert [(problem.line, problem.id) for problem in report.problems] == [(1, None), (3, None), (4, "c")]
    assert (report.items, report.tasks, report.sources) == (2, {"math": 2}, {"s": 2})


def test_ids_and_questions_that_occur_twice_are_found(file):
    write(file, row(), row(id="b"), row(question="other"), row(id="c", question=" 1  + 1? "))
    found = [(problem.line, problem.message) for problem in check(file).problems]
    assert found == [
        (2, "the question is already in items.jsonl:1"),
        (3, "the id is already in items.jsonl:1"),
        (4, "the question is already in items.jsonl:1"),
    ]


def test_equal_questions_with_other_options_are_different_items(file):
    choice = {"task": "choice", "answer": "A"}
    write(file, row(choices=["x", "y"], **choice), row(id="b", choices=["x", "z"], **choice))
    assert check(file).problems == ()


def test_a_folder_is_checked_as_a_whole(tmp_path):
    """A test question among the training questions is found, in every folder below."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "test.jsonl", row(id="t"))
    write(tmp_path / "two" / "train.jsonl", row(id="u"))
    report = check(tmp_path)
    assert (report.files, report.items) == (3, 3)
    assert [problem.message for problem in report.problems] == ["the question is already in test.jsonl:1"]
    assert report.as_json()["problems"][0]["id"] == "u"
    with pytest.raises(DataError, match="three: cannot be read"):
        check(tmp_path / "three")


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"holds no \.jsonl file"):
        check(tmp_path)


def test_the_slices_have_no_problem_but_four_known_ones(data):
    """Three items of the sources have the right option twice, one is another with its options moved."""
    reports = [check(path) for path in sorted(data.iterdir()) if any(path.glob("*.jsonl")) and path.name != "math"]
    found = {problem.id for report in reports for problem in report.problems}
    twice = {"agieval-aqua-rat-124", "agieval-aqua-rat-117", "commonsense_qa-train-3753"}
    assert found == twice | {"openbook_qa-test-6261"}


@pytest.mark.slow
def test_every_gold_of_the_mathematics_slice_can_be_compared(data):
    report = check(data / "math")
    assert report.tasks == {"math": 600}
    assert report.problems == ()


def test_every_item_of_the_slices_makes_a_query_without_its_gold(data):
    for file in sorted(data.glob("*/test.jsonl")):
        for item in read_items(file):
            text = "".join(message.content for message in to_query(item).messages)
            solution = item.meta.get("solution") or item.meta.get("reference_solution")
            assert not (isinstance(solution, str) and len(solution) > 80 and solution in text), item.id
            hidden = [t for t in item.tests or [] if isinstance(t, str) and t not in item.question]
            assert not [statement for statement in hidden if statement in text], item.id
