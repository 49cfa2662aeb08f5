"""RouterDC's two contrastive losses (arXiv 2409.19886) as pure functions, and the draw of a query's companion."""

import numpy as np

from coterie.routers.descent import F, torch


def agent_contrast(
    logits: torch.Tensor, scores: torch.Tensor, rank: torch.Tensor, best: int, worst: int, ceiling: float
) -> torch.Tensor:
    """Sample-LLM loss: -log softmax of each of the `best` agents against those of the `worst` that did less well.

    `logits`, `scores` (NaN: missing) and `rank` (0: best) are (B, A). Summed over a query's good agents, mean
    over the queries that tell agents apart. Good ones scored above 0. Bad ones scored at most `ceiling` and less
    than the good one they stand against, which the paper does not ask: with graded scores and few agents an
    agent can be among the best and the worst at once [O].
    """
    known = ~torch.isnan(scores)
    filled = torch.nan_to_num(scores)
    good = known & (rank < best) & (filled > 0)
    bad = known & (rank >= known.sum(dim=1, keepdim=True) - worst) & (filled <= ceiling)
    against = good[:, :, None] & bad[:, None, :] & (filled[:, None, :] < filled[:, :, None])  # (B, good, bad)
    gaps = (logits[:, None, :] - logits[:, :, None]).masked_fill(~against, -torch.inf)
    losses = F.softplus(gaps.masked_fill(~against.any(dim=2, keepdim=True), -30.0).logsumexp(dim=2))
    used = against.any(dim=2)
    return (losses * used).sum() / used.any(dim=1).sum().clamp(min=1)


def query_contrast(inside: torch.Tensor, companions: torch.Tensor, same: torch.Tensor) -> torch.Tensor:
    """Sample-sample loss: -log softmax of a query's cosine with its companion against those of other clusters.

    `inside` and `companions`, one of each query's own cluster, are (B, d); `same` (B, B) says whether a query and a
    companion share a cluster. The strangers are the batch's companions of other clusters; the paper draws a
    few for each query [O]. A query with no stranger in the batch costs nothing.
    """
    near = F.normalize(inside, dim=1) @ F.normalize(companions, dim=1).T  # (B, B)
    against = near.masked_fill(same & ~torch.eye(len(same), dtype=torch.bool), -torch.inf)
    return -F.log_softmax(against, dim=1).diagonal().mean()


def companions_of(rows: np.ndarray, labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """For each of `rows` (B,) another row of its cluster `labels` (Q,), drawn; itself where it is alone."""
    order = np.argsort(labels, kind="stable")
    place, sizes = np.argsort(order), np.bincount(labels)
    size, start = sizes[labels[rows]], (np.cumsum(sizes) - sizes)[labels[rows]]
    step = random.integers(1, np.maximum(size, 2))
    return np.asarray(order[start + (place[rows] - start + step) % size])
