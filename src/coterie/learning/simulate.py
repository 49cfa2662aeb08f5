"""Co-evolution without models: simulated agents around the real allocation, ledger and router code.

To see in a minute what thresholds, margins and exploration do before days are spent on it. Draws no picture.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np

from coterie.learning.allocation import ROUNDING, Allocation
from coterie.learning.exchange import Exchange
from coterie.learning.ledger import ttl_warning
from coterie.learning.routing import RoutingUpdate
from coterie.learning.students import Items, Students, World, items, voted
from coterie.types import Size, record, spec

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
SMALL: Mapping[str, Any] = {"hidden": 64, "width": 32, "lr": 3e-3}
"""Heads in proportion to 32 features, not to 5,120. A step of Adam moves a layer's output by about the learning
rate times its fan-in: 1e-4 * 5,120 and 1e-4 * 512 in the paper's heads are 1.6e-2 * 32 and 8e-4 * 64 in these; the
rate lies halfway between the two (3.6e-3)."""
Progress = Callable[[int, int], None]


@spec
class Simulation:
    """What is simulated: `queries` in rounds of `batch`, `points` records of the course and two early ones, `test`
    queries apart. `ttl` and `sync` are the ledger's."""

    agents: Size = 4
    queries: Size = 64_000
    batch: Size = 16
    world: World = field(default_factory=World)
    allocation: Allocation = field(default_factory=Allocation)
    routing: RoutingUpdate = field(default_factory=lambda: RoutingUpdate(**SMALL))
    ttl: Size = 50
    sync: Literal["join", "step"] = "join"
    points: Size = 40
    test: Size = 400

    def warnings(self) -> list[str]:
        """What in these settings cannot work as the method means it; nothing is changed by it."""
        margin = self.routing.margin_warning(self.agents, self.allocation.tau)
        late = ttl_warning(self.agents, self.allocation.micro_batch, self.batch, self.ttl)
        return [one for one in (margin, late) if one]


@record
class Point:
    """The course up to `queries`: means over the rounds since the last point.

    `agents` asked a query, `calls` of one agent on one query so far, `reward` a call, `top` the highest familiarity
    a query; by agent: `familiarity` a query, `updates` so far, `share` of the calls. `owned` is the largest agent's
    part of a domain's calls, the mean over domains; `owners` how many different agents those are. At this very
    moment, on the test queries: `known` is each agent's mean familiarity, `accuracy` and `asked` are those of the
    vote at the training threshold.
    """

    queries: int
    agents: float
    calls: int
    reward: float | None
    top: float
    familiarity: tuple[float, ...]
    updates: tuple[int, ...]
    share: tuple[float, ...]
    owned: float
    owners: int
    load_entropy: float
    oldest_age: int
    known: tuple[float, ...]
    accuracy: float
    asked: float


@record
class Tested:
    """The vote on the test queries at a threshold: accuracy, and agents asked a query."""

    tau: float
    accuracy: float
    asked: float


@record
class Simulated:
    """One simulation: its course, what the test queries say at the end, and the books."""

    settings: Simulation
    seed: int
    points: tuple[Point, ...]
    tests: tuple[Tested, ...]
    floors: Mapping[str, float]
    skills: tuple[tuple[float, ...], ...]
    ledger: Mapping[str, int]
    allocation: Mapping[str, Any]
    seconds: float


class Tally:
    """Sums over the rounds since the last point."""

    def __init__(self, agents: int, domains: int) -> None:
        self.agents, self.domains = agents, domains
        self.clear()

    def clear(self) -> None:
        self.asked = np.zeros((self.domains, self.agents))
        self.familiarity = np.zeros(self.agents)
        self.top = self.reward = 0.0
        self.rounds = self.queries = self.rewarded = 0


