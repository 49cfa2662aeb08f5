"""The local backend end to end on a tiny model: batches, seeds, adapters, stops, limits, failures, exactness."""

import asyncio
import random
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import save, save_adapter, tiny_model  # noqa: E402

from coterie.backends import running as running_module  # noqa: E402
from coterie.backends.base_model import Base, base_model  # noqa: E402
from coterie.backends.decode import Decoder, Slots  # noqa: E402
from coterie.backends.local import Local  # noqa: E402
from coterie.errors import BackendError, ConfigError, ContextOverflow, MalformedAnswer, UserError  # noqa: E402
from coterie.types import Message  # noqa: E402


@pytest.fixture
async def local(llama):
    """Makes backends over the tiny Llama and closes them."""
    made = []

    def make(folder=llama, **options):
        made.append(Local(model=folder, **options))
        return made[-1]

    yield make
    for backend in made:
        await backend.aclose()


async def alone(backend, *calls):
    """The completions of calls made one after another."""
    return [await backend.generate(agent, messages, seed=seed) for agent, messages, seed in calls]


async def together(backend, *calls):
    """The completions of calls made at once."""
    return await asyncio.gather(*(backend.generate(a, m, seed=s) for a, m, s in calls))


def said(completions):
    return [(c.text, c.finish, c.prompt_tokens, c.completion_tokens) for c in completions]


def generated(folder, messages, count, adapter=None):
    """What transformers' own greedy generate says: ids of the completion."""
    base = base_model(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if adapter:
        import peft

        model = peft.PeftModel.from_pretrained(model, adapter).eval()
    ids = torch.tensor([base.prompt_ids(messages, 1000)])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=sorted(base.eos_ids),
        pad_token_id=0,
    )
    return out[0, ids.shape[1] :].tolist()


# --- texts -------------------------------------------------------------------------------------------


async def test_greedy_is_that_of_transformers(local, llama, agent, ask):
    backend = local(return_tokens=True)
    prompts = [ask("hi"), ask("a much longer question than the other one"), ask("7*8?", "Answer:"), ask("z" * 200)]
    done = await together(backend, *((agent(max_tokens=25), p, 0) for p in prompts))
    for completion, prompt in zip(done, prompts, strict=True):
        assert list(completion.tokens.completion) == generated(llama, prompt, 25)
        assert completion.completion_tokens == len(completion.tokens.completion)
        assert completion.prompt_tokens == len(completion.tokens.prompt)


async def test_rows_go_through_their_own_adapters(local, llama, adapters, agent, ask):
    """A13: each row of one mixed batch says what PEFT says alone; the base row what the base says."""
    backend = local(return_tokens=True)
    folders = [*adapters, None]
    calls = [
        (agent(f"a{i}", adapter=folder, max_tokens=16), ask("question"), i) for i, folder in enumerate(folders)
    ]
    texts = []
    for completion, folder in zip(await together(backend, *calls), folders, strict=True):
        texts.append(list(completion.tokens.completion))
        assert texts[-1] == generated(llama, ask("question"), 16, folder)
    assert len(set(map(tuple, texts))) == 4


async def test_a_completion_depends_on_its_own_seed_and_settings_only(local, adapters, agent, ask):
    """Any company, any order, other settings and adapters beside it: the same text."""
    backend = local(max_batch=5)
    kinds = [
        {"temperature": 0.8, "max_tokens": 9},
        {"temperature": 1.2, "top_k": 20, "max_tokens": 20},
        {"temperature": 1.0, "top_p": 0.7, "max_tokens": 5},
        {"temperature": 0.0, "max_tokens": 14},
    ]
    calls = [
        (agent(f"a{i}", adapter=[None, *adapters][i % 4], **kinds[i % 4]), ask(f"question {i % 3}" * (i + 1)), i)
        for i in range(12)
    ]
    wanted = said(await alone(backend, *calls))
    assert said(await together(backend, *calls)) == wanted
    assert said(await together(backend, *reversed(calls))) == wanted[::-1]


async def test_seeds_give_other_samples_and_equal_seeds_the_same(local, agent, ask):
    backend = local()
    call = (agent(temperature=1.0, max_tokens=10), ask("say something"))
    first = said(await together(backend, *((*call, seed) for seed in range(8))))
    assert len({text for text, *_ in first}) == 8
    assert said(await together(backend, *((*call, seed) for seed in range(8)))) == first


