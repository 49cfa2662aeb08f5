"""Queries go out to agents, rewards come back, the router hears of them: what a round of CERA-MoA keeps books of.

Training and simulation go through it alike (the paper's Algorithm 1). It samples, grades and encodes nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

from coterie.learning.allocation import Allocation, Allocator, Ticket
from coterie.learning.checkpoint import State
from coterie.learning.ledger import Ledger
from coterie.learning.routing import RoutingLearner, RoutingUpdate


class Rules(Protocol):
    """The settings that it goes by."""

    allocation: Allocation
    routing: RoutingUpdate
    ttl: int
    sync: Literal["join", "step"]


class Exchange:
    """Allocator, ledger and router of one run. All are in the order of the agents' sorted names."""

    def __init__(self, agents: Sequence[str], rules: Rules, seed: int, sample: np.ndarray) -> None:
        """`sample` (K, D) are the features that the router standardises by; `seed` is the allocator's."""
        self.allocator = Allocator(agents, rules.allocation, seed)
        self.ledger = Ledger(rules.ttl, rules.sync)
        self.router = RoutingLearner(agents, sample.shape[1], rules.routing, sample)

    def route(self, ids: Sequence[str], features: np.ndarray, round: int) -> tuple[list[Ticket], np.ndarray]:
        """Give queries with features (B, D) to agents; their tickets, and raw familiarities (B, N)."""
        familiarity = self.router.familiarity(features)
        tickets = []
        for key, row in zip(ids, familiarity.tolist(), strict=True):
            ticket = self.allocator.allocate(key, dict(zip(self.router.agents, row, strict=True)), round)
            self.ledger.open(ticket)
            tickets.append(ticket)
        self._evict()
        return tickets, familiarity

    def report(self, name: str, tickets: Sequence[Ticket], rewards: Sequence[float]) -> None:
        """An agent's mean reward on each ticket; NaN where it has no outcome (C14)."""
        for ticket, reward in zip(tickets, rewards, strict=True):
            self.ledger.report(ticket.id, name, None if math.isnan(reward) else reward)

    def hear(self, round: int, features: Callable[[Sequence[str]], np.ndarray]) -> dict[str, float]:
        """One step of the router on all tickets that are settled, the queries' features as they always were."""
        resolved = self.ledger.settle(round)
        if not resolved:
            return {"pairs": 0.0, "stepped": 0.0}
        column = {name: i for i, name in enumerate(self.router.agents)}
        rewards = np.full((len(resolved), len(column)), np.nan)
        for row, one in zip(rewards, resolved, strict=True):
            for name in one.rewards.keys() & column.keys():  # others have left since
                row[column[name]] = one.rewards[name]
        solo = np.array([one.solo for one in resolved])
        return self.router.step(features([one.ticket.query for one in resolved]), rewards, solo)

    def without(self, name: str) -> None:
        """Let an agent go; what it still owed the router counts as no outcome."""
        self.allocator.without(name)
        self._evict()
        self.ledger.without(name)
        self.router.without(name)

    def _evict(self) -> None:
        """What fell out of a buffer will have no outcome."""
        for name, ticket in self.allocator.evictions():
            self.ledger.report(ticket.id, name, None)

    def state(self) -> dict[str, State]:
        """Its parts, for a checkpoint."""
        return {"allocation": self.allocator.state(), "ledger": self.ledger.state(), "router": self.router.state()}

    def load(self, parts: Mapping[str, State]) -> None:
        """Go on from what `state` gave; agents come with it."""
        self.allocator.load(*parts["allocation"])
        self.ledger.load(*parts["ledger"])
        self.router.load(*parts["router"])
