"""The digest of a question: the same for the same item, whatever its dress, and another for another item."""

import pytest

from coterie.tasks.contamination import digest, overlap, without_seen
from coterie.tasks.extract import CONTRACTS
from coterie.tasks.items import Item
from coterie.tasks.prompts import to_query
from coterie.types import Message, Query


def query(question, contract=None, **fields):
    table = {"id": "a", "source": "s", "task": "math", "question": question, "answer": "1"}
    return to_query(Item.model_validate(table | fields), contract)


@pytest.mark.parametrize("contract", sorted(CONTRACTS))
def test_the_contract_does_not_count(contract):
    assert digest(query("What is 3 - 2?", contract)) == digest(query("What is 3 - 2?", "raw"))
    choice = {"task": "choice", "choices": ["x", "y"], "answer": "A"}
    assert digest(query("Which?", contract, **choice)) == digest(query("Which?", "raw", **choice))


@pytest.mark.parametrize("other", ["what IS  3 - 2", "What is 3 - 2?\n", "“What is 3 - 2”!", "What is 3 - ２?"])
def test_case_space_and_the_punctuation_of_sentences_do_not_count(other):
    assert digest(query(other)) == digest(query("What is 3 - 2?"))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("What is 3 - 2?", "What is 3 + 2?"),
        ("Round 1.5", "Round 15"),
        ("Close [ ( {", "Close { ( ["),
        ("not ( True ) and False", "not ( True and False )"),
        ("Is x < 3?", "Is x > 3?"),
        ("Compute 2^3", "Compute 23"),
    ],
)
def test_what_changes_the_question_counts(a, b):
    assert digest(query(a)) != digest(query(b))


def test_the_order_of_options_does_not_count_but_the_options_do():
    def choice(*options):
        return query("Which?", task="choice", choices=list(options), answer="A")

    assert digest(choice("red", "blue")) == digest(choice("Blue", "red."))
    assert digest(choice("red", "blue")) != digest(choice("red", "green"))
    assert digest(choice("red", "two\nlines")) == digest(choice("two\nlines", "red"))


def test_a_recorded_query_with_rendered_options_is_the_same_item():
    asked = Query(
        id="x",
        messages=(Message(role="user", content="Which?\n\nA. blue\nB. red"),),
        task="recorded",
        contract="raw",
    )
    assert digest(asked) == digest(query("Which?", task="choice", choices=["red", "blue"], answer="A"))


def test_context_is_part_of_the_question():
    context = [{"title": "", "text": "A gull."}]
    assert digest(query("Who?", task="qa", context=context)) != digest(query("Who?", task="qa"))


def test_test_items_never_enter_training():
    train = [query("One?"), query("Two?"), query("two"), query("Three?")]
    test = [query("TWO?", "answer"), query("Four?")]
    kept, dropped = without_seen(train, test)
    assert [q.text.split("?")[0] for q in kept] == ["One", "Three"]
    assert len(dropped) == 2
    assert overlap(train, test).pairs == ((1, 0), (2, 0))
    assert without_seen([], test) == ((), ())
