"""HybridLLM: one small and one large agent, and a network that says for which queries the small one will do."""

from collections.abc import Sequence
from dataclasses import field, fields
from pathlib import Path

import numpy as np

from coterie.config import nearest
from coterie.errors import ConfigError, DataError
from coterie.features.checks import AnyEncoder, identity_of
from coterie.features.hidden import Hidden
from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, features_of, fitted, in_pool, read, routed
from coterie.routers.columns import Columns, columns_of
from coterie.routers.factorisation import sigmoid
from coterie.routers.supervised import forward, scale_of, standard
from coterie.types import Amount, Pool, Positive, Query, Routing, Share, Size, State, spec

NAME = "hybrid_llm"


@spec
class HybridLLM:
    """The small agent where a regressor says at least `threshold`, else the large one (HybridLLM).

    After arXiv 2404.14618, with the sizes and the rule that EvolveRouter runs it with (docs/methods.md). The
    regressor learns sigmoid((score of small - score of large) / `softness`) from the queries that both have an
    outcome of, by squared error. What it says becomes scores in [0, 1] for the two, which cross at the threshold;
    all other agents get 0.

    `small` and `large` name the pair. Without `large` it is the agent of the best mean score. Without `small` it
    is the cheapest by mean recorded cost, by mean tokens where no cost was recorded, and the second best by mean
    score where neither was. Where the cheapest is the best one, `large` is the best of the others [O].
    """

    encoder: AnyEncoder = field(default_factory=Hidden)
    small: str | None = None
    large: str | None = None
    threshold: Share = 0.5
    softness: Positive = 0.1
    layers: tuple[Size, ...] = (128, 64)
    lr: Positive = 1e-3
    epochs: Size = 200
    batch: Size = 64
    validation: Share = 0.15
    patience: Size = 10
    decay: Amount = 1e-2
    seed: int = 0
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Scores of the pair. Raises: ConfigError unfitted, or where the pool has neither of the two."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Scores of the pair, 0 for all others: (len(queries), A)."""
        known = self._known
        features = features_of(self.encoder, [query.messages for query in queries], NAME, known.width)
        said = forward(known.tensors, standard(features, known.tensors))[:, 0].clip(0, 1)  # (n,)
        scores = split(said, self.threshold) if len(known.keys) == 2 else np.ones((len(said), 1))
        return in_pool(known, scores, pool)

    def fit(self, outcomes: Outcomes) -> "HybridLLM":
        """A trained copy. Raises: MissingExtra; ConfigError for a `small` or `large` without outcomes.

        Raises: DataError where there is no query that both have an outcome of.
        """
        from coterie.routers.descent import Course
        from coterie.routers.regressor import regress

        table = columns_of(outcomes)
        pair = self._pair(table, outcomes)
        told = np.flatnonzero(~np.isnan(table.scores[:, pair]).any(axis=1))
        if not len(told):
            names = " and ".join(table.names[i] for i in pair)
            raise DataError(f"router {NAME}: there is no query that both {names} have an outcome of")
        features = features_of(self.encoder, [table.prompts[i] for i in told], NAME)
        scale = scale_of(features, True)
        gaps = table.scores[told, pair[0]] - table.scores[told, pair[-1]]
        course = Course(**{part.name: getattr(self, part.name) for part in fields(Course)})
        network = regress(standard(features, scale), sigmoid(gaps / self.softness), self.layers, course)
        return fitted(
            self,
            "_known",
            Artefact(
                router=NAME,
                names=tuple(table.names[i] for i in pair),
                keys=tuple(table.keys[i] for i in pair),
                tensors=network | scale,
                encoder=identity_of(self.encoder),
                width=features.shape[1],
            ),
        )

    def save(self, path: str | Path) -> None:
        """Write what was fitted."""
        self._known.save(path)

    def _pair(self, table: Columns, outcomes: Outcomes) -> list[int]:
        """Columns of the small and the large agent; one column where the table has one agent alone."""
        means = np.nanmean(table.scores, axis=0)
        best = sorted(range(len(means)), key=lambda i: -means[i])
        small, large = (
            None if name is None else column_of(name, table, outcomes) for name in (self.small, self.large)
        )
        if len(best) == 1:
            return best
        if small is None:
            others = [i for i in best if i != large]
            small = cheapest(others, table, outcomes, others[1 if large is None else 0])
        if small == large:
            raise ConfigError(f"router {NAME}: `small` and `large` are one agent, {table.names[small]}")
        return [small, next(i for i in best if i != small) if large is None else large]

    @once
    def _known(self) -> Artefact:
        return read(NAME, self.weights, identity_of(self.encoder))


def column_of(name: str, table: Columns, outcomes: Outcomes) -> int:
    """Column of an agent by name. Raises: ConfigError where it has no outcomes."""
    key = outcomes.revisions.get(name) or name
    if name not in outcomes.agents or key not in table.keys:
        raise ConfigError(f"router {NAME}: no outcomes of the agent {name!r}{nearest(name, outcomes.agents)}")
    return table.keys.index(key)


def cheapest(columns: Sequence[int], table: Columns, outcomes: Outcomes, otherwise: int) -> int:
    """The column of the lowest mean cost, else of the fewest tokens, else `otherwise`; the first of equal ones.

    What was not recorded is unknown and never cheapest.
    """
    for recorded in (outcomes.costs, outcomes.tokens):
        means = {i: mean_of(recorded, table.keys[i], outcomes) for i in columns}
        known = [i for i in columns if not np.isnan(means[i])]
        if known:
            return min(known, key=means.__getitem__)
    return otherwise


def mean_of(recorded: np.ndarray, key: str, outcomes: Outcomes) -> float:
    """Mean of what was recorded (Q, A) for the agents filed under a key; NaN where nothing was."""
    mine = [i for i, name in enumerate(outcomes.agents) if (outcomes.revisions.get(name) or name) == key]
    found = recorded[:, mine]
    return float(np.nanmean(found)) if not np.isnan(found).all() else float("nan")


def split(said: np.ndarray, threshold: float) -> np.ndarray:
    """Scores (n, 2) of the small and the large agent from the regressor's output (n,) in [0, 1].

    The small one's rise to 1/2 at the threshold and on to 1, the large one's are the rest; at the threshold
    itself the small one is ahead.
    """
    below = 0.5 * said / max(threshold, 1e-12)
    small = np.where(said < threshold, below, 0.5 + 0.5 * (said - threshold) / (1.0 - threshold))
    large = np.where(said < threshold, 1.0 - small, np.minimum(1.0 - small, np.nextafter(small, 0.0)))
    return np.column_stack([small, large])
