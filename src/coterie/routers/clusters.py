"""k-means over features: groups of like queries. Deterministic; knows no labels."""

import numpy as np

from coterie.types import draw

ROUNDS = 25


def k_means(x: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """Cluster of each row of `x` (Q, D): Lloyd's rounds from k-means++ starts; labels 0.. in use without gaps."""
    centres = _starts(x, clusters, np.random.default_rng(draw(seed, "clusters")))
    labels = np.full(len(x), -1)
    for _ in range(ROUNDS):
        found = squared(x, centres).argmin(axis=1)
        if np.array_equal(found, labels):
            break
        labels = found
        members = np.eye(len(centres), dtype=x.dtype)[labels]  # (Q, K)
        counts = members.sum(axis=0)
        centres = np.where(counts[:, None] > 0, members.T @ x / np.maximum(counts, 1)[:, None], centres)
    return np.asarray(np.unique(labels, return_inverse=True)[1])


def squared(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared distances (Q, K), 0 at least."""
    gaps = (x * x).sum(axis=1)[:, None] - 2 * x @ centres.T + (centres * centres).sum(axis=1)
    return np.asarray(np.maximum(gaps, 0))


def _starts(x: np.ndarray, clusters: int, random: np.random.Generator) -> np.ndarray:
    """Rows far from each other: each drawn in proportion to its squared distance from those before it."""
    chosen = [int(random.integers(len(x)))]
    nearest = squared(x, x[chosen])[:, 0]
    while len(chosen) < min(clusters, len(x)) and nearest.max() > 1e-9:
        odds = np.cumsum(nearest, dtype=float)
        chosen.append(int(np.searchsorted(odds, random.random() * odds[-1], side="right")))
        nearest = np.minimum(nearest, squared(x, x[chosen[-1:]])[:, 0])
    return x[chosen]
