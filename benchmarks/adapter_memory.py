"""Peak memory of four agents that practise over one base against one agent: at most 1.1 times.

Each side is a process of its own on the embedded model; in every step each of its agents samples 4 prompts, groups
of 8, and is updated (`trl_step.practise`). The two take turns; peaks are the processes' resident sets.
`python benchmarks/adapter_memory.py [--steps 2] [--agents 4] [--tokens 32] [--threads 1] [--json]`
"""

import argparse
import json
import os
import platform
import sys
import time

from counts import count
from trl_step import Side, engine, practise, say

TARGET = 1.1


def together(agents: int, steps: int, tokens: int) -> None:
    """One side: its agents practise one after the other whenever a line comes in."""
    made = engine()
    for number in range(agents):
        made.add(f"agent_{number}", number)
    own = sum(t.numel() * t.itemsize for t in made.learners["agent_0"].weights.values()) / 2**20
    for step, _ in zip(range(steps), sys.stdin, strict=False):
        began = time.perf_counter()
        counts = [practise(made, name, step, tokens)[0] for name in made.learners]
        say(sum(counts), time.perf_counter() - began, adapter_mib=own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=count, default=2)
    parser.add_argument("--agents", type=count, default=4)
    parser.add_argument("--tokens", type=count, default=32)
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", type=int, help="one side alone (the benchmark starts this itself)")
    chosen = parser.parse_args()
    if chosen.side:
        return together(chosen.side, chosen.steps, chosen.tokens)
    same = ["--tokens", chosen.tokens, "--steps", chosen.steps]
    sides = {count: Side(__file__, ["--side", count, *same], chosen.threads) for count in (1, chosen.agents)}
    for _ in range(chosen.steps):
        for side in sides.values():
            side.step()
    for side in sides.values():
        side.end()
    peaks = {count: side.rows[-1]["peak_mib"] for count, side in sides.items()}
    alone, all_of_them = peaks[1], peaks[chosen.agents]
    found = {
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "peak_mib": {count: round(peak) for count, peak in peaks.items()},
        "ratio": round(all_of_them / alone, 3),
        "more_mib_an_agent": round((all_of_them - alone) / max(1, chosen.agents - 1), 1),
        "adapter_mib": round(sides[1].rows[-1]["adapter_mib"], 1),
        "peak_mib_by_step": {count: [round(row["peak_mib"]) for row in side.rows] for count, side in sides.items()},
    }
    if chosen.json:
        return print(json.dumps(found))
    print(f"{chosen.agents} agents take {found['ratio']}x the memory of one (target at most {TARGET})")
    return print(found)


if __name__ == "__main__":
    main()
