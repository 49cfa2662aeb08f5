"""CERA-MoA: the router decides who practises on which query, and hears how well each did.

One round is Algorithm 1 of the paper: route a batch with exploration, let agents with enough queries practise, move
the router by the rewards of settled tickets. What it shares with other learners is `course`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np

from coterie.errors import ConfigError
from coterie.features.checks import AnyEncoder
from coterie.learning.allocation import Allocation, Ticket
from coterie.learning.checkpoint import Checkpoint
from coterie.learning.course import Course, Lessons, Made, Row, encoded
from coterie.learning.engine import Verbs
from coterie.learning.exchange import Exchange
from coterie.learning.ledger import ttl_warning
from coterie.learning.practice import Clock, Practice, Practised, Rollouts, practised, roll_out, telling_ones
from coterie.learning.routing import RoutingUpdate
from coterie.routers.familiarity import Familiarity
from coterie.routers.learned_scores import NAME as LEARNED_SCORES
from coterie.team import Team
from coterie.types import Pool, Query, Size, draw, spec


@spec
class Coevolve(Lessons):
    """How a pool co-evolves with its router, beside what `Lessons` says; defaults are the paper's (Table 5).

    `ttl` and `sync`: how long and for whom a ticket waits (C14).
    """

    practice: Practice = field(default_factory=Practice)
    allocation: Allocation = field(default_factory=Allocation)
    routing: RoutingUpdate = field(default_factory=RoutingUpdate)
    ttl: Size = 50
    sync: Literal["join", "step"] = "join"

    def suited(self, team: Team) -> Self:
        """The settings with the router's own sizes, so that a recipe says them once.

        Raises: ConfigError for another router than a new `familiarity`.
        """
        router = team.router
        if not isinstance(router, Familiarity):
            raise ConfigError(
                f"{team.name}: co-evolution trains the `familiarity` router, not {type(router).__name__}"
            )
        if router.weights is not None:
            raise ConfigError(f"{team.name}: router.weights: co-evolution begins with a new router; leave them out")
        same = {name: getattr(router, name) for name in ("hidden", "width", "scale", "seed")}
        return replace(self, routing=replace(self.routing, **same))

    def remarks(self, pool: Pool) -> list[str]:
        margin = self.routing.margin_warning(len(pool), self.allocation.tau)
        late = ttl_warning(len(pool), self.allocation.micro_batch, self.batch, self.ttl)
        return [*(one for one in (margin, late) if one), *super().remarks(pool)]

    def begin(
        self, team: Team, pool: Pool, queries: Sequence[Query], engines: Mapping[str, Verbs]
    ) -> "Coevolution":
        assert isinstance(team.router, Familiarity)  # `suited`
        return Coevolution(self, pool, team.router.encoder, queries, engines, team.seed)


class Coevolution(Course):
    """A pool in training together with its router."""

    settings: Coevolve

    def __init__(
        self,
        settings: Coevolve,
        pool: Pool,
        encoder: AnyEncoder,
        queries: Sequence[Query],
        engines: Mapping[str, Verbs],
        seed: int = 0,
    ) -> None:
        super().__init__(settings, pool, queries, engines, seed)
        self.encoder = encoder
        sample = self._features(self._first(settings.routing.standardise))
        self.exchange = Exchange(self.names, settings, draw(seed, "allocation"), sample)

    def _round(self, clock: Clock) -> Made:
        with clock.phase("route"):
            ids = self._take()
            tickets, familiarity = self.exchange.route(ids, self._features(ids), self.rounds)
        done = {name: self._practise(name, clock) for name in self.names}
        with clock.phase("router"):
            heard = self.exchange.hear(self.rounds, self._features)
        load = self.exchange.allocator.metrics()
        row = {
            "active": float(np.mean([len(ticket.agents) for ticket in tickets])) if tickets else None,
            "load_entropy": load["load_entropy"],
            "collapsed": load["collapsed"],
            "router": heard,
            "ledger": self.exchange.ledger.metrics(),
        }
        own = {
            name: {"familiarity": float(familiarity[:, i].mean()) if tickets else None, **load["agents"][name]}
            for i, name in enumerate(self.names)
        }
        return Made(done=done, row=row, agents=own)

    # --- a round's parts -----------------------------------------------------------------------------

    def _practise(self, name: str, clock: Clock) -> list[Practised]:
        """Every micro-batch that the agent's buffer holds, unless the budget of updates ends before."""
        done = []
        for tickets in self.exchange.allocator.ready(name):
            if self.exhausted:
                self.exchange.report(name, tickets, [float("nan")] * len(tickets))
                continue
            found = self._roll_out(name, tickets, clock)
            batch = found
            if self.settings.practice.filter_groups:
                batch, found = self._filtered(name, found, clock)
            done.append(practised(found, self._step(name, batch, clock)))
            self.exchange.allocator.observe_entropy(name, done[-1].entropy, done[-1].completions)
            self._account(name, done[-1])
        return done

    def _roll_out(self, name: str, tickets: Sequence[Ticket], clock: Clock) -> list[Rollouts]:
        """Groups of the tickets' queries. The router hears of every one, whatever becomes of it (C14)."""
        queries = {draw(self.seed, name, ticket.id): self.queries[ticket.query] for ticket in tickets}
        settings = self.settings
        found = roll_out(self.engines[name], self.pool[name], queries, settings.practice, settings.rewards, clock)
        self.exchange.report(name, tickets, [one.graded.mean for one in found])
        return found

    def _filtered(
        self, name: str, found: Sequence[Rollouts], clock: Clock
    ) -> tuple[list[Rollouts], list[Rollouts]]:
        """DAPO's dynamic sampling within its budget: groups that tell nothing give way to others of the buffer.

        Those to learn from, and all that were made: what is dropped has cost its tokens too.
        """
        kept, made, left = telling_ones(found), list(found), self.settings.practice.refill
        while left > 0 and len(kept) < len(found):
            tickets = self.exchange.allocator.take(name, min(left, len(found) - len(kept)))
            if not tickets:
                break
            left -= len(tickets)
            made += (more := self._roll_out(name, tickets, clock))
            kept += telling_ones(more)
        return kept, made

    def _features(self, ids: Sequence[str]) -> np.ndarray:
        return encoded(self.encoder, [self.queries[key].messages for key in ids])

    def without(self, name: str) -> None:
        """Let an agent go in mid-run; what it still owed the router counts as no outcome."""
        self.exchange.without(name)
        super().without(name)

    # --- what came of it -----------------------------------------------------------------------------

    def furnished(self, table: Row, pool: Pool, folder: Path) -> Row:
        """The recipe's table with the router's weights for the revisions of `pool`."""
        router = self.exchange.router.router(pool, self.encoder)
        router.save(folder / "router.safetensors")
        own = table.get("router")
        own = own if isinstance(own, Mapping) else {"use": "familiarity"}
        if not isinstance(router, Familiarity):
            own = {"use": LEARNED_SCORES, **{key: value for key, value in own.items() if key == "encoder"}}
        return {**table, "router": {**own, "weights": "router.safetensors"}}

    # --- checkpoints ---------------------------------------------------------------------------------

    def state(self) -> Checkpoint:
        whole = super().state()
        return replace(whole, parts={**whole.parts, **self.exchange.state()})

    def load(self, checkpoint: Checkpoint) -> None:
        super().load(checkpoint)
        self.exchange.load(checkpoint.parts)
