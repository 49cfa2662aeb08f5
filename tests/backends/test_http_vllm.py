"""Runtime LoRA: loaded once under a name that says its content, probed, unloaded; never a stale one (R13)."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from http_parts import FakeClock, agent, http, outcome, user
from safetensors.numpy import save_file
from upstream import Reply, named_reply, refusal, reply_body, running

from coterie.backends import vllm
from coterie.errors import BackendError, ConfigError, MalformedAnswer, TimedOut, UnknownModel


def adapter(folder, value=0.5, note="{}"):
    """A PEFT folder with one pair of matrices."""
    folder.mkdir(exist_ok=True)
    pair = {"l.lora_A.weight": np.ones((2, 4), np.float32), "l.lora_B.weight": np.full((4, 2), value, np.float32)}
    save_file(pair, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(note)
    return str(folder)


def loads(upstream):
    return [seen.body["lora_name"] for seen in upstream.seen if seen.path.endswith("/load_lora_adapter")]


async def test_an_adapter_is_loaded_once_probed_and_asked_by_its_name(tmp_path):
    async with running() as upstream:
        backend = http(upstream, adapters="vllm")
        asked = agent(adapter=adapter(tmp_path / "x"), name="my expert")
        said = await asyncio.gather(*(outcome(backend, asked, seed=i) for i in range(4)))
        assert len({one.text for one in said}) == 4
        [name] = loads(upstream)
        assert name.startswith("my-expert-")
        assert upstream.adapters == {name: asked.adapter}
        assert {seen.model for seen in upstream.chats() if "top_logprobs" not in seen.body} == {name}
        assert [seen.model for seen in upstream.chats() if "top_logprobs" in seen.body] == [name, "m"]
        warmer = replace(asked, revision=f"{asked.revision}+t0.7")  # sampled otherwise, the same adapter
        await outcome(backend, warmer)
        await backend.prepare(asked)
        assert len(loads(upstream)) == 1
        await backend.aclose()


async def test_new_content_is_a_new_name_and_the_old_one_goes_when_released(tmp_path):
    """R13: a swap in place of the files never answers under the old name."""
    async with running() as upstream:
        backend = http(upstream, adapters="vllm")
        old = agent(adapter=adapter(tmp_path / "x", 0.5))
        await backend.prepare(old)
        adapter(tmp_path / "x", 0.7)
        new = agent(adapter=old.adapter)
        assert new.revision != old.revision
        await backend.prepare(new)
        first, second = loads(upstream)
        assert first != second
        await outcome(backend, new)
        assert upstream.chats()[-1].model == second
        await backend.release(old)
        await backend.release(old)
        assert set(upstream.adapters) == {second}
        assert not isinstance(await outcome(backend, new), BackendError)
        await backend.aclose()


async def test_an_adapter_that_two_agents_share_stays_until_the_last_goes(tmp_path):
    async with running() as upstream:
        backend = http(upstream, adapters="vllm")
        one = agent(adapter=adapter(tmp_path / "x"))
        two = replace(one, revision="other")
        await backend.prepare(one)
        await backend.prepare(two)
        await backend.release(one)
        assert len(upstream.adapters) == 1
        await backend.release(two)
        assert upstream.adapters == {}
        await backend.aclose()


async def test_an_adapter_that_is_there_already_is_probed_all_the_same(tmp_path):
    async with running() as upstream:
        for _ in range(2):
            backend = http(upstream, adapters="vllm")
            await backend.prepare(agent(adapter=adapter(tmp_path / "x")))
            await backend.aclose()
        assert len(set(loads(upstream))) == 1
        assert upstream.total() == 4


def same_for_all(seen):
    return named_reply(replace(seen, body={**seen.body, "model": "m"}))


async def test_a_server_that_answers_as_without_the_adapter_is_refused(tmp_path):
    """Unless the adapter changes nothing, as a fresh one does."""
    async with running() as upstream:
        backend = http(upstream, adapters="vllm")
        real, fresh = (agent(adapter=adapter(tmp_path / name, value)) for name, value in (("x", 0.5), ("y", 0.0)))
        names = {vllm.adapter_name(one) for one in (real, fresh)}
        upstream.scripts = {name: [same_for_all] for name in names}
        with pytest.raises(BackendError, match="was not applied"):
            await backend.prepare(real)
        assert isinstance(await outcome(backend, real), BackendError)  # and it is not asked either
        await backend.prepare(fresh)
        await backend.aclose()


async def test_a_server_that_cannot_be_probed_or_loads_nothing_is_refused(tmp_path):
    async with running() as upstream:
        asked = agent(adapter=adapter(tmp_path / "x"))
        backend = http(upstream, adapters="vllm")
        upstream.scripts[vllm.adapter_name(asked)] = [Reply(body=reply_body([{"message": {"content": "hi"}}]))]
        with pytest.raises(MalformedAnswer, match="no log-probabilities"):
            await backend.prepare(asked)
        upstream.reply = lambda seen: refusal(400, "BadRequestError", "No adapter found for /x")
        with pytest.raises(BackendError, match="was not loaded"):
            await backend.prepare(asked)
        with pytest.raises(ConfigError, match="cannot be read"):
            await backend.prepare(agent(adapter=str(tmp_path)))
        await backend.aclose()


async def test_a_server_that_was_started_anew_gets_the_adapter_again(tmp_path):
    async with running() as upstream:
        backend = http(upstream, adapters="vllm")
        asked = agent(adapter=adapter(tmp_path / "x"))
        await backend.prepare(asked)
        name = vllm.adapter_name(asked)
        upstream.adapters.clear()
        upstream.scripts[name] = [refusal(404, "NotFoundError", f"The model `{name}` does not exist.")]
        assert type(await outcome(backend, asked)) is UnknownModel
        upstream.scripts.clear()
        assert (await outcome(backend, asked)).text
        assert upstream.adapters == {name: asked.adapter}
        await backend.aclose()


async def test_a_probe_tells_adapters_apart(tmp_path):
    async with running() as upstream:
        backend = http(upstream, adapters="vllm")
        one, two = (agent(adapter=adapter(tmp_path / n, v), name=n) for n, v in (("x", 0.5), ("y", 0.6)))
        probes = [await backend.probe(asked, user()) for asked in (one, two, one)]
        assert vllm.distance(probes[0], probes[2]) == 0
        assert vllm.distance(probes[0], probes[1]) > vllm.NOISE
        assert vllm.distance({"a": 0.0}, {"b": 0.0}) == np.inf
        await backend.aclose()


def test_whether_an_adapter_changes_anything_is_read_from_its_weights(tmp_path):
    assert vllm.changes_anything(tmp_path / adapter(tmp_path / "x", 0.5))
    assert not vllm.changes_anything(tmp_path / adapter(tmp_path / "y", 0.0))


def slowly(clock, seconds):
    """Replies that take so long on the clock of the retries."""

    def say(seen):
        clock.time += seconds
        return named_reply(seen)

    return say


async def test_b60_a_load_within_a_call_takes_from_the_calls_budget(tmp_path):
    """Both probes together use it up: the question is not sent. The adapter is there for the next call."""
    clock, asked = FakeClock(), agent(adapter=adapter(tmp_path / "x"))
    async with running({"m": [slowly(clock, 7)], vllm.adapter_name(asked): [slowly(clock, 6)]}) as upstream:
        backend = http(upstream, clock.clock(), adapters="vllm")
        said = await asyncio.gather(*(outcome(backend, asked, seed=i) for i in range(2)))
        assert [type(one) for one in said] == [TimedOut] * 2
        assert upstream.total() == 2
        assert not isinstance(await outcome(backend, asked), BackendError)
        assert (upstream.total(), len(loads(upstream))) == (3, 1)
        pieces = [piece async for piece in backend.stream(asked, user(), seed=0)]
        assert len(pieces) > 1
        await backend.aclose()


async def test_b60_a_load_is_one_budget_for_its_calls(tmp_path):
    """A second probe after its end is not sent."""
    clock, asked = FakeClock(), agent(adapter=adapter(tmp_path / "x"))
    async with running({vllm.adapter_name(asked): [slowly(clock, 12.5)]}) as upstream:
        backend = http(upstream, clock.clock(), adapters="vllm")
        with pytest.raises(TimedOut):
            await backend.prepare(asked)
        assert upstream.total("m") == 0
        await backend.aclose()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_of_one_request_gets_no_other_beside_it(tmp_path, streamed):
    """Loads, probes, the list of models and unloads take a place too, whoever calls; none waits for itself."""
    async with running({"m": [lambda seen: replace(named_reply(seen), delay=0.05)]}) as upstream:
        backend = http(upstream, adapters="vllm", schedule="serial", stream=streamed)
        folders = [adapter(tmp_path / name, value) for name, value in (("x", 0.5), ("y", 0.7))]
        tuned = [agent(adapter=folder, name=name) for folder, name in zip(folders, "xy", strict=True)]
        plain = (outcome(backend, agent(), seed=seed) for seed in range(3))
        work = (*plain, backend.prepare(tuned[0]), outcome(backend, tuned[1]), backend.probe(tuned[1]))
        said = await asyncio.wait_for(asyncio.gather(*work), 10)
        assert not [one for one in said if isinstance(one, BackendError)]
        await asyncio.gather(outcome(backend, agent()), *map(backend.release, tuned))
        assert {seen.path.rpartition("/")[2] for seen in upstream.seen} == {
            "completions", "models", "load_lora_adapter", "unload_lora_adapter",
        }  # fmt: skip
        assert upstream.most_inside == 1
        assert upstream.adapters == {}
        await backend.aclose()


async def test_a_load_that_waits_for_a_place_takes_nothing_from_the_budget(tmp_path):
    clock, asked = FakeClock(), agent(adapter=adapter(tmp_path / "x"))
    async with running() as upstream:
        backend = http(upstream, clock.clock(), adapters="vllm", concurrency=1)
        gate = backend._port(asked).gate
        async with gate.place("another"):
            asking = asyncio.gather(*(outcome(backend, asked, seed=seed) for seed in (1, 2)))
            while not gate._waiting:
                await asyncio.sleep(0.001)
            clock.time += 50
        assert not [one for one in await asking if isinstance(one, BackendError)]
        await backend.aclose()