async def test_log_probs_are_those_of_the_model(local, llama, adapters, agent, ask):
    """47: of the untempered logits, whatever the temperature; computed with the agent's adapter."""
    import peft

    backend = local(return_tokens=True)
    done = (await together(backend, (agent(adapter=adapters[0], temperature=0.5), ask("hello"), 1)))[0].tokens
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, adapters[0]).eval()
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([done.prompt + done.completion])).logits[0]
    rows = logits[len(done.prompt) - 1 : -1].log_softmax(-1)
    wanted = rows[torch.arange(len(done.completion)), torch.tensor(done.completion)]
    assert torch.allclose(torch.tensor(done.logprobs), wanted, atol=1e-3)


async def test_tokens_come_back_only_when_asked(local, agent, ask):
    assert (await alone(local(), (agent(), ask("x"), 0)))[0].tokens is None


# --- ends --------------------------------------------------------------------------------------------


async def test_the_text_is_cut_before_a_stop_text(local, agent, ask):
    backend = local()
    whole = (await alone(backend, (agent(max_tokens=40), ask("go on"), 0)))[0]
    assert len(whole.text) > 12
    stop = whole.text[8:11]
    place = whole.text.find(stop)
    cut, other = await together(
        backend,
        (agent(max_tokens=40, stop=("never said", stop)), ask("go on"), 0),
        (agent(max_tokens=40), ask("go on"), 0),
    )
    assert (cut.text, cut.finish) == (whole.text[:place], "stop")
    assert 0 < cut.completion_tokens < whole.completion_tokens
    assert other.text == whole.text


@pytest.mark.parametrize("source", ["generation_config", "template", "tokenizer"])
async def test_every_end_of_turn_ends_the_turn(local, agent, ask, tmp_path, source):
    """49, 73: the id is honoured wherever it is stated; the text leaves it out, the count does not."""
    ends = {"generation_config": 200, "template": 258, "tokenizer": 256}
    model = tiny_model(eos_token_id=None)
    model.generation_config.eos_token_id = [200, 201] if source == "generation_config" else None
    folder = save(tmp_path / "m", model=model)
    end, backend = ends[source], local(folder, return_tokens=True)
    base = base_model(folder)
    said_before = (await alone(backend, (agent(max_tokens=6), ask("x"), 0)))[0].tokens.completion
    # The end takes the place of a token that the model says.
    with base.lock, torch.no_grad():
        swapped, head = said_before[3], base.model.lm_head.weight
        head[[swapped, end]] = head[[end, swapped]].clone()
    done = (await alone(backend, (agent(max_tokens=20), ask("x"), 0)))[0]
    first = said_before.index(swapped)
    assert done.finish == "stop"
    assert done.tokens.completion[-1] == end
    assert done.completion_tokens == first + 1
    assert done.text == base.text_of(said_before[:first])


async def test_length_ends_and_counts(local, agent, ask):
    done = await together(local(), *((agent(max_tokens=n), ask("hello"), 0) for n in (1, 2, 7)))
    assert [(c.finish, c.completion_tokens) for c in done] == [("length", n) for n in (1, 2, 7)]
    assert all(c.seconds > 0 for c in done)


# --- limits ------------------------------------------------------------------------------------------


async def test_prompts_are_cut_at_the_left(local, llama, agent, ask):
    backend = local(return_tokens=True)
    whole = base_model(llama).prompt_ids(ask("w" * 5000), 10**6)
    limited, full, short = await together(
        backend,
        (agent(max_prompt_tokens=20, max_tokens=3), ask("w" * 5000), 0),
        (agent(max_tokens=3), ask("w" * 5000), 0),
        (agent(max_prompt_tokens=20, max_tokens=3), ask("w"), 0),
    )
    assert list(limited.tokens.prompt) == whole[-20:]
    assert list(full.tokens.prompt) == whole[-(2048 - 3) :]
    assert short.prompt_tokens == len(base_model(llama).prompt_ids(ask("w"), 10**6)[-20:])


async def test_limits_that_leave_no_room_are_said(local, agent, ask):
    backend = local()
    good, full, none = await asyncio.gather(
        backend.generate(agent(), ask("x"), seed=0),
        backend.generate(agent("big", max_tokens=2048), ask("x"), seed=0),
        backend.generate(agent("zero", max_tokens=0), ask("x"), seed=0),
        return_exceptions=True,
    )
    assert good.completion_tokens > 0
    assert isinstance(full, ContextOverflow)
    assert "big" in str(full)
    assert isinstance(none, BackendError)
    assert "zero" in str(none)


