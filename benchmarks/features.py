"""Partial against full forward: what the `hidden` encoder saves by stopping at three quarters of the blocks.

    python benchmarks/features.py [--prompts 24] [--threads N] [--json]

Both run on the same prompts in turn, one prompt at a time; every ratio is taken within one turn, so that other
load on the machine hits both. "full" is the model's own forward with all hidden states and the LM head for the
last token, "whole" the one that computes logits for every token. Not a test: features are compared as well, but
the process only reports.
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch
from counts import count

from coterie.backends.base_model import base_model
from coterie.features.hidden import States
from coterie.types import Message

MODEL = "builtin:smollm2-135m"
TEXT = (
    "A train leaves the station at nine and travels {i} miles in the first hour. After lunch the driver meets "
    "{j} friends, who each carry {i} apples, and they share them with everybody on board. "
)


def prompts(count: int) -> list[tuple[Message, ...]]:
    """Questions of one to four sentences, about 60 to 250 tokens with the chat template."""
    return [
        (
            Message(
                role="user", content=TEXT.format(i=i + 3, j=i % 7 + 2) * (1 + i % 4) + "How many apples are there?"
            ),
        )
        for i in range(count)
    ]


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(count: int) -> dict:
    base = base_model(MODEL)
    states = States(base, None, 1, remember=0)
    rows = [base.prompt_ids(messages, 800) for messages in prompts(count)]
    kept: dict[str, list[np.ndarray]] = {"partial": [], "full": []}

    def partial(ids):
        kept["partial"].append(states.of([ids])[0])

    def full(ids):
        tokens = torch.tensor([ids], device=base.device)
        with torch.inference_mode(), base.without_adapters():
            found = base.model(input_ids=tokens, output_hidden_states=True, logits_to_keep=1, use_cache=False)
        row = torch.cat([found.hidden_states[layer][0, -1] for layer in states.layers])
        kept["full"].append(row.float().cpu().numpy())

    def whole(ids):
        with torch.inference_mode(), base.without_adapters():
            base.model(input_ids=torch.tensor([ids], device=base.device), use_cache=False)

    for work in (partial, full, whole):
        work(rows[-1])
    kept = {name: [] for name in kept}
    turns = [[seconds(lambda w=w, ids=ids: w(ids)) for w in (partial, full, whole)] for ids in rows]
    apart = np.abs(np.stack(kept["partial"]) - np.stack(kept["full"])).max()
    names = ("partial", "full", "whole")
    return {
        "model": MODEL,
        "threads": torch.get_num_threads(),
        "prompts": count,
        "tokens": [min(map(len, rows)), max(map(len, rows))],
        "layers": list(states.layers),
        "ms": {name: round(1e3 * statistics.median(t[i] for t in turns), 2) for i, name in enumerate(names)},
        "full_over_partial": round(statistics.median(t[1] / t[0] for t in turns), 3),
        "whole_over_partial": round(statistics.median(t[2] / t[0] for t in turns), 3),
        "largest_difference": float(apart),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=count, default=24)
    parser.add_argument("--threads", type=count)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    found = measure(options.prompts)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found['model']}, {found['threads']} threads, {found['prompts']} prompts of {found['tokens']} tokens")
    for name, value in found["ms"].items():
        print(f"{name:8} {value:9.2f} ms")
    print(f"full / partial  {found['full_over_partial']:.2f}x   whole / partial {found['whole_over_partial']:.2f}x")
    print(f"largest difference of features {found['largest_difference']:.1e}")


if __name__ == "__main__":
    main()
