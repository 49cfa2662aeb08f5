"""Multiple choice: which option an answer names, and how options are shown."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.tasks.choice import label, render, same, verify
from coterie.tasks.extract import CONTRACTS

CITIES = ["Rome", "Paris", "New York", "York"]


def grade(answer, gold="B", choices=CITIES):
    return verify(answer, answer or "", {"answer": gold, "choices": choices})


def read_and_grade(text, gold="B", choices=CITIES):
    return verify(CONTRACTS["letter"].extract(text), text, {"answer": gold, "choices": choices})


def test_options_are_rendered_one_a_line():
    assert render("Where?", ["Rome", "Paris"]) == "Where?\n\nA. Rome\nB. Paris"


@pytest.mark.parametrize(
    "answer",
    ["B", "b", "(B)", "[B]", "B.", "B)", "B. Paris", "(B) Paris", "B: Paris", "B - Paris", "Paris", "paris.",
    '"Paris"',
     "**B**", r"\text{(B)}", r"\boxed{B}", "$B$", "option B", "The answer is B.", "answer: Paris",
     "(B) because (A) is wrong", "B because A is wrong", "Paris, because it is the capital of France"],
)  # fmt: skip
def test_accepted_forms(answer):
    """G7."""
    assert grade(answer).verdict == "pass"


@pytest.mark.parametrize("answer", ["A", "(A) because (B) is wrong", "Rome", "A. Rome", "York"])
def test_another_option_is_wrong(answer):
    score = grade(answer)
    assert (score.verdict, score.value, score.reason) == ("fail", 0.0, "another option")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "",
        "  ",
        "Z",
        "A or B",
        "A, B",
        "A train leaves at noon",
        "### Step 1",
        "London",
        "I do not know",
        "B. Rome",
        "AB",
    ],
)
def test_what_names_no_option_is_counted_apart(answer):
    """G4, G7, G13, G21: missing, outside the set, two at once, an article, letter against text."""
    score = grade(answer)
    assert (score.verdict, score.answer, score.reason) == ("fail", None, "no answer")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Let us see. A is tempting.\nANSWER: B", "pass"),
        ("ANSWER: A\nNo.\nANSWER: B", "pass"),
        ("A", "fail"),
        ("The answer is B.", "pass"),
        ("(B) because (A) is wrong", "pass"),
        ("Paris", "pass"),
        ("ANSWER: Paris", "pass"),
        ("B", "pass"),
    ],
)
def test_reader_and_verifier_together(text, verdict):
    """G7, G13."""
    assert read_and_grade(text).verdict == verdict


def test_the_longer_option_text_wins():
    assert label("New York, I think", CITIES) == "C"
    assert label("York", CITIES) == "D"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("yes", "A"),
        ("Yes, it is.", "A"),
        ("True", "A"),
        ("No.", "B"),
        ("false", "B"),
        ("No one knows", None),
        ("perhaps", None),
    ],
)
def test_synonyms_of_a_closed_label_set(answer, found):
    """G21."""
    assert label(answer, ["Yes", "No"]) == found


def test_options_that_are_numbers_are_matched_by_text():
    assert label("2", ["1", "2", "3"]) == "B"
    assert label("$2$", ["1", "2", "3"]) == "B"
    assert label("7", ["1", "2", "3"]) is None


def test_equal_option_texts_are_not_told_apart():
    assert label("Rome", ["Rome", "Rome"]) is None
    assert label("B", ["Rome", "Rome"]) == "B"


def test_an_option_that_is_an_article_phrase():
    assert label("A train", ["A bus", "A train"]) == "B"


@pytest.mark.parametrize("reference", [{}, {"answer": "E", "choices": CITIES}, {"answer": None, "choices": CITIES}])
def test_a_reference_without_a_valid_option_is_an_error(reference):
    score = verify("A", "A", reference)
    assert (score.verdict, score.value) == ("error", None)


def test_votes_are_the_same_by_letter_else_by_text():
    """G11."""
    assert same("B", "(b)")
    assert same("B. Paris", "B")
    assert same("Paris.", "paris")
    assert not same("A", "B")
    assert not same("Paris", "Rome")


@settings(max_examples=200, deadline=None)
@given(answer=st.text(max_size=200), choices=st.lists(st.text(max_size=20), max_size=6))
def test_any_text_gets_a_verdict(answer, choices):
    assert grade(answer, "A", choices or ["x"]).verdict in ("pass", "fail")
    assert same(answer, answer)


@pytest.mark.parametrize(
    "source", ["arc_challenge", "mmlu_pro", "logicbench", "logicgrid", "bbh", "agieval", "strategyqa"]
)
def test_real_options_are_found_by_letter_and_by_text(data, source):
    """Every gold as a letter, in brackets, with its text; another letter never passes."""
    items = [json.loads(line) for line in (data / source / "test.jsonl").read_text().splitlines()]
    for item in (item for item in items if item["task"] == "choice"):
        gold, choices = item["answer"], item["choices"]
        text = choices[ord(gold) - 65]
        other = random.Random(item["id"]).choice(
            [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(choices)] if c != gold]
        )
        for answer in (gold, f"({gold})", f"{gold}. {text}", f"ANSWER: {gold}"):
            assert grade(answer, gold, choices).verdict == "pass", (item["id"], answer)
        if choices.count(text) == 1 and len(text) > 1:
            assert grade(text, gold, choices).verdict == "pass", (item["id"], text)
        assert grade(other, gold, choices).verdict == "fail", (item["id"], other)
