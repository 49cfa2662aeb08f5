"""Rows of the faults that others had, through a whole team over HTTP: votes, fallbacks, budgets, deadlines.

Rows about one call are in test_http_wire, test_http_stream, test_http_retries, test_http_vllm, test_http_faults and
test_http, in tests named after them. Wait for an aggregator or a judge: B8, B9, B14, B19, B20, B53 whole; of B5,
B6, B10, B17, B18 that it is not called, its bill, its cut answer, its prompt. Wait for the gateway: B21, B23 to
B25, B27, B30, B31, B34, B35, B37, B39, B40, B50 to B52 whole; B26's unknown model in a request; what clients are
sent of B12, B41, B43, B45, B48, B49; B58's header (its number is on the trace).
"""

import asyncio
from dataclasses import replace

import pytest
from http_parts import FakeClock, agent, http, query, team, user
from test_http_stream import gone
from upstream import Reply, answer, refusal, reply_body, running, stream

from coterie.backends.endpoint import Endpoint
from coterie.backends.http import Http
from coterie.backends.retries import Deadlines
from coterie.rollout import Limits

BAD = {
    "no choices": Reply(body=reply_body([])),
    "null": answer(None),
    "blank": answer(" \n"),
    "tools": answer(None, tool_calls=[{"id": "t", "function": {"name": "f"}}], finish="tool_calls"),
    "reasoning": answer("", reasoning_content="hm", finish="length"),
    "html": Reply(body=b"<html>502</html>", kind="text/html"),
    "error": Reply(body={"error": {"message": "boom"}}),
    "mid-stream error": stream(b'data: {"error": {"message": "boom"}}\n\n'),
}


async def solved(scripts, models, strategy="single", *, limits=None, retries=0, rules=None, **options):
    """The trace of one query, and the upstream after it."""
    async with running(scripts) as upstream:
        backend = http(upstream, FakeClock().clock(), retries=retries, **(rules or {}))
        trace = await team(backend, models, strategy, limits=limits, **options).solve(query())
        await backend.aclose()
        return trace, upstream


@pytest.mark.parametrize("fault", BAD)
async def test_b1_b3_b15_an_unusable_answer_is_a_failure_and_the_next_agent_answers(fault):
    trace, upstream = await solved({"m": [BAD[fault]], "n": [answer("4")]}, ["m", "n"])
    assert (trace.answer, trace.stopped) == ("4", "done")
    assert [(f.agent, bool(f.message)) for f in trace.failures] == [("m", True)]
    assert [turn.agent for turn in trace.turns] == ["n"]
    assert (upstream.total("m"), upstream.total("n")) == (1, 1)


async def test_b4_self_consistency_never_votes_with_copies():
    """A server that ignores `n`: five samples asked for, five different calls, five votes."""
    trace, upstream = await solved({}, ["m"], "self_consistency", samples=5, rules={"samples": "together"})
    assert [seen.body.get("n") for seen in upstream.chats()] == [5]
    ignoring = {"m": [lambda seen: answer(f"Answer: {seen.body['seed']}")]}
    trace, upstream = await solved(ignoring, ["m"], "self_consistency", samples=5, rules={"samples": "together"})
    assert [seen.body.get("n") for seen in upstream.chats()] == [5, None, None, None, None]
    assert len(trace.turns) == 5
    assert len({turn.answer for turn in trace.turns}) == 5


async def test_b4_a_sample_that_fails_is_one_vote_less():
    scripts = {"m": [answer("4"), answer(" "), answer("5"), answer("4"), refusal(500, None, "x")]}
    trace, _ = await solved(scripts, ["m"], "self_consistency", samples=5, rules={"concurrency": 1})
    assert sorted(str(turn.answer) for turn in trace.turns) == ["4", "4", "5"]
    assert sorted(f.kind for f in trace.failures) == ["EmptyAnswer", "ServerFault"]
    assert trace.answer == "4"


