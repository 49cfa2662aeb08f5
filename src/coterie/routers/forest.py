"""Randomised trees over the layout and the content of a question: the router for tables of labelled queries.

Asking needs numpy alone; fitting needs scikit-learn (`forest_fit`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.errors import ConfigError
from coterie.features.checks import AnyEncoder, identity_of
from coterie.features.hashed import Hashed
from coterie.features.layout import Layout
from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, features_of, fitted, in_pool, read, routed, table_of
from coterie.types import Amount, Count, Messages, Pool, Query, Routing, Size, State, spec

NAME = "forest"


@spec
class Forest:
    """Extremely randomised trees (Geurts et al. 2006), all agents' scores in one forest.

    A query goes down each of `trees` by its layout (`features.layout`) and the `components` directions of
    largest variance of its encoding; it gets the mean scores of the training queries in the leaf that it
    reaches, which holds at least `leaf` of them, averaged over the trees. Without `layout` they read the
    encoding alone. `share` of the features are tried at a split. In a leaf that has few outcomes of an agent
    its mean over everything counts as much as `prior` of them. A tree needs no tuning to a table, ignores what
    says nothing, and finds templates, in which benchmarks and clients differ, where distances between
    embeddings blur them.
    """

    encoder: AnyEncoder = field(default_factory=Hashed)
    trees: Size = 100
    leaf: Size = 5
    share: Annotated[float, Field(gt=0, le=1)] = 0.3
    components: Count = 60
    prior: Amount = 0.5
    layout: bool = True
    seed: int = 0
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Expected scores. Raises: ConfigError unfitted, or fitted on none of the pool's revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Expected scores in [0, 1]: (len(queries), A)."""
        known = self._known
        leaves = self.leaves(queries)  # (n, T)
        total = np.zeros((len(queries), len(known.keys)))
        for tree in range(leaves.shape[1]):
            total += known.tensors["values"][leaves[:, tree]]
        return in_pool(known, total / leaves.shape[1], pool)

    def leaves(self, queries: Sequence[Query]) -> np.ndarray:
        """The node that each query ends in, in each tree: (len(queries), T)."""
        known = self._known
        tensors = known.tensors
        x = self._inputs(queries, features_of(self.encoder, prompts(queries), NAME, known.width), tensors)
        nodes = np.tile(tensors["roots"], (len(x), 1))
        rows = np.arange(len(x))[:, None]
        while (inner := tensors["left"][nodes] >= 0).any():
            goes_left = x[rows, tensors["feature"][nodes]] <= tensors["threshold"][nodes]
            below = np.where(goes_left, tensors["left"][nodes], tensors["right"][nodes])
            nodes = np.where(inner, below, nodes)
        return nodes

    def fit(self, outcomes: Outcomes) -> "Forest":
        """A fitted copy. The same outcomes and settings give the same trees. Raises: MissingExtra."""
        from coterie.routers.forest_fit import Plan, grow

        names, keys, scores = table_of(outcomes)
        encoded = features_of(self.encoder, prompts(outcomes.queries), NAME)
        space = principal(encoded, self.components)
        plan = Plan(**{part.name: getattr(self, part.name) for part in fields(Plan)})
        tensors = space | grow(self._inputs(outcomes.queries, encoded, space), scores, plan)
        known = Artefact(
            router=NAME,
            names=names,
            keys=keys,
            tensors=tensors,
            encoder=identity_of(self.encoder),
            width=encoded.shape[1],
            notes={"layout": self._layout},
        )
        return fitted(self, "_known", known)

    def _inputs(self, queries: Sequence[Query], encoded: np.ndarray, space: Mapping[str, np.ndarray]) -> np.ndarray:
        """Layout and principal components of the queries, as the trees read them: (n, F), float32."""
        content = (encoded - space["centre"]) @ space["axes"]
        layout = Layout().encode(prompts(queries)) if self.layout else np.zeros((len(queries), 0))
        return np.concatenate([layout, content], axis=1, dtype=np.float32)

    @property
    def _layout(self) -> str:
        return Layout().identity if self.layout else ""

    def save(self, path: str | Path) -> None:
        """Write what was fitted."""
        self._known.save(path)

    @once
    def _known(self) -> Artefact:
        known = read(NAME, self.weights, identity_of(self.encoder))
        if known.notes.get("layout") != self._layout:
            raise ConfigError(f"{self.weights}: was fitted on another layout of questions; fit it again")
        return known


def prompts(queries: Sequence[Query]) -> list[Messages]:
    """What the encoder is shown."""
    return [query.messages for query in queries]


def principal(features: np.ndarray, components: int) -> dict[str, np.ndarray]:
    """`centre` (D,) and `axes` (D, K) of the directions of largest variance of features (Q, D)."""
    centre = features.mean(axis=0)
    centred = (features - centre).astype(np.float64)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    axes = vectors[:, ::-1][:, : min(components, features.shape[1], max(len(features) - 1, 0))]
    # An eigenvector's sign is arbitrary: the largest coordinate is made positive, so that a refit is the same.
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    return {"centre": centre.astype(np.float32), "axes": axes.astype(np.float32)}
