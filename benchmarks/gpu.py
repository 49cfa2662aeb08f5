"""Co-evolution steps on a GPU at the paper's shapes: tokens a second, memory, router latency, time by phase.

A Qwen3-style model of 0.6 billion random weights in bf16, four adapters, groups of 8, prompts of 800, completions
of up to 1,000 tokens. Random weights say nothing, so that rewards are made up from the ids: speed is measured.
Ends within 8 minutes; skips itself where there is no CUDA. `python benchmarks/gpu.py [--steps 4] [--json]`.
"""

import argparse
import json
import time
from statistics import median

from counts import count

PROMPTS, GROUP, PROMPT, COMPLETION, AGENTS = 16, 8, 800, 1000, 4
PAPER_ROUTER_MS = 11.87
LIMIT_S = 420


def base(layers: int, hidden: int):
    """The model under the embedded tokenizer, as the rest of coterie holds it."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from coterie.backends.base_model import Base, base_model

    tokenizer = base_model("builtin:smollm2-135m").tokenizer
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(False)
    return Base(name="random qwen3", model=model, tokenizer=tokenizer, digest="random")


def clocked(seconds: dict, name: str, work):
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    found = work()
    torch.cuda.synchronize()
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
    return found


def step(engine, name: str, number: int, tokens: int, seconds: dict) -> int:
    """One practice of an agent: completion tokens."""
    import torch

    from coterie.learning.engine import Group
    from coterie.learning.losses import advantages
    from coterie.learning.sampler import Ask
    from coterie.types import Sampling, draw

    sampling = Sampling(temperature=1.0, top_p=0.95, top_k=50, max_tokens=tokens)
    random = torch.Generator().manual_seed(number)
    prompts = [tuple(torch.randint(0, 49000, (PROMPT,), generator=random).tolist()) for _ in range(PROMPTS)]
    asks = [
        Ask(prompt=p, adapter=None, sampling=sampling, seed=draw(number, i, k))
        for i, p in enumerate(prompts)
        for k in range(GROUP)
    ]
    said = clocked(seconds, "sample", lambda: engine.sample(name, asks))
    rewards = torch.tensor([float(sum(s.ids) % 7 > 3) for s in said]).view(PROMPTS, GROUP)
    gains = advantages(rewards).numpy()
    groups = [
        Group(
            prompt=prompt,
            completions=tuple(s.ids for s in said[i * GROUP : (i + 1) * GROUP]),
            advantages=gains[i],
            truncated=(True,) * GROUP,
        )
        for i, prompt in enumerate(prompts)
    ]
    clocked(seconds, "learn", lambda: engine.forward_backward(name, groups, 1.0))
    clocked(seconds, "optimise", lambda: engine.optim_step(name))
    return sum(len(s.ids) for s in said)


def router_ms(model, hidden: int) -> float:
    """Median milliseconds of one query's features and familiarities at batch 1."""
    import numpy as np

    from coterie.features.hidden import States
    from coterie.learning.routing import RoutingLearner, RoutingUpdate

    states = States(model, None, 1, 1)
    heads = RoutingLearner([f"agent_{i}" for i in range(AGENTS)], 2 * hidden, RoutingUpdate(standardise=0))
    random = np.random.default_rng(0)
    times = []
    for _ in range(30):
        ids = [random.integers(0, 49000, PROMPT).tolist()]
        began = time.perf_counter()
        heads.familiarity(states.of(ids))
        times.append(1000 * (time.perf_counter() - began))
    return median(times[5:])


def measure(steps: int, tokens: int, layers: int, hidden: int) -> dict[str, object]:
    import torch

    from coterie.learning.adapters import Lora
    from coterie.learning.engine import Engine
    from coterie.learning.learner import Optimiser
    from coterie.learning.losses import Loss

    model = base(layers, hidden)
    alone = torch.cuda.memory_allocated()
    engine = Engine(model, Lora(), Optimiser(warmup=0), Loss(), max_batch=PROMPTS * GROUP)
    for i in range(AGENTS):
        engine.add(f"agent_{i}", i)
    torch.cuda.reset_peak_memory_stats()
    began, made, seconds = time.perf_counter(), 0, {}
    done = 0
    for number in range(steps):
        made += step(engine, f"agent_{number % AGENTS}", number, tokens, seconds)
        done += 1
        if time.perf_counter() - began > LIMIT_S:
            break
    total = sum(seconds.values())
    return {
        "device": torch.cuda.get_device_name(),
        "steps": done,
        "completion_tokens": made,
        "tokens_per_second": round(made / total, 1),
        "share_of_time": {name: round(value / total, 3) for name, value in seconds.items()},
        "base_gib": round(alone / 2**30, 2),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "router_ms": round(router_ms(model, hidden), 2),
        "router_ms_paper": PAPER_ROUTER_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=count, default=4)
    parser.add_argument("--tokens", type=count, default=COMPLETION)
    parser.add_argument("--layers", type=count, default=28)
    parser.add_argument("--hidden", type=count, default=1024)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        return print("skipped: there is no CUDA device")
    found = measure(chosen.steps, chosen.tokens, chosen.layers, chosen.hidden)
    return print(json.dumps(found) if chosen.json else found)


if __name__ == "__main__":
    main()
