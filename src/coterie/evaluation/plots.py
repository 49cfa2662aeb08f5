"""Accuracy against cost, and the small drawings of the tables: pure functions of numbers to SVG text."""

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from coterie.evaluation.labels import Box, Spot, place
from coterie.evaluation.svg import (
    PLOT,
    Axis,
    Frame,
    compact,
    drawing,
    grid,
    line,
    number,
    path,
    shorten,
    spanning,
    tag,
    text,
)
from coterie.types import record


@record
class Mark:
    """One recipe in the cost-quality plot: what it costs, its accuracy and the interval of it."""

    name: str
    x: float
    y: float
    lo: float
    hi: float
    baseline: bool = False
    oracle: bool = False


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (x, y) that no other point beats (x no larger, y no smaller, one of them better), by x."""
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        equal = front and points[i] == points[front[-1]]
        if not front or equal or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


# --- cost and quality --------------------------------------------------------------------------------


def cost_quality(
    marks: Sequence[Mark],
    label: str,
    *,
    unit: str = "",
    oracle: float | None = None,
    curve: Sequence[tuple[float, float]] = (),
    what: str = "Accuracy",
) -> str:
    """`what` against its cost, with error bars; the Pareto front is a stepped line with filled points.

    `oracle` is drawn as a dashed line. `curve` is drawn in place of the marks' own front: (x, y), by x. A mark that
    is an oracle is on no front. Empty text where there is nothing to draw.
    """
    if not marks:
        return ""
    heights = [v for m in marks for v in (m.lo, m.hi, m.y)] + ([oracle] if oracle is not None else [])
    heights += [y for _, y in curve]
    up = Axis(
        lo=max(0.0, math.floor(10 * min(heights) - 0.2) / 10), hi=min(1.04, math.ceil(10 * max(heights) + 0.2) / 10)
    )
    frame = Frame(across=spanning([*(m.x for m in marks), *(x for x, _ in curve)]), up=up)
    real = [i for i, mark in enumerate(marks) if not mark.oracle]
    front = [real[i] for i in pareto([(marks[i].x, marks[i].y) for i in real])]
    steps = _steps(frame, curve or [(marks[i].x, marks[i].y) for i in front])
    parts = [
        grid(frame, label, unit),
        _oracle_line(frame, oracle),
        path(steps, "front"),
        *(_bar(frame, m) for m in marks),
        *_labels(frame, marks, steps, oracle),
        *(_point(frame, m, i in front, unit) for i, m in enumerate(marks)),
    ]
    return drawing(f"{what} against {label.lower()}, one point a recipe", *parts)


def _oracle_line(frame: Frame, oracle: float | None) -> str:
    if oracle is None:
        return ""
    y = frame.y(oracle)
    note = f"some agent right: {100 * oracle:.0f} %"
    return line(PLOT.x, y, PLOT.x + PLOT.width, y, "oracle") + text(PLOT.x + 6, y - 5, note, "tick")


def _steps(frame: Frame, front: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of the stepped line: what accuracy can be had for at most so much."""
    corners: list[tuple[float, float]] = []
    for x, y in ((frame.x(x), frame.y(y)) for x, y in front):
        corners += [(x, corners[-1][1]), (x, y)] if corners else [(x, y)]
    return [*corners, (PLOT.x + PLOT.width, corners[-1][1])] if corners else []


def _bar(frame: Frame, mark: Mark) -> str:
    x, top, bottom = frame.x(mark.x), frame.y(mark.hi), frame.y(mark.lo)
    ends = "".join(line(x - 4, y, x + 4, y, "bar") for y in (top, bottom))
    return tag("g", {"data-recipe": mark.name}, line(x, top, x, bottom, "bar"), ends)


