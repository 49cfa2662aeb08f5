"""Where the time of co-evolution goes on the embedded model, by phase, and what the floor of each phase is.

Rounds of a recipe as `coterie train` makes them. Every forward of the model is noted by its shape; after each round
the same shapes run through the bare model (no adapter, no gradient, no sampling): the floor of `sample` and of
`forward`, and of `backward`, where frozen weights need as many products again (`forward` does both of the head's).
The machine's floor is what no program can go below: operations at the rate of a large matrix product, or weights at
the rate at which memory is read, whichever takes longer.

    OMP_NUM_THREADS=1 python benchmarks/practice_profile.py [--rounds 3] [--tokens 24] [--set KEY=VALUE] [--json]
"""

import argparse
import json
import os
import platform
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from statistics import median
from unittest.mock import patch

import torch
from counts import count
from transformers import DynamicCache

from coterie.backends.base_model import base_model
from coterie.learning import course, engine
from coterie.learning.engines import close
from coterie.learning.logprobs import CHUNK, cache_name
from coterie.learning.practice import Clock
from coterie.learning.training import opened, queries_of, settings_of
from coterie.team import Team

COLUMNS = 16  # cache lengths are rounded up to these, so that few shapes are measured
PHASES = ("route", "sample", "verify", "forward", "backward", "optimiser", "learn, the rest", "router")


class Phases(Clock):
    """The run's own clock, which also knows what runs now."""

    now = ""

    @contextmanager
    def phase(self, name):
        Phases.now = name
        with super().phase(name):
            yield
        Phases.now = ""


