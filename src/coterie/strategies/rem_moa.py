"""ReM-MoA: layers of proposers over a memory of ranked proposals, of which each seat reads another part."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coterie.rollout import Ask, Limits, Rollout
from coterie.strategies import prompts
from coterie.strategies.layers import Agreement, Panel, aggregate, agreed, answered, quote, seats
from coterie.strategies.memory import AGGREGATED, Route, check_routes, pool_of, ranked, routes_for, shipped
from coterie.strategies.quoting import Quote
from coterie.strategies.reviewer import BEST, review
from coterie.strategies.stopping import DepthRule, check_ends, deep_enough, note_ends
from coterie.types import Messages, Pool, Review, Size, Turn, spec


@spec
class RemMoA:
    """ReM-MoA: `layers` of proposals, each reviewed once; from layer 2 every seat reads the query
    and its own route through the ranked memory (Eqs. 5-7); an aggregator writes the answer from three routes over
    all of it. For L layers of N it takes L*N + L + 1 calls, and one more for each review that has to be asked for
    again.

    Ablations: `adjacent` reads the layer before only, `shared` gives all seats the first route, without
    `rationales` scores come alone. `routes` replace the shipped ones. `aggregator_contrastive` is how many of
    each end the aggregator's contrastive set has (R19). `shuffle` shows the reviewer traces in a drawn order
    (R9); without `schemas` the form of a review is asked for in words alone. With `every_layer` it aggregates after
    every layer: a depth sweep in one run, L - 1 calls more.
    `agreement` stops where that share of a layer gives one answer, before its review and without an aggregation;
    `depth` where a rule that `coterie layers RUN --learn-depth RECIPE` learned holds the answer after a layer for
    as good as the last one's. With `shadow` either is only noted.
    """

    layers: Size = 3
    panel: Panel = Panel()
    routes: tuple[Route, ...] | None = None
    adjacent: bool = False
    shared: bool = False
    rationales: bool = True
    aggregator_contrastive: Size = 1
    shuffle: bool = False
    schemas: bool = True
    every_layer: bool = False
    agreement: Agreement | None = None
    depth: DepthRule | None = None
    shadow: bool = False

    def check(self, pool: Pool, limits: Limits) -> None:
        """ConfigError where layers have no routes, or steps no time."""
        ends = self.layers if self.every_layer else 1
        # a layer is its proposals, their review, and the review asked for again
        self.panel.check(pool, limits, steps=3 * self.layers + ends * (1 + self.panel.fallbacks))
        if self.routes is not None:
            check_routes(self.routes, "strategy.routes")
        routes_for(self.panel.most(pool), self.routes)
        check_ends(self, pool)

    async def solve(self, rollout: Rollout) -> Turn | None:
        last: Turn | None = None
        for layer in range(1, self.layers + 1):
            turns = await answered(rollout, self.panel, await self._asks(rollout, layer))
            if not turns:
                break
            early = await agreed(rollout, turns, self.agreement)
            if early is not None and not self.shadow:
                return early
            await review(rollout, self.panel, turns, self.shuffle, self.schemas)
            enough = layer < self.layers and await deep_enough(rollout, layer, self.depth)
            if self.every_layer or enough:
                last = await self._aggregate(rollout, layer)
                note_ends(rollout, layer, last, self.every_layer, enough)
            if enough and not self.shadow:
                break
        return last or await self._aggregate(rollout, max(entry.layer for entry in rollout.reviews))

    async def _asks(self, rollout: Rollout, layer: int) -> list[Ask]:
        names = await seats(rollout, self.panel)
        entries = pool_of(rollout.reviews, layer, self.adjacent)
        routes = routes_for(len(names), self.routes)
        asks = []
        for name, own in zip(names, routes, strict=True):
            shown = (routes[0] if self.shared else own).of(entries)
            messages: Messages = ()
            if shown:
                room = self.panel.room(rollout.pool[name])
                messages = prompts.proposer(rollout.query, self._quotes(rollout, shown), room)
            reads = [rollout.turns[entry.turn] for entry in shown]
            asks.append(self.panel.ask(name, "proposer", layer, messages, reads))
        return asks

    async def _aggregate(self, rollout: Rollout, layer: int) -> Turn:
        """The answer from the memory after `layer`."""
        entries = pool_of(rollout.reviews, layer + 1, self.adjacent)
        sets = self._sets(entries)
        wanted = {entry.turn for found in sets.values() for entry in found}
        shown = [entry for entry in entries if entry.turn in wanted]
        number = {entry.turn: place for place, entry in enumerate(shown, 1)}
        named = {family: [number[entry.turn] for entry in found] for family, found in sets.items()}
        quotes = self._quotes(rollout, shown)
        reads = [rollout.turns[entry.turn] for entry in shown]
        found = await aggregate(
            rollout,
            self.panel,
            layer,
            lambda room: prompts.aggregator(rollout.query, named, quotes, room),
            reads,
        )
        return found or rollout.turns[ranked(entries)[0].turn]

    def _sets(self, entries: Sequence[Review]) -> Mapping[str, list[Review]]:
        ends = self.aggregator_contrastive
        routes = [Route(top=ends, bottom=ends) if r.family == "contrastive" else r for r in shipped()[AGGREGATED]]
        return {route.family: route.of(entries) for route in routes}

    def _quotes(self, rollout: Rollout, entries: Sequence[Review]) -> list[Quote]:
        quotes = []
        for entry in entries:
            note = entry.rationale if self.rationales else ""
            facts = {"score": f"{entry.score:g}/{BEST}"}
            quotes.append(replace(quote(rollout.turns[entry.turn]), facts=facts, note=note))
        return quotes
