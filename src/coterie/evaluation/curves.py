"""The drawings of router studies as SVG text: frontier, learning curve, regret, reliability.

Pure functions from small records; they run and fit nothing. Lines are told apart by colour, dash and a name at
their end, so that none of these is needed alone.
"""

from collections.abc import Sequence
from html import escape

from coterie.evaluation.labels import Box
from coterie.evaluation.plots import Mark, cost_quality
from coterie.evaluation.svg import (
    Axis,
    Frame,
    area,
    compact,
    drawing,
    grid,
    line,
    path,
    percent_tick,
    shorten,
    spanning,
    tag,
    text,
)
from coterie.types import record

LINES = Box(x=58, y=16, width=600, height=360)
SQUARE = Box(x=150, y=16, width=360, height=360)
COLOURS = 8  # the page has colours line-0 to line-7
APART = 16.0  # pixels between two names at the ends of lines


@record
class At:
    """One point of a line: its value, and the band over seeds around it (equal to the value: no band)."""

    x: float
    y: float
    lo: float
    hi: float


@record
class Series:
    """A named line, by x."""

    name: str
    points: tuple[At, ...]


@record
class Level:
    """A horizontal line to compare with, such as the best single agent."""

    name: str
    y: float


@record
class Bin:
    """Predictions of about one chance: their mean, the share that came true, how many they are."""

    chance: float
    share: float
    n: int


# --- cost and quality --------------------------------------------------------------------------------


def frontier(
    marks: Sequence[Mark],
    curve: Sequence[tuple[float, float]] = (),
    *,
    label: str = "Dollars per 1,000 queries",
    unit: str = "$",
) -> str:
    """Score in [0, 1] against cost, a point a router; the frontier is a stepped line.

    `curve` is the frontier, (cost, score) by cost; without it the marks' own Pareto front is drawn. Marks say
    which is the baseline (a diamond) and which the oracle (dashed, on no front). Empty without a mark.
    """
    return cost_quality(marks, label, unit=unit, curve=curve, what="Score")


# --- lines -------------------------------------------------------------------------------------------


def learning_curve(series: Sequence[Series], levels: Sequence[Level] = (), *, label: str = "Labels") -> str:
    """Score in [0, 1] against the number of labels, on a logarithmic scale where no number is 0, with bands."""
    shown = [one for one in series if one.points]
    if not shown:
        return ""
    xs = [at.x for one in shown for at in one.points]
    log = min(xs) > 0 and max(xs) > min(xs)
    room = (max(xs) / min(xs)) ** 0.04 if log else 1.0
    across = Axis(lo=min(xs) / room, hi=max(xs) * room, log=True) if log else spanning(xs)
    heights = _heights(shown) + [level.y for level in levels]
    reach = spanning(heights)
    up = Axis(lo=max(0.0, min(heights) - 0.1) if reach.log else reach.lo, hi=min(1.04, max(reach.hi, 0.01)))
    frame = Frame(across=across, up=up, box=LINES)
    parts = [grid(frame, label), *_lines(frame, shown), *_levels(frame, levels)]
    return drawing(f"Score against {label.lower()}, a line a router", *parts)


def regret_curve(series: Sequence[Series], *, label: str = "Query") -> str:
    """Cumulative regret (score lost against the best choice) against the step, with bands; lower is better."""
    return course(f"Cumulative regret against {label.lower()}, a line a router", series, label=label)


def course(title: str, series: Sequence[Series], *, label: str = "Query", percent: bool = False) -> str:
    """How several quantities went on, with bands; the vertical axis begins at 0. Empty without a point.

    `title` says to a screen reader what is drawn; `percent` words the vertical axis as shares.
    """
    shown = [one for one in series if one.points]
    if not shown:
        return ""
    up = spanning([0.0, *_heights(shown)])
    across = spanning([0.0, *(at.x for one in shown for at in one.points)])
    frame = Frame(across=Axis(lo=0.0, hi=across.hi), up=up, box=LINES)
    return drawing(title, grid(frame, label, up=percent_tick if percent else compact), *_lines(frame, shown))


def _heights(series: Sequence[Series]) -> list[float]:
    return [value for one in series for at in one.points for value in (at.lo, at.y, at.hi)]


def _lines(frame: Frame, series: Sequence[Series]) -> list[str]:
    """All bands below all lines, a name at the end of each line."""
    bands = [_band(frame, one, i) for i, one in enumerate(series)]
    drawn = [_line(frame, one, i) for i, one in enumerate(series)]
    return [*bands, *drawn, *_ends(frame, series)]


def _band(frame: Frame, one: Series, place: int) -> str:
    if all(at.lo == at.hi for at in one.points):
        return ""
    above = [(frame.x(at.x), frame.y(at.hi)) for at in one.points]
    below = [(frame.x(at.x), frame.y(at.lo)) for at in one.points]
    return tag("g", {"data-recipe": one.name}, area(above, below, f"band line-{place % COLOURS}"))