async def test_memory_bounds_the_batch(local, agent, ask, monkeypatch):
    """Requests that do not fit wait; one alone is always served."""
    sizes = spied(monkeypatch)
    # Two layers, 2 x 16 wide, keys and values, fp32: 512 bytes a column.
    backend = local(cache_gib=100 * 512 / 2**30)
    calls = [(agent(max_tokens=8), ask("x" * n), n) for n in (1, 2, 3, 200)]
    wanted = said(await alone(local(), *calls))
    sizes.clear()
    assert said(await together(backend, *calls)) == wanted
    assert max(sizes) <= 2


# --- batching ----------------------------------------------------------------------------------------


def spied(monkeypatch):
    """The number of rows of every decode step from here on."""
    sizes, step = [], Decoder.step

    def counted(self, slots, tokens, positions, columns):
        sizes.append(len(tokens))
        return step(self, slots, tokens, positions, columns)

    monkeypatch.setattr(Decoder, "step", counted)
    return sizes


async def test_requests_fuse_and_finished_rows_leave(local, agent, ask, monkeypatch):
    sizes = spied(monkeypatch)
    backend = local()
    await backend.prepare(agent())
    await together(backend, *((agent(max_tokens=n), ask(f"question {n}"), 0) for n in (2, 4, 4, 9)))
    assert sizes == [4] * 2 + [3] * 2 + [1] * 5


async def test_a_batch_is_bounded_and_refilled(local, agent, ask, monkeypatch):
    sizes = spied(monkeypatch)
    backend = local(max_batch=3)
    await backend.prepare(agent())
    await together(backend, *((agent(max_tokens=2 + i), ask(f"question {i}"), 0) for i in range(7)))
    assert max(sizes) == 3
    assert sum(sizes) == sum(2 + i for i in range(7))


async def test_a_request_joins_a_running_batch(local, agent, ask, monkeypatch):
    backend = local()
    wanted = said(await alone(backend, (agent(max_tokens=300), ask("long"), 0), (agent(), ask("short"), 0)))
    sizes = spied(monkeypatch)
    long = asyncio.ensure_future(backend.generate(agent(max_tokens=300), ask("long"), seed=0))
    while len(sizes) < 5:
        await asyncio.sleep(0.001)
    short = await backend.generate(agent(), ask("short"), seed=0)
    assert not long.done()
    assert said([await long, short]) == wanted
    assert 2 in sizes


async def test_samples_of_one_prompt_share_its_prefill(local, adapters, agent, ask, monkeypatch):
    """Same ids and same adapter: once, also for a sample that comes while another one runs."""
    prompts, prefill = [], Decoder.prefill

    def counted(self, batch):
        prompts.extend(batch)
        return prefill(self, batch)

    backend = local()
    one, two = (agent(adapter=a, temperature=1.0, max_tokens=60) for a in adapters[:2])
    calls = [(one, ask("p"), s) for s in range(4)] + [(two, ask("p"), 0), (one, ask("q"), 0)]
    wanted = said(await alone(backend, *calls))
    monkeypatch.setattr(Decoder, "prefill", counted)
    sizes = spied(monkeypatch)
    early = asyncio.ensure_future(together(backend, *calls))
    while len(sizes) < 5:
        await asyncio.sleep(0.001)
    late = await backend.generate(*calls[0][:2], seed=calls[0][2])
    assert said(await early) == wanted
    assert said([late]) == wanted[:1]
    assert len(prompts) == 3


# --- exactness ---------------------------------------------------------------------------------------


async def test_deterministic_is_exact_in_any_company(local, adapters, agent, ask):
    """Bit for bit: a row's log-probabilities are equal over 30 batches of other sizes, orders and adapters."""
    backend = local(deterministic=True, max_batch=6, return_tokens=True)
    rng = random.Random(0)
    subjects = [
        (agent("s0", temperature=1.0, max_tokens=12), ask("the subject"), 7),
        (agent("s1", adapter=adapters[0], temperature=0.7, top_p=0.9, max_tokens=20), ask("s" * 90), 8),
    ]
    wanted = [c.tokens for c in await alone(backend, *subjects)]
    for trial in range(30):
        company = [
            (
                agent(adapter=rng.choice([None, *adapters]), temperature=1.0, max_tokens=rng.randint(1, 25)),
                ask("c" * rng.randint(1, 600)),
                trial,
            )
            for _ in range(rng.randint(0, 9))
        ]
        calls = [*company, *subjects]
        rng.shuffle(calls)
        done = await together(backend, *calls)
        found = [done[calls.index(subject)].tokens for subject in subjects]
        assert found == wanted


