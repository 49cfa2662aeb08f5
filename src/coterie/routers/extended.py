"""Agents that a fitted router never saw, from a few labelled queries of each and without retraining the rest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, fitted, in_pool, routed, table_of
from coterie.routers.wrapped import AnyPredictor, known_agents, read_both, save_both
from coterie.types import Pool, Query, Routing, State, spec

NAME = "extended"
RIDGES = np.geomspace(0.03, 300, 17)


@spec
class Extended:
    """The router, and beside it agents that were added later.

    What the router expects of the agents that it knows places a query; a new agent's score is a ridge regression on
    these numbers, its strength chosen by leave-one-out error. So 64 labelled queries of a new or replaced agent
    are enough to route to it, and nobody else's scores move. `fit` takes the outcomes of agents that the router
    does not know as theirs; around a router that is not fitted it fits that first.
    """

    router: AnyPredictor
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Expected scores. Raises: ConfigError unfitted, or fitted on none of the pool's revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Expected scores: (len(queries), A)."""
        outer, inner = self._parts
        basis = inner.predict(queries, known_agents(inner))  # (n, K)
        names = list(known_agents(inner).names())
        both = Artefact(
            router=NAME,
            names=(*names, *outer.names),
            keys=(*(known_agents(inner)[name].revision for name in names), *outer.keys),
        )
        added = with_one(basis) @ outer.tensors["lines"].T if outer.keys else np.zeros((len(basis), 0))
        return in_pool(both, np.concatenate([basis, added.clip(0, 1)], axis=1), pool)

    def fit(self, outcomes: Outcomes) -> "Extended":
        """A copy that knows the outcomes' agents too. Agents that the router knows already stay as they are."""
        inner = self._fitted_inner(outcomes)
        known = known_agents(inner)
        basis = inner.predict(outcomes.queries, known)
        names, keys, scores = table_of(outcomes)
        new = [i for i, key in enumerate(keys) if key not in {agent.revision for agent in known.values()}]
        lines = [line(basis, scores[:, i]) for i in new]
        outer = Artefact(
            router=NAME,
            names=tuple(names[i] for i in new),
            keys=tuple(keys[i] for i in new),
            tensors={"lines": np.array(lines).reshape(len(new), basis.shape[1] + 1)},
        )
        return fitted(self, "_parts", (outer, inner))

    def _fitted_inner(self, outcomes: Outcomes) -> Any:
        inner: Any = self.router
        fresh = inner.weights is None and not any(name in vars(inner) for name in ("_known", "_trained", "_parts"))
        return inner.fit(outcomes) if fresh else inner

    def save(self, path: str | Path) -> None:
        """Write the added agents, and the router's weights beside them."""
        outer, inner = self._parts
        save_both(inner, outer, path)

    @once
    def _parts(self) -> tuple[Artefact, Any]:
        return read_both(NAME, self.router, self.weights)


def with_one(basis: np.ndarray) -> np.ndarray:
    """Rows (n, K) with a constant: (n, K + 1)."""
    return np.concatenate([basis, np.ones((len(basis), 1))], axis=1)


def line(basis: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Weights (K + 1,) of a ridge regression of scores (n,) on basis (n, K), the constant unpenalised.

    Leave-one-out residuals have a closed form through the hat matrix; queries without an outcome are left out.
    """
    seen = ~np.isnan(scores)
    x, y = basis[seen], scores[seen]
    middle, height = x.mean(axis=0), float(y.mean())
    left, sizes, right = np.linalg.svd(x - middle, full_matrices=False)
    best, least = np.zeros(basis.shape[1]), np.inf
    for ridge in RIDGES:
        shrunk = sizes**2 / (sizes**2 + ridge)
        hat = ((left**2) * shrunk).sum(axis=1) + 1 / len(y)
        residual = (y - height - (left * shrunk) @ (left.T @ (y - height))) / np.maximum(1 - hat, 1e-6)
        if (error := float((residual**2).mean())) < least:
            gain = np.divide(sizes, sizes**2 + ridge)
            best, least = right.T @ (gain * (left.T @ (y - height))), error
    return np.concatenate([best, [height - middle @ best]])
