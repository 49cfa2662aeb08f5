"""What routing costs beside what it routes: the paper's Table 6 on the embedded model.

    python benchmarks/router_latency.py [--tokens 64] [--repeats 3] [--agents 4] [--threads N] [--json]

Three times are taken in turn, so that other load on the machine hits all: "router" is one query at batch 1 through
mid-layer features and the heads of all agents; "native" is one completion of `tokens` tokens at batch 1 by
transformers' own `generate`; "batched" is 32 requests at once through the local backend, per completion. Every
question is new, so that nothing comes from a memory. Medians count, ratios are taken within a repeat. The paper
(Qwen3-4B, H200): 11.87 ms, 1350.32 ms, 154.09 ms (vLLM), so 0.9 % and 7.7 %.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable

import torch
from counts import count

from coterie.backends.base_model import base_model
from coterie.backends.local import Local
from coterie.features.hidden import Hidden
from coterie.routers.familiarity import Familiarity
from coterie.types import Agent, Message, Pool, Query, Sampling, State

MODEL = "builtin:smollm2-135m"
TEXT = (
    "Story {i}. A train leaves the station at nine and travels {j} miles in the first hour. After lunch the driver "
    "meets friends, who each carry {i} apples, and they share them with everybody on board. Tell the story of "
    "this journey at length, with all the people on the train and what they say to each other."
)
BATCH = 32


def question(i: int) -> Query:
    return Query(id=str(i), messages=(Message(role="user", content=TEXT.format(i=i, j=7 * i % 90)),))


def pool_of(size: int) -> Pool:
    return Pool({f"agent-{i}": Agent(name=f"agent-{i}", model=MODEL, revision=f"r{i}") for i in range(size)})


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def native(query: Query, tokens: int) -> None:
    """One completion of exactly so many tokens, by transformers."""
    base = base_model(MODEL)
    ids = torch.tensor([base.prompt_ids(query.messages, 800)], device=base.device)
    with base.without_adapters(), torch.inference_mode():
        base.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=min(base.eos_ids),
        )


async def batched(backend: Local, queries: list[Query], tokens: int) -> int:
    """Completions of at most so many tokens together; how many tokens they have."""
    agent = Agent(name="one", model=MODEL, sampling=Sampling(temperature=0.7, max_tokens=tokens))
    done = await asyncio.gather(*(backend.generate(agent, q.messages, seed=i) for i, q in enumerate(queries)))
    return sum(completion.completion_tokens for completion in done)


async def measure(agents: int, tokens: int, repeats: int) -> dict:
    pool, numbers, backend = pool_of(agents), iter(range(100_000)), Local(model=MODEL)
    router = Familiarity(encoder=Hidden())
    times: dict[str, list[float]] = {"router": [], "native": [], "batched": []}
    lengths: list[float] = []
    for repeat in range(repeats + 1):
        found = {"router": seconds(lambda: router.route(State(question(next(numbers)), pool)))}
        found["native"] = seconds(lambda: native(question(next(numbers)), tokens))
        start = time.perf_counter()
        said = await batched(backend, [question(next(numbers)) for _ in range(BATCH)], tokens)
        found["batched"] = (time.perf_counter() - start) / BATCH
        if repeat:  # the first one loads and warms up
            lengths.append(said / BATCH)
            for name, value in found.items():
                times[name].append(value)
    await backend.aclose()
    return facts(times, lengths, tokens, agents)


def device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"


def facts(times: dict[str, list[float]], lengths: list[float], tokens: int, agents: int) -> dict:
    ratios = {
        name: statistics.median(r / t for r, t in zip(times["router"], times[name], strict=True))
        for name in ("native", "batched")
    }
    return {
        "device": device(),
        "agents": agents,
        "prompt_tokens": len(base_model(MODEL).prompt_ids(question(1).messages, 800)),
        "completion_tokens": {"native": tokens, "batched": round(statistics.mean(lengths), 1)},
        "median_ms": {name: round(1e3 * statistics.median(found), 2) for name, found in times.items()},
        "router_over": {name: round(ratio, 4) for name, ratio in ratios.items()},
        "repeats": len(lengths),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=count, default=64)
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--agents", type=count, default=4)
    parser.add_argument("--threads", type=count)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    found = asyncio.run(measure(options.agents, options.tokens, options.repeats))
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found['device']}; {found['agents']} agents, prompts of {found['prompt_tokens']} tokens")
    lengths = {"router": 0, **found["completion_tokens"]}
    print(f"{'':8} {'batch':>6} {'tokens':>7} {'median':>12}   router / this")
    for name, value in found["median_ms"].items():
        share = f"{100 * found['router_over'][name]:.1f} %" if name in found["router_over"] else "–"
        print(f"{name:8} {BATCH if name == 'batched' else 1:6} {lengths[name]:7g} {value:9.1f} ms   {share:>8}")


if __name__ == "__main__":
    main()
