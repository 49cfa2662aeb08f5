"""What every drawing of the report is made of: scales, ticks, elements as SVG text. It draws no figure itself.

Names are escaped; colours come from the page's CSS classes. Equal input gives equal text.
"""

import math
from collections.abc import Callable, Sequence
from html import escape

from coterie.evaluation.labels import Box
from coterie.types import record

Attributes = dict[str, str | float]
WIDE = 8.0  # from this ratio of the largest to the smallest value on, the axis is logarithmic


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


def tag(name: str, attributes: Attributes, *children: str) -> str:
    """One element; attribute values are escaped, children are markup already."""
    written = "".join(f' {k}="{escape(number(v), quote=True)}"' for k, v in attributes.items())
    return f"<{name}{written}>{''.join(children)}</{name}>"


def number(value: str | float) -> str:
    """An attribute's number: two digits after the point at most."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def text(x: float, y: float, words: str, css: str, anchor: str = "start") -> str:
    """A line of text; `anchor` is start, middle or end."""
    return tag("text", {"x": x, "y": y, "class": css, "text-anchor": anchor}, escape(words))


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A straight line."""
    return tag("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": css})


def path(points: Sequence[tuple[float, float]], css: str) -> str:
    """A line through the points; empty text without any."""
    return tag("path", {"d": "M" + _joined(points), "class": css}) if points else ""


def area(above: Sequence[tuple[float, float]], below: Sequence[tuple[float, float]], css: str) -> str:
    """What lies between two lines, both from left to right; empty text where one is."""
    if not above or not below:
        return ""
    return tag("path", {"d": f"M{_joined([*above, *reversed(below)])}Z", "class": css})


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{number(x)} {number(y)}" for x, y in points)


PLOT = Box(x=58, y=16, width=780, height=360)
SIZE = (860, 430)


@record
class Frame:
    """An area with its two axes."""

    across: Axis
    up: Axis
    box: Box = PLOT

    def x(self, value: float) -> float:
        return self.box.x + self.box.width * self.across.share(value)

    def y(self, value: float) -> float:
        return self.box.y + self.box.height * (1 - self.up.share(value))


def percent_tick(value: float) -> str:
    """A share as a tick of percent."""
    return f"{100 * value:.0f} %"


def compact(value: float, unit: str = "") -> str:
    """A tick's number: 1.2k, 3M, $0.0002."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{unit}{value / size:g}{letter}"
    return f"{unit}{value:.10f}".rstrip("0").rstrip(".") if value else f"{unit}0"


def grid(
    frame: Frame,
    label: str,
    unit: str = "",
    *,
    up: Callable[[float], str] = percent_tick,
    across: Callable[[float], str] | None = None,
) -> str:
    """Both axes with ticks and grid lines; `label` names the horizontal one, `up` and `across` word the ticks."""
    box = frame.box
    right, bottom = box.x + box.width, box.y + box.height
    parts = []
    for value in frame.up.ticks():
        y = frame.y(value)
        parts += [line(box.x, y, right, y, "grid"), text(box.x - 8, y + 4, up(value), "tick", "end")]
    for value in frame.across.ticks(8):
        x = frame.x(value)
        parts += [
            line(x, box.y, x, bottom, "grid"),
            text(x, bottom + 18, across(value) if across else compact(value, unit), "tick", "middle"),
        ]
    scale = " (logarithmic)" if frame.across.log else ""
    parts += [
        line(box.x, bottom, right, bottom, "axis"),
        text(box.x + box.width / 2, bottom + 44, label + scale, "axis-title", "middle"),
    ]
    return "".join(parts)


def drawing(title: str, *parts: str, size: tuple[float, float] = SIZE) -> str:
    """A whole drawing; `title` says to a screen reader what it shows."""
    view = f"0 0 {number(size[0])} {number(size[1])}"
    return tag("svg", {"viewBox": view, "role": "img", "aria-label": title}, *parts)


def shorten(name: str, most: int = 26) -> str:
    """A name that fits a label."""
    return name if len(name) <= most else name[: most - 1] + "…"
