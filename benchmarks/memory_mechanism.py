"""The mechanism of a ranked reasoning memory, isolated: made agents of known error rates in the real mixtures.

    python benchmarks/memory_mechanism.py [--out runs/memory-mechanism]

Depth 1 to 9 at width 3 and width 3 to 8 at depth 3, three reviewers, three seeds, and one assumption moved at a
time. Prompts, routes, memory, reading of reviews and aggregation are those of the package; agents read the prompts
and answer by the assumptions of `made_agents.World`. What comes out follows from these: it is no evidence about
language models. Prints tables in markdown; the folder gets a page with the curves.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from inspect import cleandoc
from pathlib import Path
from typing import Any

import numpy as np
from made_agents import Agents, World, attempts, chance, questions

from coterie.evaluation.curves import At, Series, course
from coterie.evaluation.depth import spearman, trend
from coterie.evaluation.report import write_report
from coterie.evaluation.sheet import Card, Sheet, plain_table, scrolling
from coterie.evaluation.stats import paired_interval
from coterie.learning.mechanisms import Sign, spread
from coterie.tasks.catalog import verify
from coterie.team import read_recipe, recipe_file
from coterie.types import Trace, record

REVIEWERS = ("oracle", "noisy", "blank")
ABLATIONS = ("adjacent-only", "shared-set", "no-rationales")
PLAIN = ("MoA", "RMoA")
FULL = "ReM-MoA"
DEPTH, WIDTH = 9, 3
WIDTHS = range(3, 9)
TAIL = 3
SHIFTS: Mapping[str, tuple[float, ...]] = {
    "likeness": (0.0, 0.6),
    "eye": (1.0, 3.0),
    "own": (0.5, 2.0),
    "heed": (1.5, 6.0),
    "warned": (0.0, 0.9),
    "rationale": (1.5, 3.0),
    "skill": (0.25, 0.75),
    "stubborn": (0.5, 1.0),
    "slip": (0.05, 0.15),
}


@record
class Cell:
    """One mixture under one reviewer and seed. `chances`: that its answer is right, given what its aggregator was
    shown, (questions, depths); `right`: whether its final answers were; `rank`: Spearman's correlation of scores
    with the truth.
    """

    chances: np.ndarray
    right: np.ndarray
    rank: float | None


Cells = Mapping[tuple[str, str, int], Sequence[Cell]]
"""By mixture, reviewer and width: a cell a seed."""


def mixtures() -> dict[str, dict[str, Any]]:
    """The strategies, those of ReM-MoA and its ablations as their recipes say them."""
    found: dict[str, dict[str, Any]] = {"MoA": {"use": "moa"}, "RMoA": {"use": "rmoa", "stop_after": 0}}
    names = {FULL: "rem_moa/qwen2.5-7b"} | {name: f"rem_moa/ablations/{name}" for name in ABLATIONS}
    return found | {name: dict(read_recipe(recipe_file(recipe))["strategy"]) for name, recipe in names.items()}


def cell(agents: Agents, strategy: Mapping[str, Any], width: int, layers: int, sweep: bool) -> Cell:
    """Solve all questions by `Team.solve`. With `sweep` the answer is asked for after every layer."""
    panel = {**strategy.get("panel", {}), "width": width}
    team = agents.team({**strategy, "layers": layers, "panel": panel, "every_layer": sweep}, width)
    traces = asyncio.run(solved(team, agents))
    chances = [chances_of(agents, trace) for trace in traces]
    right = [bool(verify(trace.text, trace.query).correct) for trace in traces]
    return Cell(chances=np.array(chances), right=np.array(right), rank=rank(agents, traces))


async def solved(team: Any, agents: Agents) -> list[Trace]:
    """Traces in the order of the questions. Many at a time, as rollouts wait for threads."""
    found = {trace.query.id: trace async for trace in team.solve_all([q.query for q in agents.questions], 64)}
    if bad := [trace for trace in found.values() if trace.stopped != "done" or trace.degraded]:
        raise SystemExit(f"{len(bad)} rollouts went without something, such as: {bad[0].stopped} {bad[0].degraded}")
    return [found[question.query.id] for question in agents.questions]


def chances_of(agents: Agents, trace: Trace) -> list[float]:
    """What each aggregation of the trace is worth, by depth."""
    question = agents.questions[int(trace.query.id[1:])]
    asked = [turn.messages[-1].content for turn in trace.turns if turn.part == "aggregator"]
    return [chance(agents.world, question, attempts(prompt)) for prompt in asked]


def rank(agents: Agents, traces: Sequence[Trace]) -> float | None:
    """How a reviewer's scores go with the truth, over all its reviews."""
    pairs = [
        (review.score, float(trace.turns[review.turn].answer == agents.questions[int(trace.query.id[1:])].right))
        for trace in traces
        for review in trace.reviews
    ]
    return spearman([score for score, _ in pairs], [value for _, value in pairs])