def _point(frame: Frame, mark: Mark, on_front: bool, unit: str) -> str:
    x, y = frame.x(mark.x), frame.y(mark.y)
    kinds = {"best": on_front, "base": mark.baseline, "ideal": mark.oracle}
    css = " ".join(["point", *(kind for kind, there in kinds.items() if there)])
    words = (
        f"{mark.name}: {100 * mark.y:.1f} % ({100 * mark.lo:.0f}–{100 * mark.hi:.0f} %) at {compact(mark.x, unit)}"
    )
    shape = tag("circle", {"cx": x, "cy": y, "r": 6, "class": css})
    if mark.baseline:
        corners = ((x, y - 8), (x + 8, y), (x, y + 8), (x - 8, y))
        shape = tag("polygon", {"points": " ".join(f"{number(a)},{number(b)}" for a, b in corners), "class": css})
    return tag("g", {"data-recipe": mark.name}, tag("title", {}, escape(words)), shape)


def _labels(
    frame: Frame, marks: Sequence[Mark], steps: Sequence[tuple[float, float]], oracle: float | None
) -> list[str]:
    spots = [
        Spot(x=frame.x(m.x), y=frame.y(m.y), text=shorten(m.name), top=frame.y(m.hi), bottom=frame.y(m.lo))
        for m in marks
    ]
    lines = [_around(*pair) for pair in pairwise(steps)]
    taken = [] if oracle is None else [Box(x=PLOT.x, y=frame.y(oracle) - 18, width=160, height=20)]
    boxes = place(spots, PLOT, taken=taken, lines=lines)
    return [_label(spot, box, mark) for spot, box, mark in zip(spots, boxes, marks, strict=True)]


def _around(start: tuple[float, float], end: tuple[float, float]) -> Box:
    x, y = min(start[0], end[0]), min(start[1], end[1])
    return Box(x=x - 2, y=y - 2, width=abs(start[0] - end[0]) + 4, height=abs(start[1] - end[1]) + 4)


def _label(spot: Spot, box: Box, mark: Mark) -> str:
    at, anchor = _side(spot, box)
    name = text(at, box.y + box.height - 4, spot.text, "label", anchor)
    near_x = min(max(spot.x, box.x), box.x + box.width)
    near_y = min(max(spot.y, box.y), box.y + box.height)
    far = math.hypot(near_x - spot.x, near_y - spot.y) > 16
    leader = line(spot.x, spot.y, near_x, near_y, "leader") if far else ""
    return tag("g", {"data-recipe": mark.name}, leader, name)


def _side(spot: Spot, box: Box) -> tuple[float, str]:
    """Where the text is held: boxes are wider than their texts, which keep to the side of the point."""
    if box.x + box.width <= spot.x:
        return box.x + box.width, "end"
    return (box.x, "start") if box.x >= spot.x else (box.x + box.width / 2, "middle")


# --- small drawings ----------------------------------------------------------------------------------


def interval_bar(accuracy: float, ci: tuple[float, float], css: str = "") -> str:
    """An accuracy and its interval on a scale from 0 to 1, for a table's cell; empty where undefined."""
    if math.isnan(accuracy):
        return ""
    lo, hi = (4 + 112 * end for end in ci)
    at = 4 + 112 * accuracy
    return tag(
        "svg",
        {"viewBox": "0 0 120 16", "class": "whisker", "aria-hidden": "true"},
        line(4, 8, 116, 8, "track"),
        tag("rect", {"x": lo, "y": 5, "width": max(hi - lo, 1), "height": 6, "rx": 3, "class": "span"}),
        tag("circle", {"cx": at, "cy": 8, "r": 4.5, "class": f"dot {css}".strip()}),
    )


def bins(counts: Sequence[int], most: int = 8) -> list[tuple[int, int]]:
    """Ranges of numbers of agents, ends included: one a number while they are few, wider ones above."""
    low, high = min(counts, default=0), max(counts, default=0)
    if high - low < most:
        return [(n, n) for n in range(low, high + 1)]
    found = [(n, n) for n in range(low, low + most - 4)]
    start = low + most - 4
    while start <= high:
        end = min(high, 2 * start - 1)
        found.append((start, end))
        start = end + 1
    return found
