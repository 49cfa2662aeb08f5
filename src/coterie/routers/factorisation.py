"""Matrix factorisation: a query's projection meets a learned embedding of each agent (RouteLLM's router)."""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path

import numpy as np

from coterie.features.checks import AnyEncoder, identity_of
from coterie.features.hidden import Hidden
from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, features_of, fitted, in_pool, read, routed
from coterie.routers.columns import columns_of
from coterie.routers.supervised import scale_of, standard
from coterie.types import Amount, Pool, Positive, Query, Routing, Share, Size, State, spec

NAME = "matrix_factorisation"


@spec
class MatrixFactorisation:
    """sigmoid of `agent . (W x + b) + level`: the probability that an agent solves the query.

    RouteLLM (arXiv 2406.18665, matrix factorisation) scores a model by `w . (v_model * (W x + b))` and learns from
    which of two models a person preferred. Here: any number of agents; cross-entropy with each agent's recorded
    score in place of preferences, missing ones left out; `w` is taken into the agents' embeddings, which it only
    rescales; each agent has a level of its own, so that a weak agent needs no direction [O].

    `width` is the embeddings' size. `noise` is added to the standardised features in training, a query then
    stands for its neighbourhood [O]. `validation` of the training queries decide when to stop.
    """

    encoder: AnyEncoder = field(default_factory=Hidden)
    width: Size = 64
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
        features = features_of(self.encoder, [query.messages for query in queries], NAME, known.width)
        return in_pool(known, sigmoid(products(known.tensors, standard(features, known.tensors))), pool)

    def fit(self, outcomes: Outcomes) -> "MatrixFactorisation":
        """A trained copy. The same outcomes and settings give the same weights. Raises: MissingExtra."""
        from coterie.routers.descent import Course
        from coterie.routers.embeddings import Plan, train

        table = columns_of(outcomes)
        features = features_of(self.encoder, table.prompts, NAME)
        scale = scale_of(features, True)
        plan = Plan(width=self.width, noise=self.noise, correctness=1.0)
        course = Course(**{part.name: getattr(self, part.name) for part in fields(Course)})
        return fitted(
            self,
            "_known",
            Artefact(
                router=NAME,
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
        return read(NAME, self.weights, identity_of(self.encoder))


def products(tensors: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Logits (n, A) of features (n, D): the projected query times each agent's embedding, plus its level."""
    inside = x @ tensors["project"] + tensors["shift"]
    return np.asarray(inside @ tensors["agents"].T + tensors["levels"])


def sigmoid(values: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-v), without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))