async def test_deterministic_does_not_depend_on_the_thread_count(local, agent, ask):
    """The worker computes on one core; every other thread keeps its number."""
    before = torch.get_num_threads()
    call = (agent(temperature=1.0), ask("hello"), 3)
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            backend = local(deterministic=True, max_batch=4, return_tokens=True)
            found += await alone(backend, call)
            seen = []
            other = threading.Thread(target=lambda seen=seen: seen.append(torch.get_num_threads()))
            other.start()
            other.join()
            assert [torch.get_num_threads(), *seen] == [threads, threads]
        assert found[0].tokens == found[1].tokens
    finally:
        torch.set_num_threads(before)


# --- agents ------------------------------------------------------------------------------------------


async def test_agents_share_the_base_and_equal_adapters(local, llama, adapters, agent, tmp_path):
    twin = shutil.copytree(adapters[0], tmp_path / "twin")
    one, two = local(), local()
    base = base_model(llama)
    await one.prepare(agent("a", adapter=adapters[0]))
    await one.prepare(agent("b", adapter=str(twin)))
    await two.prepare(agent("c", adapter=adapters[0]))
    assert one._worker._base is two._worker._base is base
    assert len({id(pairs[k][0]) for pairs in base.adapters._pairs.values() for k in pairs}) == 10


async def test_released_adapters_are_dropped_with_their_last_request(local, llama, adapters, agent, ask):
    backend, base = local(), base_model(llama)
    one = agent(adapter=adapters[0], max_tokens=200)
    wanted = said(await alone(backend, (one, ask("x"), 0)))
    key = backend._worker._adapters[(one.adapter, one.revision)]
    running = asyncio.ensure_future(backend.generate(one, ask("x"), seed=0))
    await asyncio.sleep(0.02)
    await backend.release(one)
    assert said([await running]) == wanted
    for _ in range(200):
        if key not in base.adapters:
            break
        await asyncio.sleep(0.01)
    assert key not in base.adapters
    assert said(await alone(backend, (one, ask("x"), 0))) == wanted


async def test_an_adapter_replaced_in_its_folder_is_another_revision(local, adapters, agent, ask, tmp_path):
    """B13, 15: the old revision goes on with the old weights, the new one never sees them."""
    folder = shutil.copytree(adapters[0], tmp_path / "x")
    backend = local()
    old = replace(agent(adapter=str(folder)), revision="1")
    before = said(await alone(backend, (old, ask("x"), 0)))
    shutil.rmtree(folder)
    shutil.copytree(adapters[1], folder)
    new = replace(old, revision="2")
    await backend.prepare(new)
    wanted = said(await alone(backend, (agent(adapter=adapters[1]), ask("x"), 0)))
    assert said(await together(backend, (old, ask("x"), 0), (new, ask("x"), 0))) == before + wanted


async def test_a_relative_adapter_lies_in_the_agents_folder(local, adapters, agent, ask):
    backend = local()
    inside = replace(agent(adapter=Path(adapters[0]).name), folder=str(Path(adapters[0]).parent))
    assert said(await alone(backend, (inside, ask("x"), 0))) == said(
        await alone(backend, (agent(adapter=adapters[0]), ask("x"), 0))
    )


async def test_an_adapter_that_does_not_fit_harms_nobody(local, adapters, agent, ask, tmp_path):
    tiny_model(hidden_size=32, head_dim=8).save_pretrained(tmp_path / "other")
    bad = agent("bad", adapter=save_adapter(tmp_path / "x", tmp_path / "other", seed=0))
    backend = local()
    good = (agent(adapter=adapters[0]), ask("x"), 0)
    wanted = said(await alone(backend, good))
    for broken, words in ((bad, "rank 4"), (agent("gone", adapter="/no/folder"), "gone")):
        with pytest.raises(UserError, match=words):
            await backend.prepare(broken)
        with pytest.raises(UserError, match=words):
            await backend.generate(broken, ask("x"), seed=0)
    assert said(await alone(backend, good)) == wanted


