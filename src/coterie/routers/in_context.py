"""ICL-Router, light: a small transformer reads what an agent solved and failed, its profile, and a new query."""

from collections.abc import Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.features.checks import AnyEncoder, identity_of
from coterie.features.hidden import Hidden
from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, features_of, fitted, in_pool, read, routed
from coterie.routers.attention import HEADS, answers, profiles
from coterie.routers.clusters import k_means, squared
from coterie.routers.columns import columns_of
from coterie.routers.factorisation import sigmoid
from coterie.routers.supervised import scale_of, standard
from coterie.types import Amount, Pool, Positive, Query, Routing, Share, Size, State, spec

NAME = "icl"
AT_ONCE = 256


@spec
class ICL:
    """P(agent solves query) by a transformer over the agent's profile and the query's token, after ICL-Router.

    A profile is up to `profile` pairs (query, score) on hard training queries. No agent has weights of its own:
    an agent that was never trained on is added by its outcomes on a few queries (`with_agents`), without training.

    Light [O] (docs/methods.md): pairs of projected features and a mark of right or wrong in place of a language
    model that was taught to read query vectors; 32 pairs in place of 100 to 1,000, the same queries for all agents,
    up to `forget` of which are left out in training; pairs do not see the query, so that a profile is read once for
    all queries. Each of the `steps` predicts `cells` outcomes. Queries of the profile are not trained on.
    """

    encoder: AnyEncoder = field(default_factory=Hidden)
    profile: Size = 32
    width: Annotated[int, Field(ge=HEADS, multiple_of=HEADS)] = 32
    layers: Size = 2
    steps: Size = 200
    cells: Size = 1024
    forget: Share = 0.2
    noise: Amount = 1.0
    lr: Positive = 3e-3
    validation: Share = 0.15
    patience: Size = 6
    decay: Amount = 1e-2
    seed: int = 0
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Probabilities. Raises: ConfigError unfitted, or with profiles of none of the pool's revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Probability that each solver solves each query: (len(queries), A)."""
        known = self._known
        features = features_of(self.encoder, [query.messages for query in queries], NAME, known.width)
        x, tensors = standard(features, known.tensors), known.tensors
        parts = [
            answers(tensors, x[i : i + AT_ONCE], self._read, tensors["scores"]) for i in range(0, len(x), AT_ONCE)
        ]
        return in_pool(known, sigmoid(np.concatenate([np.zeros((0, len(known.keys))), *parts])), pool)

    def fit(self, outcomes: Outcomes) -> "ICL":
        """A trained copy with the agents' profiles. Equal outcomes give equal weights. Raises: MissingExtra."""
        from coterie.routers.in_context_training import Plan, train

        table = columns_of(outcomes)
        features = features_of(self.encoder, table.prompts, NAME)
        scale = scale_of(features, True)
        x = standard(features, scale)
        size = min(self.profile, (len(x) + 1) // 2)
        chosen = spread_out(x, hard_rows(table.scores), size, self.seed)
        plan = Plan(**{part.name: getattr(self, part.name) for part in fields(Plan)})
        network = train(x, table.scores, chosen, plan)
        agents = len(table.keys)
        return fitted(
            self,
            "_known",
            Artefact(
                router=NAME,
                names=table.names,
                keys=table.keys,
                tensors={
                    **network,
                    **scale,
                    "pairs": np.tile(x[chosen], (agents, 1, 1)),
                    "scores": table.scores[chosen].T.astype(np.float32),
                },
                encoder=identity_of(self.encoder),
                width=features.shape[1],
                notes={"queries": [table.queries[i] for i in chosen]},
            ),
        )

    def with_agents(self, outcomes: Outcomes) -> "ICL":
        """A copy with profiles of these agents added, or put in the place of those of the same revisions.

        `outcomes` may be on any queries: those of the router's own profile (`profile_queries`) are taken first,
        then others in their order, up to as many as the router's profiles have. Nothing is trained. Profiles of
        the router's own queries are read best: it knows how hard these are.
        Raises: DataError where there is not a single outcome.
        """
        known, table = self._known, columns_of(outcomes)
        features = features_of(self.encoder, table.prompts, NAME, known.width)
        x, first = standard(features, known.tensors), set(self.profile_queries)
        order = np.argsort([query not in first for query in table.queries], kind="stable")
        new = [_profile(x, column, order, known.tensors["scores"].shape[1]) for column in table.scores.T]
        kept = [i for i, key in enumerate(known.keys) if key not in table.keys]
        pairs, scores = (
            np.stack([*known.tensors[name][kept], *(found[i] for found in new)])
            for i, name in enumerate(("pairs", "scores"))
        )
        return fitted(
            self,
            "_known",
            replace(
                known,
                names=(*(known.names[i] for i in kept), *table.names),
                keys=(*(known.keys[i] for i in kept), *table.keys),
                tensors={**known.tensors, "pairs": pairs, "scores": scores},
            ),
        )

    @property
    def profile_queries(self) -> tuple[str, ...]:
        """Ids of the queries that the fitted profiles are of: what to ask a new agent."""
        return tuple(self._known.notes["queries"])

    def save(self, path: str | Path) -> None:
        """Write what was fitted."""
        self._known.save(path)

    @once
    def _known(self) -> Artefact:
        return read(NAME, self.weights, identity_of(self.encoder))

    @once
    def _read(self) -> list[tuple[np.ndarray, np.ndarray]]:
        tensors = self._known.tensors
        return profiles(tensors, tensors["pairs"], tensors["scores"])


def hard_rows(scores: np.ndarray) -> np.ndarray:
    """Rows (Q, A) that few agents solved: the lower half by mean score of those whose known scores differ.

    All rows where none of them tells two agents apart.
    """
    telling = np.flatnonzero(np.nanmax(scores, axis=1) > np.nanmin(scores, axis=1))
    if not len(telling):
        return np.arange(len(scores))
    means = np.nanmean(scores[telling], axis=1)
    return np.asarray(telling[means <= np.median(means)])


def spread_out(x: np.ndarray, rows: np.ndarray, size: int, seed: int) -> np.ndarray:
    """At most `size` of `rows`: of as many clusters of their features (Q, D) the ones nearest the centres."""
    labels = k_means(x[rows], size, seed)
    centres = np.stack([x[rows][labels == label].mean(axis=0) for label in range(labels.max() + 1)])
    away = squared(x[rows], centres)
    nearest = [np.where(labels == label, away[:, label], np.inf).argmin() for label in range(len(centres))]
    return np.asarray(rows[nearest])


def _profile(x: np.ndarray, scores: np.ndarray, order: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (K, D) and scores (K,) of an agent: its first `size` known outcomes, NaN and zeros after them."""
    rows = [i for i in order if not np.isnan(scores[i])][:size]
    pairs, marks = np.zeros((size, x.shape[1]), dtype=x.dtype), np.full(size, np.nan, dtype=np.float32)
    pairs[: len(rows)], marks[: len(rows)] = x[rows], scores[rows]
    return pairs, marks
