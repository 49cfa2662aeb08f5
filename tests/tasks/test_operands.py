"""Questions about two numbers: every pair once, split by the unordered pair across all domains."""

import pytest

from coterie.errors import UserError
from coterie.tasks import operands
from coterie.tasks.catalog import known_tasks, load_task, verify

RIGHT = {"sum": "12", "difference": "2", "product": "35", "larger": "7", "smaller": "5", "first": "7", "last": "5"}
RIGHT |= {"red": "7", "blue": "5", "green": "7", "yellow": "5"}


def pair_of(query):
    return tuple(sorted(map(int, query.id.split("-")[1:])))


@pytest.mark.parametrize("domain", sorted(operands.DOMAINS))
def test_a_domain_grades_by_its_own_rule(domain):
    item = operands._item(domain, 7, 5)
    assert item.answer == RIGHT[domain]
    assert "7" in item.question
    query = load_task(f"operands:{domain}", limit=1, contracts={"math": "answer"}).queries[0]
    assert verify(f" {query.reference['answer']}", query).verdict == "pass"
    assert verify(" 999", query).verdict == "fail"
    assert query.domain == domain


def test_no_unordered_pair_is_in_both_splits_of_any_two_domains():
    train = {d: {pair_of(q) for q in load_task(f"operands:{d}/train").queries} for d in operands.DOMAINS}
    test = {d: {pair_of(q) for q in load_task(f"operands:{d}").queries} for d in operands.DOMAINS}
    assert all(not first & second for first in train.values() for second in test.values())
    assert all(len(train[d]) + len(test[d]) == 435 for d in operands.DOMAINS)
    assert len({frozenset(pairs) for pairs in test.values()}) == 1


def test_order_and_sides_hang_on_the_seed_alone():
    first, again = (load_task("operands:larger", seed=3).queries for _ in range(2))
    other = load_task("operands:larger", seed=4).queries
    assert first == again
    assert [q.id for q in first] != [q.id for q in other]
    assert {pair_of(q) for q in first} == {pair_of(q) for q in other}
    sides = [int(q.id.split("-")[1]) > int(q.id.split("-")[2]) for q in first]
    assert 0.3 < sum(sides) / len(sides) < 0.7


def test_several_rules_take_turns():
    both = load_task("operands:red+blue/train", limit=7).queries
    assert [q.domain for q in both] == ["red", "blue"] * 3 + ["red"]
    alone = load_task("operands:blue/train", limit=3).queries
    assert [q.id for q in both[1::2]] == [q.id for q in alone]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("operands:red+red", "twice"),
        ("operands:+/train", "unknown domain"),
        ("operands:sum/train?high=3&high=4", "says 'high' twice"),
        ("reasoning_gym:chain_sum?min_terms=2&min_terms=3", "says 'min_terms' twice"),
        ("mine.jsonl?answer=a&answer=b", "says 'answer' twice"),
        ("operands:red+bleu", "did you mean 'operands:blue'|did you mean 'blue'"),
        ("operands:largest", "did you mean"),
        ("operands:larger/tset", "did you mean"),
        ("operands:larger?hihg=9", "did you mean"),
        ("operands:larger?low=9&high=3", "low < high"),
        ("operands:larger?low=x", "whole numbers"),
        ("operands:larger?low=true&high=3", "whole numbers"),
    ],
)
def test_a_wrong_name_is_one_clear_line(name, why):
    with pytest.raises(UserError, match=why) as found:
        load_task(name)
    assert "\n" not in str(found.value)


def test_they_are_listed():
    assert "operands:larger" in known_tasks()
