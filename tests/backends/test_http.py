"""The HTTP backend as a component: settings, keys, one client, limits, cancellation, faults of the network."""

import asyncio
import json
import socket
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from http_parts import QUICK, FakeClock, Ranked, agent, http, outcome, query, team, user
from test_http_stream import gone
from upstream import Reply, answer, in_thread, refusal, reply_body, running, stream

from coterie.backends.endpoint import Endpoint, proxy_for
from coterie.backends.http import Http
from coterie.backends.retries import Deadlines
from coterie.cli.main import run
from coterie.config import build, validate
from coterie.errors import (
    AccessDenied,
    BackendError,
    BadRequest,
    ConfigError,
    ContentFiltered,
    ContextOverflow,
    MalformedAnswer,
    Overloaded,
    ServerFault,
    TimedOut,
    UnknownModel,
    Unreachable,
)
from coterie.pool import revise
from coterie.storage.cache import Cache
from coterie.team import Backends, Team
from coterie.types import Agent, Completion, Sampling

# --- settings -----------------------------------------------------------------------------------------


def endpoint(**options):
    return {"endpoints": {"e": {"base_url": "http://localhost:1/v1", **options}}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "localhost:8000"}, "no address"),
        ({"base_url": "ftp://host/v1"}, "no address"),
        ({"base_url": "http://host:port/v1"}, "base_url"),
        ({"base_url": "http://me:secret@host/v1"}, "holds a secret"),
        ({"base_url": "http://host/v1?key=AIzaSyA123"}, "holds a secret"),
        ({"base_url": "http://host/v1/chat/completions"}, "must end before"),
        ({"key_env": "sk-proj-abcdefghijklmnop"}, "looks like a key"),
        ({"key_env": "gsk_A1b2C3d4E5f6G7h8"}, "looks like a key"),
        ({"key_env": "a1B2c3D4e5F6g7H8i9J0k1"}, "looks like a key"),
        ({"key_env": "MY KEY"}, "looks like a key"),
        ({"headers": {"Authorization": "Bearer abcdef"}}, "headers.Authorization: write"),
        ({"headers": {"api-key": "abcdef"}}, "headers.api-key: write"),
        ({"headers": {"X-Note": "a\nb"}}, "control character"),
        ({"extra": {"model": "other"}}, "'model' is set by coterie"),
        ({"schedule": "seriell"}, "schedule"),
        ({"concurrency": 0}, "concurrency"),
        ({"retries": -1}, "retries"),
        ({"deadlines": {"attempt": 200}}, "set attempt to at most"),
        ({"deadlines": {"total": 0}}, "deadlines.total"),
        ({"deadlines": {"totl": 5}}, "did you mean 'total'"),
        ({"retires": 3}, "backends.http.endpoints.e: unknown key 'retires'; did you mean 'retries'"),
    ],
)
def test_wrong_settings_are_one_line_that_gives_no_secret_away(options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        validate(Http, endpoint(**options), "team.yaml: backends.http")
    assert "\n" not in str(caught.value)
    for secret in ("secret@", "AIzaSy", "sk-proj", "gsk_A1", "a1B2c3", "abcdef"):
        assert secret not in str(caught.value)


@pytest.mark.parametrize("spelled", ["MY_KEY", "$MY_KEY", "${MY_KEY}"])
async def test_a_key_comes_from_the_environment_by_name(spelled, monkeypatch):
    monkeypatch.setenv("MY_KEY", " sk-very-secret-12345 \n")
    monkeypatch.setenv("OTHER", "abc")
    async with running() as upstream:
        backend = http(upstream, key_env=spelled, headers={"X-Team": "t-${OTHER}"})
        await outcome(backend, agent())
        assert upstream.seen[0].headers["authorization"] == "Bearer sk-very-secret-12345"
        assert upstream.seen[0].headers["x-team"] == "t-abc"
        assert "secret" not in repr(backend) + backend.identity_of(agent())
        await backend.aclose()


async def test_a_missing_key_is_found_before_any_call(monkeypatch):
    """The key of an agent that would be asked second keeps the first one from being asked."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    async with running() as upstream:
        plain = Endpoint(base_url=upstream.base_url)
        backend = Http(endpoints={"e": plain, "f": Endpoint(base_url=upstream.base_url, key_env="NO_SUCH_KEY")})
        for asked in (agent(), replace(agent(), model="http:f/m")):
            backend.check(asked)
        with pytest.raises(ConfigError, match=r"endpoints\.f: the environment variable NO_SUCH_KEY"):
            await backend.generate(agent(), user(), seed=0)
        assert upstream.seen == []
        await backend.aclose()


async def test_a_key_that_is_none_is_refused(monkeypatch):
    """A line break in it would be a header of its own."""
    for value, words in (("a\nX-Other: b", "control character"), ("  ", "is not set")):
        monkeypatch.setenv("MY_KEY", value)
        backend = http("http://localhost:1/v1", key_env="MY_KEY")
        with pytest.raises(ConfigError, match=words):
            await backend.generate(agent(), user(), seed=0)
        await backend.aclose()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("http:g/m", "has no 'g'; known: e"),
        ("http:m", "must be http:<endpoint>/<model id>"),
        ("http:e/", "must be http:<endpoint>/<model id>"),
    ],
)
def test_an_agent_names_an_endpoint_and_a_model(model, words):
    backend = Http(endpoints={"e": Endpoint(base_url="http://localhost:1/v1")})
    with pytest.raises(ConfigError, match=words):
        backend.check(Agent(name="a", model=model))


def test_b26_what_an_endpoint_cannot_do_is_refused_and_not_dropped(tmp_path):
    """B26."""
    backend = Http(endpoints={"e": Endpoint(base_url="http://localhost:1/v1")})
    with pytest.raises(ConfigError, match="top_k"):
        backend.check(Agent(name="a", model="http:e/m", sampling=Sampling(top_k=4)))
    with pytest.raises(ConfigError, match="adapters: vllm"):
        backend.check(Agent(name="a", model="http:e/m", adapter=str(tmp_path)))


RECIPE = {
    "agents": [
        {"name": "a", "model": "http:e/org/model:7b"},
        {"name": "b", "model": "http:e/n"},
        {"name": "c", "model": "http:f/n"},
    ],
    "strategy": {"use": "single", "fallbacks": 2},
    "backends": {
        "http": {
            "endpoints": {
                "e": {"base_url": "http://localhost:1/v1", "deadlines": {"total": 20}},
                "f": {"base_url": "https://localhost:2/v1", "key_env": "NO_SUCH_KEY"},
            }
        }
    },
}


def load(tmp_path, **changes):
    path = tmp_path / "team.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, **changes}))
    return Team.load(path)


def test_a_recipe_opens_one_backend_for_all_its_http_agents(tmp_path, capsys):
    loaded = load(tmp_path)
    found = {id(loaded.backends.of(one)) for one in loaded.pool.values()}
    assert len(found) == 1
    assert run(["config", "check", str(tmp_path / "team.yaml")]) == 0
    with pytest.raises(ConfigError, match=r"agent 'a': backends\.http\.endpoints has no 'e'"):
        load(tmp_path, backends={})
    assert run(["config", "check", str(tmp_path / "team.yaml")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_command_line_asks_over_http(tmp_path, capsys, monkeypatch):
    """An expert folder is made without a server; a recipe asks one, and says in a line what it did not get."""
    monkeypatch.chdir(tmp_path)
    assert run(["agents", "add", "a", "--model", "http:e/m.f500"]) == 0
    assert run(["agents", "add", "b", "--model", "http:e/m"]) == 0
    with in_thread() as upstream:
        table = {"base_url": upstream.base_url, "retries": 0, "deadlines": {"total": 20}}
        recipe = {"agents": ["experts/*"], "strategy": "top_k", "backends": {"http": {"endpoints": {"e": table}}}}
        (tmp_path / "team.yaml").write_text(yaml.safe_dump(recipe))
        capsys.readouterr()
        assert run(["ask", "-r", "team.yaml", "What is 2 + 2?", "--json", "--no-cache"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["text"].startswith("Answer: ")
        assert upstream.total() == 2


def test_the_recipe_of_the_quickstart_loads_as_it_is(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
    [block] = [b for b in text.split("```yaml\n")[1:] if "endpoints:" in b]
    (tmp_path / "team.yaml").write_text(block.split("```")[0], encoding="utf-8")
    loaded = Team.load(tmp_path / "team.yaml")
    assert set(loaded.pool) == {"remote", "here"}


def test_b60_b65_a_team_has_time_for_another_agent_where_one_hangs(tmp_path):
    """B60, B65: with the defaults, and checked where they are not."""
    assert load(tmp_path).limits.seconds >= 2 * Deadlines().total
    with pytest.raises(ConfigError, match=r"'c' hangs: set deadlines\.total of its endpoint to at most 50"):
        load(tmp_path, limits={"seconds": 100})
    assert load(tmp_path, limits={"seconds": 100}, agents=RECIPE["agents"][2:])  # nobody to turn to


def test_b67_the_cache_tells_servers_and_options_apart_and_nothing_else():
    """B67: what changes answers is in the key; keys, limits and patience are not."""
    base = Endpoint(base_url="http://localhost:1/v1")
    changed = [
        replace(base, base_url="http://localhost:2/v1"), replace(base, headers={"X-Provider": "b"}),
        replace(base, prefill="drop"), replace(base, samples="together"), replace(base, seed=False),
        replace(base, extra={"min_p": 0.1}), replace(base, json_schema={"type": "object"}),
        replace(base, logprobs=True), replace(base, omit=("stop",)), replace(base, top_k=True),
        replace(base, max_tokens_field="max_completion_tokens"), replace(base, schemas=True),
    ]  # fmt: skip
    assert len({one.identity() for one in (base, *changed)}) == len(changed) + 1
    same = [
        replace(base, key_env="KEY"), replace(base, concurrency=3), replace(base, retries=1),
        replace(base, headers={"X-Key": "${KEY}"}), replace(base, schedule="serial"),
    ]  # fmt: skip
    assert {one.identity() for one in same} == {base.identity()}


async def test_cached_answers_are_those_of_their_endpoint(tmp_path):
    cache = Cache(tmp_path / "calls.sqlite")
    async with running() as upstream:
        for url, calls in ((upstream.base_url, 1), (upstream.base_url, 1), (upstream.base_url + "/", 2)):
            backend = http(url)
            solver = team(backend, ["m"])
            solver.cache = cache
            assert (await solver.solve(query())).text
            assert upstream.total() == calls
            await backend.aclose()
    cache.close()


def test_proxies_are_those_of_the_environment(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert proxy_for(Endpoint(base_url="http://host/v1").url("x")) is None
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost,inside")
    assert proxy_for(Endpoint(base_url="http://host/v1").url("x")) == "http://proxy:3128"
    assert proxy_for(Endpoint(base_url="http://inside/v1").url("x")) is None
    assert proxy_for(Endpoint(base_url="https://host/v1").url("x")) is None


def test_an_address_keeps_its_query():
    url = Endpoint(base_url="https://host/openai/d?api-version=2").url("chat/completions")
    assert str(url) == "https://host/openai/d/chat/completions?api-version=2"


# --- one client ---------------------------------------------------------------------------------------


def test_a_team_is_used_from_several_loops_one_after_another():
    """`Team.ask` closes its models; a later loop, or one that was left without closing, does no harm."""

    async def served(close):
        async with running() as upstream:
            object.__setattr__(backend, "endpoints", {"e": Endpoint(base_url=upstream.base_url, deadlines=QUICK)})
            found = await outcome(backend, agent())
            if close:
                await backend.aclose()
                await backend.aclose()
            return found

    backend = http("http://localhost:1/v1")
    for close in (True, False, True):
        assert isinstance(asyncio.run(served(close)), Completion)
    assert len(backend._lines) == 0


async def test_all_endpoints_share_one_client():
    async with running() as one, running() as two:
        backend = Http(endpoints={"e": Endpoint(base_url=one.base_url), "f": Endpoint(base_url=two.base_url)})
        for _ in range(3):
            await outcome(backend, agent())
            await outcome(backend, replace(agent(), model="http:f/m"))
        assert (one.connections, two.connections) == (1, 1)
        assert len(backend._lines) == 1
        await backend.aclose()


@pytest.mark.parametrize(("schedule", "most"), [("parallel", 3), ("serial", 1)])
async def test_an_endpoint_gets_no_more_than_its_limit(schedule, most):
    async with running() as upstream:
        upstream.scripts = {name: [lambda seen: replace(answer(seen.model), delay=0.01)] for name in "xy"}
        backend = http(upstream, concurrency=3, schedule=schedule)
        asked = [backend.generate(agent(name), user(), seed=i) for i, name in enumerate("xyxyxyxy")]
        said = await asyncio.gather(*asked)
        assert [one.text for one in said] == list("xyxyxyxy")
        assert upstream.most_inside == most
        if schedule == "serial":
            assert [seen.model for seen in upstream.chats()] == list("xxxxyyyy")
        await backend.aclose()


async def test_waiting_for_a_place_takes_nothing_from_the_deadline():
    async with running() as upstream:
        upstream.scripts["m"] = [replace(answer("four"), delay=0.1)]
        deadlines = Deadlines(total=0.5)
        backend = http(upstream, concurrency=1, deadlines=deadlines)
        said = await asyncio.gather(*(outcome(backend, agent(), seed=i) for i in range(8)))
        assert all(isinstance(one, Completion) for one in said)
        assert max(one.seconds for one in said) < 0.5
        await backend.aclose()


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancelling_closes_the_connection_at_once_and_frees_the_place(streamed):
    async with running() as upstream:
        upstream.scripts["m"] = [Reply(end="hang"), answer("four")]
        if streamed:
            upstream.scripts["m"][0] = stream(b"data: {}\n\n", end="hang")
        backend = http(upstream, concurrency=1, retries=3, stream=streamed)
        asking = asyncio.ensure_future(backend.generate(agent(), user(), seed=0))
        while not upstream.seen:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await gone(upstream)
        assert upstream.total() == 1
        assert (await outcome(backend, agent())).text == "four"
        await backend.aclose()


async def test_a_cancelled_wait_between_tries_makes_no_more_calls():
    """Retries for nobody: the upstream sees one call."""
    async with running() as upstream:
        backend = http(upstream, retries=5, deadlines=Deadlines(total=100))
        upstream.scripts["m"] = [refusal(429, None, "slow", Retry_After="30")]
        asking = asyncio.ensure_future(backend.generate(agent(), user(), seed=0))
        while not upstream.seen or upstream.seen[0].end != "sent":
            await asyncio.sleep(0.005)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert upstream.total() == 1
        await backend.aclose()


# --- several samples of one prompt --------------------------------------------------------------------


def several(*contents):
    """A reply with these choices."""
    rows = [{"index": i, "message": {"content": c}, "finish_reason": "stop"} for i, c in enumerate(contents)]
    return Reply(body=reply_body(rows, (10, 3 * len(contents))))


async def sampled(backend, count=3):
    asked = (outcome(backend, agent(temperature=1.0), seed=seed) for seed in range(count))
    return await asyncio.gather(*asked)


async def test_samples_of_one_moment_go_as_one_request():
    async with running({"m": [several("one", "two two", "three")]}) as upstream:
        backend = http(upstream, samples="together")
        said = await sampled(backend)
        assert [one.text for one in said] == ["one", "two two", "three"]
        assert [seen.body["n"] for seen in upstream.chats()] == [3]
        assert sum(one.prompt_tokens for one in said) == 10
        assert sum(one.completion_tokens for one in said) == 9
        assert all(one.estimated for one in said)
        await backend.aclose()


async def test_b41_samples_stream_apart_within_one_request():
    """B41."""
    async with running() as upstream:
        backend = http(upstream, samples="together", stream=True)
        said = await sampled(backend)
        assert len({one.text for one in said}) == 3
        assert upstream.total() == 1
        await backend.aclose()


async def test_b4_what_the_server_leaves_out_is_asked_for_apart():
    """B4: three different samples, one of them by `n`; none is repeated."""
    async with running({"m": [several("one"), answer("two"), answer("three")]}) as upstream:
        backend = http(upstream, samples="together")
        said = await sampled(backend)
        assert sorted(one.text for one in said) == ["one", "three", "two"]
        assert [seen.body.get("n") for seen in upstream.chats()] == [3, None, None]
        assert len({seen.body["seed"] for seen in upstream.chats()}) == 3
        await backend.aclose()


def after(clock, seconds, reply):
    """A reply that takes so long on the clock of the retries."""

    def say(seen):
        clock.time += seconds
        return reply

    return say


async def test_b60_samples_asked_apart_take_from_the_one_budget():
    """Nothing is sent after `patience`: not when the first request used it up, nor by tries after it."""
    clock = FakeClock()
    scripts = {"m": [after(clock, 12.5, several("one")), answer("late")]}
    async with running(scripts) as upstream:
        backend = http(upstream, clock.clock(), samples="together")
        assert backend.patience(agent()) == 12
        said = await sampled(backend)
        assert [type(one) for one in said] == [Completion, TimedOut, TimedOut]
        assert upstream.total() == 1
        busy = after(clock, 5, refusal(500, None, "x"))
        scripts["m"] = [after(clock, 8, several("one")), busy]
        again = http(upstream, clock.clock(), samples="together", retries=9)
        began = clock.time
        said = await asyncio.gather(*(outcome(again, agent(temperature=1.0), seed=seed) for seed in range(2)))
        assert [type(one) for one in said] == [Completion, ServerFault]
        assert (upstream.total(), clock.time - began) == (1 + 2, 13)
        await backend.aclose()
        await again.aclose()


async def test_b59_samples_asked_apart_have_only_the_tries_that_are_left():
    fault = refusal(500, None, "x")
    async with running({"m": [fault, fault, several("one"), fault]}) as upstream:
        backend = http(upstream, FakeClock().clock(), samples="together", retries=3)
        said = await asyncio.gather(*(outcome(backend, agent(), seed=seed) for seed in range(2)))
        assert [type(one) for one in said] == [Completion, ServerFault]
        assert upstream.total() == 3 + 2
        await backend.aclose()


async def test_samples_asked_apart_wait_for_a_place_at_no_cost():
    clock = FakeClock()
    apart = [after(clock, 8, answer(text)) for text in ("two", "three", "four")]
    async with running({"m": [after(clock, 1, several("one")), *apart]}) as upstream:
        backend = http(upstream, clock.clock(), samples="together", concurrency=1)
        said = await sampled(backend, 4)
        assert sorted(one.text for one in said) == ["four", "one", "three", "two"]
        await backend.aclose()


async def test_one_bad_sample_fails_alone_and_one_bad_request_for_all():
    async with running({"m": [several("one", " ", "three"), refusal(400, None, "no n here")]}) as upstream:
        backend = http(upstream, samples="together")
        kinds = [type(one).__name__ for one in await sampled(backend)]
        assert kinds == ["Completion", "EmptyAnswer", "Completion"]
        assert [type(one) for one in await sampled(backend)] == [BadRequest] * 3
        assert upstream.total() == 2
        await backend.aclose()


async def test_other_prompts_and_moments_go_apart():
    async with running() as upstream:
        backend = http(upstream, samples="together")
        await asyncio.gather(*(outcome(backend, agent(), user(text)) for text in "ab"))
        await outcome(backend, agent())
        assert [seen.body.get("n") for seen in upstream.chats()] == [None] * 3
        await backend.aclose()


async def test_the_request_ends_when_nobody_waits_for_it():
    async with running({"m": [Reply(end="hang")]}) as upstream:
        backend = http(upstream, samples="together")
        asking = [asyncio.ensure_future(backend.generate(agent(), user(), seed=i)) for i in range(3)]
        while not upstream.seen:
            await asyncio.sleep(0.005)
        for number, task in enumerate(asking):
            assert upstream.seen[0].end == "pending", number
            task.cancel()
            await asyncio.sleep(0.02)
        await gone(upstream)
        await backend.aclose()


# --- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "calls"),
    [
        (refusal(400, None, "bad"), BadRequest, 1),
        (refusal(400, "context_length_exceeded", "x"), ContextOverflow, 1),
        (refusal(400, None, "This model's maximum context length is 8 tokens"), ContextOverflow, 1),
        (refusal(400, None, "the request exceeds the available context size"), ContextOverflow, 1),
        (refusal(400, None, "prompt is too long: 9 tokens > 8 maximum"), ContextOverflow, 1),
        (refusal(400, "content_filter", "The response was filtered"), ContentFiltered, 1),
        (refusal(401, "invalid_api_key", "no"), AccessDenied, 1),
        (refusal(402, None, "pay"), AccessDenied, 1),
        (refusal(403, None, "no"), AccessDenied, 1),
        (refusal(404, "model_not_found", "no"), UnknownModel, 1),
        (refusal(404, None, "The model `m` does not exist."), UnknownModel, 1),
        (Reply(status=404, body={"error": 'model "m" not found, try pulling it first'}), UnknownModel, 1),
        (Reply(status=404, body={"detail": "Not Found"}), BadRequest, 1),
        (refusal(405, None, "no"), BadRequest, 1),
        (refusal(408, None, "late"), TimedOut, 3),
        (refusal(409, None, "busy"), Overloaded, 3),
        (refusal(413, None, "big"), ContextOverflow, 1),
        (Reply(status=422, body={"detail": [{"loc": ["body", "seed"], "msg": "no"}]}), BadRequest, 1),
        (refusal(425, None, "early"), Overloaded, 3),
        (refusal(429, "rate_limit_exceeded", "slow"), Overloaded, 3),
        (refusal(429, "insufficient_quota", "spent"), AccessDenied, 1),
        (refusal(500, None, "x"), ServerFault, 3),
        (Reply(status=502, body=b"<html><h1>Bad Gateway</h1>", kind="text/html"), ServerFault, 3),
        (refusal(503, None, "x"), Overloaded, 3),
        (refusal(504, None, "x"), TimedOut, 3),
        (refusal(529, None, "x"), Overloaded, 3),
        (Reply(status=307, headers={"Location": "http://elsewhere/"}), BadRequest, 1),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Reply) else None,
)
async def test_b62_b66_each_status_is_its_failure_with_its_calls(reply, kind, calls):
    """B62, B66: one table of what is tried again."""
    async with running({"m": [reply]}) as upstream:
        backend = http(upstream, retries=2)
        found = await outcome(backend, agent())
        assert type(found) is kind, repr(found)
        assert upstream.total() == calls
        assert str(reply.status) in str(found)
        await backend.aclose()


async def test_b62_no_connection_is_unreachable_and_tried_again():
    """B62: refused, reset before an answer, no such host, TLS."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with running({"m": [Reply(pieces=[], end="reset", status=200)]}) as upstream:
        tls = upstream.base_url.replace("http:", "https:")
        urls = (f"http://127.0.0.1:{port}/v1", "http://no-such-host.invalid/v1", tls)
        for url in urls:
            backend = http(url, deadlines=Deadlines(connect=0.5, total=20))
            found = await outcome(backend, agent())
            assert type(found) in (Unreachable, TimedOut), (url, found)
            assert found.again
            await backend.aclose()


async def test_a_server_that_hangs_up_at_once_is_tried_again():
    calls = 0

    async def hang_up(reader, writer):
        nonlocal calls
        calls += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    backend = http(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", retries=2)
    assert type(await outcome(backend, agent())) is Unreachable
    assert calls == 3
    await backend.aclose()
    server.close()


async def test_a_server_that_speaks_no_http_is_malformed():
    async def babble(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    backend = http(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    assert type(await outcome(backend, agent())) is MalformedAnswer
    await backend.aclose()
    server.close()


async def test_a_certificate_that_is_not_trusted_is_not_tried_again(tmp_path):
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    backend = http(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", retries=2)
    found = await outcome(backend, agent())
    assert type(found) is Unreachable
    assert "certificate" in str(found)
    assert not found.again
    await backend.aclose()
    server.close()


def self_signed(folder):
    """A certificate that nobody vouches for."""
    import shutil
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not here")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


async def test_b10_failures_are_short_and_give_no_key_away(monkeypatch):
    """B10: what a server says back of us is cut and cleaned before it gets onto a trace."""
    monkeypatch.setenv("MY_KEY", "topsecretvalue123")
    leaks = "key topsecretvalue123 Bearer abcdefghijk sk-abcdefgh1234 http://u:p@host/?api_key=zzz\n" + "x" * 5000
    async with running({"m": [refusal(401, None, leaks)]}) as upstream:
        backend = http(upstream, key_env="MY_KEY")
        solver = team(backend, ["m"])
        trace = await solver.solve(query())
        [failure] = trace.failures
        assert failure.kind == "AccessDenied"
        assert len(failure.message) <= 300
        assert "\n" not in failure.message
        for secret in ("topsecretvalue123", "abcdefghijk", "sk-abcdefgh1234", "u:p@", "zzz"):
            assert secret not in failure.message
        await backend.aclose()


async def test_a_long_refusal_and_a_long_answer_are_not_read_to_the_end():
    async with running() as upstream:
        big = Reply(pieces=[b"x" * 65536, 0.0] * 4000)
        upstream.scripts = {"m": [big], "n": [replace(big, status=500)]}
        backend = http(upstream, max_mib=0.5)
        assert "max_mib" in str(await outcome(backend, agent("m")))
        assert type(await outcome(backend, agent("n"))) is ServerFault
        for _ in range(200):
            if all(seen.end != "pending" for seen in upstream.seen):
                break
            await asyncio.sleep(0.01)
        assert [seen.end for seen in upstream.seen] == ["client left"] * 2
        await backend.aclose()


async def test_b10_b81_what_a_failed_call_used_is_on_the_trace_and_in_the_limits():
    """B10, B81: tokens of an answer that cannot be used are paid all the same."""
    async with running({"m": [answer("", usage=(7, 90))], "n": [answer("4", usage=(7, 3))]}) as upstream:
        backend = http(upstream)
        trace = await team(backend, ["m", "n"]).solve(query())
        assert [(f.agent, f.kind, f.tokens) for f in trace.failures] == [("m", "EmptyAnswer", 97)]
        assert trace.tokens == 107
        assert trace.cost == pytest.approx(107e-6)
        assert trace.text == "4"
        await backend.aclose()


async def test_prepare_sees_that_the_server_is_there():
    async with running() as upstream:
        backend = http(upstream)
        await backend.prepare(agent())
        assert upstream.total() == 0
        await backend.aclose()
    lost = http("http://127.0.0.1:9/v1")
    with pytest.raises(Unreachable):
        await lost.prepare(agent())
    await lost.aclose()


async def test_swapping_in_an_agent_that_cannot_be_served_changes_nothing():
    async with running() as upstream:
        backend = http(upstream)
        solver = team(backend, ["m"])
        with pytest.raises(ConfigError, match="has no 'g'"):
            await solver.swap(Agent(name="n", model="http:g/n"))
        await solver.swap(revise(Agent(name="n", model="http:e/n")))
        assert sorted(solver.pool) == ["m", "n"]
        await backend.aclose()


def test_the_text_of_a_key_is_no_setting():
    """Recipes are written into runs: nothing of the environment may get there."""
    table = {"use": "http", **endpoint(key_env="MY_KEY")}
    made = build("backend", table)
    assert json.dumps(table) == json.dumps({"use": "http", **endpoint(key_env="MY_KEY")})
    assert made.endpoints["e"].key_env == "MY_KEY"
    assert isinstance(Backends({"http": endpoint()}).of(agent()), Http)
    assert isinstance(Ranked(("a",)), Ranked)
    assert issubclass(UnknownModel, BackendError)
