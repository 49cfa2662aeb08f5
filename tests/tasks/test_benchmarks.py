"""The table of published benchmarks: rows in each data set's own columns become items that can be graded."""

import json
import re

import pytest
from published import CASES, NULLS, hotpot, rlvr, verl

from coterie.errors import DataError
from coterie.tasks import hub
from coterie.tasks.benchmarks import ABSENT, BENCHMARKS, Part
from coterie.tasks.catalog import verify
from coterie.tasks.columns import paragraphs, titles
from coterie.tasks.golds import GOLDS
from coterie.tasks.prompts import to_query

PAPERS = """
gsm8k math math500 dapo_math mbpp eurus2_code taco magpie_if rlvr_ifeval bbh ifeval humaneval agieval
arc_challenge logicbench olympiadbench mmlu_pro gpqa aime_2025 hotpotqa 2wikimultihopqa newsqa trivia_qa mmlu_redux
mmlu_formal_logic cruxeval hellaswag medqa
""".split()  # noqa: SIM905


def load(name, *rows, part="", split="all"):
    """The items of rows, as if they were all that the benchmark's parts (or this part) hold."""
    wanted = f"hub:{name}" + (f":{part}" if part else "")
    first = hub.read_name(wanted).parts[0]
    split = f"/{split}" if hub.read_name(wanted).benchmark.parted else ""

    def fetch(part, split, revision, first_only):
        return iter(rows if part == first else ())

    return hub.load(f"{wanted}{split}", fetch=fetch, resolve=lambda repo: "0" * 40)


def test_every_benchmark_that_the_papers_name_is_there_or_says_why_not():
    assert set(PAPERS) <= BENCHMARKS.keys()
    assert set(ABSENT) == {"ngqa"}
    with pytest.raises(Exception, match=r"NGQA is not on the hub .* JSONL of kind qa"):
        hub.load("hub:ngqa")
    assert {case.name for case in CASES} == BENCHMARKS.keys()


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_an_entry_is_whole(name):
    benchmark = BENCHMARKS[name]
    assert "test" in benchmark.splits
    assert benchmark.licence
    assert benchmark.kind in GOLDS
    labels = [part.label for part in benchmark.parts]
    assert len(set(labels)) == len(labels)
    for part in benchmark.parts:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", part.repo)
        assert part.revision is None or re.fullmatch(r"[0-9a-f]{40}", part.revision)


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_no_two_splits_are_of_the_same_rows(name):
    """Else what one selects on is what one judges on; only train and test may be parts of one published split."""
    benchmark = BENCHMARKS[name]
    published = list(benchmark.splits.values())
    assert len(set(published)) == len(published) or (
        benchmark.parted and set(benchmark.splits) == {"train", "test"}
    )


@pytest.mark.parametrize("name", ["eurus2_code", "hellaswag", "2wikimultihopqa", "hotpotqa", "newsqa", "trivia_qa"])
def test_a_validation_split_that_is_the_test_is_not_offered_twice(name):
    assert hub.read_name(f"hub:{name}").published == "validation"
    with pytest.raises(Exception, match="unknown split 'validation'"):
        hub.read_name(f"hub:{name}/validation")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}{case.part and '-' + case.part}")
def test_a_row_becomes_an_item_whose_gold_is_graded(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load(case.name, case.row, part=case.part)
    assert loaded.skipped == {}
    (item,) = loaded.items
    assert GOLDS[item.task](item) == []
    assert item.id.startswith(f"{case.name}-")
    assert case.answer in (None, item.answer)
    query = to_query(item)
    asked = "".join(message.content for message in query.messages)
    assert not [text for text in case.hidden if text in asked]
    assert not [text for text in case.contains if text not in asked]
    right, wrong = verify(case.right, query), verify(case.wrong, query)
    assert right.verdict == "pass", right
    assert wrong.verdict == "fail", wrong


def one(name, row, part="", **changes):
    (item,) = load(name, row | changes, part=part).items
    return item


def row_of(name):
    return next(case.row for case in CASES if case.name == name)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("gsm8k", {"answer": "It is 7."}, "no #### in the answer"),
        ("math", {"solution": "It is 7."}, "no boxed answer in the solution"),
        ("olympiadbench", {"error": "0.1"}, "an answer with a tolerance"),
        ("olympiadbench", {"answer_type": "Need_human_evaluate"}, "no final answer that can be compared"),
        ("mbpp", {"test_list": []}, "no test"),
        ("taco", {"input_output": '{"inputs": [], "outputs": []}'}, "no test"),
        ("arc_challenge", {"answerKey": "E"}, "the right answer is none of the options"),
        ("medqa", {"answer_idx": "E"}, "the right answer is none of the options"),
        ("mmlu_formal_logic", {"answer": -1}, "the right answer is none of the options"),
        ("mmlu_redux", {"error_type": "wrong_groundtruth"}, "faulty by the authors: wrong_groundtruth"),
        ("hellaswag", {"label": ""}, "no label (the publisher keeps it)"),
        ("agieval", {"gold": [0, 1]}, "several right options"),
        ("hotpotqa", {"answer": None}, "no answer (the publisher keeps it)"),
        ("trivia_qa", {"answer": {"value": "<unk>", "aliases": []}}, "no answer (the publisher keeps it)"),
        ("newsqa", {"answers": [" "]}, "no answer in the story"),
        ("bbh", {"target": "(Z)"}, "the right answer is none of the options"),
        ("ifeval", {"instruction_id_list": ["new:rule", "punctuation:no_comma"]}, "unknown instruction 'new:rule'"),
    ],
)
def test_rows_that_cannot_be_graded_are_counted_by_reason(name, changes, reason):
    """Never silently dropped, and the good rows beside them are kept."""
    good, part = row_of(name), next(case.part for case in CASES if case.name == name)
    loaded = load(name, good, good | changes, part=part)
    assert len(loaded.items) == 1
    ((found, count),) = loaded.skipped.items()
    assert found.startswith(reason)
    assert count == 1
    assert loaded.remark().startswith(f"left out: 1 × {reason}")


