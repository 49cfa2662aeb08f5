"""The familiarity objective of CERA-MoA: who did better than the others on a query is pulled towards it.

Pure functions of arrays and tensors; knows no router and no agent.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

EQUAL = 1e-6


def relative_advantage(scores: np.ndarray) -> np.ndarray:
    """Eq. 9: each score minus the mean of the query's scores. (Q, A) with NaN where missing; NaN stays NaN.

    A query with one outcome gives max(0, score), so that a length penalty never pushes a solo agent away
    (docs/methods.md C13). Where all outcomes of a query are equal there is no direction: all are exactly 0.

    Example, scores (1, 0, missing): mean 0.5, advantages (0.5, -0.5, missing). Scores (0.25) alone: 0.25.
    """
    seen = ~np.isnan(scores)
    count = seen.sum(axis=1, keepdims=True)  # (Q, 1)
    values = np.where(seen, scores, 0.0)
    mean = values.sum(axis=1, keepdims=True) / np.maximum(count, 1)
    relative = np.where(np.abs(values - mean) < EQUAL, 0.0, values - mean)
    solo = np.maximum(0.0, values)
    return np.where(seen, np.where(count == 1, solo, relative), np.nan)


def push_pull(distance: "torch.Tensor", advantage: "torch.Tensor", margin: float) -> "torch.Tensor":
    """Eqs. 10 and 27, summed over all (query, agent) pairs (C24): a scalar.

    `distance` (Q, A) >= 0 carries the gradient. Pairs with advantage >= 0 cost `advantage * distance` (pull),
    the others `|advantage| * max(0, margin - distance)` (push, until the margin). NaN advantages are missing
    outcomes and cost nothing.

    By hand, margin 1: distances (0.5, 0.4, 1.2), advantages (0.5, -0.25, -0.25) cost 0.5*0.5 + 0.25*0.6 + 0
    = 0.4, with gradient (0.5, 0.25, 0): the far failure is left alone (C11).
    """
    import torch

    weight = torch.nan_to_num(advantage, nan=0.0)
    pull = weight.clamp(min=0) * distance
    push = (-weight).clamp(min=0) * (margin - distance).clamp(min=0)
    return (pull + push).sum()


def familiarity(distance: "torch.Tensor", scale: float) -> "torch.Tensor":
    """f = exp(-scale * d), in [exp(-2 scale), 1] as d is in [0, 2]."""
    import torch

    return torch.exp(-scale * distance)


def smallest_margin(agents: int, threshold: float, scale: float) -> float:
    """The least margin at which a query that nobody is familiar with still reaches everybody.

    With all `agents` pushed to the margin m their familiarity sums to agents * exp(-scale * m), which must not
    exceed the prefix `threshold`: m >= ln(agents / threshold) / scale (docs/methods.md, margin rule). For 4 agents,
    threshold 0.7 and scale 2: 0.871.
    """
    return math.log(agents / threshold) / scale
