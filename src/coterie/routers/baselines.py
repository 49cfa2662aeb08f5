"""Routers that read no features of the query: what a learned router has to beat."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from coterie.errors import ConfigError
from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, fitted, in_pool, read, routed, shares, table_of
from coterie.types import Agent, Count, Pool, Query, Routing, State, draw, spec


@spec
class Uniform:
    """All solvers weigh the same; who comes first is drawn from the rollout's seed."""

    instant: ClassVar[bool] = True

    def route(self, state: State) -> Routing:
        """Equal weights."""
        return preference(state, dict.fromkeys(state.pool.names(), 1.0))


@spec
class Random:
    """Weights drawn from the rollout's seed, uniform in (0, 1) before they are made to sum to 1."""

    instant: ClassVar[bool] = True

    def route(self, state: State) -> Routing:
        """Random weights, the same for the same seed, query and agent."""
        names = state.pool.names()
        drawn = {name: (draw(state.seed, "random", state.query.id, name) + 1) / (2**63 + 1) for name in names}
        return preference(state, drawn)


@spec
class Cheapest:
    """Agents by price, cheapest first, of a call with these many tokens; weights 1, 1/2, 1/3 ... by rank.

    An unknown price is never cheapest: such agents weigh 0. A price of 0 is a price. Equal prices weigh the
    same, so that the seed decides between them.
    """

    prompt_tokens: Count = 500
    completion_tokens: Count = 500

    def route(self, state: State) -> Routing:
        """Raises: ConfigError where no solver's price is known."""
        costs = {name: self._cost(state.pool[name]) for name in state.pool.names()}
        ranks = {cost: rank for rank, cost in enumerate(sorted({c for c in costs.values() if c is not None}), 1)}
        if not ranks:
            raise ConfigError(f"router cheapest: none of {', '.join(costs)} has a price")
        rank = {name: 0.0 if cost is None else 1.0 / ranks[cost] for name, cost in costs.items()}
        return preference(state, rank, {"cost": costs})

    def _cost(self, agent: Agent) -> float | None:
        return agent.price.of(self.prompt_tokens, self.completion_tokens)


@spec
class BestSingle:
    """Agents by their mean score over the outcomes that were fitted on, whatever the query."""

    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Mean scores. Raises: ConfigError unfitted, or fitted on none of the pool's revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """The mean scores, once a query: (len(queries), A)."""
        known = self._known
        return in_pool(known, np.tile(known.tensors["means"], (len(queries), 1)), pool)

    def fit(self, outcomes: Outcomes) -> "BestSingle":
        """A fitted copy."""
        names, keys, scores = table_of(outcomes)
        means = np.nanmean(scores, axis=0)
        return fitted(
            self, "_known", Artefact(router="best_single", names=names, keys=keys, tensors={"means": means})
        )

    def save(self, path: str | Path) -> None:
        """Write what was fitted."""
        self._known.save(path)

    @once
    def _known(self) -> Artefact:
        return read("best_single", self.weights)


@spec
class Domain:
    """Agents by their mean score within the query's domain; over everything where the domain was not seen.

    An agent without an outcome in the domain counts with its mean over everything.
    """

    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Mean scores in the domain. Raises: ConfigError unfitted, or fitted on none of the pool's revisions."""
        domain = state.query.domain
        return routed(self, state, {"domain": domain, "seen": domain in self._known.notes["domains"]})

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Mean scores in each query's domain: (len(queries), A)."""
        known = self._known
        row = {domain: i for i, domain in enumerate(known.notes["domains"])}
        table = np.vstack([known.tensors["means"], known.tensors["overall"]])
        return in_pool(known, table[[row.get(query.domain, len(row)) for query in queries]], pool)

    def fit(self, outcomes: Outcomes) -> "Domain":
        """A fitted copy."""
        names, keys, scores = table_of(outcomes)
        overall = np.nanmean(scores, axis=0)
        labels = np.array([query.domain for query in outcomes.queries])
        domains = sorted(set(labels.tolist()))
        means = np.stack([means_or(scores[labels == domain], overall) for domain in domains])
        return fitted(
            self,
            "_known",
            Artefact(
                router="domain",
                names=names,
                keys=keys,
                tensors={"means": means, "overall": overall},
                notes={"domains": domains},
            ),
        )

    def save(self, path: str | Path) -> None:
        """Write what was fitted."""
        self._known.save(path)

    @once
    def _known(self) -> Artefact:
        return read("domain", self.weights)


@spec
class Oracle:
    """Agents by what they really scored on this very query: the upper bound in hindsight, not a router.

    It is fitted on the outcomes of the queries that it is then asked about. With many agents its mean is
    inflated by luck: read the gap to it as a ceiling, not as a target. A missing outcome counts 0.
    """

    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Scores of the query. Raises: ConfigError for a query whose outcomes it does not have."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """The scores of the queries: (len(queries), A). Raises: ConfigError for one that it does not know."""
        absent = [query.id for query in queries if query.id not in self._rows]
        if absent:
            raise ConfigError(f"router oracle: has no outcomes of query {absent[0]!r}; fit it on the test queries")
        rows = [self._rows[query.id] for query in queries]
        return in_pool(self._known, self._known.tensors["scores"][rows], pool)

    def fit(self, outcomes: Outcomes) -> "Oracle":
        """A copy that knows these outcomes."""
        names, keys, scores = table_of(outcomes)
        return fitted(
            self,
            "_known",
            Artefact(
                router="oracle",
                names=names,
                keys=keys,
                tensors={"scores": np.nan_to_num(scores)},
                notes={"queries": [query.id for query in outcomes.queries]},
            ),
        )

    def save(self, path: str | Path) -> None:
        """Write what was fitted."""
        self._known.save(path)

    @once
    def _known(self) -> Artefact:
        return read("oracle", self.weights)

    @once
    def _rows(self) -> Mapping[str, int]:
        return {query: row for row, query in enumerate(self._known.notes["queries"])}


def preference(state: State, wanted: Mapping[str, float], info: Mapping[str, Any] | None = None) -> Routing:
    """The routing of weights in proportion to `wanted`, which are no scores of an agent's ability."""
    return Routing(weights=shares(wanted), after=len(state.turns), seed=state.seed, info=dict(info or {}))


def means_or(scores: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Mean of each column (n, A) without NaN; `otherwise` (A,) where a column has no number."""
    count = (~np.isnan(scores)).sum(axis=0)
    return np.where(count > 0, np.nansum(scores, axis=0) / np.maximum(count, 1), otherwise)