def test_nothing_left_is_an_error_that_says_why():
    with pytest.raises(DataError, match=r"hub:gsm8k: no row can be used \(no #### in the answer\)"):
        load("gsm8k", {"question": "?", "answer": "7"})


def test_a_column_that_is_gone_is_named_with_those_that_are_there():
    with pytest.raises(
        DataError, match=r"openai/gsm8k has no column 'answer' \(it has question, solution\): .* pin the"
    ):
        load("gsm8k", {"question": "?", "solution": "7"})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mmlu_pro", {"options": None}),
        ("gsm8k", {"question": 5}),
        ("hotpotqa", {"context": 7}),
        ("medqa", {"options": []}),
    ],
)
def test_a_row_of_another_shape_is_one_line(name, changes):
    with pytest.raises(DataError, match=r"is not as expected \(.*\): the data set changed upstream") as error:
        load(name, row_of(name) | changes)
    assert "\n" not in str(error.value)


# --- quirks -------------------------------------------------------------------------------------------


def test_labels_of_arc_may_be_letters_or_numbers():
    row = row_of("arc_challenge")
    letters = {"text": ["x", "y", "z"], "label": ["A", "B", "C"]}
    assert one("arc_challenge", row, choices=letters, answerKey="C").answer == "C"
    assert one("arc_challenge", row).answer == "B"


def test_options_of_gpqa_are_in_an_order_of_the_item_alone():
    row = row_of("gpqa")
    first, again = one("gpqa", row), one("gpqa", row | {"Question": "Changed?"})
    assert first.choices == again.choices
    orders = [one("gpqa", row | {"Record ID": f"rec{n}"}) for n in range(40)]
    assert {item.answer for item in orders} == set("ABCD")
    assert all(item.choices["ABCD".index(item.answer)] == "electron" for item in orders)


def test_fillers_of_mmlu_pro_are_no_options_but_a_right_answer_stays():
    row = row_of("mmlu_pro")
    assert one("mmlu_pro", row).choices == ["4", "6", "8", "9", "11"]
    assert one("mmlu_pro", row, options=["4", "N/A"], answer_index=1).choices == ["4", "N/A"]


def test_several_final_answers_of_olympiadbench_are_a_list_and_the_unit_is_asked_for():
    item = one("olympiadbench", row_of("olympiadbench"), final_answer=["$1$", "$-4$"], unit="m")
    assert item.answer == "1, -4"
    assert item.question.endswith("Give the answer in m.")
    assert verify("Answer: \\boxed{-4, 1}", to_query(item)).verdict == "pass"


def test_gold_paragraphs_are_known_but_not_told():
    item = one("hotpotqa", hotpot())
    assert item.meta["supporting_titles"] == ["Ada Brook", "Lindby"]
    asked = "".join(message.content for message in to_query(item).messages)
    assert "supporting" not in asked
    assert "Elsewhere\nNo." in asked


def test_both_layouts_of_multi_hop_contexts_are_read():
    pairs = [["Ada", ["One. ", "Two."]], ["Bo", ["Three."]]]
    same = [{"title": "Ada", "text": "One. Two."}, {"title": "Bo", "text": "Three."}]
    assert paragraphs(pairs) == paragraphs(json.dumps(pairs)) == same
    assert paragraphs({"title": ["Ada", "Bo"], "content": [["One. ", "Two."], ["Three."]]}) == same
    assert titles([["Ada", 0], ["Bo", 1], ["Ada", 1]]) == titles('[["Ada", 0], ["Bo", 1]]') == ["Ada", "Bo"]


def test_mathematics_rows_are_no_part_of_the_code_benchmark():
    row = row_of("eurus2_code")
    loaded = load("eurus2_code", verl("1 + 1?", "2", ability="math"), row)
    assert [item.task for item in loaded.items] == ["code_stdio"]
    assert loaded.skipped == {}


