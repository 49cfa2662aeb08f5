"""Scores as chances: a calibrated correctness head for each agent on top of any router that predicts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, fitted, routed, table_of
from coterie.routers.factorisation import sigmoid
from coterie.routers.wrapped import AnyPredictor, known_agents, read_both, save_both
from coterie.types import Pool, Query, Routing, Share, State, draw, spec

NAME = "calibrated"
KNOTS = 64
"""Even in log odds, where sure scores lie as far apart as others; and 0 and 1."""
EDGE = 1e-3
PRIOR = 4.0
"""Labels that the prior (nothing to correct) counts as, so that few labels correct little."""


@spec
class Calibrated:
    """The router's scores, mapped for each agent to the mean outcome that followed them.

    `held` of the labelled queries are kept from the router's own fit and used for the maps. `temperature`: logit of
    the score times 1/T plus an offset, T and offset by maximum likelihood (Guo et al. 2017; the offset is added).
    `isotonic`: a monotone step function by pool-adjacent-violators (Zadrozny & Elkan 2002), read between its steps
    by interpolation. Graded outcomes in [0, 1] count as shares of correct. An agent without a label keeps its
    scores.
    """

    router: AnyPredictor
    method: Literal["temperature", "isotonic"] = "temperature"
    held: Share = 0.2
    seed: int = 0
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Chances. Raises: ConfigError unfitted, or fitted on none of the pool's revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Chances in [0, 1]: (len(queries), A)."""
        outer, inner = self._parts
        raw = inner.predict(queries, pool)
        knots = in_pool_knots(outer, pool)  # (A, 2, K)
        return np.stack([np.interp(raw[:, i], *pair) for i, pair in enumerate(knots)], axis=1)

    def fit(self, outcomes: Outcomes) -> "Calibrated":
        """A copy fitted on the outcomes: the router on one part, the maps on the other."""
        rows = np.random.default_rng(draw(self.seed, "held")).permutation(len(outcomes.queries))
        cut = max(1, round(self.held * len(rows))) if self.held and len(rows) > 1 else 0
        router: Any = self.router
        inner = router.fit(outcomes.take(sorted(rows[cut:].tolist())))
        return self.on(inner, outcomes.take(sorted(rows[:cut].tolist())))

    def on(self, inner: Any, outcomes: Outcomes) -> "Calibrated":
        """A copy around a router that is fitted already, with maps from these outcomes alone."""
        pool = known_agents(inner)
        raw = inner.predict(outcomes.queries, pool) if outcomes.queries else np.zeros((0, len(pool)))
        column = {name: i for i, name in enumerate(pool.names())}
        labels = _labels(outcomes)
        maps = [self._map(raw[:, column[name]], labels.get(pool[name].revision)) for name in pool]
        outer = Artefact(
            router=NAME,
            names=tuple(pool),
            keys=tuple(agent.revision for agent in pool.values()),
            tensors={"knots": np.stack(maps)},
            notes={"method": self.method},
        )
        return fitted(self, "_parts", (outer, inner))

    def _map(self, raw: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
        """Where the map bends: (2, K), scores and chances."""
        grid = places()
        seen = ~np.isnan(labels) if labels is not None else np.zeros(len(raw), dtype=bool)
        if labels is None or not seen.any():
            return np.stack([grid, grid])
        x, y = raw[seen].clip(0, 1), labels[seen]
        return np.stack([grid, scaled(x, y, grid)]) if self.method == "temperature" else isotonic(x, y)

    def save(self, path: str | Path) -> None:
        """Write the maps, and the router's weights beside them."""
        outer, inner = self._parts
        save_both(inner, outer, path)

    @once
    def _parts(self) -> tuple[Artefact, Any]:
        return read_both(NAME, self.router, self.weights)


def _labels(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """Scores (Q,) by agent's key."""
    if not outcomes.queries or np.isnan(outcomes.scores).all():
        return {}
    _, keys, scores = table_of(outcomes)
    return dict(zip(keys, scores.T, strict=True))


def in_pool_knots(outer: Artefact, pool: Pool) -> np.ndarray:
    """The maps of the pool's solvers (A, 2, K); an agent that has none keeps its scores."""
    knots = outer.tensors["knots"]
    rows, grid = outer.rows_of(pool), np.linspace(0, 1, knots.shape[2])
    return np.stack([knots[rows[name]] if name in rows else np.stack([grid, grid]) for name in pool.names()])


def places() -> np.ndarray:
    """Scores at which a map can bend: (KNOTS,)."""
    low, high = map(float, logit(np.array([0.0, 1.0])))
    return np.concatenate([[0.0], sigmoid(np.linspace(low, high, KNOTS - 2)), [1.0]])


def scaled(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Chances at `grid` by logistic regression of outcomes y (n,) on the logit of scores x (n,), Newton's method.

    A ridge of PRIOR labels pulls slope and offset towards 1 and 0: few labels correct little.
    """
    design = np.stack([logit(x), np.ones_like(x)], axis=1)  # (n, 2)
    start = np.array([1.0, 0.0])

    def loss(weights: np.ndarray) -> float:
        odds = design @ weights
        return float((np.logaddexp(0, odds) - y * odds).sum() + PRIOR / 2 * ((weights - start) ** 2).sum())

    found = start
    for _ in range(50):
        chance = sigmoid(design @ found)
        gradient = design.T @ (y - chance) - PRIOR * (found - start)
        curvature = (design * (chance * (1 - chance))[:, None]).T @ design + PRIOR * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        while loss(found + step) > loss(found) and np.abs(step).max() > 1e-8:
            step = step / 2  # far from the optimum a whole step can overshoot without end
        found = found + step
        if np.abs(step).max() < 1e-8:
            break
    if found[0] < 0:  # a head never turns an agent's order of queries round: one chance for all of them
        return np.full_like(grid, (y.sum() + PRIOR / 2) / (len(y) + PRIOR))
    return sigmoid(found[0] * logit(grid) + found[1])


def isotonic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Scores and chances (2, KNOTS) by pool-adjacent-violators on scores x (n,) and outcomes y (n,).

    A knot stands at the mean score of each block of equal chance; of more blocks than knots those that lie evenly
    by their labels are kept. Equal scores are one.
    """
    scores, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    sums = np.bincount(place, weights=y)
    blocks: list[list[float]] = []  # sum of outcomes, labels, sum of scores
    for score, total, count in zip(scores.tolist(), sums.tolist(), counts.tolist(), strict=True):
        blocks.append([total, count, score * count])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    table = np.array(blocks)
    along = np.cumsum(table[:, 1]) - table[:, 1] / 2
    kept = np.abs(along - np.linspace(along[0], along[-1], KNOTS)[:, None]).argmin(axis=1)  # (KNOTS,)
    return np.stack([table[kept, 2] / table[kept, 1], table[kept, 0] / table[kept, 1]])


def logit(chance: np.ndarray) -> np.ndarray:
    """Log odds, finite at 0 and 1."""
    inside = np.clip(chance, EDGE, 1 - EDGE)
    return np.asarray(np.log(inside / (1 - inside)))