def swept(world: World, counts: tuple[int, int], seeds: Sequence[int]) -> Cells:
    """Depth at width 3, and width at depth 3; `counts` are the questions of each. Mixtures without a reviewer run
    once.
    """
    found: dict[tuple[str, str, int], list[Cell]] = {}
    for name, strategy in mixtures().items():
        for reviewer in REVIEWERS[:1] if name in PLAIN else REVIEWERS:
            for seed in seeds:
                deep, wide = (made(world, count, reviewer, seed) for count in counts)
                found.setdefault((name, reviewer, 0), []).append(cell(deep, strategy, WIDTH, DEPTH, True))
                for width in WIDTHS if name not in ABLATIONS else ():
                    found.setdefault((name, reviewer, width), []).append(cell(wide, strategy, width, 3, False))
    return found


def made(world: World, count: int, reviewer: str, seed: int) -> Agents:
    return Agents(world=world, questions=questions(world, count), reviewer=reviewer, seed=seed)


# --- what is read off -----------------------------------------------------------------------------------


def of(cells: Cells, name: str, reviewer: str, width: int = 0) -> list[np.ndarray]:
    """A mixture's chances by seed, (questions, depths); `width` 0 is the depth sweep."""
    found = cells.get((name, reviewer, width)) or cells[(name, REVIEWERS[0], width)]
    return [one.chances for one in found]


def ends(cells: Cells, name: str, reviewer: str, width: int = 0) -> np.ndarray:
    """What its final answers are worth, (seeds, questions)."""
    return np.array([one[:, -1] for one in of(cells, name, reviewer, width)])


def points(values: np.ndarray) -> str:
    """The mean of (seeds, questions) in points, its range over seeds, and its interval over questions."""
    low, high = paired_interval(values.mean(axis=0).tolist())
    words = spread(100 * values.mean(axis=1), 1)
    return f"{words}; 95 %: {100 * low:.1f} to {100 * high:.1f}"


def label(chances: np.ndarray) -> str:
    """How an answer's worth goes with depth (R18)."""
    return trend(chances.mean(axis=0).tolist()) or "unknown"


def signs(cells: Cells, reviewer: str) -> list[Sign]:
    """What the paper says of depth, width and ablations, and in how many seeds it holds here."""
    full, moa = (np.array(of(cells, name, reviewer)) for name in (FULL, "MoA"))  # (seeds, questions, depths)
    gap, losses = full - moa, {n: full[:, :, -1] - ends(cells, n, reviewer) for n in ABLATIONS}
    wider = lead(cells, reviewer, WIDTHS[-1]) - lead(cells, reviewer, WIDTHS[0])
    courses = [
        _course(cells, reviewer, name, paper, labels)
        for name, paper, labels in (
            ("MoA", "degrades or plateaus", ("degrading", "plateau")),
            ("RMoA", "its last three steps bring less than 0.2 points", ("degrading", "plateau", "saturating")),
            (
                FULL,
                "sustains: its last three steps bring more than 0.2 points, and the last is the best",
                ("sustained",),
            ),
        )
    ]
    orders = [a > b > c for a, b, c in zip(*(found.mean(axis=1) for found in losses.values()), strict=True)]
    said = ", ".join(f"{name} {100 * found.mean():.1f}" for name, found in losses.items())
    order = "adjacent-only loses most, then shared-set, then no-rationales"
    return [
        *courses,
        _more("MoA, after layer 3", "it loses by layer 9", moa[:, :, 2] - moa[:, :, -1]),
        _more("lead over MoA", "ReM-MoA is the better one at 9 layers", gap[:, :, -1]),
        _more("lead, with depth", "it is greater at 9 layers than at 1", gap[:, :, -1] - gap[:, :, 0]),
        _more("lead, with width", "over the better of MoA and RMoA it is greater with 8 agents than with 3", wider),
        *(_more(name, "loses against ReM-MoA", found) for name, found in losses.items()),
        Sign(name="order of losses", paper=order, measured=f"points: {said}", holds=sum(orders), seeds=len(orders)),
    ]


