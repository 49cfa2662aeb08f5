"""Kinds, tasks by name, and the grading of a whole text."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from coterie.errors import BackendError, ConfigError, DataError, UserError
from coterie.tasks import catalog
from coterie.tasks.catalog import KINDS, find_kind, known_tasks, load_task, query_of, reader_of, verify
from coterie.tasks.data import CONTRACTS_OF, read_items, to_query
from coterie.tasks.extract import CONTRACTS
from coterie.tasks.task import Kind
from coterie.types import Query, Score

ROW = {"id": "a", "source": "s", "task": "math", "question": "1 + 1?", "answer": "2"}


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({**ROW, "id": str(n), **row}) + "\n" for n, row in enumerate(rows)))
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of two benchmarks, named by the environment."""
    write(tmp_path / "gsm8k" / "test.jsonl", *({"question": f"{n}?"} for n in range(5)))
    write(tmp_path / "gsm8k" / "train.jsonl", {"question": "train?"})
    write(tmp_path / "bbh" / "test.jsonl", {"task": "qa", "answer": ["x"]})
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def plugin(monkeypatch):
    """Installs entry points of group `coterie.task`; values are `module:attribute`."""

    def install(**points):
        found = [EntryPoint(name=name, value=value, group="coterie.task") for name, value in points.items()]

        def entry_points(*, group, name=None):
            return [point for point in found if group == "coterie.task" and name in (None, point.name)]

        monkeypatch.setattr(catalog, "entry_points", entry_points)

    return install


def echo(answer, text, reference):
    return Score(verdict="pass" if answer == reference["answer"] else "fail", value=None, answer=answer)


ECHO = Kind(contract="raw", verify=echo, same=str.__eq__)


# --- kinds --------------------------------------------------------------------------------------------


def test_every_kind_has_a_known_contract():
    assert set(KINDS) == set(CONTRACTS_OF)
    assert {kind.contract for kind in KINDS.values()} <= set(CONTRACTS)
    assert {n for n, kind in KINDS.items() if kind.open_ended} == {
        "code_function",
        "code_stdio",
        "instruction",
        "recorded",
    }


def test_the_catalog_imports_nothing_heavy():
    code = "import sys, coterie.tasks.catalog; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "reasoning_gym", "math_verify", "sympy", "langdetect", "nltk"} & set(
        loaded
    )


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(ConfigError, match="unknown kind of task 'maths'; did you mean 'math'"):
        find_kind("maths")


def test_kinds_come_from_plugins_and_cannot_take_a_built_in_name(plugin, tmp_path):
    plugin(echo=f"{__name__}:ECHO", math=f"{__name__}:ECHO", wrong=f"{__name__}:ROW")
    assert find_kind("echo") is ECHO
    assert find_kind("math") is KINDS["math"]
    with pytest.raises(ConfigError, match="is dict, not a Kind"):
        find_kind("wrong")
    (query,) = load_task(str(write(tmp_path / "x.jsonl", {"task": "echo", "answer": "yes"}))).queries
    assert (query.task, query.contract) == ("echo", "raw")
    assert verify(" yes ", query).verdict == "pass"


# --- reading and grading ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "gold", "extra", "right", "wrong"),
    [
        ("math", "1/2", {}, r"So \boxed{0.5}", r"So \boxed{2}"),
        ("choice", "B", {"choices": ("red", "blue")}, "Because.\nANSWER: B", "ANSWER: A"),
        ("qa", "Paris", {}, "Paris", "London"),
        (
            "code_function",
            "assert f(2) == 4",
            {},
            "```python\ndef f(x):\n    return 2 * x\n```",
            "def f(x): return 3",
        ),
    ],
)
def test_a_text_is_read_by_contract_and_graded_by_kind(task, gold, extra, right, wrong):
    query = query_of("What?", task, gold=gold, **extra)
    assert verify(right, query).verdict == "pass"
    assert verify(wrong, query).verdict == "fail"
    assert gold not in "".join(message.content for message in query_of("?", "math", gold=gold).messages)


def test_a_query_without_reference_has_no_verdict():
    for kind in KINDS:
        score = verify("Answer: 4", query_of("What is 2 + 2?", kind))
        assert (score.verdict, score.value) == ("error", None)
        assert "no reference" in score.reason


