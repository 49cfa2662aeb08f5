"""Cost-aware choice around any router that predicts: maximise score minus trade times expected dollars."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import ConfigError
from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.artefact import Artefact, decision, fitted, in_pool, table_of
from coterie.routers.choice import Choice, read_choice
from coterie.routers.costs import cost_lines, expected
from coterie.routers.wrapped import AnyPredictor, read_both, save_both
from coterie.types import Amount, Pool, Query, Routing, State, spec

NAME = "cost_aware"


@spec
class CostAware:
    """Agents by predicted score minus `trade` times the expected dollars of asking them.

    `trade` is score a dollar: at 100 a hundredth of a point of score in [0, 1] is worth 0.0001 dollars. `choice`, a
    file that `coterie calibrate` wrote for a target, takes its place. What a call will cost is a line in the
    prompt's length, fitted to recorded costs for each agent.
    """

    router: AnyPredictor
    trade: Amount = 0.0
    choice: str | None = None
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Predicted score minus price. Raises: ConfigError unfitted, or where `choice` is for another pool."""
        names = state.pool.names()
        predicted, dollars = self.estimates([state.query], state.pool)
        scores = dict(zip(names, map(float, self._worth(predicted, dollars, state.pool)[0]), strict=True))
        told = {
            "predicted": dict(zip(names, map(float, predicted[0]), strict=True)),
            "expected_usd": dict(zip(names, map(float, dollars[0]), strict=True)),
        }
        return decision(state, scores, told)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """What each agent is worth, moved up for each query until none is below 0: (len(queries), A)."""
        return self._worth(*self.estimates(queries, pool), pool)

    def estimates(self, queries: Sequence[Query], pool: Pool) -> tuple[np.ndarray, np.ndarray]:
        """Predicted scores and expected dollars, (len(queries), A) each; an unknown agent is the dearest."""
        outer, inner = self._parts
        predicted = inner.predict(queries, pool)
        dollars = expected(outer.tensors["lines"], queries)
        found = in_pool(outer, dollars, pool)
        unknown = [i for i, name in enumerate(pool.names()) if name not in outer.rows_of(pool)]
        if unknown:
            found[:, unknown] = dollars.max(axis=1, keepdims=True)
        return predicted, found

    def _worth(self, predicted: np.ndarray, dollars: np.ndarray, pool: Pool) -> np.ndarray:
        if self._choice is not None:
            self._choice.check(pool, str(self.choice))
        trade = self.trade if self._choice is None else self._choice.trade
        if trade > 0 and np.isnan(dollars).any():
            raise ConfigError(
                "router cost_aware: was fitted on outcomes without costs, so that none can be weighed"
            )
        worth = predicted - trade * dollars if trade > 0 else predicted
        return np.asarray(worth - worth.min(axis=1, keepdims=True).clip(max=0))

    def fit(self, outcomes: Outcomes) -> "CostAware":
        """A copy whose router is fitted on the outcomes, and that knows what calls cost."""
        names, keys, _ = table_of(outcomes)
        outer = Artefact(router=NAME, names=names, keys=keys, tensors={"lines": cost_lines(outcomes)})
        inner: Any = self.router
        return fitted(self, "_parts", (outer, inner.fit(outcomes)))

    def with_choice(self, choice: Choice) -> "CostAware":
        """A copy that weighs cost as the choice says."""
        copy = fitted(replace(self, trade=choice.trade, choice=None), "_parts", self._parts)
        vars(copy)["_choice"] = choice
        return copy

    def save(self, path: str | Path) -> None:
        """Write what was fitted: the expected costs, and the router's weights beside them."""
        outer, inner = self._parts
        save_both(inner, outer, path)

    @once
    def _parts(self) -> tuple[Artefact, Any]:
        return read_both(NAME, self.router, self.weights)

    @once
    def _choice(self) -> Choice | None:
        return None if self.choice is None else read_choice(self.choice)