async def test_b5_only_usable_answers_count_in_a_vote():
    """A blank answer and a call of tools would outvote the one answer, were they votes."""
    trace, _ = await solved({"m": [BAD["blank"]], "n": [BAD["tools"]], "o": [answer("4")]}, list("mno"), "top_k")
    assert trace.answer == "4"
    assert [turn.agent for turn in trace.turns] == ["o"]
    assert [f.kind for f in trace.failures] == ["EmptyAnswer"] * 2


@pytest.mark.parametrize("strategy", ["single", "vote", "top_k", "self_consistency", "best_of_n"])
async def test_b6_b17_b66_where_all_fail_there_is_no_answer_and_each_reason_is_told(strategy):
    scripts = {
        "m": [refusal(500, None, "boom")],
        "n": [refusal(404, "model_not_found", "The model `n` does not exist")],
    }
    options = {"fallbacks": 5} if strategy == "single" else {}
    trace, upstream = await solved(scripts, ["m", "n"], strategy, **options)
    assert (trace.final, trace.text, trace.answer, trace.stopped) == (None, "", None, "failed")
    assert {f.kind for f in trace.failures} <= {"ServerFault", "UnknownModel"}
    assert all("boom" in f.message or "does not exist" in f.message for f in trace.failures)
    assert upstream.total() == len(trace.failures)


async def test_b11_usage_is_the_sum_of_all_calls_that_were_made():
    scripts = {
        "m": [answer("4", usage=(7, 3))],
        "n": [answer("4", usage=(11, 5))],
        "o": [answer("", usage=(1, 90))],
    }
    trace, _ = await solved(scripts, list("mno"), "top_k")
    assert trace.tokens == 7 + 3 + 11 + 5 + 1 + 90
    assert trace.cost == pytest.approx(trace.tokens / 1e6)


async def test_b10_limits_count_what_failed_calls_used():
    scripts = {"m": [answer("", usage=(50, 900))], "n": [answer("4")]}
    trace, upstream = await solved(scripts, ["m", "n"], limits=Limits(tokens=1200))
    assert (trace.stopped, trace.tokens) == ("budget", 950)
    assert upstream.total("n") == 0


async def test_b13_missing_usage_is_never_zero():
    trace, _ = await solved({"m": [answer("4", usage=None)]}, ["m"])
    assert trace.turns[0].completion.estimated
    assert trace.tokens > 2
    assert trace.cost > 0


async def test_b17_a_cut_answer_is_told_to_be_cut():
    trace, _ = await solved({"m": [answer("4 and", finish="length")]}, ["m"])
    assert trace.turns[0].completion.finish == "length"


async def test_b18_what_did_not_answer_leaves_nothing_in_a_prompt():
    trace, upstream = await solved({"m": [BAD["null"]], "n": [answer("4")]}, ["m", "n"])
    assert trace.answer == "4"
    prompts = [message["content"] for seen in upstream.chats() for message in seen.body["messages"]]
    assert set(prompts) == {query().text}


async def test_b29_every_call_has_its_own_cap_and_no_call_passes_the_budget():
    trace, upstream = await solved({}, ["m", "n"], "top_k", limits=Limits(tokens=600))
    assert trace.stopped == "budget"
    assert [seen.body["max_tokens"] for seen in upstream.chats()] == [512]


async def test_b55_b57_a_burst_comes_back_spread_and_no_sooner_than_it_was_told():
    """50 requests at once against a server that turns each away once: 100 calls, nobody fails over."""
    refused = set()

    def once(seen):
        if seen.body["seed"] in refused:
            return answer("4")
        refused.add(seen.body["seed"])
        return refusal(429, "rate_limit_exceeded", "slow", Retry_After="1")

    async with running({"m": [once]}) as upstream:
        clock = FakeClock()
        backend = http(upstream, clock.clock(), retries=2, backoff=2.0, deadlines=Deadlines(total=1000))
        asked = (backend.generate(agent(), user(), seed=seed) for seed in range(50))
        assert [said.text for said in await asyncio.gather(*asked)] == ["4"] * 50
        assert upstream.total() == 100
        assert len(set(clock.slept)) == 50
        assert 1 <= min(clock.slept) < 1.5 < 2.5 < max(clock.slept) <= 3
        await backend.aclose()


