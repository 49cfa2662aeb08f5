"""AT-GRPO on a fixed tree: layers of reasoners, each reading the best of the one before, at the end an aggregator.

A baseline of CERA-MoA's (docs/methods.md says what deviates). The tree is that of the strategy `moa`. Every agent
is compared with itself alone: with its other answers to the very same prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Self

import numpy as np
from pydantic import Field

from coterie.errors import ConfigError
from coterie.learning.course import Course, Made
from coterie.learning.engine import Verbs
from coterie.learning.losses import Loss
from coterie.learning.peers import Company, Together, quote_of, whole
from coterie.learning.practice import Clock, Drill, Rollouts, within
from coterie.learning.sampler import Sample
from coterie.strategies import prompts
from coterie.strategies.moa import MoA
from coterie.team import Team
from coterie.types import Pool, Query, spec


@spec
class ATGRPO(Together):
    """Agent- and turn-wise grouped policy optimisation (AT-GRPO), beside what `Together` says.

    The team's strategy is `moa`: its layers are turns of the pool's solvers, the last turn is that of its one agent
    of role aggregator. `practice.group` answers to each prompt of an agent in a turn; the best goes on. A reward is
    `team` times the verdict on the team's answer, plus the answer's own.
    """

    team: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    practice: Drill = field(default_factory=lambda: Drill(group=4))
    loss: Loss = field(default_factory=lambda: Loss(ratio="token", beta=0.0))

    def learners(self, pool: Pool) -> list[str]:
        return sorted([*pool.names(), *pool.names("aggregator")])

    def suited(self, team: Team) -> Self:
        if not isinstance(team.strategy, MoA) or team.strategy.vote:
            raise ConfigError(f"{team.name}: AT-GRPO trains the strategy `moa` with an aggregator, nothing else")
        whole(team.name, team.strategy)
        if len(found := team.pool.names("aggregator")) != 1:
            raise ConfigError(f"{team.name}: the tree needs one agent of role aggregator, and has {len(found)}")
        if self.practice.group < 2:
            raise ConfigError(f"{team.name}: learner.practice.group 1 has nothing to compare with")
        return super().suited(team)

    def begin(self, team: Team, pool: Pool, queries: Sequence[Query], engines: Mapping[str, Verbs]) -> Course:
        assert isinstance(team.strategy, MoA)  # `suited`
        return Tree(self, pool, team.strategy, queries, engines, team.seed)


class Tree(Company):
    """Agents that learn on the tree."""

    settings: ATGRPO

    def __init__(
        self,
        settings: ATGRPO,
        pool: Pool,
        tree: MoA,
        queries: Sequence[Query],
        engines: Mapping[str, Verbs],
        seed: int,
    ) -> None:
        super().__init__(settings, pool, queries, engines, seed)
        self.tree = tree

    @property
    def top(self) -> str:
        """The aggregator."""
        return self.pool.names("aggregator")[0]

    def _round(self, clock: Clock) -> Made:
        queries = [self.queries[key] for key in self._take()]
        said: dict[str, list[Rollouts]] = {name: [] for name in self.names}
        shown: list[list[Sample]] = [[] for _ in queries]
        group = self.settings.practice.group
        for turn in range(self.tree.layers + 1):
            names = self.pool.names() if turn < self.tree.layers else [self.top]
            found = {name: self._say(name, self._asked(name, queries, shown), turn, clock, group) for name in names}
            shown = [[ones[i].samples[_best(ones[i])] for ones in found.values()] for i in range(len(queries))]
            for name, ones in found.items():
                said[name] += ones
        verdict = np.array([one.graded.raw[_best(one)] for one in said[self.top]])  # (Q,)
        gains = {
            name: within(self._rewards(name, ones, verdict), self.settings.loss.scale_by_std)
            for name, ones in said.items()
        }
        return Made(done=self._teach(said, gains, clock), row={"active": len(self.names)})

    def _asked(self, name: str, queries: Sequence[Query], shown: Sequence[Sequence[Sample]]) -> list[Query]:
        """The queries as the agent is asked them: bare at first, then with the answers of the layer before."""
        room, asked = self.tree.panel.room(self.pool[name]), []
        for query, samples in zip(queries, shown, strict=True):
            quotes = [quote_of(query, one) for one in samples if one.text.strip()]
            messages = prompts.synthesis(query, quotes, room) if quotes else query.messages
            asked.append(replace(query, messages=messages))
        return asked

    def _rewards(self, name: str, ones: Sequence[Rollouts], verdict: np.ndarray) -> np.ndarray:
        """Rewards (T * Q, K). An aggregator's candidate is the team's answer; others' groups share the one chosen.

        What a group shares does not move its advantages (docs/methods.md).
        """
        own = np.stack([one.graded.shaped for one in ones])
        shared = np.tile(np.nan_to_num(verdict), len(ones) // len(verdict))[:, None]
        team = np.stack([one.graded.raw for one in ones]) if name == self.top else shared
        return np.asarray(own + self.settings.team * team)

    def without(self, name: str) -> None:
        if name == self.top or len(self.names) <= 2:
            raise ConfigError(f"agent {name} cannot leave: the tree needs its aggregator and a reasoner")
        super().without(name)


def _best(one: Rollouts) -> int:
    """The best answer of a group, the first on a tie or where none has a verdict."""
    known = ~np.isnan(one.graded.shaped)
    return int(np.where(known, one.graded.shaped, -np.inf).argmax())
