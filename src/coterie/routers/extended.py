"""Agents that a fitted router never saw, from a few labelled queries of each and without retraining the rest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, fitted, in_pool, routed, table_of
from coterie.routers.clusters import k_means, squared
from coterie.routers.wrapped import AnyPredictor, known_agents, read_both, save_both
from coterie.types import Pool, Query, Routing, State, spec

NAME = "extended"
RIDGES = np.geomspace(1, 1000, 13)
REACH = 0.2
"""How far, in expected score, the rest that a line leaves on a labelled query is carried to other queries."""
NOISE = 5.0
"""Variance of one label in units of that of the rest: many like labels are needed to move an expectation."""


@spec
class Extended:
    """The router, and beside it agents that were added later, from a few labelled queries of each.

    A new agent's score is a ridge regression on what the agents that the router knows scored on the same queries
    (what they were expected to score where that was not recorded), its strength chosen by leave-one-out error, plus
    what this leaves, smoothed over queries of which the router expects alike (a Gaussian process with an RBF
    kernel). It is learnt from outcomes, which tell more than expectations, and read with these in their place.
    Nobody else's scores move. `spread` says which queries are worth labelling; 64 of them are enough to route to a
    new agent. `fit` takes the outcomes of agents that the router does not know as theirs; around a router that is
    not fitted it fits that first.
    """

    router: AnyPredictor
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Expected scores. Raises: ConfigError unfitted, or fitted on none of the pool's revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Expected scores: (len(queries), A)."""
        outer, inner = self._parts
        known = known_agents(inner)
        basis = inner.predict(queries, known)  # (n, K)
        names = known.names()
        both = Artefact(
            router=NAME,
            names=(*names, *outer.names),
            keys=(*(known[name].revision for name in names), *outer.keys),
        )
        return in_pool(both, np.concatenate([basis, added_scores(outer, basis)], axis=1), pool)

    def fit(self, outcomes: Outcomes) -> "Extended":
        """A copy that knows the outcomes' agents too. What the router knows, and who was added before, stays."""
        before, inner = self._so_far(outcomes)
        known = known_agents(inner)
        basis = inner.predict(outcomes.queries, known)
        names, keys, scores = table_of(outcomes)
        column = {key: i for i, key in enumerate(keys)}
        told = basis.copy()
        for i, name in enumerate(known.names()):
            if (place := column.get(known[name].revision)) is not None:
                told[:, i] = np.where(np.isnan(scores[:, place]), basis[:, i], scores[:, place])
        old = {agent.revision for agent in known.values()}
        new = [i for i, key in enumerate(keys) if key not in old]
        lines = [line(told, scores[:, i]) for i in new]
        rests = [rest(basis, scores[:, i] - with_one(told) @ lines[j]) for j, i in enumerate(new)]
        shape = (len(new), basis.shape[1])
        added = Artefact(
            router=NAME,
            names=tuple(names[i] for i in new),
            keys=tuple(keys[i] for i in new),
            tensors={
                "lines": np.reshape(lines, (shape[0], shape[1] + 1)),
                "anchors": basis,
                "rests": np.reshape(rests, (shape[0], len(basis))),
            },
        )
        return fitted(self, "_parts", (together(before, added), inner))

    def spread(self, queries: Sequence[Query], count: int, seed: int = 0) -> list[int]:
        """Rows of the queries worth labelling for a new agent: one from each of `count` groups of queries of which
        the router expects alike. Raises: ConfigError where the router is not fitted."""
        inner = self._parts[1] if self.weights is not None or "_parts" in vars(self) else self.router
        basis = inner.predict(queries, known_agents(inner))
        groups = k_means(basis, min(count, len(basis)), seed)
        centres = np.stack([basis[groups == g].mean(axis=0) for g in range(groups.max() + 1)])
        return sorted({int(row) for row in squared(basis, centres).argmin(axis=0)})

    def _so_far(self, outcomes: Outcomes) -> tuple[Artefact, Any]:
        """Who was added before, and the router, which is fitted here where it is not."""
        if self.weights is not None or "_parts" in vars(self):
            return self._parts
        inner: Any = self.router
        fresh = inner.weights is None and not any(name in vars(inner) for name in ("_known", "_trained", "_parts"))
        return Artefact(router=NAME), inner.fit(outcomes) if fresh else inner

    def save(self, path: str | Path) -> None:
        """Write the added agents, and the router's weights beside them."""
        outer, inner = self._parts
        save_both(inner, outer, path)

    @once
    def _parts(self) -> tuple[Artefact, Any]:
        return read_both(NAME, self.router, self.weights)


def added_scores(added: Artefact, basis: np.ndarray) -> np.ndarray:
    """Expected scores in [0, 1] of the added agents where the known ones are expected to score `basis` (n, K)."""
    if not added.keys:
        return np.zeros((len(basis), 0))
    near = kernel(basis, added.tensors["anchors"])
    found = with_one(basis) @ added.tensors["lines"].T + near @ added.tensors["rests"].T
    return np.asarray(found.clip(0, 1))


def together(before: Artefact, after: Artefact) -> Artefact:
    """Two sets of added agents as one; one that is in both is as it is in the second."""
    kept = [i for i, key in enumerate(before.keys) if key not in after.keys]
    if not kept:
        return after
    old, new = before.tensors, after.tensors
    rests = np.zeros((len(kept) + len(after.keys), len(old["anchors"]) + len(new["anchors"])))
    rests[: len(kept), : len(old["anchors"])] = old["rests"][kept]
    rests[len(kept) :, len(old["anchors"]) :] = new["rests"]
    return Artefact(
        router=NAME,
        names=(*(before.names[i] for i in kept), *after.names),
        keys=(*(before.keys[i] for i in kept), *after.keys),
        tensors={
            "lines": np.concatenate([old["lines"][kept], new["lines"]]),
            "anchors": np.concatenate([old["anchors"], new["anchors"]]),
            "rests": rests,
        },
    )


def with_one(basis: np.ndarray) -> np.ndarray:
    """Rows (n, K) with a constant: (n, K + 1)."""
    return np.concatenate([basis, np.ones((len(basis), 1))], axis=1)


def kernel(basis: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """How alike queries are by what is expected of all agents on them: (n, m), 1 where it is the same."""
    return np.asarray(np.exp(-squared(basis, anchors) / basis.shape[1] / (2 * REACH**2)))


def rest(basis: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Weights (n,) of the kernel at the labelled queries that smooth what a line leaves (n,); 0 without a label."""
    seen = np.flatnonzero(~np.isnan(left))
    weights = np.zeros(len(left))
    covariance = kernel(basis[seen], basis[seen]) + NOISE * np.eye(len(seen))
    weights[seen] = np.linalg.solve(covariance, left[seen])
    return weights


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