async def test_a_missing_model_is_the_users_error(local, agent):
    with pytest.raises(UserError, match="nowhere"):
        await local("./nowhere").prepare(agent())


# --- failures ----------------------------------------------------------------------------------------


async def test_a_prompt_that_fails_fails_alone(local, agent, ask, monkeypatch):
    backend = local()
    await backend.prepare(agent())
    encode = Base.prompt_ids

    def torn(self, messages, limit):
        if messages[-1].content == "bad":
            raise ValueError("no such words")
        return encode(self, messages, limit)

    monkeypatch.setattr(Base, "prompt_ids", torn)
    good, bad = await asyncio.gather(
        backend.generate(agent(), ask("good"), seed=0),
        backend.generate(agent("b"), ask("bad"), seed=0),
        return_exceptions=True,
    )
    assert good.text
    assert isinstance(bad, BackendError)
    assert "b: " in str(bad)
    assert "no such words" in str(bad)


async def test_a_prefill_that_fails_fails_alone(local, agent, ask, monkeypatch):
    """Prompts of one prefill are tried apart when it fails."""
    backend, prefill = local(), Decoder.prefill
    wanted = said(await alone(backend, (agent(), ask("good"), 0)))
    evil = base_model(backend.model).prompt_ids(ask("evil"), 99)[:-1]

    def torn(self, batch):
        if evil in batch:
            raise RuntimeError("out of memory")
        return prefill(self, batch)

    monkeypatch.setattr(Decoder, "prefill", torn)
    one, two, bad = await asyncio.gather(
        *(backend.generate(agent(), ask(text), seed=0) for text in ("good", "fine", "evil")), return_exceptions=True
    )
    assert said([one]) == wanted
    assert two.text
    assert isinstance(bad, BackendError)
    assert "out of memory" in str(bad)


async def test_a_step_that_fails_fails_its_batch_and_no_more(local, agent, ask, monkeypatch):
    backend, step = local(), Decoder.step
    wanted = said(await alone(backend, (agent(), ask("x"), 0)))

    def torn(self, *given):
        raise RuntimeError("broken step")

    monkeypatch.setattr(Decoder, "step", torn)
    for failure in await asyncio.gather(
        *(backend.generate(agent(), ask("x"), seed=s) for s in range(3)), return_exceptions=True
    ):
        assert isinstance(failure, BackendError)
        assert "broken step" in str(failure)
    monkeypatch.setattr(Decoder, "step", step)
    assert said(await alone(backend, (agent(), ask("x"), 0))) == wanted


async def test_a_row_that_finds_no_memory_does_not_wait_for_ever(local, agent, ask, monkeypatch):
    backend, reserve = local(), Slots.reserve
    await backend.prepare(agent())

    def full(self, *given):
        raise MemoryError("no room")

    monkeypatch.setattr(Slots, "reserve", full)
    for failure in await asyncio.gather(
        *(backend.generate(agent(), ask("x"), seed=s) for s in range(3)), return_exceptions=True
    ):
        assert isinstance(failure, BackendError)
    monkeypatch.setattr(Slots, "reserve", reserve)
    assert (await alone(backend, (agent(), ask("x"), 0)))[0].text


@pytest.mark.parametrize("deterministic", [False, True])
async def test_logits_that_are_not_finite_fail_their_row_only(local, adapters, agent, ask, tmp_path, deterministic):
    from safetensors.torch import load_file, save_file

    sick = shutil.copytree(adapters[1], tmp_path / "sick")
    tensors = load_file(sick / "adapter_model.safetensors")
    save_file({k: t * float("nan") for k, t in tensors.items()}, sick / "adapter_model.safetensors")
    backend = local(deterministic=deterministic, max_batch=2)
    well = (agent(adapter=adapters[0]), ask("x"), 0)
    wanted = said(await alone(backend, well))
    found, failure = await asyncio.gather(
        backend.generate(*well[:2], seed=0),
        backend.generate(agent(adapter=str(sick)), ask("x" * 50), seed=0),
        return_exceptions=True,
    )
    assert said([found]) == wanted
    assert isinstance(failure, MalformedAnswer)
    # Whoever sits in its place next, shorter than it was, finds nothing of it.
    long = (well[0], ask("y" * 80), 1)
    beside = said(await alone(local(), long))
    assert said(await together(backend, long, well)) == beside + wanted


