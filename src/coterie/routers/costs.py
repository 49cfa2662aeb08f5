"""What a call of each agent is expected to cost, learnt from recorded costs."""

from collections.abc import Sequence

import numpy as np

from coterie.outcomes import Outcomes
from coterie.routers.artefact import table_of
from coterie.types import Query


def lengths(queries: Sequence[Query]) -> np.ndarray:
    """Characters of each prompt in thousands: (n,)."""
    return np.array([sum(len(m.content) for m in query.messages) for query in queries]) / 1000


def cost_lines(outcomes: Outcomes) -> np.ndarray:
    """Dollars a call as a line in the prompt's length, for each agent of `table_of`: (A, 2), offset and slope.

    Least squares on the recorded costs; the slope is never negative. An agent whose costs are all unknown counts
    as dear as the dearest known call: an unknown price is never cheapest. NaN where no agent's costs are known.
    """
    x = lengths(outcomes.queries)
    costs = table_of_costs(outcomes)  # (Q, A)
    lines = np.array([_line(x, column) for column in costs.T]).reshape(costs.shape[1], 2)
    unknown = np.isnan(lines[:, 0])
    if unknown.any() and not unknown.all():
        lines[unknown] = (float(np.nanmax(costs)), 0.0)
    return lines


def table_of_costs(outcomes: Outcomes) -> np.ndarray:
    """Recorded costs (Q, A) in the order of `table_of`."""
    return table_of(outcomes, outcomes.costs)[2]


def _line(x: np.ndarray, costs: np.ndarray) -> tuple[float, float]:
    seen = ~np.isnan(costs)
    if not seen.any():
        return float("nan"), float("nan")
    x, y = x[seen], costs[seen]
    spread = float(((x - x.mean()) ** 2).sum())
    slope = max(0.0, float(((x - x.mean()) * (y - y.mean())).sum()) / spread) if spread > 0 else 0.0
    return float(y.mean() - slope * x.mean()), slope


def expected(lines: np.ndarray, queries: Sequence[Query]) -> np.ndarray:
    """Expected dollars of each agent on each query: (n, A), never negative."""
    return np.asarray(np.maximum(lines[:, 0] + lengths(queries)[:, None] * lines[:, 1], 0.0))
