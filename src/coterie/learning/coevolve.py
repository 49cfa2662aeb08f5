"""CERA-MoA: the router decides who practises on which query, and hears how well each did.

One round is Algorithm 1 of the paper: route a batch with exploration, let agents with enough queries practise, move
the router by the rewards of settled tickets. Files, the terminal and interruption are `training`'s business.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from coterie.backends.sampling import GREEDY_BELOW
from coterie.errors import ConfigError, CoterieError
from coterie.features.checks import AnyEncoder
from coterie.learning.adapters import Lora
from coterie.learning.allocation import Allocation, Allocator, Ticket
from coterie.learning.checkpoint import Checkpoint, State
from coterie.learning.cursor import Cursor
from coterie.learning.engine import Verbs
from coterie.learning.learner import Optimiser
from coterie.learning.ledger import Ledger, Resolved
from coterie.learning.losses import Loss
from coterie.learning.practice import (
    Clock,
    Practice,
    Practised,
    Rollouts,
    figures,
    learn,
    practised,
    roll_out,
    telling_ones,
)
from coterie.learning.rewards import Rewards
from coterie.learning.routing import RoutingLearner, RoutingUpdate
from coterie.types import Agent, Pool, Query, Size, draw, spec


@spec
class Coevolve:
    """How a pool co-evolves with its router; defaults are the paper's (Table 5), marked where they are not.

    `tasks` are the training tasks and how many queries of each are taken (null: all). A round routes `batch`
    queries; training ends after `queries` of them or `updates` optimiser steps of all agents together
    (docs/methods.md C22). `reference`: what an agent's KL is measured against, the base or its own first
    adapter. `ttl` and `sync`: how long and for whom a ticket waits (C14). A checkpoint is written every
    `checkpoint_every` rounds, the newest `keep` stay. `patience` updates in a row whose numbers are none end the
    run. `max_batch` completions are sampled together. `cluster`: where the base models are loaded; None takes
    this process for one and a process each for several, `ray` actors of a Ray cluster.
    """

    tasks: Mapping[str, Size | None]
    batch: Size = 16
    queries: Size = 64000
    updates: Size = 6000
    practice: Practice = field(default_factory=Practice)
    rewards: Rewards = field(default_factory=Rewards)
    allocation: Allocation = field(default_factory=Allocation)
    routing: RoutingUpdate = field(default_factory=RoutingUpdate)
    lora: Lora = field(default_factory=Lora)
    optimiser: Optimiser = field(default_factory=Optimiser)
    loss: Loss = field(default_factory=Loss)
    reference: Literal["base", "initial"] = "base"
    ttl: Size = 50
    sync: Literal["join", "step"] = "join"
    checkpoint_every: Size = 500
    keep: Size = 2
    patience: Size = 5
    max_batch: Size = 64
    cluster: Literal["here", "processes", "ray"] | None = None


class Diverged(CoterieError):
    """Training was stopped because its numbers mean nothing any more. `row` are the figures of the last round."""

    def __init__(self, message: str, row: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.row = row


class Coevolution:
    """A pool in training. `round` advances it, `state` and `load` carry it over; it touches no file.

    The agents' adapters live in `engines`, by agent: one engine for a shared base, or one for each base.
    """

    def __init__(
        self,
        settings: Coevolve,
        pool: Pool,
        encoder: AnyEncoder,
        queries: Sequence[Query],
        engines: Mapping[str, Verbs],
        seed: int = 0,
    ) -> None:
        self.settings, self.pool, self.encoder, self.engines, self.seed = settings, pool, encoder, engines, seed
        self.queries = {query.id: query for query in queries}
        if len(self.queries) < len(queries):
            raise ConfigError("learner.tasks: two training queries have one id; name each task once")
        self.names = pool.names()
        self.cursor = Cursor(tuple(self.queries), seed, settings.batch)
        self.allocator = Allocator(self.names, settings.allocation, draw(seed, "allocation"))
        self.ledger = Ledger(settings.ttl, settings.sync)
        first = min(max(1, settings.routing.standardise), len(self.queries))
        sample = self._features(Cursor(tuple(self.queries), seed, settings.batch).take(first))
        self.router = RoutingLearner(self.names, sample.shape[1], settings.routing, sample)
        self.rounds = self.updates = self.errors = 0
        self._trouble: list[str] = []
        self.spent = {"tokens": 0, "completions": 0, "prompt_tokens": 0}
        self.in_a_row = dict.fromkeys(self.names, 0)

    @property
    def finished(self) -> bool:
        """Whether the budget of queries or of updates is used up."""
        return self.allocator.routed >= self.settings.queries or self.updates >= self.settings.updates

    def round(self) -> dict[str, Any]:
        """One orchestration step; its figures as plain JSON, `seconds` by phase among them.

        Raises: Diverged where an agent's updates are no numbers `patience` times in a row, or verifiers fail on
        more than the allowed share of a batch. The round is whole even so: its state can be kept.
        """
        clock = Clock()
        self.rounds += 1
        self._trouble = []
        with clock.phase("route"):
            tickets, familiarity = self._route()
        done = {name: self._practise(name, clock) for name in self.names}
        with clock.phase("router"):
            heard = self._hear(self.ledger.settle(self.rounds))
        row = self._row(tickets, familiarity, done, heard, clock)
        if self._trouble:
            raise Diverged(self._trouble[0], row)
        return row

    # --- a round's parts -----------------------------------------------------------------------------

    def _route(self) -> tuple[list[Ticket], np.ndarray]:
        """Route a batch; tickets and raw familiarities (B, N)."""
        ids = self.cursor.take(min(self.settings.batch, self.settings.queries - self.allocator.routed))
        familiarity = self.router.familiarity(self._features(ids))
        tickets = []
        for key, row in zip(ids, familiarity, strict=True):
            ticket = self.allocator.allocate(key, dict(zip(self.names, map(float, row), strict=True)), self.rounds)
            self.ledger.open(ticket)
            tickets.append(ticket)
        for name, ticket in self.allocator.evictions():
            self.ledger.report(ticket.id, name, None)
        return tickets, familiarity

    def _practise(self, name: str, clock: Clock) -> list[Practised]:
        """Every micro-batch that the agent's buffer holds, unless the budget of updates ends before."""
        done = []
        for tickets in self.allocator.ready(name):
            if self.updates >= self.settings.updates:
                for ticket in tickets:
                    self.ledger.report(ticket.id, name, None)
                continue
            found = self._roll_out(name, tickets, clock)
            batch = found
            if self.settings.practice.filter_groups:
                batch, found = self._filtered(name, found, clock)
            updates = min(self.settings.practice.updates, self.settings.updates - self.updates)
            steps = learn(self.engines[name], self.pool[name], batch, updates, clock) if batch else ()
            done.append(practised(found, steps))
            self._account(name, done[-1])
        return done

    def _roll_out(self, name: str, tickets: Sequence[Ticket], clock: Clock) -> list[Rollouts]:
        """Groups of the tickets' queries. The router hears of every one, whatever becomes of it (C14)."""
        queries = {draw(self.seed, name, ticket.id): self.queries[ticket.query] for ticket in tickets}
        settings = self.settings
        found = roll_out(self.engines[name], self.pool[name], queries, settings.practice, settings.rewards, clock)
        for ticket, one in zip(tickets, found, strict=True):
            mean = one.graded.mean
            self.ledger.report(ticket.id, name, None if math.isnan(mean) else mean)
        return found

    def _filtered(
        self, name: str, found: Sequence[Rollouts], clock: Clock
    ) -> tuple[list[Rollouts], list[Rollouts]]:
        """DAPO's dynamic sampling within its budget: groups that tell nothing give way to others of the buffer.

        Those to learn from, and all that were made: what is dropped has cost its tokens too.
        """
        kept, made, left = telling_ones(found), list(found), self.settings.practice.refill
        while left > 0 and len(kept) < len(found):
            tickets = self.allocator.take(name, min(left, len(found) - len(kept)))
            if not tickets:
                break
            left -= len(tickets)
            made += (more := self._roll_out(name, tickets, clock))
            kept += telling_ones(more)
        return kept, made

    def _account(self, name: str, done: Practised) -> None:
        self.allocator.observe_entropy(name, done.entropy, done.completions)
        self.spent["tokens"] += done.tokens
        self.spent["completions"] += done.completions
        self.spent["prompt_tokens"] += done.prompt_tokens
        self.errors += done.errors
        self.updates += sum(step.outcome == "done" for step in done.steps)
        for step in done.steps:
            self.in_a_row[name] = self.in_a_row[name] + 1 if step.outcome == "skipped" else 0
        if self.in_a_row[name] >= self.settings.patience:
            self._trouble.append(
                f"agent {name}: loss or gradient was no number {self.in_a_row[name]} times in a row; lower"
                " learner.optimiser.lr"
            )
        if done.errors > self.settings.practice.errors * done.completions:
            why = f": {done.reasons[0]}" if done.reasons else ""
            self._trouble.append(
                f"agent {name}: {done.errors} of {done.completions} completions had no verdict{why}"
            )

    def _hear(self, resolved: Sequence[Resolved]) -> dict[str, float]:
        """One step of the router on all tickets that are settled, their features as they always were."""
        if not resolved:
            return {"pairs": 0.0, "stepped": 0.0}
        rewards = np.full((len(resolved), len(self.names)), np.nan)
        for row, one in zip(rewards, resolved, strict=True):
            for name, reward in one.rewards.items():
                if name in self.names:
                    row[self.names.index(name)] = reward
        features = self._features([one.ticket.query for one in resolved])
        return self.router.step(features, rewards, np.array([one.solo for one in resolved]))

    def _features(self, ids: Sequence[str]) -> np.ndarray:
        """One prompt at a time: a vector that is worked out again, after a restart or an eviction, is the same."""
        rows = [self.encoder.encode([self.queries[key].messages]) for key in ids]
        return np.concatenate(rows or [self.encoder.encode([])]).astype(np.float32, copy=False)

    # --- agents that leave ---------------------------------------------------------------------------

    def without(self, name: str) -> None:
        """Let an agent go in mid-run; what it still owed the router counts as no outcome."""
        self.allocator.without(name)
        for _, ticket in self.allocator.evictions():
            self.ledger.report(ticket.id, name, None)
        self.ledger.without(name)
        self.router.without(name)
        self.engines[name].remove(name)
        del self.in_a_row[name]
        self.pool = self.pool.with_agents(without=[name])
        self.names = self.pool.names()

    # --- figures -------------------------------------------------------------------------------------

    def _row(
        self,
        tickets: Sequence[Ticket],
        familiarity: np.ndarray,
        done: Mapping[str, Sequence[Practised]],
        heard: Mapping[str, float],
        clock: Clock,
    ) -> dict[str, Any]:
        load = self.allocator.metrics()
        all_done = [one for each in done.values() for one in each]
        rewards = [reward for one in all_done for reward in one.rewards if not math.isnan(reward)]
        agents = {
            name: {
                "familiarity": float(familiarity[:, i].mean()) if len(familiarity) else None,
                **dict(zip(("updates", "skipped"), self.engines[name].counts(name), strict=True)),
                **load["agents"][name],
                **_averaged([figures(one) for one in done[name]]),
            }
            for i, name in enumerate(self.names)
        }
        row: dict[str, Any] = _plain(
            {
                "round": self.rounds,
                "queries": self.allocator.routed,
                "updates": self.updates,
                "active": float(np.mean([len(ticket.agents) for ticket in tickets])) if tickets else None,
                "reward": float(np.mean(rewards)) if rewards else None,
                "solved": _mean([one.solved for one in all_done]),
                "zero_variance": _mean([one.silent for one in all_done]),
                "errors": self.errors,
                **self.spent,
                "load_entropy": load["load_entropy"],
                "collapsed": load["collapsed"],
                "agents": agents,
                "router": dict(heard),
                "ledger": self.ledger.metrics(),
                "seconds": dict(clock.seconds),
            }
        )
        return row

    # --- checkpoints ---------------------------------------------------------------------------------

    def state(self) -> Checkpoint:
        """All parts as they are between two rounds."""
        own = {
            "rounds": self.rounds,
            "updates": self.updates,
            "errors": self.errors,
            "spent": self.spent,
            "in_a_row": self.in_a_row,
            "agents": self.names,
            "cursor": self.cursor.position,
        }
        parts: dict[str, State] = {
            "run": (own, {}),
            "allocation": self.allocator.state(),
            "ledger": self.ledger.state(),
        }
        parts["router"] = self.router.state()
        parts |= {f"agent.{name}": self.engines[name].state(name) for name in self.names}
        return Checkpoint(round=self.rounds, parts=parts)

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of a run with these settings and this pool."""
        own, _ = checkpoint.parts["run"]
        for name in set(self.names) - set(own["agents"]):
            self.without(name)
        self.rounds, self.updates, self.errors = own["rounds"], own["updates"], own["errors"]
        self.spent = {key: own["spent"][key] for key in self.spent}
        self.in_a_row = {name: own["in_a_row"][name] for name in self.names}
        self.cursor.position = own["cursor"]
        self.allocator.load(*checkpoint.parts["allocation"])
        self.ledger.load(*checkpoint.parts["ledger"])
        self.router.load(*checkpoint.parts["router"])
        for name in self.names:
            self.engines[name].load(name, *checkpoint.parts[f"agent.{name}"])


def prepared(agent: Agent) -> Agent:
    """The agent as it can learn, without the adapter that it starts from.

    Raises: ConfigError where its sampling is greedy: a group of equal answers says nothing.
    """
    if agent.sampling.temperature < GREEDY_BELOW or agent.sampling.top_k == 1:
        raise ConfigError(
            f"agent {agent.name}: sampling.temperature {agent.sampling.temperature:g} and top_k"
            f" {agent.sampling.top_k} give equal completions: nothing to learn"
        )
    return replace(agent, adapter=None)


def _averaged(rows: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    names = sorted({name for row in rows for name in row})
    return {name: _mean([row[name] for row in rows if name in row]) for name in names}


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else None


def _plain(value: Any) -> Any:
    """The value as JSON can say it: what is no number is null."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
