"""Agents in training, whatever by: queries come in order, rounds are made, counted, kept within a budget.

What a round is, a learner says (`coevolve`, `debate`, `tree`). Files and the terminal are `training`'s business.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import TypeAdapter

from coterie.backends.sampling import GREEDY_BELOW
from coterie.errors import ConfigError, DataError, Diverged, NoVerdicts
from coterie.learning.adapters import Lora
from coterie.learning.checkpoint import Checkpoint
from coterie.learning.cursor import Cursor
from coterie.learning.engine import Verbs
from coterie.learning.learner import Optimiser, Step
from coterie.learning.losses import Loss
from coterie.learning.practice import Clock, Drill, Practised, Rollouts, figures, learn
from coterie.learning.rewards import Rewards
from coterie.learning.sampler import truncation_warning
from coterie.team import Team
from coterie.types import Agent, Count, Encoder, Messages, Pool, Query, Size, record, spec

Row = dict[str, Any]


@spec
class Lessons(ABC):
    """What every learner's settings say; those that the CERA-MoA paper names default to its Table 5.

    `tasks` are the training tasks and how many queries of each are taken (null: all). A round takes `batch`
    queries; training ends after `queries` of them or `updates` optimiser steps of all agents together
    (docs/methods.md C22), or where `completions` have been sampled [O]: what methods are to have in common where
    batches that teach nothing are no updates. `reference`: what an agent's KL is measured against, the base or its
    own first adapter. A checkpoint is written every `checkpoint_every` rounds, the newest `keep` stay. `patience`
    updates in a row whose numbers are none end the run. `max_batch` completions are sampled together. `cluster`:
    where the base models are loaded; None takes this process for one and a process each for several, `ray` actors
    of a Ray cluster.
    """

    tasks: Mapping[str, Size | None]
    batch: Size = 16
    queries: Size = 64000
    updates: Size = 6000
    completions: Size | None = None
    practice: Drill = field(default_factory=Drill)
    rewards: Rewards = field(default_factory=Rewards)
    lora: Lora = field(default_factory=Lora)
    optimiser: Optimiser = field(default_factory=Optimiser)
    loss: Loss = field(default_factory=Loss)
    reference: Literal["base", "initial"] = "base"
    checkpoint_every: Size = 500
    keep: Size = 2
    patience: Size = 5
    max_batch: Size = 64
    cluster: Literal["here", "processes", "ray"] | None = None

    def suited(self, team: Team) -> Self:
        """These settings with what the recipe says elsewhere. Raises: ConfigError where it cannot learn by them."""
        return self

    def learners(self, pool: Pool) -> list[str]:
        """Names of the agents that learn, sorted."""
        return pool.names()

    def remarks(self, pool: Pool) -> list[str]:
        """What is odd about these settings for these agents, one line each."""
        cut = truncation_warning(pool.values())
        return [*([cut] if cut else []), *self.loss.remarks()]

    @abstractmethod
    def begin(self, team: Team, pool: Pool, queries: Sequence[Query], engines: Mapping[str, Verbs]) -> "Course":
        """The training of `pool`, the team's agents that learn, from its start."""


@record
class Progress:
    """How far a run is: its counters, and the agents that still learn. `cursor`: queries taken."""

    rounds: Count
    updates: Count
    errors: Count
    spent: Mapping[str, Count]
    in_a_row: Mapping[str, Count]
    agents: tuple[str, ...]
    cursor: Count


PROGRESS = TypeAdapter(Progress)