def test_the_reader_extracts_and_compares():
    reader = reader_of(query_of("?", "math"))
    assert reader.extract(r"first \boxed{1}, then \boxed{\frac12}") == r"\frac12"
    assert reader.same("0.5", r"\frac12")
    assert not reader.open_ended
    assert reader_of(query_of("?")).open_ended
    with pytest.raises(ConfigError, match="unknown contract 'boxes'; did you mean 'boxed'"):
        reader_of(replace(query_of("?"), contract="boxes"))


@pytest.mark.parametrize(
    "raised",
    [BackendError("down"), OSError("no fork"), RuntimeError("no thread"), MemoryError(), KeyError("answer")],
)
def test_trouble_of_ours_is_an_error_and_never_a_wrong_answer(monkeypatch, caplog, raised):
    """G18 and docs/faults.md, verdicts: infrastructure errors count apart from failures, a line each at most."""

    def fails(answer, text, reference):
        raise raised

    monkeypatch.setattr(catalog, "KINDS", {**KINDS, "math": replace(KINDS["math"], verify=fails)})
    score = verify(r"\boxed{2}", query_of("?", "math", gold="2"))
    assert (score.verdict, score.value, score.answer) == ("error", None, "2")
    assert str(raised) in score.reason or type(raised).__name__ in score.reason
    assert len(caplog.text.splitlines()) <= 1


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"chat"}))
def test_an_empty_reference_is_an_error(kind):
    query = replace(query_of("?", kind), reference={})
    assert verify("Answer: 1", query).verdict == "error"


def test_a_gold_text_is_not_enough_for_some_kinds():
    with pytest.raises(ConfigError, match="an item of kind instruction is not graded by one text"):
        query_of("?", "instruction", gold="x")


def test_equal_texts_make_equal_queries():
    assert query_of("a") == query_of("a")
    assert query_of("a").id != query_of("b").id
    assert query_of("a", id="mine").id == "mine"
    assert query_of("a", "qa").domain == "qa"
    assert query_of("\ud800").text == "\ud800"


# --- tasks by name ------------------------------------------------------------------------------------


def test_a_file_is_a_task(tmp_path):
    task = load_task(str(write(tmp_path / "mine" / "few.jsonl", {}, {"question": "2?"})))
    assert task.name == "mine/few"
    assert [query.id for query in task.queries] == ["0", "1"]
    with pytest.raises(DataError, match="cannot be read"):
        load_task(str(tmp_path / "none.jsonl"))
    with pytest.raises(UserError, match="holds no item"):
        load_task(str(write(tmp_path / "empty.jsonl")))


def test_benchmarks_are_found_by_name_and_split(folder):
    assert load_task("gsm8k").queries == load_task("gsm8k/test").queries
    assert load_task("gsm8k/train").queries[0].text.startswith("train?")
    assert load_task("gsm8k").name == "gsm8k"
    assert [query.text[0] for query in load_task("gsm8k", limit=2).queries] == ["0", "1"]
    assert len(load_task("gsm8k", limit=50).queries) == 5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gsm8", "did you mean 'gsm8k'"),
        ("gsm8k/tests", "did you mean 'gsm8k/test'"),
        ("nothing", "known: bbh, gsm8k"),
        ("reasoning_gym:chain_su", "did you mean 'chain_sum'"),
        ("reasoning_gym:lcm?min_number=1", "unknown parameter 'min_number'"),
        ("reasoning_gym:lcm/tests", "did you mean 'test'"),
    ],
)
def test_an_unknown_task_is_one_line_that_says_what_to_do(folder, name, said):
    with pytest.raises(UserError, match=said) as error:
        load_task(name)
    assert "\n" not in str(error.value)


def test_without_a_data_folder_the_message_names_the_variable(monkeypatch):
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    with pytest.raises(UserError, match=r"give a \.jsonl file .* set COTERIE_DATA"):
        load_task("gsm8k")


