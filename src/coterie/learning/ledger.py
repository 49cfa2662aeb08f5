"""Which rewards belong together: tickets wait here until their agents have reported, then the router hears of them.

Keeps books only; it computes no advantage and trains nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from coterie.learning.allocation import Ticket, tickets_of_json, tickets_to_json
from coterie.learning.checkpoint import State, sound
from coterie.types import record

COUNTED = ("resolved", "solo", "partial", "alone", "empty", "expired", "late")


@record
class Resolved:
    """A ticket whose rewards can be compared: at least two agents', or the one that it was routed to alone."""

    ticket: Ticket
    rewards: Mapping[str, float]

    @property
    def solo(self) -> bool:
        """Whether routing chose a single agent (C13). Others that did not report do not make a solo."""
        return len(self.ticket.agents) == 1


@dataclass
class Entry:
    """One open ticket: what was reported so far (None: no outcome), and what of it is new since `settle`."""

    ticket: Ticket
    reports: dict[str, float | None] = field(default_factory=dict)
    fresh: dict[str, float] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether everybody has reported."""
        return len(self.reports) == len(self.ticket.agents)


class Ledger:
    """Rewards by ticket (C14).

    With `sync="join"` a ticket waits until all of its agents have reported, or for `ttl` rounds, and is then
    compared over those that did. With `sync="step"`, the paper's words taken literally, the agents that
    reported between two calls of `settle` are compared with each other at once.

    Several were routed and one reward came: nothing to compare with, dropped and counted as `alone`.
    """

    def __init__(self, ttl: int = 50, sync: Literal["join", "step"] = "join") -> None:
        self.ttl, self.sync = ttl, sync
        self.entries: dict[int, Entry] = {}
        self.counts: Counter[str] = Counter()

    def open(self, ticket: Ticket) -> None:
        """Wait for the ticket's rewards. ValueError for one that is open already."""
        if ticket.id in self.entries:
            raise ValueError(f"ticket {ticket.id} is open already")
        self.entries[ticket.id] = Entry(ticket)

    def report(self, ticket_id: int, agent: str, reward: float | None) -> bool:
        """One agent's mean reward on a ticket, or None: it will give no outcome (evicted, an error, gone).

        False where the ticket is closed, after its time to live: too late, counted, of no effect.
        Raises: KeyError for an agent that it was not routed to, ValueError for a second reward or no number.
        """
        entry = self.entries.get(ticket_id)
        if entry is None:
            self.counts["late"] += 1
            return False
        if agent not in entry.ticket.agents:
            raise KeyError(f"ticket {ticket_id} was not routed to agent {agent!r}")
        if agent in entry.reports:
            if reward is None:
                return True
            raise ValueError(f"agent {agent!r} has reported on ticket {ticket_id} already")
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"agent {agent!r} reports {reward} on ticket {ticket_id}: no outcome is None")
        entry.reports[agent] = reward
        if reward is not None:
            entry.fresh[agent] = reward
        return True

    def without(self, agent: str) -> None:
        """The agent is gone: whatever it has not reported yet will not come."""
        for entry in self.entries.values():
            if agent in entry.ticket.agents:
                entry.reports.setdefault(agent, None)

    def settle(self, round: int) -> list[Resolved]:
        """Close what is complete or expired at this round; the comparable rewards, by ticket."""
        found = []
        for key in sorted(self.entries):
            entry = self.entries[key]
            expired = round - entry.ticket.round >= self.ttl and not entry.whole
            closed = entry.whole or expired
            self.counts["expired"] += expired
            if closed:
                del self.entries[key]
            if (closed or (self.sync == "step" and entry.fresh)) and (one := self._compared(entry, closed)):
                found.append(one)
        return found

    def _compared(self, entry: Entry, closed: bool) -> Resolved | None:
        """What the entry's new rewards say; None, counted, where they say nothing."""
        rewards, entry.fresh = entry.fresh, {}
        routed = len(entry.ticket.agents)
        if not rewards:
            self.counts["empty"] += closed and not any(value is not None for value in entry.reports.values())
            return None
        if len(rewards) == 1 and routed > 1:
            self.counts["alone"] += 1
            return None
        self.counts.update(resolved=1, solo=routed == 1, partial=len(rewards) < routed)
        return Resolved(ticket=entry.ticket, rewards=dict(sorted(rewards.items())))

    def metrics(self) -> dict[str, int]:
        """Open tickets, and counts since the start.

        `resolved` of which `solo` and `partial` (some agents missing); without effect: `alone` (one of several),
        `empty` (nobody had an outcome), `late` reports. `expired` tickets were closed by age.
        """
        return {"open": len(self.entries), **{key: self.counts[key] for key in COUNTED}}

    def state(self) -> State:
        """Everything that `load` needs to go on exactly so: plain JSON, and arrays of the rewards."""
        entries = [self.entries[key] for key in sorted(self.entries)]
        about = {
            "tickets": tickets_to_json(entry.ticket for entry in entries),
            "reported": [list(entry.reports) for entry in entries],
            "fresh": [list(entry.fresh) for entry in entries],
            "counts": {key: self.counts[key] for key in COUNTED},
        }
        values = [value for entry in entries for value in entry.reports.values()]
        rewards = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        return about, {"rewards": rewards}

    def load(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state` of a ledger with these settings."""
        size = sum(map(len, about["reported"]))
        rewards = iter(sound(arrays, "rewards", (size,), np.float64, none=True).tolist())
        self.entries, self.counts = {}, Counter(about["counts"])
        rows = zip(tickets_of_json(about["tickets"]), about["reported"], about["fresh"], strict=True)
        for ticket, reported, fresh in rows:
            reports = {name: None if (value := next(rewards)) != value else value for name in reported}
            self.entries[ticket.id] = Entry(ticket, reports, {name: float(reports[name] or 0.0) for name in fresh})


def ttl_warning(agents: int, micro_batch: int, batch: int, ttl: int) -> str | None:
    """Why tickets will expire before their agents practise, or None where they need not.

    Where each of `batch` queries a round goes to two of the agents, the fewest that can be compared, one of them
    waits for a micro-batch about micro_batch * agents / (2 * batch) rounds.
    """
    wait = micro_batch * agents / (2 * batch)
    if wait <= ttl:
        return None
    return (
        f"ttl {ttl} is short: {agents} agents that share {batch} queries a round take about {wait:.0f} rounds to"
        f" fill micro-batches of {micro_batch}, so that most comparisons expire; raise ttl or batch"
    )
