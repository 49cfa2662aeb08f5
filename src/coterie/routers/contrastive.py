"""Routers trained by contrast: RouterDC, and the scorer of RouteMoA (its layers of agents are a strategy)."""

from collections.abc import Sequence
from dataclasses import field, fields
from pathlib import Path

import numpy as np

from coterie.features.checks import AnyEncoder, identity_of
from coterie.features.hidden import Hidden
from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, features_of, fitted, in_pool, read, routed
from coterie.routers.columns import columns_of
from coterie.routers.factorisation import products, sigmoid
from coterie.routers.supervised import scale_of, softmax, standard, unit
from coterie.types import Amount, Pool, Positive, Query, Routing, Share, Size, State, spec

ROUTER_DC = "router_dc"
ROUTE_MOA = "route_moa"


@spec
class RouterDC:
    """Softmax over the agents of `cosine(W x + b, agent) / temperature` (RouterDC, arXiv 2409.19886).

    Two losses. Agents: each of the `best` agents of a query against those of the `worst` that scored `ceiling` or
    less. Queries: one of the same cluster against those of other clusters, weighed by `query_weight`; k-means of
    the features makes `clusters` groups.

    Deviates (docs/methods.md): the encoder is frozen and a projection of its standardised features is learned in
    its place; clusters are those of the features as they are; ties among the best are drawn; scores are the
    softmax of the training's logits, since cosines may be below 0.
    """

    encoder: AnyEncoder = field(default_factory=Hidden)
    width: Size = 64
    best: Size = 3
    worst: Size = 3
    ceiling: Amount = 0.5
    temperature: Positive = 1.0
    clusters: Size = 16
    query_weight: Amount = 1.0
    noise: Amount = 1.0
    lr: Positive = 6e-3
    epochs: Size = 30
    batch: Size = 256
    validation: Share = 0.15
    patience: Size = 6
    decay: Amount = 1e-2
    seed: int = 0
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Shares that sum to 1. Raises: ConfigError unfitted, or fitted on none of the pool's revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Softmax over the agents fitted on, for each query: (len(queries), A)."""
        known = self._known
        x = standard(
            features_of(self.encoder, [query.messages for query in queries], ROUTER_DC, known.width), known.tensors
        )
        inside = unit(x @ known.tensors["project"] + known.tensors["shift"])
        cosines = inside @ unit(known.tensors["agents"]).T  # (n, K)
        return in_pool(known, softmax(cosines / known.notes["temperature"]), pool)

    def fit(self, outcomes: Outcomes) -> "RouterDC":
        """A trained copy. The same outcomes and settings give the same weights. Raises: MissingExtra."""
        from coterie.routers.descent import Course
        from coterie.routers.embeddings import Plan, train

        table = columns_of(outcomes)
        features = features_of(self.encoder, table.prompts, ROUTER_DC)
        scale = scale_of(features, True)
        plan = Plan(
            cosine=True,
            agents=1.0,
            queries=self.query_weight,
            width=self.width,
            noise=self.noise,
            best=self.best,
            worst=self.worst,
            ceiling=self.ceiling,
            temperature=self.temperature,
            clusters=self.clusters,
        )
        course = Course(**{part.name: getattr(self, part.name) for part in fields(Course)})
        return fitted(
            self,
            "_known",
            Artefact(
                router=ROUTER_DC,
                names=table.names,
                keys=table.keys,
                tensors=train(standard(features, scale), table, plan, course) | scale,
                encoder=identity_of(self.encoder),
                width=features.shape[1],
                notes={"temperature": self.temperature},
            ),
        )

    def save(self, path: str | Path) -> None:
        """Write what was fitted."""
        self._known.save(path)

    @once
    def _known(self) -> Artefact:
        return read(ROUTER_DC, self.weights, identity_of(self.encoder))


@spec
class RouteMoA:
    """sigmoid of `agent . (W x + b) + level`, trained by RouterDC's agent contrast and by cross-entropy.

    The scorer of RouteMoA: an encoder and an embedding of each expert give the prior by which the first layer's
    experts are picked. `contrast` weighs the contrast, which alone would not make the scores probabilities.
    Deviates as `router_dc` does: a projection of frozen features in place of a trained encoder.
    """

    encoder: AnyEncoder = field(default_factory=Hidden)
    width: Size = 64
    best: Size = 3
    worst: Size = 3
    ceiling: Amount = 0.5
    contrast: Amount = 0.03
    noise: Amount = 1.0
    lr: Positive = 3e-3
    epochs: Size = 60
    batch: Size = 128
    validation: Share = 0.15
    patience: Size = 6
    decay: Amount = 1e-2
    seed: int = 0
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Probabilities. Raises: ConfigError unfitted, or fitted on none of the pool's revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Probability that each solver solves each query: (len(queries), A)."""
        known = self._known
        features = features_of(self.encoder, [query.messages for query in queries], ROUTE_MOA, known.width)
        return in_pool(known, sigmoid(products(known.tensors, standard(features, known.tensors))), pool)

    def fit(self, outcomes: Outcomes) -> "RouteMoA":
        """A trained copy. The same outcomes and settings give the same weights. Raises: MissingExtra."""
        from coterie.routers.descent import Course
        from coterie.routers.embeddings import Plan, train

        table = columns_of(outcomes)
        features = features_of(self.encoder, table.prompts, ROUTE_MOA)
        scale = scale_of(features, True)
        plan = Plan(
            correctness=1.0,
            agents=self.contrast,
            width=self.width,
            noise=self.noise,
            best=self.best,
            worst=self.worst,
            ceiling=self.ceiling,
        )
        course = Course(**{part.name: getattr(self, part.name) for part in fields(Course)})
        return fitted(
            self,
            "_known",
            Artefact(
                router=ROUTE_MOA,
                names=table.names,
                keys=table.keys,
                tensors=train(standard(features, scale), table, plan, course) | scale,
                encoder=identity_of(self.encoder),
                width=features.shape[1],
            ),
        )

    def save(self, path: str | Path) -> None:
        """Write what was fitted."""
        self._known.save(path)

    @once
    def _known(self) -> Artefact:
        return read(ROUTE_MOA, self.weights, identity_of(self.encoder))
