"""The ranked reasoning memory of ReM-MoA: one order over all reviewed proposals, and what each route takes of it.

Entries are the reviews on a rollout, which only ever grow and end with it. Texts are in the turns that they name.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from coterie.config import parse_yaml, validate
from coterie.errors import ConfigError
from coterie.types import STRICT, Count, Review, record

ROUTES = "routes.yaml"
AGGREGATED = 3
"""The aggregator reads by the routes of this width (R4)."""


@record
class Route:
    """A reference set: the `top` best entries and the `bottom` worst. Both: contrastive; else positive or
    failure.
    """

    __pydantic_config__ = STRICT
    top: Count = 0
    bottom: Count = 0

    @property
    def family(self) -> str:
        if self.top and self.bottom:
            return "contrastive"
        return "positive" if self.top else "failure"

    def of(self, entries: Sequence[Review]) -> list[Review]:
        """The set from ranked entries, best first. A pool that is too small is not filled up (R2)."""
        worst = len(entries) - self.bottom
        return [entry for place, entry in enumerate(entries) if place < self.top or place >= worst]


def ranked(entries: Sequence[Review]) -> list[Review]:
    """One total order (R1): the higher score, the later layer, the earlier seat."""
    return sorted(entries, key=lambda entry: (-entry.score, -entry.layer, entry.turn))


def pool_of(entries: Sequence[Review], layer: int, adjacent: bool) -> list[Review]:
    """What a layer may read, ranked: all entries of earlier layers, or of the one before it only (an ablation)."""
    first = layer - 1 if adjacent else 1
    return ranked([entry for entry in entries if first <= entry.layer < layer])


def check_routes(routes: Sequence[Route], where: str) -> None:
    """ConfigError unless every route takes something, all differ, and three or more are of all three families."""
    if not routes or not all(route.top or route.bottom for route in routes):
        raise ConfigError(f"{where}: every route takes at least one entry (top or bottom)")
    if len(set(routes)) < len(routes):
        raise ConfigError(f"{where}: two routes are the same, so two seats would read the same")
    families = {route.family for route in routes}
    if len(routes) >= AGGREGATED and len(families) < 3:
        raise ConfigError(
            f"{where}: contrastive, positive and failure routes are needed; there are {sorted(families)}"
        )


@cache
def shipped() -> Mapping[int, tuple[Route, ...]]:
    """The routes by the width of a layer, checked."""
    text = (files("coterie.strategies") / ROUTES).read_text(encoding="utf-8")
    return routes_in(text, ROUTES)


def routes_in(text: str, where: str) -> dict[int, tuple[Route, ...]]:
    """Routes by width from YAML. ConfigError for a row that is not as long as its width or fails `check_routes`."""
    found = {}
    for width, row in parse_yaml(text, f"{where}: ").items():
        routes = tuple(validate(Route, table, f"{where}: {width}") for table in row)
        check_routes(routes, f"{where}: {width}")
        if len(routes) != width:
            raise ConfigError(f"{where}: {width}: has {len(routes)} routes")
        found[width] = routes
    return found


def routes_for(seats: int, own: Sequence[Route] | None) -> Sequence[Route]:
    """A route for each seat of a layer. ConfigError where none are known for so many."""
    if own is not None and len(own) >= seats:
        return own[:seats]
    if own is None and seats in shipped():
        return shipped()[seats]
    known = f"{len(own)} routes are given" if own is not None else f"routes are shipped up to {max(shipped())}"
    raise ConfigError(f"a layer of {seats} proposers has no routes: {known}; set `panel.width` or `routes`")