def test_contracts_are_overridden_by_kind(folder):
    (query,) = load_task("gsm8k", limit=1, contracts={"math": "answer", "qa": "json"}).queries
    assert query.contract == "answer"
    assert query.messages[-1].role == "assistant"
    (other,) = load_task("bbh", contracts={"math": "answer"}).queries
    assert other.contract == KINDS["qa"].contract


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"contracts": {"maths": "boxed"}}, "did you mean 'math'"),
        ({"contracts": {"math": "box"}}, "contract of math: unknown contract 'box'; did you mean 'boxed'"),
        ({"limit": 0}, "limit must be at least 1"),
    ],
)
def test_wrong_options_are_config_errors(folder, options, said):
    with pytest.raises(ConfigError, match=said):
        load_task("gsm8k", **options)


def test_generators_are_tasks_with_parameters():
    name = "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
    task = load_task(name, limit=8)
    assert task.name == name
    assert len(task.queries) == 8
    assert all(query.reference["config"]["max_digits"] == 1 for query in task.queries)
    assert load_task(name, limit=8) == task
    assert load_task(name, limit=8, seed=1) != task
    assert (
        load_task("reasoning_gym:lcm", limit=1, contracts={"reasoning_gym": "boxed"}).queries[0].contract == "boxed"
    )


def test_train_and_test_of_a_generator_share_no_question_whatever_the_seed():
    """Small pools: the split is by question, not by luck."""
    name = "reasoning_gym:chain_sum{}?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
    train = {q.text for s in (0, 1) for q in load_task(name.format("/train"), limit=40, seed=s).queries}
    test = {q.text for s in (0, 1, 2) for q in load_task(name.format(""), limit=40, seed=s).queries}
    assert train
    assert test
    assert not train & test
    assert load_task(name.format("/test"), limit=9).queries == load_task(name.format(""), limit=9).queries


def test_a_small_pool_gives_what_it_has():
    queries = load_task("reasoning_gym:count_bits/train?min_n=1&max_n=9").queries
    assert 0 < len(queries) < 9
    assert len({query.id for query in queries}) == len(queries)


def test_known_tasks_load(folder):
    names = known_tasks()
    assert names[:3] == ["bbh", "gsm8k", "gsm8k/train"]
    assert "reasoning_gym:chain_sum" in names
    assert load_task(names[2], limit=1).queries


def test_known_tasks_without_the_extra_are_the_benchmarks(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    names = known_tasks()
    own = [name for name in names if not name.startswith(("hub:", "operands:"))]
    assert own == ["bbh", "gsm8k", "gsm8k/train"]
    assert {"hub:gsm8k", "operands:larger"} <= set(names)
    with pytest.raises(UserError, match=r"pip install 'coterie\[tasks\]'"):
        load_task("reasoning_gym:lcm")


def test_every_slice_loads_and_its_gold_passes(data, monkeypatch):
    """The gold, written in the form that the contract asks for, is graded as right."""
    monkeypatch.setenv("COTERIE_DATA", str(data))
    for name in ("gsm8k", "bbh", "hotpotqa", "arc_challenge", "mmlu_pro", "strategyqa", "squad"):
        for query in load_task(name, limit=25).queries:
            assert verify(_said(query), query).verdict == "pass", query.id


def _said(query: Query) -> str:
    gold = query.reference.get("answer") or query.reference["answers"][0]
    forms = {"boxed": "\\boxed{{{}}}", "letter": "ANSWER: {}"}
    return forms.get(query.contract, " {}").format(gold)


def test_reference_solutions_pass(data, monkeypatch):
    from coterie.tasks.items import read_items

    monkeypatch.setenv("COTERIE_DATA", str(data))
    for name in ("mbpp", "humaneval"):
        items = read_items(data / name / "test.jsonl")[:5]
        for item, query in zip(items, load_task(name, limit=5).queries, strict=True):
            assert verify(f"```python\n{item.meta['reference_solution']}\n```", query).verdict == "pass", query.id


@pytest.mark.parametrize("contract", ["answer", "boxed", "json"])
def test_every_literal_of_cruxeval_is_read_back(data, contract):
    """Quotes, blanks and full stops belong to a literal, whatever a reader of short answers takes off."""
    forms = {"answer": " {}", "boxed": "\\boxed{{{}}}"}
    for split in ("train", "test"):
        for item in read_items(data / "cruxeval" / f"{split}.jsonl"):
            gold = item.answer[0]
            text = json.dumps({"answer": gold}) if contract == "json" else forms[contract].format(gold)
            assert catalog.verify(text, to_query(item, contract)).verdict == "pass", gold
