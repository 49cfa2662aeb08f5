"""Agents that answer a query by turns and learn from it together, asked in the words of their team's own strategy.

How turns follow each other and what is rewarded, `debate` and `tree` say: what is learned is how the team answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self

import numpy as np

from coterie.errors import ConfigError
from coterie.learning.course import Course, Lessons
from coterie.learning.learner import Step
from coterie.learning.practice import Clock, Practised, Rollouts, practised, roll_out
from coterie.learning.sampler import Sample
from coterie.strategies.layers import Agreement, Panel
from coterie.strategies.quoting import Quote
from coterie.tasks.catalog import reader_of
from coterie.team import Team
from coterie.types import Query, draw, spec


class Layered(Protocol):
    """What both strategies that are trained have."""

    panel: Panel
    agreement: Agreement | None


@spec
class Together(Lessons):
    """What learners by turns have in common, beside what `Lessons` says.

    `shared`: all agents answer with one adapter and differ by their instructions and places alone; otherwise each
    has its own.
    """

    shared: bool = False

    def suited(self, team: Team) -> Self:
        models = {team.pool[name].model for name in self.learners(team.pool)}
        if self.shared and len(models) > 1:
            raise ConfigError(f"{team.name}: learner.shared: {len(models)} base models cannot share one adapter")
        return self


class Company(Course):
    """A pool in training by turns."""

    settings: Together

    def policy(self, name: str) -> str:
        return self.names[0] if self.settings.shared else name

    def _say(self, name: str, asked: Sequence[Query], turn: int, clock: Clock, group: int = 1) -> list[Rollouts]:
        """The agent's answers to queries as it is asked them in this turn, `group` to each."""
        queries = {draw(self.seed, name, self.rounds, turn, place): query for place, query in enumerate(asked)}
        agent = replace(self.pool[name], name=self.policy(name))
        drill = replace(self.settings.practice, group=group)
        return roll_out(self.engines[name], agent, queries, drill, self.settings.rewards, clock)

    def _teach(
        self, said: Mapping[str, Sequence[Rollouts]], gains: Mapping[str, np.ndarray], clock: Clock
    ) -> dict[str, list[Practised]]:
        """Each adapter's updates on all that was said with it, and what came of it by agent."""
        done = {}
        for name in self.names:
            with_it = [each for each in self.names if self.policy(each) == name]
            steps: tuple[Step, ...] = ()
            if with_it:
                found = [one for each in with_it for one in said[each]]
                steps = self._step(name, found, clock, np.concatenate([gains[each] for each in with_it]))
            done[name] = [practised(said[name], steps)]
            self._account(name, done[name][0])
        return done


def whole(team: str, strategy: Layered) -> None:
    """Raises: ConfigError where the strategy would not ask all agents in all its rounds: training does."""
    if strategy.panel.choose != "pool" or strategy.panel.width is not None or strategy.agreement is not None:
        raise ConfigError(
            f"{team}: training by turns asks every agent in every round: leave panel.choose, panel.width and"
            " agreement out of the strategy"
        )


def quote_of(query: Query, said: Sample) -> Quote:
    """An answer as the strategies show it to others."""
    return Quote(text=said.text, answer=reader_of(query).extract(said.text))
