"""Who practises on which query: exploration order, threshold prefix, bounded LIFO buffers per agent.

Decides and counts; it knows no model, no reward and no file. Everything that it draws hangs on the seed and its
own counters, so that `state` is all that a checkpoint needs.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from coterie.errors import ConfigError
from coterie.learning.checkpoint import State, sound
from coterie.learning.load import Window, load_entropy
from coterie.types import Amount, Share, Size, draw, record, spec

ROUNDING = 1e-9  # .6 + .1 is to reach .7, as in the vote


@spec
class Allocation:
    """How training queries are given to agents (CERA-MoA, Eqs. 18 and 19).

    `tau` is the familiarity that a query's agents are to reach together, `ucb` and `entropy` the weights of the
    two exploration terms (the paper's 2.0; 0.2 for `entropy` with different base models). `top_k` asks that
    many agents whatever their familiarity (the paper's fixed-k ablation).

    `micro_batch` queries are practised at a time. A buffer keeps the `capacity` most recent ones and evicts the
    oldest (C15). `drain` takes micro-batches until less than one is left; without it one a round, which starves
    old queries as soon as as many come in. `max_age` rounds after its routing a query is taken first [O].
    `entropy_decay` makes the entropy memory forget, a factor a completion (C8: None, the mean of all).
    `probe` of the queries go to one more agent, drawn at random, so that it is noticed where the router is
    wrong [O, not in the paper]. Over the last `window` queries, one agent with more than `alarm` of the load is
    a collapse.
    """

    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.7
    ucb: Amount = 2.0
    entropy: Amount = 2.0
    micro_batch: Size = 16
    capacity: Size = 64
    drain: bool = True
    top_k: Size | None = None
    max_age: Size | None = None
    entropy_decay: Share | None = None
    probe: Share = 0.0
    window: Size = 1000
    alarm: Share = 0.9


@record
class Ticket:
    """One routed query: who is to practise on it. `agents` are in the order of routing; `round` is when."""

    id: int
    query: str
    agents: tuple[str, ...]
    round: int


@dataclass
class Desk:
    """What the allocator keeps for one agent: pushes (n_i), entropy memory, buffer (oldest first), counts."""

    allocated: int = 0
    evicted: int = 0
    taken: int = 0
    oldest_taken: int = 0
    entropy: float = 0.0
    completions: int = 0
    buffer: deque[Ticket] = field(default_factory=deque)


class Allocator:
    """Gives queries to agents and keeps what each has still to practise on."""

    def __init__(self, agents: Sequence[str], settings: Allocation, seed: int) -> None:
        if settings.capacity < settings.micro_batch:
            raise ConfigError(
                f"allocation.capacity ({settings.capacity}) is below micro_batch ({settings.micro_batch}):"
                " no buffer would ever hold enough to practise"
            )
        if settings.top_k is not None and settings.top_k > len(agents):
            raise ConfigError(
                f"allocation.top_k ({settings.top_k}) is more than the {len(agents)} agents there are"
            )
        if not agents or len(set(agents)) < len(agents):
            raise ConfigError("allocation: needs at least one agent, each under a name of its own")
        self.settings, self.seed = settings, seed
        self.desks = {name: Desk() for name in sorted(agents)}
        self.routed = self.round = 0
        self._evictions: list[tuple[str, Ticket]] = []
        self._window = Window(settings.window)

    @property
    def agents(self) -> tuple[str, ...]:
        """Names, sorted: no decision depends on the order they came in."""
        return tuple(self.desks)

    # --- routing -------------------------------------------------------------------------------------

    def allocate(self, query_id: str, familiarity: Mapping[str, float], round: int) -> Ticket:
        """Route one query and push it on its agents' buffers. What that pushes out waits in `evictions`.

        Raises: KeyError for an agent without a familiarity, ValueError for one that is no number.
        """
        f = np.array([familiarity[name] for name in self.desks], dtype=np.float64)  # (N,)
        if not np.isfinite(f).all():
            raise ValueError(f"query {query_id}: familiarity is not finite: {dict(familiarity)}")
        names = self.agents
        chosen = tuple(names[i] for i in self._chosen(f))
        ticket = Ticket(id=self.routed, query=query_id, agents=chosen, round=round)
        self.routed, self.round = self.routed + 1, round
        for name in chosen:
            self._push(name, ticket)
        self._window.push(chosen)
        return ticket

    def scores(self, familiarity: np.ndarray) -> np.ndarray:
        """Eq. 18 for familiarities (N,): f + ucb * sqrt(log T / (n + 1)) + entropy * H, agents as in `agents`.

        T are the queries routed before this one and at least 1, so that the first round has no bonus (C7).
        """
        desks = self.desks.values()
        pushes = np.array([desk.allocated for desk in desks], dtype=np.float64)
        memory = np.array([desk.entropy for desk in desks])
        bonus = np.sqrt(math.log(max(self.routed, 1)) / (pushes + 1))
        return np.asarray(familiarity + self.settings.ucb * bonus + self.settings.entropy * memory)

    def _chosen(self, familiarity: np.ndarray) -> list[int]:
        """Indices of the agents to practise, in order: the shortest prefix by raw familiarity (Eq. 19)."""
        order = self._order(self.scores(familiarity))
        if self.settings.top_k is not None:
            size = self.settings.top_k
        else:
            reached = np.cumsum(familiarity[order]) >= self.settings.tau - ROUNDING
            size = int(reached.argmax()) + 1 if reached.any() else len(order)
        return self._probed(order[:size].tolist())

    def _order(self, scores: np.ndarray) -> np.ndarray:
        """Indices by score, highest first; equal scores by a draw, never by position."""
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        if not (ranked[1:] == ranked[:-1]).any():
            return order
        lots = [draw(self.seed, "tie", self.routed, name) for name in self.desks]
        return np.array(sorted(range(len(scores)), key=lambda i: (-scores[i], lots[i])))

    def _probed(self, chosen: list[int]) -> list[int]:
        """With the chance `probe` one more agent, any of the others."""
        others = sorted(set(range(len(self.desks))) - set(chosen)) if self.settings.probe else []
        if not others or draw(self.seed, "probe", self.routed) / 2**63 >= self.settings.probe:
            return chosen
        return [*chosen, others[draw(self.seed, "probed", self.routed) % len(others)]]

    # --- buffers -------------------------------------------------------------------------------------

    def ready(self, agent: str) -> list[tuple[Ticket, ...]]:
        """Take the micro-batches that the agent can practise on now off its buffer, most recent first.

        All whole ones with `drain`, else at most one. Queries older than `max_age` come before all others.
        """
        size = self.settings.micro_batch
        found: list[tuple[Ticket, ...]] = []
        while len(self.desks[agent].buffer) >= size and (self.settings.drain or not found):
            found.append(self.take(agent, size))
        return found

    def take(self, agent: str, count: int) -> tuple[Ticket, ...]:
        """Take at most `count` queries off the agent's buffer, in the order of `ready`."""
        desk = self.desks[agent]
        batch = tuple(self._next(desk) for _ in range(min(count, len(desk.buffer))))
        desk.taken += len(batch)
        desk.oldest_taken = max([desk.oldest_taken, *(self.round - ticket.round for ticket in batch)])
        return batch

    def evictions(self) -> list[tuple[str, Ticket]]:
        """What was pushed out since the last call, as (agent, ticket): to be reported without an outcome."""
        found, self._evictions = self._evictions, []
        return found

    def _push(self, name: str, ticket: Ticket) -> None:
        desk = self.desks[name]
        desk.allocated += 1
        desk.buffer.append(ticket)
        if len(desk.buffer) > self.settings.capacity:
            desk.evicted += 1
            self._evictions.append((name, desk.buffer.popleft()))

    def _next(self, desk: Desk) -> Ticket:
        """Take the most recent query, or the oldest where that is overdue: an age cap drops nothing."""
        oldest = self.settings.max_age
        overdue = oldest is not None and self.round - desk.buffer[0].round > oldest
        return desk.buffer.popleft() if overdue else desk.buffer.pop()

    # --- what agents report --------------------------------------------------------------------------

    def observe_entropy(self, agent: str, mean: float, count: int) -> None:
        """Take in the mean token entropy (nats) of `count` new training completions of the agent (C8)."""
        if count <= 0 or not math.isfinite(mean):
            return
        desk, decay = self.desks[agent], self.settings.entropy_decay
        weight = count / (desk.completions + count)
        if decay is not None and desk.completions:
            weight = 1 - decay**count
        desk.entropy += (mean - desk.entropy) * weight
        desk.completions += count

    def without(self, agent: str) -> None:
        """Let an agent go. What was in its buffer waits in `evictions`; the other agents keep theirs."""
        if len(self.desks) == 1:
            raise ConfigError(f"allocation: {agent!r} is the last agent and cannot be removed")
        self._evictions += [(agent, ticket) for ticket in self.desks.pop(agent).buffer]

    # --- figures -------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        """Counters by agent and the balance of the load.

        An agent's `share` is its part of the last `window` queries' allocations, `starved` a share below a
        tenth of an equal one. `load_entropy` is 1 where all have the same share, 0 where one has all.
        `collapsed`: the window is full and one of several agents has more than `alarm` of it.
        """
        shares = self._window.shares(self.agents)
        full = self._window.full
        return {
            "routed": self.routed,
            "mean_agents": self._window.mean_size(),
            "load_entropy": load_entropy(list(shares.values())),
            "collapsed": full and len(shares) > 1 and max(shares.values()) > self.settings.alarm,
            "agents": {name: self._figures(name, shares[name], full) for name in self.desks},
        }

    def _figures(self, name: str, share: float, full: bool) -> dict[str, Any]:
        desk = self.desks[name]
        return {
            "depth": len(desk.buffer),
            "oldest_age": max((self.round - ticket.round for ticket in desk.buffer), default=0),
            "oldest_taken": desk.oldest_taken,
            "allocated": desk.allocated,
            "taken": desk.taken,
            "evicted": desk.evicted,
            "entropy": desk.entropy,
            "share": share,
            "starved": full and share < 0.1 / len(self.desks),
        }

    # --- checkpoints ---------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that `load` needs to go on exactly so: plain JSON, and arrays."""
        held = [ticket for desk in self.desks.values() for ticket in desk.buffer]
        held += [ticket for _, ticket in self._evictions]
        about = {
            "routed": self.routed,
            "round": self.round,
            "tickets": tickets_to_json(held),
            "desks": {name: _desk_to_json(desk) for name, desk in self.desks.items()},
            "evictions": [[name, ticket.id] for name, ticket in self._evictions],
            "window": self._window.state(),
        }
        memory = np.array([desk.entropy for desk in self.desks.values()], dtype=np.float64)
        return about, {"entropy": memory}

    def load(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state` of an allocator with these settings and seed; its agents come with it."""
        tickets = {ticket.id: ticket for ticket in tickets_of_json(about["tickets"])}
        self.routed, self.round = about["routed"], about["round"]
        self.desks = {name: _desk_of_json(found, tickets) for name, found in about["desks"].items()}
        memory = sound(arrays, "entropy", (len(self.desks),), np.float64)
        for desk, entropy in zip(self.desks.values(), memory, strict=True):
            desk.entropy = float(entropy)
        self._evictions = [(name, tickets[key]) for name, key in about["evictions"]]
        self._window.load(about["window"])


COUNTERS = ("allocated", "evicted", "taken", "oldest_taken", "completions")


def _desk_to_json(desk: Desk) -> dict[str, Any]:
    return {key: getattr(desk, key) for key in COUNTERS} | {"buffer": [ticket.id for ticket in desk.buffer]}


def _desk_of_json(found: Mapping[str, Any], tickets: Mapping[int, Ticket]) -> Desk:
    return Desk(**{key: found[key] for key in COUNTERS}, buffer=deque(tickets[key] for key in found["buffer"]))


def tickets_to_json(tickets: Iterable[Ticket]) -> list[list[Any]]:
    """Each ticket once, by id."""
    unique = {ticket.id: ticket for ticket in tickets}
    return [[t.id, t.query, list(t.agents), t.round] for _, t in sorted(unique.items())]


def tickets_of_json(rows: Iterable[Sequence[Any]]) -> list[Ticket]:
    """What `tickets_to_json` wrote."""
    return [Ticket(id=key, query=query, agents=tuple(agents), round=when) for key, query, agents, when in rows]
