"""Reviews by the embedded model with and without their schema: how many are valid, and what the mask costs.

Each of N questions is answered by the three proposers of `rem_moa/smollm2`, then reviewed `--seeds` times as
`rem_moa` asks for it, with the schema and in words alone, all in the same running batches. Valid: JSON; exact: of
the very form that was asked for. The cost is a ratio of tokens a second in one process: the same batch decodes the
same number of tokens, held to a schema that never ends or free, in turn; the first round is thrown away.
`python benchmarks/constrained.py [-n 20] [--seeds 3] [--rows 8] [--rounds 5] [--json]`.
"""

import argparse
import asyncio
import json
import time
from dataclasses import replace
from statistics import median

from counts import count

from coterie.backends.base_model import base_model
from coterie.backends.local import Local
from coterie.backends.running import Row, Running
from coterie.rollout import with_instruction
from coterie.strategies import prompts
from coterie.strategies.quoting import Quote
from coterie.strategies.reviewer import read
from coterie.tasks.catalog import load_task
from coterie.tasks.extract import decoded
from coterie.team import Team
from coterie.types import Message, Sampling

MODEL = "builtin:smollm2-135m"
STEPS = 48


async def reviews(count: int, seeds: int) -> dict[str, object]:
    """Shares of valid and of exact reviews, and what the replies were like."""
    team = Team.load("rem_moa/smollm2")
    queries = load_task("operands:red+blue+green+yellow/test", limit=count, seed=0).queries
    solvers = [team.pool[name] for name in team.pool.names()]
    reviewer = team.pool[team.pool.names("reviewer")[0]]
    schema = prompts.review_schema(range(1, len(solvers) + 1), reviewer.sampling.max_tokens)
    held = replace(reviewer, sampling=replace(reviewer.sampling, schema=schema))
    backend = Local(model=MODEL, max_batch=32)

    async def one(query, seed):
        asks = [backend.generate(a, with_instruction(a, query.messages), seed=seed) for a in solvers]
        quotes = [Quote(text=said.text) for said in await asyncio.gather(*asks)]
        asked = prompts.reviewer(query, quotes, reviewer.sampling.max_prompt_tokens)
        return await asyncio.gather(*(backend.generate(a, asked, seed=seed) for a in (held, reviewer)))

    try:
        pairs = await asyncio.gather(*(one(query, seed) for query in queries for seed in range(seeds)))
    finally:
        await backend.aclose()
    return {"reviews": len(pairs)} | {
        name: _counted([pair[place] for pair in pairs], len(solvers))
        for place, name in enumerate(("schema", "words"))
    }


def _counted(said, traces: int) -> dict[str, object]:
    readings = [read(one.text, traces) for one in said]
    return {
        "valid": sum(decoded(one.text.strip()) is not None for one in said) / len(said),
        "exact": sum(reading.exact for reading in readings) / len(said),
        "traces with a score": sum(len(reading.said) for reading in readings) / (traces * len(said)),
        "cut at max_tokens": sum(one.finish == "length" for one in said) / len(said),
        "tokens, median": median(one.completion_tokens for one in said),
    }


def speed(rows: int, rounds: int) -> dict[str, object]:
    """Tokens a second of one batch, held and free, interleaved."""
    base = base_model(MODEL)
    base.eos_ids = frozenset()  # no row may end before the others
    began = time.perf_counter()
    endless = json.dumps({"type": "string", "minLength": 5000})
    base.grammars.begin(endless)
    compiled = time.perf_counter() - began
    ids = base.prompt_ids((Message(role="user", content="Tell me a story."),), 100)
    sampling = Sampling(temperature=0.7, top_p=0.95, max_tokens=STEPS)
    rates: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * rounds + 2):
        held = turn % 2 == 0
        running = Running(base, rows)
        held_to = [base.grammars.begin(endless) if held else None for _ in range(rows)]
        running.admit([Row(ids, None, sampling, seed, start) for seed, start in enumerate(held_to)])
        began = time.perf_counter()
        while running.active:
            running.step()
        if turn > 1:
            rates[held].append(rows * STEPS / (time.perf_counter() - began))
    ratios = [a / b for a, b in zip(rates[True], rates[False], strict=True)]
    return {
        "rows": rows,
        "tokenizer and grammar, seconds once": round(compiled, 2),
        "tokens a second, held": round(median(rates[True]), 1),
        "tokens a second, free": round(median(rates[False]), 1),
        "held : free": round(median(ratios), 3),
        "ratios": [round(r, 3) for r in sorted(ratios)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=count, default=20)
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--rows", type=count, default=8)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(reviews(options.n, options.seeds)) | {"speed": speed(options.rows, options.rounds)}
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
