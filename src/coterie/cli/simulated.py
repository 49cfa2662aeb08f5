"""Simulations as a sheet of the report and as tables: the course by variant, and the paper's statements."""

from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from coterie.evaluation.curves import At, Series, course
from coterie.evaluation.sheet import Card, Sheet, plain_table, scrolling
from coterie.evaluation.svg import tag
from coterie.learning.mechanisms import (
    DEFAULT,
    Runs,
    Sign,
    accuracy,
    agents_late,
    asked,
    jitter,
    largest_share,
    signs,
    smallest_share,
    top_late,
)
from coterie.learning.simulate import Point, Simulated

TITLES = ("Variant", "Agents", "Familiarity", "Largest share", "Smallest", "Unrest", "Calls", "Accuracy", "Asked")
HINTS = (
    "",
    "Agents a query at the end of training",
    "Highest familiarity of a query at the end of training",
    "The busiest agent's part of all calls at the end of training",
    "The idlest agent's part",
    "Deviation of an agent's mean score on the test queries from point to point, over the mean score, second half",
    "Calls in training, thousands",
    "Vote on the test queries at threshold 0.7",
    "Agents a test query at threshold 0.7",
)
GROUPS = {
    "Exploration": ("no exploration", "UCB only", "entropy only"),
    "How many practise": ("fixed top-3", "tau 0.8"),
    "Scale and margin": ("lambda 1", "margin 2", "no margin"),
    "Metric": ("regression", "classifier"),
}


def rows(runs: Runs) -> list[list[str]]:
    """A row a variant: means over seeds."""
    return [[name, *_cells(found)] for name, found in runs.items()]


def _cells(found: Sequence[Simulated]) -> list[str]:
    def mean(value: Callable[[Simulated], float]) -> float:
        return float(np.mean([value(run) for run in found]))

    return [
        f"{mean(agents_late):.2f}",
        f"{mean(top_late):.2f}",
        f"{100 * mean(largest_share):.0f} %",
        f"{100 * mean(smallest_share):.0f} %",
        f"{mean(jitter):.3f}",
        f"{mean(lambda run: run.points[-1].calls) / 1000:.0f}",
        f"{100 * mean(accuracy):.1f} %",
        f"{mean(asked):.2f}",
    ]


def sign_rows(found: Sequence[Sign]) -> list[list[str]]:
    """A row a statement."""
    return [[one.name, one.paper, one.measured, one.verdict] for one in found]


def sheet_of(runs: Runs) -> Sheet:
    """The sheet of some variants; the default's course is drawn by agent."""
    first = next(iter(runs.values()))
    settings = first[0].settings
    about = (
        f"{settings.agents} simulated agents, {settings.world.domains} domains, {settings.queries:,} queries,"
        f" {len(first)} seeds; allocation, ledger and router are the real ones"
    )
    return Sheet(name="Simulation", about=about, cards=(*_tables(runs), *_course(first), *_variants(runs)))


def _tables(runs: Runs) -> list[Card]:
    said = "".join(map(_said, signs(runs)))
    note = "A rule stands with its statement; the settings are not tuned to it, and what differs is left as it is."
    return [
        Card(title="Variants", markup=scrolling(plain_table(TITLES, rows(runs), HINTS)), note="Means over seeds."),
        Card(title="The paper's statements", markup=said if len(runs) > 1 else "", note=note),
    ]


def _said(sign: Sign) -> str:
    head = tag("strong", {}, escape(f"{sign.name}: {sign.verdict}"))
    lines = [tag("li", {}, escape(words)) for words in (f"Paper: {sign.paper}", f"Here: {sign.measured}")]
    return tag("p", {}, head) + tag("ul", {}, *lines)


# --- the course of one variant ------------------------------------------------------------------------


