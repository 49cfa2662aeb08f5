"""Rows of the faults that others had, for every mixture over the real `http` backend: upstream calls are exact.

| row | test here, or the one that has it already |
|---|---|
| B1 B3 B5 B15 B18 B62 B66 | a_lost_proposer_costs_its_calls_and_no_other |
| B4 | samples_that_a_server_leaves_out_are_asked_for_apart |
| B5 B10 | below_the_quorum_nobody_else_is_asked |
| B6 B66 | where_all_fail_nobody_judges |
| B8 | one_survivor_is_judged_and_merged_like_many |
| B9 B10 B63 | a_lost_judge_or_aggregator_costs_its_fallbacks |
| B11 B12 B81 | usage_is_counted_once_however_often_it_is_sent |
| B13 | without_usage_every_call_is_an_estimate |
| B14 B19 B20 | test_family: the_cap_on_members..., quotations are labelled (no fault of a server) |
| B17 | a_cut_answer_is_told_to_be_cut |
| B59 | tries_do_not_multiply, a_try_that_is_made_again_is_one_more |
| B60 | a_hanging_proposer_is_let_go_of |
| B65 | the_querys_deadline_holds_over_all_steps; settings in test_family |

The gateway's: what a client is sent of B10 (error text, `tools: []`), B12 (chunks) and B17 (status of the reply).
"""

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from mixtures import QUERY, boxed
from test_family import FAMILY, MERGING, WIDE, each, judge, settings
from test_vote import Fixed

from coterie.backends.endpoint import Endpoint
from coterie.backends.http import Http
from coterie.config import build
from coterie.pool import pool_of
from coterie.rollout import Limits
from coterie.team import Backends, Team
from coterie.types import Message

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))
from http_parts import QUICK, FakeClock, agent
from test_traps_http import BAD
from upstream import DONE, Reply, answer, chunk, refusal, running, stream

PLAN = {name: calls for name, (_, calls) in FAMILY.items()}
DOWN = refusal(500, None, "boom")
FAULTS = BAD | {str(status): refusal(status, None, "boom") for status in (404, 408, 409, 425, 429, 500, 503)}
NOWHERE = "http://127.0.0.1:9/v1"


def text_of(seen):
    """What the agent says, by its role; other seeds and prompts are answered otherwise."""
    name = seen.model
    if name == "r":
        return judge(None, [Message(role=m["role"], content=m["content"]) for m in seen.body["messages"]], 0)
    return boxed("7" if name == "m" else f"{name}{seen.body['seed'] % 997}")


def says(seen):
    return answer(text_of(seen))


@asynccontextmanager
async def mixture(name, faults=None, *, rules=None, clock=True, **strategy):
    """A team of three solvers, a reviewer and an aggregator at one upstream, and the upstream."""
    scripts = {who: [(faults or {}).get(who, says)] for who in "abcrm"}
    async with running(scripts) as upstream:
        options = {"retries": 0, "backoff": 0.01, "deadlines": QUICK, "concurrency": 16, **(rules or {})}
        urls = {"e": upstream.base_url, "f": NOWHERE}
        backend = Http(endpoints={where: Endpoint(base_url=url, **options) for where, url in urls.items()})
        if clock:
            object.__setattr__(backend, "clock", FakeClock().clock())
        roles = {"r": "reviewer", "m": "aggregator"}
        agents = [replace(agent(who, name=who), role=roles.get(who, "solver"), revision="") for who in "abcrm"]
        team = Team(
            pool=pool_of(agents),
            router=Fixed(scores={"a": 0.6, "b": 0.3, "c": 0.1}),
            strategy=build("strategy", settings(name, **strategy)),
            backends=Backends(opened={"http": backend}),
        )
        try:
            yield team, upstream
        finally:
            await backend.aclose()


async def solved(name, faults=None, **parts):
    async with mixture(name, faults, **parts) as (team, upstream):
        return await team.solve(QUERY), upstream


def prompts(upstream):
    return "\n".join(message["content"] for seen in upstream.chats() for message in seen.body["messages"])


# --- proposers -----------------------------------------------------------------------------------------

LOST = {
    "rem_moa": 2 * 3 + 2 + 1,
    "moa": 2 * 3 + 1,
    "rmoa": 3 * 3 + 3,
    "attention_moa": 2 * (3 + 2 * 2 + 2 + 1) + 1,
    "smoa": 2 * (3 + 1) + 1,
    "self_moa": 4 + 4 + 1,
    "self_refine": 1 + 1 + 2 * 2,
    "debate": 3 + 2,
    "rank_and_fuse": 3 + 2 + 1,
}
"""Calls where the first solver never answers: it is asked as before, and nobody about what it did not say."""
OWN = {"self_moa": 4, "self_refine": 1, "debate": 1, "rank_and_fuse": 1, "rmoa": 3}
"""Calls of that solver; else one a layer, of two."""


