"""Outcome tables for routers that learn agents side by side: rows that say something, columns in one order."""

from collections.abc import Sequence

import numpy as np

from coterie.outcomes import Outcomes
from coterie.routers.artefact import table_of
from coterie.types import Messages, draw, record


@record
class Columns:
    """The queries that have an outcome, and the agents in the order of their keys.

    Agents are sorted, so that no start value, batch or tie depends on the order in which they were listed.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...]
    scores: np.ndarray  # (Q, A) reward in [0, 1] or NaN
    prompts: tuple[Messages, ...]
    queries: tuple[str, ...]  # ids


def columns_of(outcomes: Outcomes) -> Columns:
    """The table of the agents that have outcomes. Raises: DataError where there is not a single outcome."""
    names, keys, scores = table_of(outcomes)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    rows = np.flatnonzero(~np.isnan(scores).all(axis=1))
    asked = [outcomes.queries[i] for i in rows]
    return Columns(
        names=tuple(names[i] for i in order),
        keys=tuple(keys[i] for i in order),
        scores=scores[rows][:, order],
        prompts=tuple(query.messages for query in asked),
        queries=tuple(query.id for query in asked),
    )


def ranks(scores: np.ndarray, keys: Sequence[str], seed: int) -> np.ndarray:
    """Rank of each agent on each query by score, 0 for the best; ties by a draw, missing ones last: (Q, A)."""
    lots = [np.random.default_rng(draw(seed, "ties", key)).random(len(scores)) for key in keys]
    filled = np.nan_to_num(scores, nan=-np.inf)
    order = np.lexsort((np.stack(lots, axis=1), -filled), axis=1)
    return np.argsort(order, axis=1)