@record
class Made:
    """What came of a round: each agent's practices, and figures that only this learner has, of all and by agent."""

    done: Mapping[str, Sequence[Practised]]
    row: Mapping[str, Any] = field(default_factory=dict)
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Course(ABC):
    """A pool in training. `round` advances it, `state` and `load` carry it over; it touches no file.

    The agents' adapters live in `engines`, by agent: one engine for a shared base, or one for each base.
    """

    def __init__(
        self, settings: Lessons, pool: Pool, queries: Sequence[Query], engines: Mapping[str, Verbs], seed: int
    ) -> None:
        self.settings, self.pool, self.engines, self.seed = settings, pool, engines, seed
        self.queries = {query.id: query for query in queries}
        if len(self.queries) < len(queries):
            raise ConfigError("learner.tasks: two training queries have one id; name each task once")
        self.names = sorted(pool)
        self.cursor = Cursor(tuple(self.queries), seed, settings.batch)
        self.rounds = self.updates = self.errors = 0
        self._trouble: list[Diverged] = []
        self.spent = {"tokens": 0, "completions": 0, "prompt_tokens": 0}
        self.in_a_row = dict.fromkeys(self.names, 0)

    @property
    def asked(self) -> int:
        """How many queries were taken so far."""
        return self.cursor.position

    @property
    def finished(self) -> bool:
        """Whether the budget of queries, of updates or of completions is used up."""
        return self.asked >= self.settings.queries or self.exhausted

    @property
    def exhausted(self) -> bool:
        """Whether nobody may practise any more."""
        most = self.settings.completions
        return self.updates >= self.settings.updates or (most is not None and self.spent["completions"] >= most)

    def round(self) -> Row:
        """One round; its figures as plain JSON, `seconds` by phase among them.

        Raises: Diverged, with the round's row, where an agent's updates are no numbers `patience` times in a row;
        NoVerdicts where verifiers fail on more than the allowed share of a batch. The round is whole even so: its
        state can be kept. Diverged without a row where weights or answers are no numbers: that round is lost.
        """
        clock = Clock()
        self.rounds += 1
        self._trouble = []
        row = self._row(self._round(clock), clock)
        if self._trouble:
            self._trouble[0].row = row
            raise self._trouble[0]
        return row

    @abstractmethod
    def _round(self, clock: Clock) -> Made:
        """What the learner does with the next queries."""

    def policy(self, name: str) -> str:
        """The agent whose adapter this one answers with: itself, unless all share one."""
        return name

    # --- a round's parts -----------------------------------------------------------------------------

    def _take(self) -> list[str]:
        """Ids of the next queries: a batch, or what is left of the budget."""
        return self.cursor.take(min(self.settings.batch, self.settings.queries - self.asked))

    def _first(self, count: int) -> list[str]:
        """Ids of the first `count` queries to come, one at least; none is taken."""
        first = Cursor(tuple(self.queries), self.seed, self.settings.batch)
        return first.take(min(max(1, count), len(self.queries)))

    def _step(
        self, name: str, found: Sequence[Rollouts], clock: Clock, gains: np.ndarray | None = None
    ) -> tuple[Step, ...]:
        """The agent's updates on what it said, as many as the budget leaves; `gains` as in `practice.learn`."""
        updates = min(self.settings.practice.updates, self.settings.updates - self.updates)
        if not found or updates < 1:
            return ()
        agent = replace(self.pool[name], name=self.policy(name))
        return learn(self.engines[name], agent, found, updates, clock, gains)

    def _account(self, name: str, done: Practised) -> None:
        self.spent["tokens"] += done.tokens
        self.spent["completions"] += done.completions
        self.spent["prompt_tokens"] += done.prompt_tokens
        self.errors += done.errors
        self.updates += sum(step.outcome == "done" for step in done.steps)
        for step in done.steps:
            self.in_a_row[name] = self.in_a_row[name] + 1 if step.outcome == "skipped" else 0
        if self.in_a_row[name] >= self.settings.patience:
            self._trouble.append(
                Diverged(
                    f"agent {name}: loss or gradient was no number {self.in_a_row[name]} times in a row; lower"
                    " learner.optimiser.lr"
                )
            )
        if done.errors > self.settings.practice.errors * done.completions:
            why = f": {done.reasons[0]}" if done.reasons else ""
            self._trouble.append(
                NoVerdicts(f"agent {name}: {done.errors} of {done.completions} completions had no verdict{why}")
            )

    def without(self, name: str) -> None:
        """Let an agent go in mid-run."""
        self.engines[name].remove(name)
        del self.in_a_row[name]
        self.pool = self.pool.with_agents(without=[name])
        self.names = sorted(self.pool)

    # --- figures -------------------------------------------------------------------------------------

    def _row(self, made: Made, clock: Clock) -> Row:
        all_done = [one for each in made.done.values() for one in each]
        rewards = [reward for one in all_done for reward in one.rewards]
        agents = {
            name: {
                **dict(zip(("updates", "skipped"), self.engines[name].counts(self.policy(name)), strict=True)),
                **made.agents.get(name, {}),
                **_averaged([figures(one) for one in made.done[name]]),
            }
            for name in self.names
        }
        row: Row = _plain(
            {
                "round": self.rounds,
                "queries": self.asked,
                "updates": self.updates,
                "reward": _mean(rewards),
                "solved": _mean([one.solved for one in all_done]),
                "zero_variance": _mean([one.silent for one in all_done]),
                "errors": self.errors,
                **self.spent,
                "agents": agents,
                **made.row,
                "seconds": dict(clock.seconds),
            }
        )
        return row

    # --- what came of it -----------------------------------------------------------------------------

    def furnished(self, table: Row, pool: Pool, folder: Path) -> Row:
        """The recipe's table with what was learned beside the agents, which is written to `folder`."""
        return table

    # --- checkpoints ---------------------------------------------------------------------------------

    def state(self) -> Checkpoint:
        """All parts as they are between two rounds."""
        own = asdict(
            Progress(
                rounds=self.rounds,
                updates=self.updates,
                errors=self.errors,
                spent=self.spent,
                in_a_row=self.in_a_row,
                agents=tuple(self.names),
                cursor=self.cursor.position,
            )
        )
        agents = {f"agent.{name}": self.engines[name].state(name) for name in self.names}
        return Checkpoint(round=self.rounds, parts={"run": (own, {}), **agents})

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of a run with these settings and this pool.

        Raises: ValueError or KeyError for another one; this course is then of no use any more.
        """
        own = PROGRESS.validate_json(json.dumps(checkpoint.parts["run"][0]), strict=True)
        if own.rounds != checkpoint.round:
            raise DataError(f"says that it is of round {own.rounds}")
        kept = sorted(part.removeprefix("agent.") for part in checkpoint.parts if part.startswith("agent."))
        if sorted(own.agents) != kept or not set(kept) <= set(self.names):
            raise DataError("is of other agents")
        for name in set(self.names) - set(kept):
            self.without(name)
        self.rounds, self.updates, self.errors = own.rounds, own.updates, own.errors
        self.spent = {key: own.spent[key] for key in self.spent}
        self.in_a_row = {name: own.in_a_row[name] for name in self.names}
        self.cursor.position = own.cursor
        for name in self.names:
            self.engines[name].load(name, *checkpoint.parts[f"agent.{name}"])


def prepared(agent: Agent) -> Agent:
    """The agent as it can learn, without the adapter that it starts from.

    Raises: ConfigError where its sampling is greedy: a group of equal answers says nothing; or held to a schema, of
    which learning knows nothing.
    """
    if agent.sampling.schema:
        raise ConfigError(
            f"agent {agent.name}: sampling.schema: an agent learns from what it writes freely; leave it out"
        )
    if agent.sampling.temperature < GREEDY_BELOW or agent.sampling.top_k == 1:
        raise ConfigError(
            f"agent {agent.name}: sampling.temperature {agent.sampling.temperature:g} and top_k"
            f" {agent.sampling.top_k} give equal completions: nothing to learn"
        )
    return replace(agent, adapter=None)


def encoded(encoder: Encoder, prompts: Sequence[Messages]) -> np.ndarray:
    """Features (n, D), one prompt at a time: worked out again after a restart or an eviction they are the same."""
    rows = [encoder.encode([prompt]) for prompt in prompts]
    return np.concatenate(rows or [encoder.encode([])]).astype(np.float32, copy=False)


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
