"""The report's drawings as SVG text: pure functions of numbers, coloured by the page's CSS variables.

Equal input gives equal text. Names are escaped; there are no scripts and no references to anything outside.
"""

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from coterie.evaluation.labels import Box, Spot, place
from coterie.types import record

Attributes = dict[str, str | float]
WIDE = 8.0  # from this ratio of the largest to the smallest value on, the axis is logarithmic


@record
class Mark:
    """One recipe in the cost-quality plot: what it costs, its accuracy and the interval of it."""

    name: str
    x: float
    y: float
    lo: float
    hi: float
    baseline: bool = False


@record
class Axis:
    """A scale from `lo` to `hi`, linear or logarithmic."""

    lo: float
    hi: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the beginning, 1 at the end."""
        lo, hi, at = (math.log(v) if self.log else v for v in (self.lo, self.hi, value))
        return (at - lo) / (hi - lo)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values within the scale, at most about `most`."""
        return _log_ticks(self.lo, self.hi, most) if self.log else _linear_ticks(self.lo, self.hi, most)


def _linear_ticks(lo: float, hi: float, most: int) -> list[float]:
    raw = (hi - lo) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-9))
    return [round(i * step, 12) for i in range(math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9) + 1)]


def _log_ticks(lo: float, hi: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)
    found: list[float] = []
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [d * 10.0**p for p in powers for d in digits if lo * 0.999 <= d * 10.0**p <= hi * 1.001]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def spanning(values: Sequence[float]) -> Axis:
    """An axis that shows all values with room at both ends; logarithmic where they differ widely and none is 0."""
    lo, hi = min(values), max(values)
    if lo > 0 and hi / lo >= WIDE:
        room = (hi / lo) ** 0.08
        return Axis(lo=lo / room, hi=hi * room, log=True)
    room = 0.08 * (hi - lo) or 0.1 * abs(hi) or 1.0
    return Axis(lo=max(0.0, lo - room) if lo >= 0 else lo - room, hi=hi + room)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (x, y) that no other point beats (x no larger, y no smaller, one of them better), by x."""
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        equal = front and points[i] == points[front[-1]]
        if not front or equal or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def tag(name: str, attributes: Attributes, *children: str) -> str:
    """One element; attribute values are escaped, children are markup already."""
    written = "".join(f' {k}="{escape(_number(v), quote=True)}"' for k, v in attributes.items())
    return f"<{name}{written}>{''.join(children)}</{name}>"


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def _text(x: float, y: float, text: str, css: str, anchor: str = "start") -> str:
    return tag("text", {"x": x, "y": y, "class": css, "text-anchor": anchor}, escape(text))


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return tag("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": css})


# --- cost and quality --------------------------------------------------------------------------------

PLOT = Box(x=58, y=16, width=780, height=360)
SIZE = (860, 430)


@record
class Frame:
    """The plot's area with its two axes."""

    across: Axis
    up: Axis

    def x(self, value: float) -> float:
        return PLOT.x + PLOT.width * self.across.share(value)

    def y(self, value: float) -> float:
        return PLOT.y + PLOT.height * (1 - self.up.share(value))