class Watch:
    """Seconds within `learn`; by phase the shapes that ran: forwards (rows, new tokens, cached), heads (tokens)."""

    def __init__(self, base) -> None:
        self.base = base
        self.clear()

    def clear(self) -> None:
        self.seconds = defaultdict(float)
        self.shapes = defaultdict(Counter)

    def timed(self, name, work):
        """`work`, its seconds counted under `name` while an agent learns."""

        def timing(*given, **options):
            inside, began = Phases.now == "learn", time.perf_counter()
            try:
                return work(*given, **options)
            finally:
                if inside:
                    self.seconds[name] += time.perf_counter() - began

        return timing

    def told(self, work):
        """`told`, and how many tokens go through the head."""

        def noting(base, groups, temperature):
            count = sum(len(completion) for group in groups for completion in group.completions)
            self.shapes["forward"][(count,)] += 1
            return work(base, groups, temperature)

        return self.timed("forward", noting)

    def note(self, module, given, options) -> None:
        """Before each forward of the decoder: what shape it has."""
        rows, new = options["input_ids"].shape
        mask, cache = options.get("attention_mask"), options.get("past_key_values", options.get("cache"))
        past = cache.get_seq_length() if cache is not None else 0
        past = past if mask is None else mask.shape[-1] - new
        phase = "forward" if Phases.now == "learn" else Phases.now
        self.shapes[phase][rows, new, -(-past // COLUMNS) * COLUMNS] += 1
        if phase == "sample" and mask is not None:  # a decoding step, not a prefill
            self.shapes[phase][(rows,)] += 1

    @contextmanager
    def over(self):
        """While the block runs, everything is noted."""
        with ExitStack() as stack:
            hook = self.base.model.get_decoder().register_forward_pre_hook(self.note, with_kwargs=True)
            stack.callback(hook.remove)
            stack.enter_context(patch.object(course, "Clock", Phases))
            stack.enter_context(patch.object(engine, "told", self.told(engine.told)))
            for owner, name, part in (
                (torch.Tensor, "backward", "backward"),
                (engine.Engine, "optim_step", "optimiser"),
            ):
                stack.enter_context(patch.object(owner, name, self.timed(part, getattr(owner, name))))
            yield


class Machine:
    """What the bare model and the bare machine take for a shape."""

    def __init__(self, base) -> None:
        self.base, self.known = base, {}
        config = base.model.config.get_text_config()
        self.vocabulary, self.width = config.vocab_size, config.hidden_size
        self.heads = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
        self.layers = config.num_hidden_layers
        body = base.model.get_decoder()
        embedded = body.get_input_embeddings().weight.numel()
        self.weights = sum(p.numel() for p in body.parameters()) - embedded
        self.rate, self.bandwidth = self._rates()

    def _rates(self) -> tuple[float, float]:
        """Operations a second of a large product, bytes a second read by a product with one column."""
        square, tall = torch.randn(1536, 1536), torch.randn(32768, 2048)
        one = torch.randn(2048)
        products = _seconds(lambda: square @ square), _seconds(lambda: tall @ one)
        return 2 * 1536**3 / products[0], tall.numel() * tall.itemsize / products[1]

    def least(self, shape) -> float:
        """Seconds that no program on this machine can go below."""
        tokens = shape[0] * (shape[1] if len(shape) == 3 else 1)
        weights = self.weights if len(shape) == 3 else self.vocabulary * self.width
        return max(2 * tokens * weights / self.rate, 4 * weights / self.bandwidth)

    @torch.inference_mode()
    def bare(self, shape) -> float:
        """Seconds of the model as it is: median of three."""
        if shape not in self.known:
            work = self._forward if len(shape) == 3 else self._head
            self.known[shape] = _seconds(lambda: work(*shape))
        return self.known[shape]

    def _forward(self, rows, new, past) -> None:
        cache = DynamicCache()
        if past:
            state = torch.zeros(rows, self.heads[0], past, self.heads[1])
            for layer in range(self.layers):
                cache.update(state, state, layer)
        ids = torch.zeros(rows, new, dtype=torch.long)
        self.base.model.get_decoder()(input_ids=ids, use_cache=True, **{cache_name(self.base): cache})

    def _head(self, tokens) -> None:
        for start in range(0, tokens, CHUNK):
            self.base.model.get_output_embeddings()(torch.zeros(min(CHUNK, tokens - start), self.width))


def _seconds(work) -> float:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


def round_of(run, watch, machine) -> dict[str, dict[str, float]]:
    """One round by phase: seconds, and what the bare model and the machine would take for the same shapes."""
    watch.clear()
    began, before = time.perf_counter(), run.spent["tokens"]
    with watch.over():
        row = run.round()
    whole, tokens = time.perf_counter() - began, run.spent["tokens"] - before
    machine.known.clear()  # measured anew beside each round: the machine's load changes
    seconds = {**row["seconds"], **watch.seconds}
    learn = seconds.pop("learn", 0.0)
    seconds["learn, the rest"] = learn - sum(watch.seconds.values())
    found = {phase: {"seconds": seconds.get(phase, 0.0)} for phase in PHASES}
    for phase, shapes in watch.shapes.items():
        if phase in ("sample", "forward"):
            found[phase]["bare"] = sum(count * machine.bare(shape) for shape, count in shapes.items())
            found[phase]["machine"] = sum(count * machine.least(shape) for shape, count in shapes.items())
    found["backward"] |= {key: value for key, value in found["forward"].items() if key != "seconds"}
    found["everything"] = {"seconds": whole}
    found["everything"]["tokens"] = tokens
    return found


def measure(chosen) -> dict[str, object]:
    team = Team.load(chosen.recipe, chosen.set)
    if chosen.tokens:
        names = range(len(team.pool))
        longer = [f"agents.{i}.sampling.max_tokens={chosen.tokens}" for i in names]
        team = Team.load(chosen.recipe, [*chosen.set, *longer])
    settings = settings_of(team)
    run = opened(settings, team, queries_of(settings, team))
    try:
        base = base_model(next(iter(team.pool.values())).model)
        watch, machine = Watch(base), Machine(base)
        run.round()  # warms up
        rounds = [round_of(run, watch, machine) for _ in range(chosen.rounds)]
    finally:
        close(run.engines)
    total = {
        phase: {key: sum(one[phase].get(key, 0.0) for one in rounds) for key in rounds[0][phase]}
        for phase in (*PHASES, "everything")
    }
    return {
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "gflops": round(machine.rate / 1e9, 1),
        "gb_per_second": round(machine.bandwidth / 1e9, 1),
        "rounds": chosen.rounds,
        "tokens_a_round": round(total["everything"]["tokens"] / chosen.rounds),
        "phases": total,
    }


def table(found) -> str:
    """The phases as Markdown: seconds a round, share, times the bare model, times the machine's floor."""
    whole = found["phases"]["everything"]["seconds"]
    lines = ["| phase | seconds a round | share | bare model | times bare | machine's floor | times floor |"]
    lines.append("|---|---|---|---|---|---|---|")
    for phase, told in found["phases"].items():
        cells = [phase, f"{told['seconds'] / found['rounds']:.2f}", f"{100 * told['seconds'] / whole:.1f} %"]
        for key in ("bare", "machine"):
            floor = told.get(key, 0.0)
            cells += [f"{floor / found['rounds']:.2f}", f"{told['seconds'] / floor:.2f}"] if floor else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--recipe", default="cera/smollm2")
    parser.add_argument("--tokens", type=int, default=0, help="Completion tokens at most (0: the recipe's).")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = measure(chosen)
    if chosen.json:
        return print(json.dumps(found))
    print(table(found))
    return print({key: value for key, value in found.items() if key != "phases"})


if __name__ == "__main__":
    main()
