"""Sets what a dollar must buy: the trade of a cost-aware router, on labelled queries, for a target."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from coterie.errors import ConfigError, DataError
from coterie.evaluation.stats import mean_interval
from coterie.outcomes import Outcomes
from coterie.routers.choice import Choice, Target, chosen, sweep
from coterie.routers.cost_aware import CostAware
from coterie.tasks.contamination import digest
from coterie.types import Pool, Router


def choose(router: Router, outcomes: Outcomes, pool: Pool, target: Target) -> Choice:
    """The trade that meets the target on these outcomes, with what it gives there.

    The queries should not be those that the router was fitted on: on them its scores are too good.
    Raises: ConfigError for a router that is not `cost_aware`; DataError where an agent of the pool has no outcome
    or no known cost, or no trade meets the target.
    """
    if not isinstance(router, CostAware):
        raise ConfigError("calibrate sets the trade of the router `cost_aware`: wrap the recipe's router in it")
    scores, costs = columns(outcomes, outcomes.scores, pool), columns(outcomes, outcomes.costs, pool)
    for name, known, dollars in zip(pool.names(), (~np.isnan(scores)).any(axis=0), costs.T, strict=True):
        if not known:
            raise DataError(f"agent {name!r} has no outcome on these queries, as it is now")
        if np.isnan(dollars).all():
            raise DataError(f"agent {name!r}: its costs are unknown; give it a price")
    plain = replace(router, choice=None, trade=0.0)
    vars(plain)["_parts"] = router._parts
    predicted, dollars = plain.estimates(outcomes.queries, pool)
    swept = sweep(predicted, dollars, scores, costs)
    place = chosen(swept, target)
    came = scores[np.arange(len(scores)), swept.picks[place]]
    return Choice(
        trade=float(swept.trades[place]),
        target=target,
        score=float(swept.scores[place]),
        interval=mean_interval(came[~np.isnan(came)].tolist()),
        cost_usd_per_1k=1000 * float(swept.costs[place]),
        queries=len(outcomes.queries),
        data=_digest(outcomes),
        pool={name: pool[name].revision for name in pool.names()},
        date=datetime.now(UTC).date().isoformat(),
    )


def columns(outcomes: Outcomes, values: np.ndarray, pool: Pool) -> np.ndarray:
    """Values (Q, A) by column of the pool's solvers, in the order of their names; NaN for one that is not there."""
    place = {name: i for i, name in enumerate(outcomes.agents)}
    none = np.full(len(outcomes.queries), np.nan)
    return np.stack([values[:, place[name]] if name in place else none for name in pool.names()], axis=1)


def _digest(outcomes: Outcomes) -> str:
    """Of the questions, the agents, their scores and costs."""
    facts = [*map(digest, outcomes.queries), *outcomes.agents, *map(str, outcomes.revisions.values())]
    total = hashlib.sha256("\0".join(facts).encode(errors="surrogatepass"))
    for values in (outcomes.scores, outcomes.costs):
        total.update(np.ascontiguousarray(values).tobytes())
    return total.hexdigest()[:16]