class Simulator:
    """A simulation in progress. `round` is one orchestration step; everything between rounds is in its parts."""

    def __init__(self, settings: Simulation, seed: int) -> None:
        width = len(str(settings.agents - 1))
        self.names = tuple(f"agent-{i:0{width}}" for i in range(settings.agents))
        self.settings, self.seed = settings, seed
        world = settings.world
        self.train = items(world, settings.queries, seed, "train")
        self.test = items(world, settings.test, seed, "test")
        self.students = Students(world, settings.agents, seed)
        sample = self.train.features[: settings.routing.standardise or 1]
        self.exchange = Exchange(self.names, settings, seed, sample)
        self.number = {name: i for i, name in enumerate(self.names)}
        self.now = self.calls = 0
        self.tally = Tally(settings.agents, world.domains)

    @property
    def rounds(self) -> int:
        return math.ceil(self.settings.queries / self.settings.batch)

    def round(self) -> None:
        """Route a batch, let agents practise, tell the router (paper's Algorithm 1)."""
        start = self.now * self.settings.batch
        ids = [str(i) for i in range(start, min(start + self.settings.batch, self.settings.queries))]
        tickets, familiarity = self.exchange.route(ids, self._features(ids), self.now)
        for ticket in tickets:
            self.calls += len(ticket.agents)
            here = [self.number[name] for name in ticket.agents]
            self.tally.asked[self.train.domain[int(ticket.query)], here] += 1
        for name in self.exchange.allocator.agents:
            self._practise(name)
        self.exchange.hear(self.now, self._features)
        self._count(familiarity)
        self.now += 1

    def _practise(self, name: str) -> None:
        for batch in self.exchange.allocator.ready(name):
            rewards, entropy = self.students.practise(self.number[name], self._of([int(t.query) for t in batch]))
            count = len(batch) * self.settings.world.group
            self.exchange.allocator.observe_entropy(name, entropy, count)
            self.exchange.report(name, batch, rewards.tolist())
            self.tally.reward += float(rewards.sum())
            self.tally.rewarded += len(rewards)

    def _of(self, rows: list[int]) -> Items:
        train = self.train
        return Items(features=train.features[rows], domain=train.domain[rows], difficulty=train.difficulty[rows])

    def _features(self, ids: Sequence[str]) -> np.ndarray:
        return self.train.features[[int(key) for key in ids]]

    def _count(self, familiarity: np.ndarray) -> None:
        tally, here = self.tally, [self.number[name] for name in self.exchange.router.agents]
        tally.familiarity[here] += familiarity.mean(axis=0)
        tally.top += float(familiarity.max(axis=1).mean())
        tally.rounds, tally.queries = tally.rounds + 1, tally.queries + len(familiarity)

    # --- figures -------------------------------------------------------------------------------------

    def point(self) -> Point:
        """The course since the last point; begins the next."""
        tally, asked = self.tally, self.tally.asked
        about = self.exchange.allocator.metrics()
        scores = self.exchange.router.familiarity(self.test.features)  # (Q, N)
        tested, level = self.tested(self.settings.allocation.tau, scores), np.zeros(len(self.names))
        level[[self.number[name] for name in self.exchange.router.agents]] = scores.mean(axis=0)
        known = asked[asked.sum(axis=1) > 0]
        found = Point(
            queries=min(self.now * self.settings.batch, self.settings.queries),
            agents=float(asked.sum() / tally.queries),
            calls=self.calls,
            reward=tally.reward / tally.rewarded if tally.rewarded else None,
            top=tally.top / tally.rounds,
            familiarity=tuple((tally.familiarity / tally.rounds).tolist()),
            updates=tuple(self.students.updates.tolist()),
            share=tuple((asked.sum(axis=0) / asked.sum()).tolist()),
            owned=float((known.max(axis=1) / known.sum(axis=1)).mean()),
            owners=len(set(known.argmax(axis=1).tolist())),
            load_entropy=about["load_entropy"],
            oldest_age=max(desk["oldest_age"] for desk in about["agents"].values()),
            known=tuple(level.tolist()),
            accuracy=tested.accuracy,
            asked=tested.asked,
        )
        tally.clear()
        return found

    def tested(self, tau: float, scores: np.ndarray | None = None) -> Tested:
        """The familiarity vote on the test queries at a threshold; their `scores` (Q, N) where those are known."""
        rows = [self.number[name] for name in self.exchange.router.agents]
        chances = self.students.chances(self.test)[:, rows]
        f = self.exchange.router.familiarity(self.test.features) if scores is None else scores
        order = np.argsort(-f, axis=1, kind="stable")
        ranked = np.take_along_axis(f, order, axis=1)
        before = np.cumsum(ranked, axis=1) - ranked
        asked = np.zeros(f.shape, dtype=bool)
        np.put_along_axis(asked, order, before < tau - ROUNDING, axis=1)
        right = voted(self.settings.world, chances, np.where(asked, f, 0.0), self.seed)
        return Tested(tau=tau, accuracy=float(right.mean()), asked=float(asked.sum(axis=1).mean()))

    def floors(self) -> dict[str, float]:
        """What the test queries say without a router, at the end: chances, not draws, except for `majority`."""
        chances = self.students.chances(self.test)
        even = voted(self.settings.world, chances, np.ones_like(chances), self.seed)
        return {
            "base": float(Students(self.settings.world, 1, self.seed).chances(self.test).mean()),
            "mean": float(chances.mean()),
            "best_single": float(chances.mean(axis=0).max()),
            "majority": float(even.mean()),
            "oracle": float(chances.max(axis=1).mean()),
        }


def simulate(settings: Simulation, seed: int, watch: Progress = lambda done, total: None) -> Simulated:
    """Run it to the end; equal settings and seeds give equal results. `watch` hears of rounds done, and of all."""
    begun = time.monotonic()
    course = Simulator(settings, seed)
    every = max(1, course.rounds // settings.points)
    points = []
    for done in range(1, course.rounds + 1):
        course.round()
        if done % every == 0 or done in (1, 10, course.rounds):
            points.append(course.point())
        if done % 20 == 0 or done == course.rounds:
            watch(done, course.rounds)
    scores = course.exchange.router.familiarity(course.test.features)
    return Simulated(
        settings=settings,
        seed=seed,
        points=tuple(points),
        tests=tuple(course.tested(tau, scores) for tau in THRESHOLDS),
        floors=course.floors(),
        skills=tuple(tuple(row) for row in course.students.skill.tolist()),
        ledger=course.exchange.ledger.metrics(),
        allocation=course.exchange.allocator.metrics(),
        seconds=time.monotonic() - begun,
    )
