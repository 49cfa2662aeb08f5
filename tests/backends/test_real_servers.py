"""The HTTP backend against real servers, whose addresses the environment names; `-m slow` runs them.

COTERIE_VLLM_URL: vLLM with runtime LoRA, over the embedded model's folder. COTERIE_LLAMACPP_URL: that of llama.cpp.
`docs/results/servers.md` says how to start both and what they answered.
"""

import asyncio
import os
import time

import pytest
from http_parts import agent, outcome, query, team, user

from coterie.backends import vllm
from coterie.backends.endpoint import Endpoint
from coterie.backends.http import Http
from coterie.errors import BackendError, ContextOverflow, UnknownModel
from coterie.types import Completion

pytestmark = pytest.mark.slow
SERVERS = ("COTERIE_VLLM_URL", "COTERIE_LLAMACPP_URL")
CAPITAL = user("What is the capital of France?")


def address(name):
    if name not in os.environ:
        pytest.skip(f"no such server; {name} names its base URL, and {name}_MODEL its model")
    return os.environ[name], os.environ.get(f"{name}_MODEL", "smollm2")


@pytest.fixture(params=SERVERS)
def server(request):
    """Name, model id and a maker of backends for one server."""
    url, model = address(request.param)
    opened = []

    def make(**options):
        opened.append(Http(endpoints={"e": Endpoint(base_url=url, retries=0, **options)}))
        return opened[-1]

    yield request.param, model, make
    assert all(not one._lines for one in opened), "a backend was left open"


async def test_chat_plain_and_streamed_agree(server):
    name, model, make = server
    plain, streamed = make(), make(stream=True)
    asked = agent(model, temperature=0.0, max_tokens=12)
    one, two = await outcome(plain, asked, CAPITAL), await outcome(streamed, asked, CAPITAL)
    pieces = [piece async for piece in streamed.stream(asked, CAPITAL, seed=0)]
    await plain.aclose()
    await streamed.aclose()
    assert isinstance(one, Completion), one
    assert isinstance(two, Completion), two
    assert "Paris" in one.text or "LLAMACPP" in name  # whose 4 bits do not know it
    assert one.text == two.text == "".join(pieces[:-1]) == pieces[-1].text
    assert len(pieces) > 3
    assert one.finish in ("stop", "length")
    assert one.prompt_tokens == 37
    assert not one.estimated
    print(f"\n{name}: {one.text!r} usage when streamed: {'estimated' if two.estimated else 'stated'}")


async def test_samples_are_as_many_as_asked_for_and_differ(server):
    """B4: vLLM makes three of one request, llama.cpp's server one, and the others are asked apart."""
    name, model, make = server
    backend = make(samples="together")
    asked = agent(model, temperature=1.5, max_tokens=16)
    said = await asyncio.gather(*(outcome(backend, asked, CAPITAL, seed) for seed in range(3)))
    await backend.aclose()
    assert len({one.text for one in said}) == 3, said
    print(f"\n{name}: {[one.text for one in said]}")


async def test_equal_seeds_give_equal_samples(server):
    name, model, make = server
    backend = make()
    asked = agent(model, temperature=1.0, max_tokens=12)
    texts = [(await outcome(backend, asked, CAPITAL, seed)).text for seed in (5, 5, 6)]
    await backend.aclose()
    print(f"\n{name}: seeds {'hold' if texts[0] == texts[1] else 'do not hold'}")
    assert texts[0] != texts[2]


async def test_log_probabilities_make_best_of_n_work(server):
    name, model, make = server
    backend = make(logprobs=True, extra={"top_logprobs": 1} if "LLAMACPP" in name else {})
    asked = agent(model, temperature=0.0, max_tokens=8)
    said = await outcome(backend, asked, CAPITAL)
    assert len(said.logprobs) == said.completion_tokens
    assert all(value <= 0 for value in said.logprobs)
    solver = team(backend, [model], "best_of_n", samples=2)
    solver.pool = solver.pool.with_agents(agent(model, name=model, max_tokens=8))
    trace = await solver.solve(query())
    assert trace.final is not None
    await backend.aclose()