def lead(cells: Cells, reviewer: str, width: int) -> np.ndarray:
    """ReM-MoA over the better of those without a memory, (seeds, questions)."""
    best = max((ends(cells, name, reviewer, width) for name in PLAIN), key=lambda found: float(found.mean()))
    return ends(cells, FULL, reviewer, width) - best


def _more(name: str, paper: str, values: np.ndarray) -> Sign:
    held = values.mean(axis=1) > 0
    return Sign(name=name, paper=paper, measured=points(values), holds=int(held.sum()), seeds=len(held))


def _course(cells: Cells, reviewer: str, name: str, paper: str, labels: Sequence[str]) -> Sign:
    found = np.array(of(cells, name, reviewer))
    gained = found[:, :, -1] - found[:, :, -1 - TAIL]
    held = [label(one) for one in found]
    words = f"{'/'.join(dict.fromkeys(held))}; the last three steps bring {points(gained)}"
    return Sign(name=name, paper=paper, measured=words, holds=sum(one in labels for one in held), seeds=len(held))


# --- one assumption moved at a time -----------------------------------------------------------------------


def shifted(world: World, count: int, seed: int) -> list[list[str]]:
    """A row a value of an assumption, noisy reviewer, 9 layers of 3: the trends, ReM-MoA's lead over MoA, the
    losses of its ablations.
    """
    moved = [(name, value) for name, values in SHIFTS.items() for value in values]
    worlds = {"as chosen": world} | {f"{name} {value:g}": replace(world, **{name: value}) for name, value in moved}
    return [[title, *_shift(made(one, count, "noisy", seed))] for title, one in worlds.items()]


def _shift(agents: Agents) -> list[str]:
    found = {
        name: cell(agents, strategy, WIDTH, DEPTH, name not in ABLATIONS).chances
        for name, strategy in mixtures().items()
        if name != "RMoA"
    }
    last = {name: chances[:, -1] for name, chances in found.items()}
    others = [last[FULL] - last[name] for name in ("MoA", *ABLATIONS)]
    told = [f"{100 * values.mean():.1f} ± {margin(values):.1f}" for values in others]
    return [label(found["MoA"]), label(found[FULL]), f"{100 * last[FULL].mean():.1f} %", *told]


def margin(values: np.ndarray) -> float:
    """Half the 95 % interval of a mean, in points."""
    low, high = paired_interval(values.tolist())
    return 50 * (high - low)


# --- tables and curves ------------------------------------------------------------------------------------

SIGNS = ("statement", "in the paper", "here, points", "")
SHIFT = ("assumption", "MoA", FULL, f"{FULL} at 9", "lead over MoA", *(f"loss, {name}" for name in ABLATIONS))


def by_depth(cells: Cells, reviewer: str) -> list[list[str]]:
    """A row a mixture: what its answers are worth at each depth, and the label of its course."""
    return [
        [
            name,
            *(f"{100 * v:.1f}" for v in np.mean(of(cells, name, reviewer), axis=(0, 1))),
            pooled(cells, name, reviewer),
        ]
        for name in mixtures()
    ]


def pooled(cells: Cells, name: str, reviewer: str) -> str:
    return label(np.concatenate(of(cells, name, reviewer)))


