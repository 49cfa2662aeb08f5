"""Where the names of points go in a plot so that they do not overlap. Geometry only; it draws nothing."""

import math
import unicodedata
from collections.abc import Sequence

from coterie.types import record

CHAR, LINE = 7.2, 15.0  # width of a letter and height of a line at 12 px, generous
ANGLES = (0, 180, 90, 270, 45, 315, 135, 225, 22, 338, 158, 202)


@record
class Box:
    """An axis-parallel rectangle, y downwards."""

    x: float
    y: float
    width: float
    height: float

    def overlap(self, other: "Box") -> float:
        """Area in common."""
        across = min(self.x + self.width, other.x + other.width) - max(self.x, other.x)
        down = min(self.y + self.height, other.y + other.height) - max(self.y, other.y)
        return across * down if across > 0 and down > 0 else 0.0

    @property
    def area(self) -> float:
        return self.width * self.height


@record
class Spot:
    """A point to be named: where it is, the name, and the error bar's ends (y downwards)."""

    x: float
    y: float
    text: str
    top: float
    bottom: float


def text_width(text: str) -> float:
    """Pixels that a text of 12 px takes, at most; wide scripts count double."""
    return sum(2 * CHAR if unicodedata.east_asian_width(c) in "WF" else CHAR for c in text)


def place(spots: Sequence[Spot], within: Box, *, taken: Sequence[Box] = (), lines: Sequence[Box] = ()) -> list[Box]:
    """A box for every label, in the order given: clear of points, labels and what is `taken`, near its own point.

    Greedy, the most crowded point first; error bars and `lines` are crossed only where that saves distance.
    """
    points = [Box(x=s.x - 9, y=s.y - 8, width=18, height=16) for s in spots]
    bars = [Box(x=s.x - 2, y=s.top, width=4, height=max(s.bottom - s.top, 1)) for s in spots] + list(lines)
    placed: dict[int, Box] = {}
    for i in sorted(range(len(spots)), key=lambda i: (-_crowd(spots, i), i)):
        hard = [*placed.values(), *points, *taken]
        placed[i] = min(_candidates(spots[i]), key=lambda found: found[1] + _penalty(found[0], hard, bars, within))[
            0
        ]
    return [placed[i] for i in range(len(spots))]


def _crowd(spots: Sequence[Spot], i: int) -> float:
    return sum(1 / (1 + math.hypot(s.x - spots[i].x, s.y - spots[i].y) / 20) for s in spots)


def _candidates(spot: Spot) -> list[tuple[Box, float]]:
    """Boxes on rings around the point with the price of their distance; to the right is best."""
    width = text_width(spot.text)
    found = []
    for ring in range(14):
        for rank, angle in enumerate(ANGLES):
            reach = 12 + 14 * ring
            dx, dy = math.cos(math.radians(angle)), -math.sin(math.radians(angle))
            box = Box(
                x=spot.x + dx * reach - width * (1 - dx) / 2,
                y=spot.y + dy * reach - LINE / 2,
                width=width,
                height=LINE,
            )
            found.append((box, 40.0 * ring + 2.0 * rank))
    return found


def _penalty(box: Box, hard: Sequence[Box], bars: Sequence[Box], within: Box) -> float:
    outside = box.area - box.overlap(within)
    clash = sum(box.overlap(other) for other in hard)
    crossed = sum(box.overlap(other) for other in bars)
    return 1000 * clash + 1000 * outside + crossed + 1e6 * (clash > 0 or outside > 1e-6)
