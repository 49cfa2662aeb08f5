"""CERA-MoA's router: an agent is familiar with a query where its predictor matches a frozen random network."""

import math
from collections.abc import Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from coterie.errors import ConfigError
from coterie.features.checks import AnyEncoder, identity_of
from coterie.features.hidden import Hidden
from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.records import Units
from coterie.routers.artefact import decision, features_of, fitted, key_of, read, rows_of, table_of
from coterie.types import Amount, Messages, Pool, Positive, Query, Routing, Share, Size, State, spec

if TYPE_CHECKING:
    from coterie.routers.headset import HeadSet, Stacks

NAME = "familiarity"


@spec
class Familiarity:
    """f_i = exp(-scale * d_i), d_i the distance between agent i's predictor and its frozen target (Eqs. 2, 10).

    An agent without a trained head has f of about 0.06: every query is unfamiliar to it, so that a new pool
    begins by asking everybody.

    `hidden` and `width` are the heads' sizes, `margin` the distance to which failures are pushed; keep it at
    `smallest_margin` or above. `lr` and `epochs` are for fitting on some hundred recorded queries [O]: the
    paper's 1e-4 is for 64,000 queries online. `standardise` brings each feature to mean 0 and deviation 1 over
    the queries fitted on before the heads' LayerNorm [O, not in the paper]: last-token states share a few huge
    coordinates that would hide the question. `noise` is added to features in training, see `fitting.blurred` [O].
    `validation` of the training queries decide when to stop.
    """

    encoder: AnyEncoder = field(default_factory=Hidden)
    hidden: Units = 512
    width: Units = 256
    scale: Annotated[float, Field(gt=0, le=1e6)] = 2.0
    margin: Amount = 1.0
    standardise: bool = True
    noise: Amount = 1.0
    lr: Positive = 1e-3
    epochs: Size = 60
    batch: Size = 64
    validation: Share = 0.15
    patience: Size = 6
    seed: int = 0
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Familiarity of each solver with the query.

        Raises: ConfigError where trained heads are there but none of them is one of the pool's revisions.
        """
        distances = self.distances([state.query.messages], state.pool)[0]
        gaps = dict(zip(state.pool.names(), map(float, distances), strict=True))
        scores = {name: math.exp(-self.scale * gap) for name, gap in gaps.items()}
        return decision(state, scores, {"distance": gaps})

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Familiarity of each solver with each query: (len(queries), A)."""
        found: np.ndarray = np.exp(-self.scale * self.distances([query.messages for query in queries], pool))
        return found

    def distances(self, prompts: Sequence[Messages], pool: Pool) -> np.ndarray:
        """Distances of many prompts at once: (len(prompts), A), agents in the order of `pool.names()`."""
        features = self._features(prompts)
        heads = self._heads(features.shape[1])
        if heads.keys:
            rows_of(NAME, heads.names, heads.keys, pool)
        stack = self._stacks.of(heads, tuple(key_of(pool[name]) for name in pool.names()))
        return stack.distances(heads.prepared(features)).numpy()

    def fit(self, outcomes: Outcomes) -> "Familiarity":
        """A router trained on the outcomes, from this one's heads on; this one stays as it was.

        Missing outcomes are left out; an agent without any gets no trained head. The same outcomes and
        settings give the same weights.
        """
        from coterie.routers.fitting import Schedule, fit_heads

        names, keys, scores = table_of(outcomes)
        features = self._features([query.messages for query in outcomes.queries])
        heads = self._heads(features.shape[1])
        if self.standardise and not heads.keys:
            heads = heads.standardised(features)
        schedule = Schedule(**{part.name: getattr(self, part.name) for part in fields(Schedule)})
        trained = fit_heads(heads.predictors(keys), heads.targets(keys), heads.prepared(features), scores, schedule)
        return fitted(self, "_trained", heads.with_trained(names, keys, trained))

    def save(self, path: str | Path) -> None:
        """Write the trained heads, with the agents, revisions and features that they are for."""
        if self._trained is None:
            raise ConfigError("router familiarity: is not fitted: there is nothing to save")
        notes = {key: getattr(self, key) for key in ("scale", "margin", "standardise", "seed")}
        self._trained.artefact(NAME, identity_of(self.encoder), notes).save(path)

    def _features(self, prompts: Sequence[Messages]) -> np.ndarray:
        width = 0 if self._trained is None else self._trained.shape.features
        return features_of(self.encoder, prompts, NAME, width)

    def _heads(self, features: int) -> "HeadSet":
        from coterie.routers.heads import Shape
        from coterie.routers.headset import HeadSet

        if self._trained is not None:
            return self._trained
        return HeadSet.untrained(Shape(features=features, hidden=self.hidden, width=self.width, seed=self.seed))

    @once
    def _trained(self) -> "HeadSet | None":
        from coterie.routers.headset import HeadSet

        if self.weights is None:
            return None
        heads = HeadSet.of(read(NAME, self.weights, identity_of(self.encoder)))
        found, wanted = (heads.shape.hidden, heads.shape.width), (self.hidden, self.width)
        if found != wanted:
            raise ConfigError(f"{self.weights}: holds heads of (hidden, width) {found}, the recipe says {wanted}")
        return heads

    @once
    def _stacks(self) -> "Stacks":
        from coterie.routers.headset import Stacks

        return Stacks()