def test_tests_beyond_the_bound_are_left_out_and_counted():
    inputs = [f"{n}\n" for n in range(60)] + ["9" * 30_000]
    truth = {"inputs": inputs, "outputs": [text.strip() or "0" for text in inputs]}
    item = one("eurus2_code", verl("Echo.", truth))
    assert len(item.tests) == 50
    assert item.meta["tests_left_out"] == 11


def test_the_function_of_mbpp_is_the_one_that_the_tests_call():
    row = row_of("mbpp")
    helped = "def helper(n):\n    return n\ndef twice(n):\n    return 2 * helper(n)"
    assert one("mbpp", row, code=helped).fn_name == "twice"
    assert one("mbpp", row, code="broken(").fn_name is None


# --- RLVR-IFEval --------------------------------------------------------------------------------------


def rules(name, prompt="Write.", **arguments):
    item = one("rlvr_ifeval", rlvr(name, prompt, **arguments))
    return list(zip(item.instruction_id_list, item.instruction_kwargs, strict=True))


def test_exactly_n_is_two_rules():
    count = {"letter": "q", "let_frequency": 3, "let_relation": "at least"}
    below = count | {"let_frequency": 4, "let_relation": "less than"}
    assert rules("verify_letter_frequency", letter="q", N=3) == [
        ("keywords:letter_frequency", count),
        ("keywords:letter_frequency", below),
    ]
    assert [table["let_frequency"] for _, table in rules("verify_letter_frequency", letter="q", N=0)] == [1]


def test_at_most_n_is_less_than_one_more():
    found = rules("validate_word_constraint", N=40, quantifier="at most")
    assert found == [("length_constraints:number_words", {"num_words": 41, "relation": "less than"})]


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("verify_keywords", {"keyword_list": ["moss"]}, "moss"),
        ("validate_forbidden_words", {"forbidden_words": ["oak"]}, "moss"),
        (
            "validate_response_language",
            {"language": "en"},
            "This is a sentence in plain English about the weather.",
        ),
        ("verify_sentence_constraint", {"N": 1, "quantifier": "at least"}, "One sentence."),
        ("validate_paragraphs", {"N": 2, "i": 2, "first_word": "Two"}, "One.\n\nTwo."),
        ("verify_postscript", {"postscript_marker": "P.S."}, "Hi.\nP.S. More"),
        ("validate_placeholders", {"N": 1}, "Dear [name]"),
        ("verify_bullet_points", {"N": 1}, "* one"),
        ("validate_title", {}, "<<Moss>>"),
        (
            "validate_choice",
            {"options": ["My answer is yes.", "My answer is no.", "My answer is maybe."]},
            "My answer is no.",
        ),
        ("validate_highlighted_sections", {"N": 1}, "*moss*"),
        ("validate_sections", {"N": 2, "section_splitter": "SECTION"}, "SECTION 1\na\nSECTION 2\nb"),
        ("validate_json_format", {}, '{"a": 1}'),
        ("validate_repeat_prompt", {"original_prompt": "Say moss."}, "Say moss. Moss."),
        ("validate_two_responses", {}, "a\n******\nb"),
        ("validate_uppercase", {}, "THIS IS A SENTENCE ABOUT THE WEATHER"),
        ("validate_lowercase", {}, "this is a sentence about the weather"),
        ("validate_frequency_capital_words", {"N": 1, "quantifier": "at least"}, "A MOSS"),
        ("validate_end", {"end_phrase": "The end."}, "So. The end."),
        ("validate_quotation", {}, '"moss"'),
        ("validate_no_commas", {}, "moss"),
    ],
)
def test_a_function_accepts_what_its_ifeval_rule_accepts(name, arguments, answer):
    item = one("rlvr_ifeval", rlvr(name, "Write.", **arguments))
    assert verify(answer, to_query(item)).verdict == "pass"
    assert set(NULLS) >= arguments.keys()


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        (
            "validate_word_constraint",
            {"N": 40, "quantifier": "around"},
            "quantifier 'around', which no IFEval rule has",
        ),
        ("validate_choice", {"options": ["red", "blue"]}, "a choice of its own options"),
        ("validate_rhyme", {}, "function validate_rhyme"),
        (
            "verify_paragraph_count",
            {"N": 2},
            "paragraphs divided by `* * *`, which IFEval's rule does not count",
        ),
        ("verify_keywords", {}, "function verify_keywords without 'keyword_list'"),
    ],
)
def test_a_function_without_an_equal_rule_is_counted(name, arguments, reason):
    loaded = load("rlvr_ifeval", rlvr(name, "Write.", **arguments), row_of("rlvr_ifeval"))
    assert len(loaded.items) == 1
    assert loaded.skipped == {reason: 1}


def test_a_part_says_where_it_lies():
    assert BENCHMARKS["gsm8k"].parts == (
        Part(repo="openai/gsm8k", config="main", revision="740312add88f781978c0658806c59bc2815b9866"),
    )
