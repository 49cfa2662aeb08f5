"""The first half of a replay: fit on train, select on validation, decide on test. It never reads a test outcome.

A decision names the agent of each test query; decisions are written as they are made, so that a replay that was
stopped goes on, and sealed before anything is judged.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from coterie.errors import DataError
from coterie.evaluation.replay.contenders import Contender, Features, made, predicts_chances
from coterie.evaluation.replay.material import Material, Split, picks
from coterie.outcomes import Outcomes
from coterie.routers.baselines import Domain
from coterie.routers.choice import Sweep, Target, means, sweep
from coterie.routers.choice import chosen as chosen_trade
from coterie.routers.costs import cost_lines, expected
from coterie.types import draw, record

EVERY = 5
"""Of this many trades of a sweep the picks of one are kept, for the frontier."""


@record
class Task:
    """One seed's work: what to fit on, what to select by, and the queries to decide on."""

    seed: int
    train: Outcomes
    validation: Outcomes
    test: Outcomes  # its scores are not read here

    @staticmethod
    def of(material: Material, split: Split, seed: int) -> "Task":
        """The parts of one table."""
        parts = (material.outcomes.take(rows) for rows in (split.train, split.validation, split.test))
        train, validation, test = parts
        return Task(seed=seed, train=train, validation=validation, test=test)


@record
class Decision:
    """What one contender decided under one seed.

    `picks` are columns of the agents, one a test query, by variant: `""` is score alone, the others are targets of
    a cost-aware choice, `trade N` the N-th trade of the sweep. `swept` are (dollars a query, score) of these trades
    on validation, `unmet` the targets that no trade met there (the nearest was taken). `chances` are the predicted
    scores of `""`, where the router predicts chances. `seconds` are the processor's.
    """

    contender: str
    seed: int
    setting: Mapping[str, Any]
    validation: float
    picks: Mapping[str, tuple[int, ...]]
    swept: tuple[tuple[float, float], ...] = ()
    unmet: tuple[str, ...] = ()
    chances: tuple[float, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def decide(contender: Contender, task: Task, material: Material, features: Features, plan: "Plan") -> Decision:
    """Fit every candidate, keep the best on validation, and let it decide."""
    began = time.process_time()
    tried = [_tried(table, task, material, features) for table in contender.candidates]
    place = max(range(len(tried)), key=lambda i: (tried[i][0], -i))
    score, router, on_labels = tried[place]
    names, queries = material.pool.names(), task.test.queries
    predicted = router.predict(queries, material.pool)
    best = picks(predicted, queries, names, draw(task.seed, contender.name))
    chances = predicted[np.arange(len(best)), best].clip(0, 1).round(4).tolist()
    decision = Decision(
        contender=contender.name,
        seed=task.seed,
        setting=contender.candidates[place],
        validation=score,
        picks={"": tuple(best.tolist())},
        chances=tuple(chances) if predicts_chances(contender.candidates[place]) else (),
        notes=_notes(router),
    )
    if plan.targets:
        decision = _weighed(decision, on_labels, predicted, task, material, plan)
    return replace(decision, seconds=round(time.process_time() - began, 3))


def _tried(
    table: Mapping[str, Any], task: Task, material: Material, features: Features
) -> tuple[float, Any, np.ndarray]:
    """A candidate's mean score on validation, its router, and what that predicts on validation (n, A)."""
    router = made(table, features, task.seed).fit(task.train)
    queries, names = task.validation.queries, material.pool.names()
    predicted = router.predict(queries, material.pool)
    best = picks(predicted, queries, names, draw(task.seed, "validation"))
    return float(task.validation.scores[np.arange(len(best)), best].mean()), router, predicted


@record
class Plan:
    """What variants of each router are judged: the targets of cost-aware choice by the name of their rows."""

    targets: Mapping[str, Target]
    sweeps: bool = True


def _weighed(
    decision: Decision, on_labels: np.ndarray, predicted: np.ndarray, task: Task, material: Material, plan: Plan
) -> Decision:
    """The decision with the picks of every target and of every trade of the sweep, the trades set on validation.

    `on_labels` (n, A) and `predicted` (m, A) are the router's scores on validation and on test.
    """
    lines = cost_lines(task.train)
    checked, names = task.validation, material.pool.names()
    swept = sweep(on_labels, expected(lines, checked.queries), checked.scores, checked.costs)
    dollars = expected(lines, task.test.queries)
    trades = {name: _trade(swept, target) for name, target in plan.targets.items()}
    wanted = {name: trade for name, (trade, _) in trades.items()}
    kept = slice(None, None, EVERY)
    wanted |= {f"trade {i}": float(trade) for i, trade in enumerate(swept.trades[kept]) if plan.sweeps}
    seed = draw(task.seed, decision.contender)
    found = {
        name: tuple(picks(predicted - trade * dollars, task.test.queries, names, seed).tolist())
        for name, trade in wanted.items()
    }
    return replace(
        decision,
        picks={**decision.picks, **found},
        swept=tuple(zip(swept.costs[kept].tolist(), swept.scores[kept].tolist(), strict=True)),
        unmet=tuple(name for name, (_, met) in trades.items() if not met),
    )


def _trade(swept: Sweep, target: Target) -> tuple[float, bool]:
    """The trade that meets the target on validation and True; else the nearest, cost or score alone, and False."""
    try:
        return float(swept.trades[chosen_trade(swept, target)]), True
    except DataError:
        return float(swept.trades[swept.costs.argmin()]) if target.kind == "at_most_cost" else 0.0, False


def best_agent(outcomes: Outcomes) -> int:
    """Column of the agent with the best mean score; the first of equal ones."""
    return int(np.nanargmax(means(outcomes.scores, 0)))


def _notes(router: Any) -> dict[str, Any]:
    """What an online router learnt on its way: its regret curve."""
    known = getattr(router, "_known", None)
    regret = getattr(known, "notes", {}).get("regret")
    return {} if regret is None else {"regret": regret}


def baselines(task: Task, material: Material) -> list[Decision]:
    """The rows that every router is held against; `oracle` and `majority` look at the outcomes when judged."""
    best = best_agent(task.train)
    n, agents = len(task.test.queries), len(material.pool)
    by_label = Domain().fit(task.train).predict(task.test.queries, material.pool).argmax(axis=1)
    random = [draw(task.seed, "random", query.id) % agents for query in task.test.queries]
    wanted: dict[str, Sequence[int]] = {
        "best single": [best] * n,
        "domain-only": by_label.tolist(),
        "random": random,
    }
    if material.priced:
        wanted["cheapest"] = [int(np.nanargmin(means(task.train.costs, 0)))] * n
    return [
        Decision(contender=name, seed=task.seed, setting={}, validation=0.0, picks={"": tuple(rows)})
        for name, rows in wanted.items()
    ]