def by_width(cells: Cells, reviewer: str) -> list[list[str]]:
    return [
        [name, *(f"{100 * ends(cells, name, reviewer, width).mean():.1f}" for width in WIDTHS)]
        for name in (*PLAIN, FULL)
    ]


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def drawn(cells: Cells, reviewer: str, deep: bool) -> str:
    """Curves over depth or width, the band over seeds."""
    series = []
    for name in mixtures() if deep else (*PLAIN, FULL):
        seeds = (
            np.array([one.mean(axis=0) for one in of(cells, name, reviewer)])
            if deep
            else np.array([ends(cells, name, reviewer, width).mean(axis=1) for width in WIDTHS]).T
        )
        xs = range(1, DEPTH + 1) if deep else WIDTHS
        at = [At(x=x, y=v.mean(), lo=v.min(), hi=v.max()) for x, v in zip(xs, seeds.T, strict=True)]
        series.append(Series(name=name, points=tuple(at)))
    title = f"Right answers by {'depth, 3 agents' if deep else 'width, 3 layers'}; reviewer: {reviewer}"
    return scrolling(course(title, series, label="Layers" if deep else "Agents", percent=True), "plot")


def page(cells: Cells, world: World, rows: Sequence[Sequence[str]]) -> Sheet:
    """The curves beside the assumptions that they follow from."""
    cards = [Card(title="What is assumed", markup=f"<pre>{escape(assumed(world))}</pre>", note=NOTE)]
    for reviewer in REVIEWERS:
        told = [[one.name, one.paper, one.measured, one.verdict] for one in signs(cells, reviewer)]
        cards += [
            Card(
                title=f"Depth, reviewer: {reviewer}", markup=drawn(cells, reviewer, True), note="Band: the seeds."
            ),
            Card(
                title=f"Width, reviewer: {reviewer}", markup=drawn(cells, reviewer, False), note="Band: the seeds."
            ),
            Card(title=f"Statements, reviewer: {reviewer}", markup=plain_table(SIGNS, told)),
        ]
    cards.append(Card(title="One assumption moved at a time, reviewer: noisy", markup=plain_table(SHIFT, rows)))
    return Sheet(
        name="Memory", about="Made agents in real mixtures: no evidence about language models", cards=tuple(cards)
    )


NOTE = "Nothing here was fitted; a statement that comes out otherwise is left as it is."


def assumed(world: World) -> str:
    """The assumptions and their values."""
    values = ", ".join(f"{name} {value:g}" for name, value in asdict(world).items())
    return f"{cleandoc(World.__doc__ or '')}\n\n{values}"


def told(cells: Cells, rows: Sequence[Sequence[str]]) -> str:
    """All tables in markdown."""
    parts = []
    for reviewer in REVIEWERS:
        ranks = [one.rank for one in cells[(FULL, reviewer, 0)] if one.rank is not None]
        known = f"{np.mean(ranks):.2f}" if ranks else "none"
        parts += [
            f"## reviewer: {reviewer} (rank correlation with the truth: {known})",
            markdown(("depth", *map(str, range(1, DEPTH + 1)), "course"), by_depth(cells, reviewer)),
            markdown(("width", *map(str, WIDTHS)), by_width(cells, reviewer)),
            markdown(SIGNS, [[one.name, one.paper, one.measured, one.verdict] for one in signs(cells, reviewer)]),
        ]
    return "\n\n".join([*parts, "## one assumption moved, reviewer: noisy", markdown(SHIFT, rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/memory-mechanism"), help="folder of the page")
    parser.add_argument(
        "--questions", type=int, default=150, help="in the depth sweep; a third for width, half below"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = parser.parse_args()
    began, world, count = time.process_time(), World(), asked.questions
    cells = swept(world, (count, count // 3), asked.seeds)
    rows = shifted(world, count // 2, asked.seeds[0])
    write_report(asked.out / "report.html", [], [page(cells, world, rows)])
    print(told(cells, rows))
    every = [one for found in cells.values() for one in found]
    graded, worth = (np.concatenate(v) for v in ([o.right for o in every], [o.chances[:, -1] for o in every]))
    print(f"\ngraded answers {graded.mean():.3f}, their chances {worth.mean():.3f} ({len(graded)} rollouts)")
    print(f"{time.process_time() - began:.0f} s of processor time; {asked.out / 'report.html'}", file=sys.stderr)


if __name__ == "__main__":
    main()
