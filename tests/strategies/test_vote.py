"""The prefix rule and the vote, against values worked out by hand."""

from dataclasses import replace

import pytest

from coterie.errors import BackendError
from coterie.strategies.vote import TopK, Vote, prefix_reaching, weighted_vote
from coterie.types import Completion, Message, Query, Routing, State, Turn, spec


@spec
class Fixed:
    """A router that says what it was given."""

    scores: dict

    def route(self, state: State) -> Routing:
        total = sum(self.scores.values())
        return Routing(weights={n: s / total for n, s in self.scores.items()}, scores=self.scores)


def turn(index, agent, answer):
    completion = Completion(text=str(answer))
    return Turn(
        index=index, agent=agent, role="solver", revision="r", messages=(), completion=completion, answer=answer
    )


def same(a, b):
    return float(a) == float(b)


def query(contract="answer"):
    return Query(id="q", messages=(Message(role="user", content="?"),), task="math", contract=contract)


@pytest.mark.parametrize(
    ("threshold", "prefix"),
    [
        (0.5, ["a"]),
        (0.6, ["a"]),
        (0.61, ["a", "b"]),
        (0.9, ["a", "b"]),
        (0.95, ["a", "b", "c"]),
        (5.0, ["a", "b", "c"]),
    ],
)
def test_the_shortest_prefix_reaching_the_threshold(threshold, prefix):
    """Eqs. 2-3: f = .6, .3, .05 sums to .6, .9, .95; all are asked where even those fall short."""
    routing = Routing(weights={"a": 0.6, "b": 0.35, "c": 0.05}, scores={"a": 0.6, "b": 0.3, "c": 0.05})
    assert prefix_reaching(routing, routing.ranked(), threshold) == prefix


def test_answers_are_grouped_by_equivalence_and_weighed():
    """G10, G11: 1/2 spelled twice is one answer; .3 + .3 beats .5."""
    turns = [turn(0, "a", "0.5"), turn(1, "b", "0.50"), turn(2, "c", "7")]
    assert weighted_vote(turns, {"a": 0.3, "b": 0.31, "c": 0.5}, same) is turns[1]
    assert weighted_vote(turns, {"a": 0.1, "b": 0.1, "c": 0.5}, same) is turns[2]


def test_a_tie_goes_to_the_group_with_the_highest_familiarity():
    """C25: .2 + .3 = .5, and .5 is the higher single one."""
    turns = [turn(0, "a", "1"), turn(1, "b", "1"), turn(2, "c", "2")]
    assert weighted_vote(turns, {"a": 0.25, "b": 0.25, "c": 0.5}, same) is turns[2]
    assert weighted_vote(turns, {"a": 0.0, "b": 0.0, "c": 0.0}, same) is turns[0]


def test_no_answer_abstains_and_all_abstaining_gives_the_most_familiar():
    """C25, G4: two without an answer do not agree with one another."""
    turns = [turn(0, "a", None), turn(1, "b", None), turn(2, "c", "3")]
    assert weighted_vote(turns, {"a": 0.9, "b": 0.9, "c": 0.1}, same) is turns[2]
    assert weighted_vote(turns[:2], {"a": 0.1, "b": 0.9}, same) is turns[1]
    assert weighted_vote([], {}, same) is None


def test_a_plain_vote_counts_heads():
    turns = [turn(i, "abcde"[i], a) for i, a in enumerate(["42", "42", "43", "42", "43"])]
    assert weighted_vote(turns, {}, same).answer == "42"


async def test_vote_asks_the_prefix_only(scripted_team):
    router = Fixed(scores={"a": 0.5, "b": 0.3, "c": 0.1})
    team = scripted_team({"a": "1", "b": "2", "c": "2"}, router=router, strategy=Vote(threshold=0.7))
    trace = await team.solve(query())
    assert [t.agent for t in trace.turns] == ["a", "b"]
    assert trace.answer == "1"


async def test_the_next_in_order_stand_in_for_those_that_fail(scripted_team):
    """W15: the router's own next choice, until the answered familiarity reaches the threshold."""
    router = Fixed(scores={"a": 0.6, "b": 0.3, "c": 0.2, "d": 0.1})
    replies = {"a": BackendError("down"), "b": "2", "c": "2", "d": "2"}
    team = scripted_team(replies, router=router, strategy=Vote(threshold=0.5))
    trace = await team.solve(query())
    assert [t.agent for t in trace.turns] == ["b", "c"]
    assert [f.agent for f in trace.failures] == ["a"]


async def test_an_open_ended_query_goes_to_the_most_familiar_alone(scripted_team):
    """C26."""
    router = Fixed(scores={"a": 0.2, "b": 0.3})
    team = scripted_team({"a": "A poem.", "b": "An ode."}, router=router, strategy=Vote(threshold=0.7))
    open_query = Query(
        id="o", messages=(Message(role="user", content="Write."),), task="instruction", contract="raw"
    )
    trace = await team.solve(open_query)
    assert [t.agent for t in trace.turns] == ["b"]
    both = replace(team, strategy=Vote(threshold=0.7, all_on_open=True))
    trace = await both.solve(open_query)
    assert trace.text == "An ode."
    assert len(trace.turns) == 2


async def test_top_k_asks_exactly_k(scripted_team):
    router = Fixed(scores={"a": 0.5, "b": 0.4, "c": 0.3})
    for k, n in ((1, 1), (2, 2), (None, 3), (9, 3)):
        team = scripted_team({"a": "1", "b": "2", "c": "2"}, router=router, strategy=TopK(k=k))
        assert len((await team.solve(query())).turns) == n
