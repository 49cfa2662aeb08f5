"""Routers that predict each agent's score from features of the query: nearest neighbours and a small network."""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Literal

import numpy as np

from coterie.features.checks import AnyEncoder, identity_of
from coterie.features.hidden import Hidden
from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, decision, features_of, fitted, in_pool, read, routed, table_of
from coterie.routers.baselines import means_or
from coterie.types import Amount, Pool, Positive, Query, Routing, Share, Size, State, spec


@spec
class KNN:
    """An agent's score is its mean over the `k` training queries nearest to this one (cosine of the features).

    Deviates from the papers' kNN (docs/methods.md: majority of the neighbours' best agents, k = 5, Euclidean):
    means use all of a neighbour's outcomes and degrade to the best single agent as k grows. An agent that none
    of the neighbours has an outcome of counts with its mean over everything. With `standardise` features are
    brought to mean 0 and deviation 1 first.
    """

    encoder: AnyEncoder = field(default_factory=Hidden)
    k: Size = 20
    standardise: bool = False
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Mean scores of the neighbours. Raises: ConfigError unfitted, or fitted on none of the revisions."""
        near = self._near([state.query])
        scores = dict(zip(state.pool.names(), map(float, self._means(near, state.pool)[0]), strict=True))
        return decision(state, scores, {"nearest": float(near.max())})

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Mean scores of each query's neighbours: (len(queries), A)."""
        return self._means(self._near(queries), pool)

    def _near(self, queries: Sequence[Query]) -> np.ndarray:
        """Similarity with every training query: (n, Q)."""
        known = self._known
        features = features_of(self.encoder, [query.messages for query in queries], "knn", known.width)
        rows = unit(standard(features, known.tensors)).astype(np.float64)
        # Last digits of a product depend on how many rows it has; who is near must not hang on them.
        return np.asarray((rows @ known.tensors["features"].T).round(9))

    def _means(self, near: np.ndarray, pool: Pool) -> np.ndarray:
        rows = nearest(near, self.k)
        tensors = self._known.tensors
        means = [means_or(tensors["scores"][found], tensors["overall"]) for found in rows]
        return in_pool(self._known, np.array(means).reshape(len(near), len(tensors["overall"])), pool)

    def fit(self, outcomes: Outcomes) -> "KNN":
        """A copy that knows these queries."""
        names, keys, scores = table_of(outcomes)
        features = features_of(self.encoder, [query.messages for query in outcomes.queries], "knn")
        scale = scale_of(features, self.standardise)
        tensors = {
            "features": unit(standard(features, scale)),
            "scores": scores,
            "overall": np.nanmean(scores, axis=0),
        }
        return fitted(
            self,
            "_known",
            Artefact(
                router="knn",
                names=names,
                keys=keys,
                tensors=tensors | scale,
                encoder=identity_of(self.encoder),
                width=features.shape[1],
            ),
        )

    def save(self, path: str | Path) -> None:
        """Write what was fitted."""
        self._known.save(path)

    @once
    def _known(self) -> Artefact:
        return read("knn", self.weights, identity_of(self.encoder))


@spec
class MLP:
    """A network of ReLU layers over standardised features, trained with Adam and stopped early.

    `objective` says what it learns: `best`, which agent is best (cross-entropy; docs/methods.md), `share`, each
    agent's share of the query's reward (cross-entropy; the classifier of CERA-MoA's ablation), `reward`, each
    agent's score (squared error; one trunk for all agents where CERA-MoA's ablation has a network for each).
    Missing outcomes are left out. Routing needs no torch.
    """

    encoder: AnyEncoder = field(default_factory=Hidden)
    layers: tuple[Size, ...] = (128, 64)
    objective: Literal["best", "share", "reward"] = "reward"
    lr: Positive = 1e-3
    epochs: Size = 500
    batch: Size = 64
    validation: Share = 0.15
    patience: Size = 10
    decay: Amount = 1e-2
    seed: int = 0
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Probabilities, or predicted scores in [0, 1]. Raises: ConfigError unfitted or for other revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Probabilities, or predicted scores in [0, 1]: (len(queries), A)."""
        known = self._known
        features = features_of(self.encoder, [query.messages for query in queries], "mlp", known.width)
        outputs = forward(known.tensors, standard(features, known.tensors))  # (n, A)
        values = outputs.clip(0, 1) if known.notes["objective"] == "reward" else softmax(outputs)
        return in_pool(known, values, pool)

    def fit(self, outcomes: Outcomes) -> "MLP":
        """A trained copy. The same outcomes and settings give the same weights. Raises: MissingExtra."""
        from coterie.routers.network import Plan, train

        names, keys, scores = table_of(outcomes)
        features = features_of(self.encoder, [query.messages for query in outcomes.queries], "mlp")
        scale = scale_of(features, True)
        plan = Plan(**{part.name: getattr(self, part.name) for part in fields(Plan)})
        return fitted(
            self,
            "_known",
            Artefact(
                router="mlp",
                names=names,
                keys=keys,
                tensors=train(standard(features, scale), scores, plan) | scale,
                encoder=identity_of(self.encoder),
                width=features.shape[1],
                notes={"objective": self.objective},
            ),
        )

    def save(self, path: str | Path) -> None:
        """Write what was fitted."""
        self._known.save(path)

    @once
    def _known(self) -> Artefact:
        return read("mlp", self.weights, identity_of(self.encoder))


def scale_of(features: np.ndarray, standardise: bool) -> dict[str, np.ndarray]:
    """`centre` and `spread` (D,) of features (Q, D); 0 and 1 where they are to stay as they are."""
    if not standardise:
        return {"centre": np.zeros_like(features[0]), "spread": np.ones_like(features[0])}
    spread = features.std(axis=0)
    return {"centre": features.mean(axis=0), "spread": np.where(spread > 1e-6, spread, 1).astype(np.float32)}


def standard(features: np.ndarray, scale: Mapping[str, np.ndarray]) -> np.ndarray:
    """Features by the `centre` and `spread` of `scale`."""
    return np.asarray((features - scale["centre"]) / scale["spread"])


def nearest(near: np.ndarray, k: int) -> np.ndarray:
    """Columns of the `k` largest values of each row (n, Q), largest first: (n, min(k, Q)).

    Equal ones come in the order of the columns, so that the choice never depends on how a sort goes about it.
    """
    size = near.shape[1]
    if k >= size:
        return np.argsort(-near, axis=1, kind="stable")
    found = np.empty((len(near), k), dtype=np.intp)
    for place, row in enumerate(near):
        least = np.partition(row, size - k)[size - k]
        columns = np.flatnonzero(row >= least)  # more than k where several are as near as the last
        found[place] = columns[np.argsort(-row[columns], kind="stable")][:k]
    return found


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of norm 1; a zero row stays zero."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1))


def forward(tensors: Mapping[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """The network of `weight0`, `bias0`, `weight1` ... on rows (B, D): (B, A)."""
    depth = sum(name.startswith("weight") for name in tensors)
    for i in range(depth):
        rows = rows @ tensors[f"weight{i}"] + tensors[f"bias{i}"]
        rows = np.maximum(rows, 0) if i < depth - 1 else rows
    return rows


def softmax(values: np.ndarray) -> np.ndarray:
    """Probabilities of rows of logits (n, A)."""
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
