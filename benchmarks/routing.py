"""Routing among 1,024 agents against 4: the `familiarity` router with the real `hidden` encoder.

    python benchmarks/routing.py [--agents 1024] [--repeats 8] [--threads N] [--json]

Every repeat routes a new question in each pool in turn, and its ratio is taken within the repeat, so that other
load on the machine hits both. "single" is one `route` call, prompt to weights; "stream" is a batch of questions
in one `distances` call, per question; "heads" is a `route` call whose features are in the encoder's memory.
Heads have the default size and random weights, each agent its own: time does not depend on what was learnt.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from counts import count

from coterie.features.hidden import Hidden
from coterie.routers.familiarity import Familiarity
from coterie.types import Agent, Message, Pool, Query, State

TEXT = (
    "Question {i}. A train leaves the station at nine and travels {j} miles in the first hour. After lunch the "
    "driver meets friends, who each carry {i} apples, and they share them with everybody on board. How many apples "
    "are there for each of the passengers, when half of them do not want any?"
)


def pool_of(size: int) -> Pool:
    return Pool(
        {f"agent-{i}": Agent(name=f"agent-{i}", model="x:y", revision=f"revision-{i}") for i in range(size)}
    )


def query(i: int) -> Query:
    return Query(id=str(i), messages=(Message(role="user", content=TEXT.format(i=i, j=7 * i % 90)),))


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(agents: int, repeats: int, batch: int) -> dict:
    few, many = pool_of(4), pool_of(agents)
    router = Familiarity(encoder=Hidden())
    numbers = iter(range(10_000))
    build = [seconds(lambda pool=pool: router.route(State(query(next(numbers)), pool))) for pool in (few, many)]
    turns: dict[str, list[tuple[float, float]]] = {"single": [], "heads": [], "stream": []}
    for repeat in range(repeats):
        fresh = [State(query(next(numbers)), pool) for pool in (few, many)]
        turns["single"].append(tuple(seconds(lambda s=s: router.route(s)) for s in fresh))
        turns["heads"].append(tuple(seconds(lambda s=s: router.route(s)) for s in fresh))
        if repeat % 4 == 0:
            pair = []
            for pool in (few, many):
                prompts = [query(next(numbers)).messages for _ in range(batch)]
                pair.append(seconds(lambda prompts=prompts, pool=pool: router.distances(prompts, pool)) / batch)
            turns["stream"].append(tuple(pair))
    return {
        "threads": torch.get_num_threads(),
        "agents": [4, agents],
        "tokens": len(router.encoder._states.base.prompt_ids(query(1).messages, 800)),
        "batch": batch,
        "build_s": [round(value, 2) for value in build],
        "rows": [row(name, pairs) for name, pairs in turns.items()],
    }


def row(name: str, pairs: list[tuple[float, float]]) -> dict:
    """Medians of the times, of the ratios, and the ratio of the fastest runs, which other load disturbs least."""
    few, many = zip(*pairs, strict=True)
    return {
        "what": name,
        "few_ms": round(1e3 * statistics.median(few), 2),
        "many_ms": round(1e3 * statistics.median(many), 2),
        "ratio": round(statistics.median(b / a for a, b in pairs), 2),
        "ratio_of_fastest": round(min(many) / min(few), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=count, default=1024)
    parser.add_argument("--repeats", type=count, default=8)
    parser.add_argument("--batch", type=count, default=16)
    parser.add_argument("--threads", type=count)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    found = measure(options.agents, options.repeats, options.batch)
    if options.json:
        print(json.dumps(found))
        return
    few, many = found["agents"]
    print(f"{found['threads']} threads, prompts of {found['tokens']} tokens, stream in batches of {found['batch']}")
    first, second = found["build_s"]
    print(f"heads were made in {first} s (the model's load included) and {second} s")
    print(f"{'':8} {few:>7} agents {many:>7} agents   ratio   of fastest")
    for line in found["rows"]:
        times = f"{line['few_ms']:11.1f} ms {line['many_ms']:11.1f} ms"
        print(f"{line['what']:8} {times} {line['ratio']:7.2f} {line['ratio_of_fastest']:12.2f}")


if __name__ == "__main__":
    main()
