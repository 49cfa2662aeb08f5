"""One agent's practice, sampling and update, against TRL's GRPOTrainer: completion tokens a second, peak memory.

Same model, prompts, group, lengths, LoRA, loss (DAPO's, beta 0), threads; interleaved step by step, each side in a
process of its own. Targets: at least 2 times the tokens a second, no more memory.
`python benchmarks/trl_step.py [--steps 5] [--threads 1] [--tokens 32] [--json]` (needs `trl`, in the dev extra).
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from statistics import median

from counts import count

MODEL = "builtin:smollm2-135m"
PROMPTS, GROUP, RANK, ALPHA, RATE = 4, 8, 16, 32, 1e-4
QUESTIONS = [f"Tell me how {a} and {b} differ, in a few sentences." for a in range(3, 23) for b in range(40, 45)]


def batch(step: int) -> list[str]:
    return [QUESTIONS[(step * PROMPTS + i) % len(QUESTIONS)] for i in range(PROMPTS)]


def reward_of(text: str) -> float:
    """Something that differs within a group and costs nothing: the share of vowels."""
    return sum(c in "aeiou" for c in text) / max(1, len(text))


def say(tokens: int, seconds: float, **more) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"tokens": tokens, "seconds": seconds, "peak_mib": peak, **more}), flush=True)


def engine():
    """Ours, over the embedded model, without an agent yet."""
    from coterie.backends.base_model import base_model
    from coterie.learning.adapters import Lora
    from coterie.learning.engine import Engine
    from coterie.learning.learner import Optimiser
    from coterie.learning.losses import Loss

    rates = Optimiser(lr=RATE, floor=RATE, warmup=0, weight_decay=0.0)
    loss = Loss(ratio="token", beta=0.0, clip_high=0.2)
    return Engine(base_model(MODEL), Lora(rank=RANK, alpha=ALPHA), rates, loss, max_batch=PROMPTS * GROUP)


def practise(made, name: str, step: int, tokens: int) -> tuple[int, float]:
    """One agent samples and is updated: completion tokens, and the seconds that sampling took."""
    import numpy as np
    import torch

    from coterie.learning.engine import Group
    from coterie.learning.losses import advantages
    from coterie.learning.sampler import Ask
    from coterie.types import Message, Sampling, draw

    sampling, began = Sampling(temperature=1.0, max_tokens=tokens), time.perf_counter()
    prompts = [tuple(made.prompt_ids((Message(role="user", content=q),), 800)) for q in batch(step)]
    asks = [
        Ask(prompt=p, adapter=None, sampling=sampling, seed=draw(step, i, k))
        for i, p in enumerate(prompts)
        for k in range(GROUP)
    ]
    said = made.sample(name, asks)
    sampled = time.perf_counter()
    rewards = torch.tensor([reward_of(s.text) for s in said]).view(PROMPTS, GROUP)
    gains = advantages(rewards).numpy()
    groups = [
        Group(
            prompt=prompt,
            completions=tuple(s.ids for s in said[i * GROUP : (i + 1) * GROUP]),
            advantages=np.asarray(gains[i]),
            truncated=tuple(s.finish == "length" for s in said[i * GROUP : (i + 1) * GROUP]),
        )
        for i, prompt in enumerate(prompts)
    ]
    made.forward_backward(name, groups, 1.0)
    assert made.optim_step(name).outcome == "done"
    return sum(len(s.ids) for s in said), sampled - began


def ours(tokens: int, steps: int) -> None:
    made = engine()
    made.add("agent", 0)
    for step, _ in zip(range(steps), sys.stdin, strict=False):
        began = time.perf_counter()
        count, sampling_seconds = practise(made, "agent", step, tokens)
        say(count, time.perf_counter() - began, sampling_seconds=sampling_seconds)


def theirs(tokens: int, steps: int) -> None:
    import tempfile

    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from coterie.backends.base_model import base_model
    from coterie.backends.chat import prompt_ids
    from coterie.learning.adapters import PROJECTIONS
    from coterie.types import Message

    base = base_model(MODEL)
    seen = {"tokens": 0, "began": 0.0}

    def reward(completions, completion_ids, **_) -> list[float]:
        seen["tokens"] = sum(map(len, completion_ids))
        return [reward_of(text) for text in completions]

    class Gate(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs) -> None:
            sys.stdin.readline()
            seen["began"] = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs) -> None:
            say(seen["tokens"], time.perf_counter() - seen["began"])

    texts = [
        base.tokenizer.decode(prompt_ids(base.tokenizer, (Message(role="user", content=q),)))
        for step in range(steps)
        for q in batch(step)
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            fp16=False,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=tokens,
            loss_type="dapo",
            importance_sampling_level="token",
            beta=0.0,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            temperature=1.0,
            max_steps=steps,
            gradient_checkpointing=False,
            shuffle_dataset=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        GRPOTrainer(
            model=base.model,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=base.tokenizer,
            peft_config=LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=list(PROJECTIONS)),
            callbacks=[Gate()],
        ).train()


class Side:
    """One of two, a script with its options in its own process, which does a step when it is told to."""

    def __init__(self, script: str, options: list[object], threads: int) -> None:
        command = [sys.executable, script, *map(str, options)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TRL_EXPERIMENTAL_SILENCE": "1"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.rows = []

    def step(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith('{"tokens"'):
            if not line:
                raise SystemExit(f"{self.process.args} ended: {self.process.wait()}")
        self.rows.append(json.loads(line))

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()

    def rate(self) -> float:
        """Median tokens a second; the first step warms up."""
        return median(row["tokens"] / row["seconds"] for row in self.rows[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=count, default=5)
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--tokens", type=count, default=32)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=("ours", "trl"), help="one side alone (the benchmark starts this itself)")
    chosen = parser.parse_args()
    if chosen.side:
        return (ours if chosen.side == "ours" else theirs)(chosen.tokens, chosen.steps)
    if find_spec("trl") is None:
        return print("skipped: trl is not installed (pip install 'coterie[dev]')")
    same = ["--tokens", chosen.tokens, "--steps", chosen.steps]
    sides = {name: Side(__file__, ["--side", name, *same], chosen.threads) for name in ("ours", "trl")}
    for _ in range(chosen.steps):
        for side in sides.values():
            side.step()
    for side in sides.values():
        side.end()
    rates = {name: side.rate() for name, side in sides.items()}
    peaks = {name: side.rows[-1]["peak_mib"] for name, side in sides.items()}
    found = {
        "python": platform.python_version(),
        "threads": chosen.threads,
        "load": round(os.getloadavg()[0], 1),
        "tokens_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "ratio": round(rates["ours"] / rates["trl"], 2),
        "peak_mib": {name: round(peak) for name, peak in peaks.items()},
        "memory_ratio": round(peaks["ours"] / peaks["trl"], 2),
        "steps": {name: side.rows for name, side in sides.items()},
    }
    if chosen.json:
        print(json.dumps(found))
    else:
        print(
            f"tokens a second {found['ratio']}x TRL's (target 2), peak memory {found['memory_ratio']}x (target 1)"
        )
        print({key: value for key, value in found.items() if key != "steps"})
    return None


if __name__ == "__main__":
    main()
