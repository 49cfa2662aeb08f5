"""Grows the trees of the `forest` router. Needs scikit-learn; asking the trees does not."""

import numpy as np

from coterie.errors import MissingExtra
from coterie.routers.baselines import means_or
from coterie.types import draw, record

try:
    from sklearn.ensemble import ExtraTreesRegressor
except ImportError as error:
    raise MissingExtra("scikit-learn", "routers") from error


@record
class Plan:
    """How trees are grown; the fields of the same names of the `forest` router say what they mean."""

    trees: int
    leaf: int
    share: float
    prior: float
    seed: int


def grow(inputs: np.ndarray, scores: np.ndarray, plan: Plan) -> dict[str, np.ndarray]:
    """Trees on inputs (Q, F) and scores (Q, A) with NaN where missing.

    All nodes of all trees are rows of one table: `feature`, `threshold`, `left`, `right` (-1: a leaf), `values`
    (N, A); `roots` (T,) say where each tree begins. A missing outcome counts as the agent's mean where the trees
    are split, and not at all in the leaves' values.
    """
    means = means_or(scores, np.zeros(scores.shape[1]))
    filled = np.where(np.isnan(scores), means, scores)
    library = ExtraTreesRegressor(
        n_estimators=plan.trees,
        min_samples_leaf=plan.leaf,
        max_features=plan.share,
        random_state=draw(plan.seed, "forest") % 2**32,
        n_jobs=1,
    ).fit(inputs, filled[:, 0] if filled.shape[1] == 1 else filled)
    leaves = library.apply(inputs)  # (Q, T)
    parts = [_tree(grown.tree_) for grown in library.estimators_]
    sizes = np.array([len(part["left"]) for part in parts])
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    values = [
        _values(leaves[:, i], scores, means, size=int(size), prior=plan.prior) for i, size in enumerate(sizes)
    ]
    for part, root in zip(parts, roots, strict=True):
        for side in ("left", "right"):
            part[side] = np.where(part[side] >= 0, part[side] + root, -1)
    nodes = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return nodes | {"values": np.concatenate(values), "roots": roots.astype(np.int32)}


def _tree(tree: object) -> dict[str, np.ndarray]:
    """The arrays of one of the library's trees."""
    kinds = {"feature": np.int32, "threshold": np.float64}
    found = {name: getattr(tree, name).astype(kind) for name, kind in kinds.items()}
    left, right = (getattr(tree, f"children_{side}").astype(np.int32) for side in ("left", "right"))
    return found | {"feature": np.maximum(found["feature"], 0), "left": left, "right": right}


def _values(leaves: np.ndarray, scores: np.ndarray, means: np.ndarray, size: int, prior: float) -> np.ndarray:
    """Mean scores of a tree's leaves (size, A) over the outcomes there are; inner nodes' are never read."""
    seen = ~np.isnan(scores)
    totals, counts = np.zeros((size, scores.shape[1])), np.zeros((size, scores.shape[1]))
    np.add.at(totals, leaves, np.where(seen, scores, 0.0))
    np.add.at(counts, leaves, seen.astype(float))
    weight = counts + prior
    known = (totals + prior * means) / np.where(weight > 0, weight, 1)
    return np.where(weight > 0, known, means).astype(np.float32)
