"""Short answers: exact match, token F1, literals."""

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.tasks.extract import CONTRACTS
from coterie.tasks.qa import f1, general, literal, same, verify


def grade(answer, *golds, metric=None, text=None):
    return verify(answer, answer or "" if text is None else text, {"answers": list(golds), "metric": metric})


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("The Eiffel Tower.", "eiffel tower", "pass"),
        ("an  apple", "Apple", "pass"),
        ("23-16", "2316", "pass"),
        ("🐧", "🐧", "pass"),
        ("!?", "?!", "fail"),
        ("the", "the", "pass"),
        ("Rome", "Paris", "fail"),
    ],
)
def test_squad_normalisation_decides_exact_match(answer, gold, verdict):
    assert grade(answer, gold).verdict == verdict


def test_any_accepted_answer_counts_and_f1_stands_beside():
    assert grade("Paris", "Rome", "paris").value == 1.0
    score = grade("the city of Paris", "Paris France")
    assert (score.verdict, score.value, score.reason) == ("fail", 0.0, "F1 0.40")


def test_f1_is_the_value_where_it_is_the_metric():
    """By hand: {city, of, paris} against {paris, france}: 2 * 1 / (3 + 2)."""
    score = grade("the city of Paris", "Paris France", "Rome", metric="f1")
    assert (score.verdict, score.value) == ("fail", pytest.approx(0.4))
    assert grade("Paris!", "paris", metric="f1").value == 1.0


def test_f1_counts_repeated_tokens_and_treats_yes_and_no_as_closed():
    assert f1("a b b", ["b b b"]) == pytest.approx(2 * 2 / 5)
    assert f1("no it is", ["no"]) == 0.0
    assert f1("", ["x"]) == 0.0


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("Answer: valid", "valid", "pass"),
        ("(b)", "B", "pass"),
        ("((B))", "b", "pass"),
        ("[valid]", "valid", "pass"),
        ("> )", "> )", "pass"),
        (">  )", "> )", "pass"),
        (") >", "> )", "fail"),
        ("(a) or (b)", "a) or (b", "fail"),
        ("Valid", "valid", "fail"),
        ("-19", "19", "fail"),
    ],
)
def test_exact_follows_the_general_rule(answer, gold, verdict):
    """docs/methods.md, rewards: prefix, outer brackets, single letters, spaces; nothing else is forgiven."""
    assert grade(answer, gold, metric="exact").verdict == verdict


def test_general_leaves_brackets_that_belong_to_the_text():
    assert general("(a)(b)") == "(a)(b)"
    assert general("Answer: { x }") == "X"


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("[1,2]", "[1, 2]", "pass"),
        ('"a"', "'a'", "pass"),
        ("`'a'`", "'a'", "pass"),
        ("```python\n{'b': 1, 'a': 2}\n```", "{'a': 2, 'b': 1}", "pass"),
        ("{1, 2}", "{2, 1}", "pass"),
        ("Answer: None", "None", "pass"),
        ("True", "1", "fail"),
        ("[True]", "[1]", "fail"),
        ("1.0", "1", "fail"),
        ("(1, 2)", "[1, 2]", "fail"),
        ("{True: 0}", "{1: 0}", "fail"),
        ("'1'", "1", "fail"),
        ("{}", "set()", "fail"),
        ("f(1)", "1", "fail"),
        ("yes", "'yes'", "fail"),
    ],
)
def test_literals_are_equal_in_value_and_type(answer, gold, verdict):
    assert grade(answer, gold, metric="python_literal").verdict == verdict


def test_quotes_that_the_short_reader_took_off_are_seen_in_the_text():
    text = " '5'.\n"
    answer = CONTRACTS["answer"].extract(text)
    assert answer == "5"
    assert grade(answer, "'5'", metric="python_literal", text=text).verdict == "pass"
    assert grade(answer, "5", metric="python_literal", text=text).verdict == "fail"
    assert grade("5", "5", metric="python_literal", text=" 5").verdict == "pass"


@pytest.mark.parametrize(
    "text",
    ["(" * 90, "[" * 5000 + "]" * 5000, "-" * 9000 + "1", "- " * 9000 + "1",
    "{" * 3000, "9" * 9000, "'" + "\\" * 9001, "\x00",
     "1" + "+1j" * 3000, "(" * 9999, "1if", "x" * 30_000, "[" * 59 + "]" * 59],
)  # fmt: skip
def test_hostile_literals_fail_and_never_raise(text):
    assert grade(text, "[1]", metric="python_literal").verdict == "fail"
    assert not same(text, "[1]")
    assert same(text, text)


@pytest.mark.parametrize("metric", [None, "f1", "exact", "python_literal"])
@pytest.mark.parametrize("answer", [None, "", " \n"])
def test_a_missing_answer_is_never_correct(metric, answer):
    """G4."""
    score = grade(answer, "", metric=metric)
    assert (score.verdict, score.value, score.reason) == ("fail", 0.0, "no answer")


@pytest.mark.parametrize("reference", [{}, {"answers": []}, {"answers": ["x"], "metric": "bleu"}])
def test_an_unusable_reference_is_an_error(reference):
    score = verify("x", "x", reference)
    assert (score.verdict, score.value) == ("error", None)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [("The Paris", "paris.", True), ("[1,2]", "[1, 2]", True), ("[1,2]", "[12]", False), ("-5", "5", False),
    ("> )", ")", False),
     ("'a'", '"a"', True), ("True", "1", False), ("Rome", "Paris", False)],
)  # fmt: skip
def test_votes(a, b, equal):
    """G11."""
    assert same(a, b) is same(b, a) is equal


@settings(max_examples=200, deadline=None)
@given(answer=st.text(max_size=200), metric=st.sampled_from([None, "f1", "exact", "python_literal"]))
def test_any_text_gets_a_verdict(answer, metric):
    score = grade(answer, "['x']", metric=metric)
    assert score.verdict in ("pass", "fail")
    assert 0.0 <= score.value <= 1.0


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda x: st.lists(x) | st.tuples(x, x)
    )
)
def test_written_values_are_read_back(value):
    assert literal(f"```python\n{value!r}\n```") == (value,)
    assert grade(repr(value), repr(value), metric="python_literal").verdict == "pass"


def test_real_gold_literals_verify_and_changed_ones_do_not(data):
    """CRUXEval: itself, re-printed, in a fence; wrapped in a list it is another value."""
    files = (data / "cruxeval" / name for name in ("train.jsonl", "test.jsonl"))
    golds = [json.loads(line)["answer"][0] for file in files for line in file.read_text().splitlines()]
    assert len(golds) == 600
    for gold in golds:
        for answer in (gold, repr(ast.literal_eval(gold)), f"```python\n{gold}\n```", f" `{gold}`"):
            assert grade(answer, gold, metric="python_literal").verdict == "pass", (gold, answer)
        assert grade(f"[{gold}]", gold, metric="python_literal").verdict == "fail", gold


@pytest.mark.parametrize(
    "source", ["hotpotqa", "squad", "trivia_qa", "natural_qa", "musique", "2wikimultihopqa", "bbh"]
)
def test_real_golds_verify_against_themselves(data, source):
    items = [json.loads(line) for line in (data / source / "test.jsonl").read_text().splitlines()]
    for item in (item for item in items if item["task"] == "qa"):
        metric, golds = item["meta"].get("metric"), item["answer"]
        for gold in golds:
            assert grade(gold, *golds, metric=metric).value == 1.0, (item["id"], gold)
        assert grade(golds[0] + " zebra", *golds, metric=metric).verdict == "fail", item["id"]
