"""What a replay works on: a table's outcomes with the bare questions, the agents to route among, and the splits."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from coterie.config import nearest
from coterie.errors import ConfigError, DataError
from coterie.outcomes import Outcomes
from coterie.storage.tables import prompt_of, queries_of, read_table, to_outcomes
from coterie.tasks.contamination import digest
from coterie.types import Agent, Message, Pool, Query, draw, record

COVERAGE = 0.98
SHARES = (0.6, 0.2)


@record
class Split:
    """Rows of a table: to fit on, to select by, to judge on."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]


class Material:
    """A table as routers see it. Agents are known by their names, in alphabetical order."""

    def __init__(self, name: str, outcomes: Outcomes) -> None:
        order = sorted(range(len(outcomes.agents)), key=lambda i: outcomes.agents[i])
        self.name = name
        self.outcomes = replace(
            outcomes,
            agents=tuple(outcomes.agents[i] for i in order),
            scores=outcomes.scores[:, order],
            tokens=outcomes.tokens[:, order],
            costs=outcomes.costs[:, order],
            revisions={},
        )
        self.pool = pool_of(self.outcomes.agents)

    @property
    def queries(self) -> tuple[Query, ...]:
        return self.outcomes.queries

    @property
    def missing(self) -> int:
        """Outcomes that the table does not have."""
        return int(np.isnan(self.outcomes.scores).sum())

    @property
    def priced(self) -> bool:
        """Whether the cost of every recorded outcome is known."""
        return not np.isnan(self.outcomes.costs[~np.isnan(self.outcomes.scores)]).any()

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """A digest of each question, whatever its spelling."""
        return tuple(digest(query) for query in self.queries)

    @cached_property
    def complete(self) -> frozenset[int]:
        """Rows that every agent has an outcome for: those that agents can be compared on."""
        return frozenset(np.flatnonzero(~np.isnan(self.outcomes.scores).any(axis=1)).tolist())

    def split(self, seed: int) -> Split:
        """60 % of the questions to fit on, 20 % to select by, 20 % to judge on; equal questions stay together.

        Rows with missing outcomes are fitted on, and left out of selecting and judging.
        """
        questions = sorted(set(self.digests))
        order = np.random.default_rng(draw(seed, "split")).permutation(len(questions))
        ends = [round(sum(SHARES[: i + 1]) * len(questions)) for i in range(2)]
        part = {questions[q]: sum(place >= end for end in ends) for place, q in enumerate(order)}
        rows: list[list[int]] = [[], [], []]
        for row, name in enumerate(self.digests):
            if part[name] == 0 or row in self.complete:
                rows[part[name]].append(row)
        if not all(rows):
            raise DataError(f"{self.name}: too few questions with all outcomes to split ({len(self.complete)})")
        train, validation, test = map(tuple, rows)
        return Split(train=train, validation=validation, test=test)


def pool_of(names: Sequence[str]) -> Pool:
    """Recorded agents as a pool; nothing can be asked of them."""
    return Pool({name: Agent(name=name, model="recorded:table") for name in names})


def read_material(folder: Path, agents: Sequence[str] = ()) -> Material:
    """A table's material for some agents, or for those that answered at least 98 % of the queries.

    The prompts are the bare questions with their options: nothing of the table's own labels is in them.
    """
    table = read_table(folder)
    if not table.items:
        raise DataError(f"{folder}: has no queries")
    outcomes = to_outcomes(table)
    unknown = [name for name in agents if name not in outcomes.agents]
    if unknown:
        raise ConfigError(f"{folder}: has no agent {unknown[0]!r}{nearest(unknown[0], outcomes.agents)}")
    seen = ~np.isnan(outcomes.scores)
    kept = [name in agents if agents else seen[:, i].mean() >= COVERAGE for i, name in enumerate(outcomes.agents)]
    if sum(kept) < 2:
        shares = ", ".join(f"{n} {s:.0%}" for n, s in zip(outcomes.agents, seen.mean(axis=0), strict=True))
        raise DataError(
            f"{folder}: routing needs two agents at least that answered {COVERAGE:.0%} of the queries ({shares});"
            " name those that may have gaps with --agents"
        )
    queries = tuple(
        replace(query, messages=(Message(role="user", content=prompt_of(item)),))
        for query, item in zip(queries_of(table), table.items, strict=True)
    )
    return Material(folder.name, narrowed(replace(outcomes, queries=queries), kept))


def narrowed(outcomes: Outcomes, kept: Sequence[bool]) -> Outcomes:
    """Some agents' outcomes, on the queries that at least one of them answered."""
    columns = np.flatnonzero(kept)
    rows = np.flatnonzero(~np.isnan(outcomes.scores[:, columns]).all(axis=1)).tolist()
    found = outcomes.take(rows)
    names = [outcomes.agents[i] for i in columns]
    return replace(
        found,
        agents=tuple(names),
        scores=found.scores[:, columns],
        tokens=found.tokens[:, columns],
        costs=found.costs[:, columns],
        revisions={name: found.revisions[name] for name in names if name in found.revisions},
    )


def picks(scores: np.ndarray, queries: Sequence[Query], names: Sequence[str], seed: int) -> np.ndarray:
    """Column of the best agent for each query (n,), ties broken as `Routing.ranked` does."""
    best: np.ndarray = scores.argmax(axis=1)
    for row in np.flatnonzero((scores == scores.max(axis=1, keepdims=True)).sum(axis=1) > 1).tolist():
        drawn = {i: draw(draw(seed, queries[row].id), name) for i, name in enumerate(names)}
        best[row] = min(np.flatnonzero(scores[row] == scores[row].max()).tolist(), key=drawn.__getitem__)
    return best


def plain(value: float) -> float | None:
    """A number for JSON: None where it is not known."""
    return None if math.isnan(value) else value