async def test_b57_a_long_wait_fails_over_and_b58_says_how_long():
    busy = refusal(429, "rate_limit_exceeded", "slow", Retry_After="3600")
    trace, upstream = await solved({"m": [busy], "n": [answer("4")]}, ["m", "n"], retries=3)
    assert (trace.answer, upstream.total("m")) == ("4", 1)
    assert [f.retry_after for f in trace.failures] == [3600.0]
    trace, _ = await solved({"m": [busy], "n": [busy]}, ["m", "n"], retries=3)
    assert [f.retry_after for f in trace.failures] == [3600.0] * 2


async def test_b59_tries_do_not_multiply():
    """Two agents, two more tries each: six calls, whoever counts."""
    down = {name: [refusal(500, None, "x")] for name in "mno"}
    trace, upstream = await solved(down, list("mno"), retries=2, fallbacks=1)
    assert (upstream.total("m"), upstream.total("n"), upstream.total("o")) == (3, 3, 0)
    assert len(trace.failures) == 2


async def test_b60_a_hung_first_choice_leaves_time_for_the_second():
    deadlines = Deadlines(total=0.2)
    scripts = {"m": [Reply(end="hang")], "n": [answer("4")]}
    trace, _ = await solved(scripts, ["m", "n"], limits=Limits(seconds=30), rules={"deadlines": deadlines})
    assert (trace.answer, trace.stopped) == ("4", "done")
    assert [f.kind for f in trace.failures] == ["TimedOut"]
    assert Limits().seconds >= 2 * Deadlines().total


@pytest.mark.parametrize("status", [401, 403, 404, 408, 409, 425, 429, 500, 502, 503])
async def test_b62_every_refusal_fails_over(status):
    trace, _ = await solved({"m": [refusal(status, None, "x")], "n": [answer("4")]}, ["m", "n"])
    assert trace.answer == "4"


async def test_b62_a_refused_connection_fails_over():
    async with running({"n": [answer("4")]}) as upstream:
        endpoints = {"e": Endpoint(base_url=upstream.base_url), "f": Endpoint(base_url="http://127.0.0.1:9/v1")}
        backend = Http(endpoints=endpoints)
        object.__setattr__(backend, "clock", FakeClock().clock())
        solver = team(backend, ["m", "n"])
        solver.pool = solver.pool.with_agents(replace(solver.pool["m"], model="http:f/m"))
        trace = await solver.solve(query())
        assert (trace.answer, [f.kind for f in trace.failures]) == ("4", ["Unreachable"])
        await backend.aclose()


async def test_b63_no_fallbacks_means_none():
    trace, upstream = await solved({"m": [refusal(500, None, "x")]}, ["m", "n"], fallbacks=0)
    assert (trace.stopped, upstream.total("n")) == ("failed", 0)


async def test_b65_the_querys_deadline_holds_over_all_others():
    """A vote with one agent that hangs ends with what there is, marked, and lets go of the connection."""
    scripts = {"m": [Reply(end="hang")], "n": [answer("4")]}
    async with running(scripts) as upstream:
        backend = http(upstream, retries=3, deadlines=Deadlines(total=600))
        trace = await team(backend, ["m", "n"], "top_k", limits=Limits(seconds=0.3)).solve(query())
        assert (trace.answer, trace.stopped) == ("4", "budget")
        await asyncio.sleep(0)
        upstream.seen.sort(key=lambda seen: seen.model, reverse=True)
        await gone(upstream)
        assert upstream.total("m") == 1
        await backend.aclose()