@each
async def test_calls_are_exactly_the_plan(name):
    trace, upstream = await solved(name)
    assert (upstream.total(), len(trace.turns), trace.stopped) == (PLAN[name], PLAN[name], "done")
    assert not trace.degraded
    assert upstream.most_inside <= {"attention_moa": 9, "rank_and_fuse": 6, "self_moa": 4}.get(name, 3)


@each
async def test_a_lost_proposer_costs_its_calls_and_no_other(name):
    """B1, B3, B5, B15, B18, B62, B66: no answer, whatever comes back in its place, and the trace says of whom."""
    own = OWN.get(name, 2)
    async with mixture(name) as (team, upstream):
        for fault, reply in FAULTS.items():
            upstream.seen.clear()
            upstream.scripts["a"] = [reply]
            trace = await team.solve(QUERY)
            assert (fault, upstream.total(), upstream.total("a")) == (fault, LOST[name], own)
            assert (fault, trace.stopped, len(trace.turns)) == (fault, "done", LOST[name] - own)
            assert [f.agent for f in trace.failures] == ["a"] * own
            assert all(f.message for f in trace.failures)
            assert "a" not in {turn.agent for turn in trace.turns}
            said = prompts(upstream)
            assert not [word for word in ("None", "null", "boom", "<html", "hm\n") if word in said]


@each
async def test_a_proposer_that_no_connection_reaches_is_lost_like_any_other(name):
    """B62."""
    async with mixture(name) as (team, upstream):
        team.pool = team.pool.with_agents(replace(team.pool["a"], model="http:f/a"))
        trace = await team.solve(QUERY)
        assert upstream.total() == LOST[name] - OWN.get(name, 2)
        assert {(f.agent, f.kind) for f in trace.failures} == {("a", "Unreachable")}
        assert trace.stopped == "done"


SURVIVED = {
    "rem_moa": PLAN["rem_moa"],
    "moa": PLAN["moa"],
    "rmoa": PLAN["rmoa"],
    "attention_moa": 2 * (3 + 1 + 1 + 1) + 1,
    "smoa": PLAN["smoa"],
    "debate": 3 + 1,
    "rank_and_fuse": 3 + 1,
}


@pytest.mark.parametrize("name", WIDE)
async def test_one_survivor_is_judged_and_merged_like_many(name):
    """B8: the pool's reviewer and aggregator are asked for one answer too; one alone has no pairs to compare."""
    trace, upstream = await solved(name, {"a": DOWN, "b": BAD["blank"]})
    assert (upstream.total(), trace.stopped) == (SURVIVED[name], "done")
    assert trace.turns[trace.final].agent == ("m" if name in MERGING else "c")
    assert not trace.degraded


ALL = {"self_moa": 2 * 4, "self_refine": 2}
"""Calls where no solver answers: of the first choice and the next; else the first layer's three."""


@each
async def test_where_all_fail_nobody_judges(name):
    """B6, B66: at once, with every reason."""
    missing = refusal(404, "model_not_found", "The model `b` does not exist")
    trace, upstream = await solved(name, {"a": DOWN, "b": missing, "c": DOWN})
    assert (upstream.total(), upstream.total("r"), upstream.total("m")) == (ALL.get(name, 3), 0, 0)
    assert (trace.stopped, trace.final, trace.text) == ("failed", None, "")
    assert len(trace.failures) == ALL.get(name, 3)
    assert {f.kind for f in trace.failures} == {"ServerFault", "UnknownModel"}


@pytest.mark.parametrize("name", WIDE)
async def test_below_the_quorum_nobody_else_is_asked(name):
    """B5, B10: one good, one blank, one call of a tool, a quorum of two; what was paid for is on the trace."""
    faults = {"b": BAD["blank"], "c": BAD["tools"]}
    trace, upstream = await solved(name, faults, panel={"quorum": 2})
    assert (upstream.total(), trace.stopped, trace.final) == (3, "failed", None)
    assert [f.kind for f in trace.failures] == ["EmptyAnswer"] * 2
    assert trace.tokens == 3 * 10


# --- reviewers and aggregators -------------------------------------------------------------------------


@each
async def test_a_lost_judge_is_asked_no_more_than_planned(name):
    """B10, B59: its failure is marked and the answer stands; a reply that says nothing is asked for once again."""
    judged = name in ("rem_moa", "smoa", "rank_and_fuse")
    trace, upstream = await solved(name, {"r": DOWN})
    assert (upstream.total(), bool(trace.degraded)) == (PLAN[name], judged)
    assert trace.tokens == 10 * len(trace.turns) > 0
    trace, upstream = await solved(name, {"r": answer("I like them all.")})
    assert upstream.total() == PLAN[name] + (2 if name == "rem_moa" else 0)
    assert trace.answer


MERGES = {"rem_moa": 1, "moa": 1, "rmoa": 1, "attention_moa": 2, "smoa": 1, "self_moa": 1, "rank_and_fuse": 1}
"""Merged answers of a query, each of which another agent may write instead."""


