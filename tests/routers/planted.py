"""Outcome tables with a known truth, and an encoder that sees it."""

import numpy as np

from coterie.outcomes import Outcomes
from coterie.types import Agent, Message, Pool, Query, State

AGENTS = ("ada", "bob", "cyd")
KINDS = ("sum", "poem", "code")


class Planted:
    """Each kind of question has its own direction, each text its own small noise; 24 numbers."""

    identity = "planted"

    def __init__(self, width=24):
        self.width = width

    def encode(self, prompts):
        rows = np.zeros((len(prompts), self.width), dtype=np.float32)
        for row, messages in zip(rows, prompts, strict=True):
            kind, number = messages[-1].content.split()
            row[:] = np.random.default_rng([int(number), 7]).normal(0, 0.3, self.width)
            row += 2 * np.random.default_rng(KINDS.index(kind)).normal(0, 1, self.width)
        return rows


def query(kind, number):
    return Query(
        id=f"{kind}-{number}",
        messages=(Message(role="user", content=f"{kind} {number}"),),
        metadata={"domain": kind},
    )


def outcomes_of(queries, scores, agents=AGENTS, revisions=None):
    scores = np.asarray(scores, dtype=float)
    blank = np.full_like(scores, np.nan)
    return Outcomes(
        queries=tuple(queries),
        agents=tuple(agents),
        scores=scores,
        tokens=blank,
        costs=blank,
        revisions={name: f"rev-{name}" for name in agents} if revisions is None else revisions,
    )


def planted(size=120, start=0):
    """Ada solves sums, bob poems, cyd code, each nothing else; bob also solves a third of the sums."""
    queries = [query(KINDS[i % 3], i) for i in range(start, start + size)]
    scores = [[float(KINDS.index(q.domain) == a) for a in range(3)] for q in queries]
    for i, q in enumerate(queries):
        if q.domain == "sum" and i % 9 == 0:
            scores[i][1] = 1.0
    return outcomes_of(queries, scores)


def pool_of(*names, revisions=None):
    revisions = revisions or {}
    return Pool(
        {name: Agent(name=name, model="x:y", revision=revisions.get(name, f"rev-{name}")) for name in names}
    )


POOL = pool_of(*AGENTS)


def state_of(asked, pool=POOL, seed=0):
    return State(asked, pool, seed=seed)
