"""Learns when to stop adding layers from a depth sweep: a logistic rule, and the threshold that loses nothing.

The rule itself, and what it reads of a layer, is in `strategies.stopping`.
"""

from collections.abc import Sequence

import numpy as np

from coterie.errors import DataError, MissingExtra
from coterie.strategies.stopping import FACTS, DepthRule, Weights, facts
from coterie.tasks.catalog import reader_of
from coterie.types import Trace, record

FOLDS = 5
LEAST = 10
"""Depths of each kind, as good as the last and not, below which nothing is fitted."""


@record
class _Swept:
    """One graded sweep: what each depth showed (L, F), and whether its answer was right (L,)."""

    shown: np.ndarray
    right: np.ndarray


def learn_depth(traces: Sequence[Trace], within: float = 0.0) -> DepthRule:
    """A rule that stops as early as it can at an accuracy at most `within` (0.01 is a point) below full depth.

    A depth counts as deep enough where its answer is right or the last one's is wrong. The threshold is set on
    predictions for queries that the weights were not fitted on (5 folds); what it reached there is in the rule,
    and a little too good, being the best of all thresholds. The rule fits the pool that all traces are of.
    Raises: DataError without a graded sweep to one depth, or with too few depths that differ from the last.
    """
    swept = [found for trace in traces if (found := _swept(trace)) is not None]
    layers = max((len(one.right) for one in swept), default=0)
    swept = [one for one in swept if len(one.right) == layers]
    if layers < 2:
        raise DataError("no graded depth sweep: run the recipe with strategy.every_layer and layers above 1")
    enough = np.concatenate([one.right[:-1] >= one.right[-1] for one in swept])  # (n * (L - 1),)
    if min(enough.sum(), (~enough).sum()) < LEAST:
        raise DataError(
            f"of {len(enough)} shallower answers {int((~enough).sum())} are worse than the last layer's; at least"
            f" {LEAST} that are and {LEAST} that are not are needed to learn a depth"
        )
    rows = np.concatenate([one.shown[:-1] for one in swept])  # (n * (L - 1), F)
    chances, weights, bias = _fitted(rows, enough, np.repeat(np.arange(len(swept)), layers - 1))
    right = np.stack([one.right for one in swept])  # (n, L)
    threshold, accuracy, depth = _threshold(chances.reshape(len(swept), -1), right, within)
    return DepthRule(
        weights=Weights(**dict(zip(FACTS, weights, strict=True))),
        bias=bias,
        threshold=threshold,
        layers=layers,
        queries=len(swept),
        accuracy=accuracy,
        full=float(right[:, -1].mean()),
        depth=depth,
        pool=traces[0].revisions,
    )


def _swept(trace: Trace) -> _Swept | None:
    """The depths of one trace; None where one is missing or has no verdict."""
    ends = [found for found in trace.exits if found.why == "depth"]
    scores = [trace.turns[found.turn].score for found in ends]
    right = [None if score is None else score.correct for score in scores]
    if not ends or None in right or [found.layer for found in ends] != list(range(1, len(ends) + 1)):
        return None
    reader = reader_of(trace.query)
    told = [facts(trace.turns, trace.reviews, found.layer, reader) for found in ends]
    shown = np.array([[one[name] for name in FACTS] for one in told])  # (L, F)
    return _Swept(shown=shown, right=np.array(right, dtype=bool))


def _fitted(rows: np.ndarray, enough: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, list[float], float]:
    """Cross-validated chances (m,), and the weights (F,) and bias of the fit to all."""
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
    except ImportError:
        raise MissingExtra("scikit-learn", "routers") from None
    model = LogisticRegression(max_iter=1000)
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    chances = cross_val_predict(model, rows, enough, groups=query, cv=folds, method="predict_proba")[:, 1]
    model.fit(rows, enough)
    return chances, [float(weight) for weight in model.coef_[0]], float(model.intercept_[0])


def _threshold(chances: np.ndarray, right: np.ndarray, within: float) -> tuple[float, float, float]:
    """The threshold with the least mean depth whose accuracy is near enough, both with it; above 1: never stop."""
    best = (1.01, float(right[:, -1].mean()), float(right.shape[1]))
    for threshold in np.unique(chances):
        over = np.pad(chances >= threshold, ((0, 0), (0, 1)), constant_values=True)  # (n, L) the last one ends it
        stop = over.argmax(axis=1)
        accuracy, depth = float(right[np.arange(len(stop)), stop].mean()), float(stop.mean() + 1)
        if accuracy >= right[:, -1].mean() - within - 1e-12 and depth < best[2]:
            best = (float(threshold), accuracy, depth)
    return best
