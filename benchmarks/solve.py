"""How fast finished calls are replayed through the whole of `Team.solve`.

Target: 1,000 calls a second. One run: several rounds of solving the same queries, four agents each, from the call
cache. `python benchmarks/solve.py [--json]`.
"""

import argparse
import asyncio
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

from coterie.backends.recorded import Scripted
from coterie.config import build
from coterie.pool import pool_of, revise
from coterie.storage.cache import Cache
from coterie.strategies.vote import Vote
from coterie.team import Backends, Team
from coterie.types import Agent, Price

QUERIES, AGENTS, ROUNDS = 500, 4, 5


def team(cache: Cache) -> Team:
    """Four scripted agents that everybody is asked of; `seed % 3` makes them disagree."""
    price = Price(prompt=1.0, completion=1.0)
    agents = [revise(Agent(name=f"a{n}", model=f"scripted:a{n}", price=price)) for n in range(AGENTS)]
    opened = {
        a.model: Scripted(model=a.name, answer=lambda agent, messages, seed: f"Answer: {seed % 3}") for a in agents
    }
    return Team(
        pool=pool_of(agents),
        router=build("router", "uniform"),
        strategy=Vote(threshold=2.0),
        cache=cache,
        backends=Backends(opened=opened),
    )


async def rate(solver: Team) -> float:
    """Calls a second over all queries."""
    queries = [solver.query(f"What is {n} + {n}?") for n in range(QUERIES)]
    start = time.perf_counter()
    calls = 0
    async for trace in solver.solve_all(queries):
        calls += len(trace.turns)
    return calls / (time.perf_counter() - start)


async def measure() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder) / "calls.sqlite")
        solver = team(cache)
        first = await rate(solver)
        replayed = [await rate(solver) for _ in range(ROUNDS)]
        stats = cache.stats()
        cache.close()
    return {
        "python": platform.python_version(),
        "calls_a_round": QUERIES * AGENTS,
        "first_calls_per_s": round(first),
        "replayed_calls_per_s": [round(r) for r in replayed],
        "median": round(statistics.median(replayed)),
        "hits": stats.hits,
        "target": 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    found = asyncio.run(measure())
    if parser.parse_args().json:
        print(json.dumps(found))
    else:
        rounds = found["replayed_calls_per_s"]
        print(f"cached calls through Team.solve: {found['median']}/s (target 1000/s); rounds {rounds}")


if __name__ == "__main__":
    main()