@pytest.mark.parametrize("deterministic", [False, True])
async def test_a_cancelled_request_leaves_its_batch(local, agent, ask, monkeypatch, deterministic):
    backend = local(deterministic=deterministic, max_batch=3)
    calls = [(agent(max_tokens=60), ask("x" * n), n) for n in (1, 5, 3)]
    wanted = said(await alone(backend, *calls))
    busy, step = [], Decoder.step

    def counted(self, slots, tokens, positions, columns):
        busy.append(sum(position > 0 for position in positions))
        return step(self, slots, tokens, positions, columns)

    monkeypatch.setattr(Decoder, "step", counted)
    tasks = [asyncio.ensure_future(backend.generate(a, m, seed=s)) for a, m, s in calls]
    while len(busy) < 4:
        await asyncio.sleep(0.001)
    tasks[0].cancel()
    rest = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(rest[0], asyncio.CancelledError)
    assert said(rest[1:]) == wanted[1:]
    assert set(busy) == {3, 2}


async def test_closing_fails_what_waits_and_stops_the_thread(local, agent, ask):
    backend = local(max_batch=1)
    await backend.prepare(agent())
    tasks = [asyncio.ensure_future(backend.generate(agent(max_tokens=1500), ask("x"), seed=s)) for s in range(3)]
    await asyncio.sleep(0.05)
    await backend.aclose()
    for failure in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(failure, BackendError)
    assert not [t for t in threading.enumerate() if t.name == "coterie-local" and t.is_alive()]
    assert (await backend.generate(agent(), ask("x"), seed=0)).text


def test_event_loops_one_after_another(llama, agent, ask):
    backend = Local(model=llama)
    texts = [asyncio.run(backend.generate(agent(), ask("x"), seed=0)).text for _ in range(3)]
    assert len(set(texts)) == 1
    asyncio.run(backend.aclose())


def test_event_loops_in_several_threads(llama, agent, ask):
    backend, texts = Local(model=llama), []
    threads = [
        threading.Thread(target=lambda: texts.append(asyncio.run(backend.generate(agent(), ask("x"), seed=0)).text))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(backend.aclose())
    assert len(texts) == 4
    assert len(set(texts)) == 1


async def test_features_take_turns_with_decoding(local, llama, agent, ask):
    """R8: a forward on the shared base gets through while a batch runs."""
    backend, base = local(), base_model(llama)
    await backend.prepare(agent())
    long = asyncio.ensure_future(backend.generate(agent(max_tokens=1500), ask("x"), seed=0))

    def forward():
        with base.without_adapters(), torch.inference_mode():
            return base.model(input_ids=torch.arange(5)[None]).logits

    for _ in range(5):
        await asyncio.to_thread(forward)
    assert not long.done()
    long.cancel()


def test_it_is_its_own_configuration(llama):
    read = TypeAdapter(Local).validate_python
    assert read({"model": llama, "max_batch": 4}) == Local(model=llama, max_batch=4)
    with pytest.raises(ValidationError, match="max_bach"):
        read({"model": llama, "max_bach": 4})


@pytest.mark.parametrize("wrong", [{"max_batch": 0}, {"cache_gib": -1.0}])
def test_limits_below_one_are_refused(llama, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Local(model=llama, **wrong)


async def test_an_unused_backend_closes_without_loading(local, agent):
    backend = local("./nowhere")
    await backend.release(agent())
    await backend.aclose()


def test_stop_texts_are_looked_for_in_the_whole_text():
    assert running_module.cut("a\nb\nc", ("c", "\n")) == ("a", True)
    assert running_module.cut("abc", ("", "x")) == ("abc", False)


# --- the real model ----------------------------------------------------------------------------------


@pytest.mark.model
async def test_the_embedded_model_answers_in_any_company(agent):
    """A fused batch of greedy and sampled rows says what each says alone; one has a prefill, one a stop text."""
    backend = Local(model="builtin:smollm2-135m")
    questions = ["What is 7 * 8?", "What is the capital of France?", "Name a colour.", "Say hello."]
    calls = [
        (
            agent(temperature=0.0 if i % 2 else 0.7, max_tokens=8, stop=("\n",)),
            (Message(role="user", content=q), Message(role="assistant", content="Answer:")),
            i,
        )
        for i, q in enumerate(questions)
    ]
    wanted = said(await alone(backend, *calls))
    assert said(await together(backend, *calls)) == wanted
    assert "Paris" in wanted[1][0]
    await backend.aclose()
