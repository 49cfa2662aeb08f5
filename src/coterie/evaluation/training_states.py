"""Routed states as a map: t-SNE of queries' features, by the agent that the router ranks first and by domain.

Draws what it is given; it encodes and routes nothing.
"""

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

import numpy as np

from coterie.errors import MissingExtra
from coterie.evaluation.figures import View, choices
from coterie.evaluation.labels import Box
from coterie.evaluation.sheet import Card, plain_table, scrolling
from coterie.evaluation.svg import drawing, shorten, tag, text
from coterie.types import record

AREA = Box(x=16, y=16, width=560, height=440)
SIZE = (860, 472)
KINDS = 8  # told apart by colour and shape; the others are one kind
OTHERS = "others"
FEWEST = 8


@record
class States:
    """Queries as the router sees them: features (Q, D), and by query the first agent, the domain, the question."""

    features: np.ndarray
    agents: tuple[str, ...]
    domains: tuple[str, ...]
    texts: tuple[str, ...]


def flattened(features: np.ndarray) -> np.ndarray:
    """Two coordinates a query: (Q, 2), by t-SNE (van der Maaten and Hinton 2008) on standardised features.

    Equal features give equal places. Raises: MissingExtra without scikit-learn.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise MissingExtra("scikit-learn", "routers") from error
    spread = features.std(axis=0)
    known = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    perplexity = min(30.0, (len(known) - 1) / 3)
    flat = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=0).fit_transform(known)
    return np.asarray(flat, dtype=float)


def states_card(states: States) -> Card:
    """The map twice, and how often each agent is first in each domain. Empty for fewer than eight queries."""
    note = (
        "Near points are queries that the router sees as alike (t-SNE keeps neighbours, not distances or sizes)."
        " Colour and shape say which agent has the highest familiarity, or which domain a query is of."
    )
    if len(states.agents) < FEWEST:
        return Card(title="Routed states", markup="")
    places = flattened(states.features)
    views = [
        View(title="First agent", markup=scrolling(chart(places, states.agents, states.texts, "agent"), "plot")),
        View(title="Domain", markup=scrolling(chart(places, states.domains, states.texts, "domain"), "plot")),
    ]
    return Card(title="Routed states", markup=choices("Colour", views) + _crossed(states), note=note)


def chart(places: np.ndarray, kinds: Sequence[str], texts: Sequence[str], what: str) -> str:
    """A point a query at `places` (Q, 2), its kind told by colour and shape, and a legend with counts."""
    sizes = Counter(kinds)
    names = sorted(sorted(sizes, key=lambda name: (-sizes[name], name))[: KINDS - (len(sizes) > KINDS)])
    shown = [*names, *([OTHERS] if len(names) < len(sizes) else [])]
    lo, hi = places.min(axis=0), places.max(axis=0)
    share = (places - lo) / np.where(hi > lo, hi - lo, 1.0)
    points = []
    for (x, y), kind, words in zip(share, kinds, texts, strict=True):
        row = names.index(kind) if kind in names else len(names)
        at = AREA.x + float(x) * AREA.width, AREA.y + (1 - float(y)) * AREA.height
        title = tag("title", {}, escape(f"{kind}: {shorten(' '.join(words.split()), 90)}"))
        points.append(tag("g", {}, title, mark(*at, row)))
    legend = [_legend(i, name, sizes) for i, name in enumerate(shown)]
    return drawing(f"Queries by features, coloured by {what}", *points, *legend, size=SIZE)


def _legend(place: int, name: str, sizes: Counter[str]) -> str:
    x, y = AREA.x + AREA.width + 28, AREA.y + 16 + 24 * place
    n = sizes.get(name, 0)
    words = f"{shorten(name)} ({n:,})" if n else name
    return mark(x, y - 4, place) + text(x + 14, y, words, "label")


def mark(x: float, y: float, kind: int) -> str:
    """A small shape in the colour of its kind: circle, square, triangle, diamond, and turned polygons."""
    css = f"bubble line-{kind % KINDS}"
    corners = (0, 4, 3, 4, 3, 5, 6, 5)[kind % KINDS]
    turned = (0, 45, 90, 0, -90, 90, 0, -90)[kind % KINDS]
    if not corners:
        return tag("circle", {"cx": x, "cy": y, "r": 4.5, "class": css})
    angles = [math.radians(turned + 360 * i / corners) for i in range(corners)]
    places = " ".join(f"{x + 5.6 * math.cos(a):.1f},{y - 5.6 * math.sin(a):.1f}" for a in angles)
    return tag("polygon", {"points": places, "class": css})


def _crossed(states: States) -> str:
    """Domain by first agent."""
    counts = Counter(zip(states.domains, states.agents, strict=True))
    agents, sizes = sorted(set(states.agents)), Counter(states.domains)
    rows = [[domain, f"{sizes[domain]:,}", *(f"{counts[domain, a]:,}" for a in agents)] for domain in sorted(sizes)]
    return plain_table(("Domain", "Queries", *agents), rows)