@each
@pytest.mark.parametrize("fallbacks", [0, 1, 2])
async def test_a_lost_aggregator_costs_its_fallbacks(name, fallbacks):
    """B9, B10, B63: one that answered stands in, once, and not at all where that is switched off."""
    trace, upstream = await solved(name, {"m": DOWN}, panel={"fallbacks": fallbacks})
    stood_in = MERGES.get(name, 0) * min(fallbacks, 1)
    assert upstream.total() == PLAN[name] + stood_in
    assert sum(t.part == "aggregator" for t in trace.turns) == stood_in
    assert bool(trace.degraded) == (name in MERGES)
    assert trace.turns[trace.final].agent in "abc"


# --- tries, time and usage -----------------------------------------------------------------------------


@each
async def test_tries_do_not_multiply(name):
    """B59: three tries of each call that no other layer, fallback or sample adds to."""
    trace, upstream = await solved(name, dict.fromkeys("abcrm", DOWN), rules={"retries": 2})
    assert upstream.total() == 3 * ALL.get(name, 3)
    assert len(trace.failures) == ALL.get(name, 3)


@each
async def test_a_try_that_is_made_again_is_one_more(name):
    """B59: a server that turns every request away once is asked twice for each call, and nothing is degraded."""
    refused = set()

    def once(seen):
        key = (seen.model, seen.body["seed"])
        if key in refused:
            return says(seen)
        refused.add(key)
        return DOWN

    trace, upstream = await solved(name, dict.fromkeys("abcrm", once), rules={"retries": 1})
    assert (upstream.total(), len(trace.turns)) == (2 * PLAN[name], PLAN[name])
    assert not trace.degraded
    assert not trace.failures


@each
async def test_samples_that_a_server_leaves_out_are_asked_for_apart(name):
    """B4: it ignores `n`; no answer is there twice for that."""
    trace, upstream = await solved(name, rules={"samples": "together"})
    assert (upstream.total(), len(trace.turns)) == (PLAN[name], PLAN[name])
    assert sum(seen.body.get("n", 1) - 1 for seen in upstream.chats()) == (3 if name == "self_moa" else 0)
    first = [t.completion.text for t in trace.turns if t.part == "proposer" and t.layer == 1 and not t.reads]
    assert len(set(first)) == len(first)


@each
async def test_usage_is_counted_once_however_often_it_is_sent(name):
    """B11, B12, B81: of all calls, judges' and critics' too."""

    def streams(seen):
        parts = [chunk(text_of(seen), usage=(7, 3)), chunk(finish="stop", usage=(7, 3)), chunk(usage=(7, 3))]
        return stream(*parts, DONE)

    trace, upstream = await solved(name, dict.fromkeys("abcrm", streams), rules={"stream": True})
    assert upstream.total() == PLAN[name]
    assert trace.tokens == 10 * PLAN[name]
    assert trace.cost == pytest.approx(10 * PLAN[name] / 1e6)


@each
async def test_without_usage_every_call_is_an_estimate(name):
    """B13."""
    unsaid = dict.fromkeys("abcrm", lambda seen: answer(text_of(seen), usage=None))
    trace, _ = await solved(name, unsaid)
    assert all(t.completion.estimated and t.completion.prompt_tokens > 0 for t in trace.turns)
    assert trace.cost > 0


@each
async def test_a_cut_answer_is_told_to_be_cut(name):
    """B17: the answer is what was written, with how it ended."""
    trace, _ = await solved(name, dict.fromkeys("abcm", lambda seen: answer(text_of(seen), finish="length")))
    assert trace.turns[trace.final].completion.finish == "length"
    assert (trace.turns[trace.final].agent == "m") == (name in MERGING)


async def let_go(upstream):
    """Until no request is inside."""
    for _ in range(500):
        if not upstream.inside:
            return True
        await asyncio.sleep(0.01)
    return False


@each
async def test_a_hanging_proposer_is_let_go_of(name):
    """B60: after its step's deadline, its connection closed; the others' answers make up the answer."""
    shallow = {key: 1 for key in ("layers", "rounds") if key in FAMILY[name][0]}
    hung = {"a": Reply(end="hang")}
    async with mixture(name, hung, clock=False, panel={"deadline": 1.0}, **shallow) as (team, upstream):
        trace = await team.solve(QUERY)
        asked = 4 if name == "self_moa" else 1
        assert upstream.total("a") == asked
        assert {f.kind for f in trace.failures if f.agent == "a"} == {"TimedOut"}
        assert (trace.stopped, bool(trace.answer)) == ("done", True)
        assert await let_go(upstream)


@each
async def test_the_querys_deadline_holds_over_all_steps(name):
    """B65: everybody hangs; it ends with the query's time, nothing goes on, nobody else is asked."""
    async with mixture(name, clock=False) as (team, upstream):
        await team.solve(QUERY)  # opens the connections
        upstream.scripts |= {who: [Reply(end="hang")] for who in "abcrm"}
        upstream.seen.clear()
        team.limits = Limits(seconds=0.5)
        trace = await team.solve(QUERY)
        assert (trace.stopped, trace.final) == ("budget", None)
        assert await let_go(upstream)
        assert upstream.total() <= {"self_moa": 4, "self_refine": 1}.get(name, 3)