def compact(value: float, unit: str = "") -> str:
    """A tick's number: 1.2k, 3M, $0.0002."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{unit}{value / size:g}{letter}"
    return f"{unit}{value:.10f}".rstrip("0").rstrip(".") if value else f"{unit}0"


def cost_quality(marks: Sequence[Mark], label: str, *, unit: str = "", oracle: float | None = None) -> str:
    """Accuracy against what it costs, with error bars; the Pareto front is a stepped line with filled points.

    `oracle` is drawn as a dashed line. Empty text where there is nothing to draw.
    """
    if not marks:
        return ""
    heights = [v for m in marks for v in (m.lo, m.hi, m.y)] + ([oracle] if oracle is not None else [])
    up = Axis(
        lo=max(0.0, math.floor(10 * min(heights) - 0.2) / 10), hi=min(1.04, math.ceil(10 * max(heights) + 0.2) / 10)
    )
    frame = Frame(across=spanning([m.x for m in marks]), up=up)
    front = pareto([(m.x, m.y) for m in marks])
    steps = _steps(frame, [marks[i] for i in front])
    parts = [
        _grid(frame, label, unit),
        _oracle_line(frame, oracle),
        tag("path", {"d": "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in steps), "class": "front"}),
        *(_bar(frame, m) for m in marks),
        *_labels(frame, marks, steps, oracle),
        *(_point(frame, m, i in front, unit) for i, m in enumerate(marks)),
    ]
    title = f"Accuracy against {label.lower()}, one point a recipe"
    return tag("svg", {"viewBox": f"0 0 {SIZE[0]} {SIZE[1]}", "role": "img", "aria-label": title}, *parts)


def _grid(frame: Frame, label: str, unit: str) -> str:
    right, bottom = PLOT.x + PLOT.width, PLOT.y + PLOT.height
    parts = []
    for value in frame.up.ticks():
        y = frame.y(value)
        parts += [
            _line(PLOT.x, y, right, y, "grid"),
            _text(PLOT.x - 8, y + 4, f"{100 * value:.0f} %", "tick", "end"),
        ]
    for value in frame.across.ticks(8):
        x = frame.x(value)
        parts += [
            _line(x, PLOT.y, x, bottom, "grid"),
            _text(x, bottom + 18, compact(value, unit), "tick", "middle"),
        ]
    scale = " (logarithmic)" if frame.across.log else ""
    parts += [
        _line(PLOT.x, bottom, right, bottom, "axis"),
        _text(PLOT.x + PLOT.width / 2, SIZE[1] - 10, label + scale, "axis-title", "middle"),
    ]
    return "".join(parts)


def _oracle_line(frame: Frame, oracle: float | None) -> str:
    if oracle is None:
        return ""
    y = frame.y(oracle)
    note = f"some agent right: {100 * oracle:.0f} %"
    return _line(PLOT.x, y, PLOT.x + PLOT.width, y, "oracle") + _text(PLOT.x + 6, y - 5, note, "tick")


def _steps(frame: Frame, front: Sequence[Mark]) -> list[tuple[float, float]]:
    """The corners of the stepped line: what accuracy can be had for at most so much."""
    corners = [(frame.x(front[0].x), frame.y(front[0].y))]
    for mark in front[1:]:
        x, y = frame.x(mark.x), frame.y(mark.y)
        corners += [(x, corners[-1][1]), (x, y)]
    return [*corners, (PLOT.x + PLOT.width, corners[-1][1])]


def _bar(frame: Frame, mark: Mark) -> str:
    x, top, bottom = frame.x(mark.x), frame.y(mark.hi), frame.y(mark.lo)
    ends = "".join(_line(x - 4, y, x + 4, y, "bar") for y in (top, bottom))
    return tag("g", {"data-recipe": mark.name}, _line(x, top, x, bottom, "bar"), ends)


def _point(frame: Frame, mark: Mark, on_front: bool, unit: str) -> str:
    x, y = frame.x(mark.x), frame.y(mark.y)
    css = "point" + (" best" if on_front else "") + (" base" if mark.baseline else "")
    words = (
        f"{mark.name}: {100 * mark.y:.1f} % ({100 * mark.lo:.0f}–{100 * mark.hi:.0f} %) at {compact(mark.x, unit)}"
    )
    shape = tag("circle", {"cx": x, "cy": y, "r": 6, "class": css})
    if mark.baseline:
        corners = ((x, y - 8), (x + 8, y), (x, y + 8), (x - 8, y))
        shape = tag("polygon", {"points": " ".join(f"{_number(a)},{_number(b)}" for a, b in corners), "class": css})
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
    text = _text(at, box.y + box.height - 4, spot.text, "label", anchor)
    near_x = min(max(spot.x, box.x), box.x + box.width)
    near_y = min(max(spot.y, box.y), box.y + box.height)
    far = math.hypot(near_x - spot.x, near_y - spot.y) > 16
    leader = _line(spot.x, spot.y, near_x, near_y, "leader") if far else ""
    return tag("g", {"data-recipe": mark.name}, leader, text)


def _side(spot: Spot, box: Box) -> tuple[float, str]:
    """Where the text is held: boxes are wider than their texts, which keep to the side of the point."""
    if box.x + box.width <= spot.x:
        return box.x + box.width, "end"
    return (box.x, "start") if box.x >= spot.x else (box.x + box.width / 2, "middle")


def shorten(name: str, most: int = 26) -> str:
    """A name that fits a label."""
    return name if len(name) <= most else name[: most - 1] + "…"


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
        _line(4, 8, 116, 8, "track"),
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
