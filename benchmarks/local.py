"""Ratios of the local backend on the embedded model: fused against one by one, on the same work, texts compared.

    OMP_NUM_THREADS=2 python benchmarks/local.py [--json] [--pairs 3] [--tokens 24]

Targets: one query each to 4 agents with different adapters as one batch at least 1.5 times as fast as one after
another; 16 requests at least 3 times; memory of one more agent at most 1.1 times its adapter file. Both sides of a
pair run in turn, the median ratio counts. Adapters are random, so texts are odd; the time does not depend on that.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
from counts import count
from safetensors.torch import save_file

from coterie.backends.base_model import base_model
from coterie.backends.local import Local
from coterie.types import Agent, Message, Sampling

MODEL = "builtin:smollm2-135m"
RANK = 16
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TOPICS = (
    "rivers",
    "bread",
    "stars",
    "chess",
    "bees",
    "glass",
    "trains",
    "paper",
    "clouds",
    "salt",
    "maps",
    "clocks",
)
TOPICS += ("wool", "tides", "moss", "bells")


def write_adapter(folder: Path, seed: int) -> Path:
    """A random LoRA of rank 16 on all seven projections, as PEFT writes one."""
    folder.mkdir(parents=True)
    source, tensors = torch.Generator().manual_seed(seed), {}
    for name, module in base_model(MODEL).model.named_modules():
        if name.endswith(TARGETS):
            down = torch.randn(RANK, module.in_features, generator=source) * 0.02
            up = torch.randn(module.out_features, RANK, generator=source) * 0.02
            tensors |= {
                f"base_model.model.{name}.lora_A.weight": down,
                f"base_model.model.{name}.lora_B.weight": up,
            }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 32, "target_modules": list(TARGETS), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def agent(number: int, adapter: Path | None, tokens: int, temperature: float) -> Agent:
    sampling = Sampling(temperature=temperature, max_tokens=tokens)
    path = None if adapter is None else str(adapter)
    return Agent(name=f"a{number}", model=f"local:{MODEL}", adapter=path, sampling=sampling)


def question(number: int):
    return (Message(role="user", content=f"Tell me something surprising about {TOPICS[number % len(TOPICS)]}."),)


async def one_by_one(backend: Local, calls):
    return [await backend.generate(a, messages, seed=seed) for a, messages, seed in calls]


async def fused(backend: Local, calls):
    return await asyncio.gather(*(backend.generate(a, messages, seed=seed) for a, messages, seed in calls))


async def timed(way, backend: Local, calls):
    start = time.perf_counter()
    done = await way(backend, calls)
    return time.perf_counter() - start, [c.text for c in done], sum(c.completion_tokens for c in done)


async def compared(backend: Local, calls, pairs: int) -> dict:
    """Median seconds and ratio over interleaved pairs; how many of the texts differ."""
    await fused(backend, calls)  # warms up: memory, thread pools
    ratios, slow, fast, differ, tokens = [], [], [], 0, 0
    for _ in range(pairs):
        a, texts, tokens = await timed(one_by_one, backend, calls)
        b, others, _ = await timed(fused, backend, calls)
        slow.append(a)
        fast.append(b)
        ratios.append(a / b)
        differ += sum(x != y for x, y in zip(texts, others, strict=True))
    return {
        "one_by_one_s": round(statistics.median(slow), 2),
        "fused_s": round(statistics.median(fast), 2),
        "ratio": round(statistics.median(ratios), 2),
        "tokens_per_s": round(tokens / statistics.median(fast), 1),
        "texts_that_differ": differ,
        "texts": pairs * len(calls),
    }


def resident() -> int:
    """Bytes of memory that this process holds (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def memory(backend: Local, folders: list[Path]) -> dict:
    """What one more agent takes: its tensors and the growth of the process, against its adapter file."""
    base, file = base_model(MODEL), (folders[0] / "adapter_model.safetensors").stat().st_size
    before = resident()
    for i, folder in enumerate(folders):
        await backend.prepare(agent(i, folder, 8, 0.0))
    grown = (resident() - before) / len(folders)
    tensors = base.adapters.bytes_of(next(iter(base.adapters.loaded())))
    return {
        "file_mb": round(file / 1e6, 2),
        "tensors_ratio": round(tensors / file, 3),
        "resident_ratio": round(grown / file, 3),
    }


async def measured(pairs: int, tokens: int, folder: Path) -> dict:
    folders = [write_adapter(folder / f"adapter{i}", seed=i) for i in range(8)]
    backend = Local(model=MODEL)
    await backend.prepare(agent(0, None, 8, 0.0))
    await fused(backend, [(agent(0, None, 8, 0.0), question(0), 0)])
    found = {"memory": await memory(backend, folders)}
    four = [(agent(i, folders[i], tokens, 0.0), question(0), i) for i in range(4)]
    found["4 adapters, 1 query"] = await compared(backend, four, pairs)
    sixteen = [(agent(i, None, tokens, 0.0), question(i), i) for i in range(16)]
    found["16 requests"] = await compared(backend, sixteen, pairs)
    mixed = [(agent(i, [None, *folders][i % 5], tokens, 0.8), question(i), i) for i in range(16)]
    found["16 sampled, 5 adapters"] = await compared(backend, mixed, pairs)
    group = [(agent(0, folders[0], tokens, 1.0), long_question(), i) for i in range(8)]
    found["8 samples of 300 tokens"] = await compared(backend, group, pairs)
    await backend.aclose()
    exact = Local(model=MODEL, deterministic=True, max_batch=16)
    await exact.prepare(agent(0, None, 8, 0.0))
    found["deterministic: 16 sampled"] = await compared(exact, mixed, 1)
    await exact.aclose()
    return found


def long_question():
    return (Message(role="user", content=" ".join(f"Fact {i}: {t} are old." for i, t in enumerate(TOPICS * 3))),)


def table(found: dict) -> str:
    lines = [f"{'':28}{'one by one':>12}{'fused':>9}{'ratio':>8}{'tok/s':>8}{'differ':>9}"]
    for name, row in found.items():
        if "ratio" in row:
            differ = f"{row['texts_that_differ']}/{row['texts']}"
            times = f"{row['one_by_one_s']:>10.2f} s{row['fused_s']:>7.2f} s{row['ratio']:>7.2f}x"
            lines.append(f"{name:28}{times}{row['tokens_per_s']:>8.1f}{differ:>9}")
    kept = found["memory"]
    lines.append(
        f"one more agent: {kept['tensors_ratio']} of its {kept['file_mb']} MB adapter file in tensors, "
        f"{kept['resident_ratio']} by the process"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pairs", type=count, default=3)
    parser.add_argument("--tokens", type=count, default=24)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measured(asked.pairs, asked.tokens, Path(folder)))
    found["machine"] = {
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(found, indent=1) if asked.json else f"{table(found)}\n{found['machine']}")


if __name__ == "__main__":
    main()