def _course(found: Sequence[Simulated]) -> list[Card]:
    seeds = "Band: smallest and largest of the seeds."
    return [
        _card(
            "Agents a query", [_line("training", found, lambda p: p.agents), _line("test", found, _asked)], seeds
        ),
        _card("Reward and accuracy", _quality(found), seeds, percent=True),
        _card("Familiarity by agent", _agents(found, lambda p: p.familiarity), f"First seed: {found[0].seed}."),
        _card("Updates by agent", _agents(found, lambda p: p.updates), f"First seed: {found[0].seed}."),
        _card("Share of calls by agent", _agents(found, lambda p: p.share), "First seed.", percent=True),
        _card("Specialisation", [_line("main agent of a domain", found, lambda p: p.owned)], seeds, percent=True),
        Card(
            title="Test threshold",
            markup=scrolling(course("Agents asked against the test threshold", _sweep(found), label="τ"), "plot"),
            note="Agents asked a test query, and accuracy of their vote, by threshold.",
        ),
    ]


def _asked(point: Point) -> float:
    return point.asked


def _quality(found: Sequence[Simulated]) -> list[Series]:
    return [
        _line("reward a call", found, lambda p: p.reward or 0.0),
        _line("vote, test queries", found, lambda p: p.accuracy),
    ]


def _sweep(found: Sequence[Simulated]) -> list[Series]:
    taus = [one.tau for one in found[0].tests]
    drawn = []
    for name, part in (("agents", "asked"), ("accuracy", "accuracy")):
        values = np.array([[getattr(one, part) for one in run.tests] for run in found])  # (seeds, taus)
        drawn.append(Series(name=name, points=tuple(map(_at, taus, values.T))))
    return drawn


def _agents(found: Sequence[Simulated], value: Callable[[Point], Sequence[float]], most: int = 8) -> list[Series]:
    """A line an agent of the first seed; of many agents, those that end highest."""
    points = found[0].points
    table = np.array([value(point) for point in points], dtype=float)  # (P, N)
    chosen = sorted(np.argsort(-table[-1], kind="stable")[:most].tolist())
    return [
        Series(
            name=f"agent {i}",
            points=tuple(_at(p.queries, np.array([v])) for p, v in zip(points, table[:, i], strict=True)),
        )
        for i in chosen
    ]


# --- variants beside each other -----------------------------------------------------------------------


def _variants(runs: Runs) -> list[Card]:
    cards = []
    for title, names in GROUPS.items():
        shown = [name for name in (DEFAULT, *names) if name in runs]
        if len(shown) < 2:
            continue
        cards += [
            _card(f"{title}: agents a query", [_line(name, runs[name], lambda p: p.agents) for name in shown]),
            _card(
                f"{title}: score of the first agent on the test queries, first seed",
                [_first(name, runs[name]) for name in shown],
            ),
            _card(
                f"{title}: busiest agent",
                [_line(name, runs[name], lambda p: max(p.share)) for name in shown],
                percent=True,
            ),
            _card(
                f"{title}: test accuracy",
                [_line(name, runs[name], lambda p: p.accuracy) for name in shown],
                percent=True,
            ),
        ]
    return cards


def _first(name: str, found: Sequence[Simulated]) -> Series:
    return _line(name, found[:1], lambda p: p.known[0])


def _line(name: str, found: Sequence[Simulated], value: Callable[[Point], float]) -> Series:
    """A value by queries, the mean and the range over seeds."""
    courses = np.array([[value(point) for point in run.points] for run in found])  # (seeds, P)
    return Series(
        name=name, points=tuple(_at(p.queries, v) for p, v in zip(found[0].points, courses.T, strict=True))
    )


def _at(x: float, values: np.ndarray) -> At:
    return At(x=float(x), y=float(values.mean()), lo=float(values.min()), hi=float(values.max()))


def _card(title: str, series: Sequence[Series], note: str = "", *, percent: bool = False) -> Card:
    return Card(title=title, markup=scrolling(course(title, series, percent=percent), "plot"), note=note)