async def test_a_prefill_is_gone_on_with(server):
    name, model, make = server
    backend = make(prefill="continue" if "VLLM" in name else "message")
    prompt = user("What is the capital of France?", prefill="The capital of France is")
    said = await outcome(backend, agent(model, temperature=0.0, max_tokens=8), prompt)
    await backend.aclose()
    print(f"\n{name}: prefill gone on with as {said.text!r}")
    assert "Paris" in said.text


async def test_many_at_once_and_stop_texts(server):
    name, model, make = server
    backend = make(concurrency=8)
    asked = agent(model, temperature=0.0, max_tokens=8, stop=(".",))
    start = time.perf_counter()
    said = await asyncio.gather(*(outcome(backend, asked, CAPITAL, i) for i in range(8)))
    print(f"\n{name}: 8 at once in {time.perf_counter() - start:.1f} s, alone {said[0].seconds:.1f}")
    await backend.aclose()
    assert all(isinstance(one, Completion) and "." not in one.text for one in said), said


async def test_what_the_server_refuses_is_told_apart(server):
    name, model, make = server
    backend = make()
    lost = await outcome(backend, agent("no-such-model"), CAPITAL)
    long = await outcome(backend, agent(model), user("word " * 9000))
    await backend.aclose()
    print(f"\n{name}: unknown model: {lost!r}\n  too long: {long!r}")
    assert type(long) is ContextOverflow
    assert type(lost) is UnknownModel or "LLAMACPP" in name  # which answers with the model it has


async def test_leaving_early_frees_the_server(server):
    _, model, make = server
    backend = make()
    asking = asyncio.ensure_future(backend.generate(agent(model, max_tokens=400), CAPITAL, seed=1))
    await asyncio.sleep(1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    said = await outcome(backend, agent(model, max_tokens=4), CAPITAL)
    await backend.aclose()
    assert isinstance(said, Completion)


# --- runtime LoRA -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A real PEFT adapter of the embedded model, with weights that change its answers."""
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    from coterie.backends.base_model import base_model

    base = base_model("builtin:smollm2-135m")
    torch.manual_seed(3)
    settings = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(base.model, settings)
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    folder = tmp_path_factory.mktemp("lora")
    wrapped.save_pretrained(folder)
    wrapped.unload()
    return str(folder)


async def local_probe(adapter_folder):
    """Log-probabilities of the likeliest first tokens, by transformers and PEFT."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from coterie.backends.base_model import base_model
    from coterie.backends.builtin import NAME, models_folder

    base = base_model("builtin:smollm2-135m")
    model = AutoModelForCausalLM.from_pretrained(models_folder() / NAME, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter_folder).eval() if adapter_folder else model.eval()
    ids = base.prompt_ids(vllm.PROBE, 200)
    with torch.inference_mode():
        row = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, -1].float(), dim=-1)
    best = row.topk(vllm.PROBED)
    return {base.tokenizer.decode([i]): v for i, v in zip(best.indices.tolist(), best.values.tolist(), strict=True)}


async def test_a_runtime_adapter_equals_peft_and_goes_when_released(adapter):
    """R13: probed against the local engine, under a name of its content."""
    url, model = address("COTERIE_VLLM_URL")
    backend = Http(endpoints={"e": Endpoint(base_url=url, adapters="vllm", retries=0)})
    tuned, plain = agent(model, adapter=adapter, max_tokens=8), agent(model, max_tokens=8)
    start = time.perf_counter()
    await backend.prepare(tuned)
    took = time.perf_counter() - start
    with_adapter, without = await backend.probe(tuned), await backend.probe(plain)
    own, base = await local_probe(adapter), await local_probe(None)
    pairs = {"PEFT": (with_adapter, own), "base": (without, base), "no adapter": (with_adapter, without)}
    apart = {name: vllm.distance(*pair) for name, pair in pairs.items()}
    print(f"\nloaded and probed in {took:.2f} s; largest distances in nats: {apart}")
    assert max(apart["PEFT"], apart["base"]) < 0.02
    assert apart["no adapter"] > 0.1
    said = await asyncio.gather(*(outcome(backend, one, CAPITAL) for one in (tuned, plain)))
    assert all(isinstance(one, Completion) for one in said), said
    name = vllm.adapter_name(tuned)
    await backend.prepare(tuned)
    await backend.release(tuned)
    gone = await outcome(backend, agent(name), CAPITAL)
    await backend.aclose()
    assert type(gone) is UnknownModel
    assert issubclass(UnknownModel, BackendError)