def _line(frame: Frame, one: Series, place: int) -> str:
    points = [(frame.x(at.x), frame.y(at.y)) for at in one.points]
    last = one.points[-1]
    words = f"{one.name}: {last.y:.4g} ({last.lo:.4g} to {last.hi:.4g}) at {compact(last.x)}"
    css = f"line line-{place % COLOURS} dash-{place // 2 % 4}"
    dots = [tag("circle", {"cx": x, "cy": y, "r": 3, "class": f"knot line-{place % COLOURS}"}) for x, y in points]
    few = dots if len(dots) <= 24 else []
    return tag("g", {"data-recipe": one.name}, tag("title", {}, escape(words)), path(points, css), *few)


def _ends(frame: Frame, series: Sequence[Series]) -> list[str]:
    """The lines' names in the right margin, each at its line's end or as near as the others leave it."""
    box = frame.box
    wanted = [frame.y(one.points[-1].y) for one in series]
    places = spread(wanted, box.y + 4, box.y + box.height)
    found = []
    for i, (one, at, y) in enumerate(zip(series, wanted, places, strict=True)):
        x, right = frame.x(one.points[-1].x), box.x + box.width
        leader = line(x + 4, at, right + 8, y, f"leader line-{i % COLOURS}")
        name = text(right + 12, y + 4, shorten(one.name), "label")
        found.append(tag("g", {"data-recipe": one.name}, leader, name))
    return found


def spread(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Heights near the wanted ones, in their order and APART from each other, within the bounds if they fit."""
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    placed = [0.0] * len(wanted)
    floor = low
    for i in order:
        placed[i] = max(wanted[i], floor)
        floor = placed[i] + APART
    ceiling = high
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - APART
    return placed


def _levels(frame: Frame, levels: Sequence[Level]) -> list[str]:
    box = frame.box
    return [
        line(box.x, frame.y(one.y), box.x + box.width, frame.y(one.y), "oracle")
        + text(box.x + 6, frame.y(one.y) - 5, f"{shorten(one.name)}: {100 * one.y:.1f} %", "label")
        for one in levels
    ]


# --- reliability -------------------------------------------------------------------------------------


def reliability_bins(chances: Sequence[float], outcomes: Sequence[float], most: int = 10) -> list[Bin]:
    """Predicted chances in [0, 1] and what came (0, 1, or a share), in `most` bins of equal width at most.

    Empty bins are left out. ValueError for sides of unequal length or a chance outside [0, 1].
    """
    found: dict[int, list[tuple[float, float]]] = {}
    for chance, came in zip(chances, outcomes, strict=True):
        if not 0 <= chance <= 1:
            raise ValueError(f"{chance} is no chance")
        found.setdefault(min(most - 1, int(chance * most)), []).append((chance, came))
    return [_bin(found[i]) for i in sorted(found)]


def _bin(pairs: Sequence[tuple[float, float]]) -> Bin:
    n = len(pairs)
    return Bin(chance=sum(c for c, _ in pairs) / n, share=sum(s for _, s in pairs) / n, n=n)


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Expected calibration error (Naeini et al. 2015): mean |chance - share| weighted by n; None without a bin."""
    total = sum(one.n for one in bins)
    return sum(one.n * abs(one.chance - one.share) for one in bins) / total if total else None


def reliability(bins: Sequence[Bin], name: str = "predictions") -> str:
    """What came true against what was predicted; on the diagonal they agree. Area of a point: how many they are.

    The expected calibration error is written beside it. Empty text without a bin.
    """
    error = calibration_error(bins)
    if error is None:
        return ""
    whole = Axis(lo=0.0, hi=1.0)
    frame = Frame(across=whole, up=whole, box=SQUARE)
    largest = max(one.n for one in bins)
    diagonal = line(frame.x(0), frame.y(0), frame.x(1), frame.y(1), "oracle")
    side = SQUARE.x + SQUARE.width + 24
    total = sum(one.n for one in bins)
    notes = [f"ECE {100 * error:.1f} %", f"{total:,} {name}", "dashed: predicted = came true"]
    parts = [
        grid(frame, "Predicted chance", across=percent_tick),
        diagonal,
        path([(frame.x(one.chance), frame.y(one.share)) for one in bins], "line line-0 dash-0"),
        *(_predicted(frame, one, largest) for one in bins),
        *(
            text(side, SQUARE.y + 20 + 20 * i, words, "label" if i == 0 else "tick")
            for i, words in enumerate(notes)
        ),
    ]
    return drawing(f"Share that came true against the predicted chance; {notes[0]}", *parts)


def _predicted(frame: Frame, one: Bin, largest: int) -> str:
    words = f"predicted {100 * one.chance:.1f} %, came true {100 * one.share:.1f} % of {one.n:,}"
    radius = 3 + 8 * (one.n / largest) ** 0.5
    x, y = frame.x(one.chance), frame.y(one.share)
    dot = tag("circle", {"cx": x, "cy": y, "r": radius, "class": "bubble line-0"})
    gap = line(x, frame.y(one.chance), x, y, "bar")
    return tag("g", {}, tag("title", {}, escape(words)), gap, dot)
