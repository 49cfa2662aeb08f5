"""The second half of a replay: what the decisions scored and cost, as rows with intervals and paired tests."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from coterie.evaluation.curves import calibration_error, reliability_bins
from coterie.evaluation.plots import pareto
from coterie.evaluation.replay.decide import Decision
from coterie.evaluation.replay.material import plain
from coterie.evaluation.stats import mean_interval, paired_test
from coterie.outcomes import Outcomes
from coterie.types import record

BASELINE = "best single"
HALF = 0.5


@record
class Row:
    """One router, or one variant of it. Means over the test queries, then over the seeds.

    `score` in [0, 1] with a 95 % bootstrap interval over the queries; `gain` in points over the best single agent
    and `p_value` of the paired test on the same queries; `seeds` the mean score of each seed. `cost_usd_per_1k` is
    None where costs were not recorded. `ece` is the calibration error of the score that was predicted for the agent
    chosen, None for rows that predict none.
    """

    name: str
    score: float
    ci: tuple[float, float]
    gain: float
    p_value: float | None
    cost_usd_per_1k: float | None
    calls: float
    seeds: tuple[float, ...]
    ece: float | None = None
    seconds: float = 0.0
    setting: Mapping[str, Any] = field(default_factory=dict)


@record
class Tested:
    """The test part of one seed: the outcomes that decisions are held against."""

    seed: int
    outcomes: Outcomes


@record
class Result:
    """Scores (n,) and dollars (n,) of one row on one seed's test queries."""

    ids: tuple[str, ...]
    scores: np.ndarray
    costs: np.ndarray


def result(tested: Tested, columns: Sequence[int]) -> Result:
    """What the chosen agents scored and cost."""
    rows = np.arange(len(columns))
    outcomes = tested.outcomes
    return Result(
        ids=tuple(query.id for query in outcomes.queries),
        scores=outcomes.scores[rows, list(columns)],
        costs=outcomes.costs[rows, list(columns)],
    )


def oracle(tested: Tested) -> Result:
    """The best agent of each query in hindsight, the cheapest of equal ones."""
    scores, costs = tested.outcomes.scores, tested.outcomes.costs
    best = np.where(scores == scores.max(axis=1, keepdims=True), np.nan_to_num(costs, nan=0.0), np.inf)
    return result(tested, best.argmin(axis=1).tolist())


def majority(tested: Tested) -> Result:
    """All agents asked: right where more than half of them are.

    Answers were not recorded, so agreement on a wrong answer cannot be seen, nor can a plurality that is right.
    """
    outcomes = tested.outcomes
    right = (outcomes.scores >= HALF).mean(axis=1) > HALF
    ids = tuple(query.id for query in outcomes.queries)
    return Result(ids=ids, scores=right.astype(float), costs=outcomes.costs.sum(axis=1))


def rows_of(decisions: Sequence[Decision], tests: Sequence[Tested], variants: Sequence[str]) -> list[Row]:
    """All rows: the baselines first, then each router and its variants, in the order in which they came."""
    by_seed = {tested.seed: tested for tested in tests}
    named: dict[str, list[tuple[Decision, Result]]] = {}
    for decision in decisions:
        for variant in ("", *variants):
            if variant in decision.picks:
                name = f"{decision.contender}, {variant}" if variant else decision.contender
                found = result(by_seed[decision.seed], decision.picks[variant])
                named.setdefault(name, []).append((decision, found))
    base = [found for _, found in named[BASELINE]]
    rows = [row(name, [r for _, r in found], base, 1.0) for name, found in named.items()]
    told = {name: [d for d, _ in found] for name, found in named.items()}
    rows = [_told(one, told[one.name], by_seed) for one in rows]
    everybody = len(tests[0].outcomes.agents)
    ends = [
        row("majority", [majority(t) for t in tests], base, float(everybody)),
        row("oracle", [oracle(t) for t in tests], base, 1.0),
    ]
    first = [one for one in rows if one.name in ("best single", "domain-only", "random", "cheapest")]
    return [*first, *ends, *(one for one in rows if one not in first)]


def row(name: str, found: Sequence[Result], base: Sequence[Result], calls: float) -> Row:
    """One row from the results of all seeds. A query that several seeds test counts once, with its mean."""
    ours, theirs = by_query(found), by_query(base)
    ids = sorted(ours.keys() & theirs.keys())
    means = tuple(float(np.nanmean(r.scores)) for r in found)
    costs = [float(np.mean(r.costs)) for r in found]
    score = float(np.mean(means))
    lo, hi = mean_interval([ours[i] for i in ids])
    centre = float(np.mean([ours[i] for i in ids]))
    return Row(
        name=name,
        score=score,
        ci=(lo + score - centre, hi + score - centre),
        gain=100 * (score - float(np.mean([np.nanmean(r.scores) for r in base]))),
        p_value=None if found is base or name == BASELINE else _p([ours[i] for i in ids], [theirs[i] for i in ids]),
        cost_usd_per_1k=_per_1k(costs),
        calls=calls,
        seeds=means,
    )


def by_query(found: Sequence[Result]) -> dict[str, float]:
    """The mean score of each query over the seeds that test it."""
    scores: dict[str, list[float]] = {}
    for one in found:
        for name, score in zip(one.ids, one.scores.tolist(), strict=True):
            scores.setdefault(name, []).append(score)
    return {name: float(np.mean(values)) for name, values in scores.items()}


def _p(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    return paired_test(ours, theirs).p_value


def _per_1k(costs: Sequence[float]) -> float | None:
    found = plain(float(np.mean(costs)))
    return None if found is None else 1000 * found


def _told(one: Row, decisions: Sequence[Decision], tests: Mapping[int, Tested]) -> Row:
    """The row with what the decisions say beside their picks."""
    chances = [chance for d in decisions for chance in d.chances]
    came = [s for d in decisions if d.chances for s in result(tests[d.seed], d.picks[""]).scores.tolist()]
    plainly = bool(chances) and "," not in one.name
    return replace(
        one,
        ece=calibration_error(reliability_bins(chances, came)) if plainly else None,
        seconds=round(float(np.mean([d.seconds for d in decisions])), 2),
        setting=decisions[0].setting,
    )


@record
class Frontier:
    """What score can be had for at most so much money: the sweep of one router's trades, over all seeds.

    `points` are (dollars a thousand queries, score) on the Pareto front. `area` is the mean, over costs from 0
    to the best single agent's, of the score that the front gives for at most that cost (0 below its first point);
    RouterBench's AIQ but for the range.
    """

    router: str
    points: tuple[tuple[float, float], ...]
    area: float | None


def frontier(decisions: Sequence[Decision], tests: Sequence[Tested], best_single: Row) -> Frontier | None:
    """The front of the router that did best on validation; None where costs were not recorded."""
    swept = [d for d in decisions if "trade 0" in d.picks]
    if not swept or best_single.cost_usd_per_1k is None:
        return None
    names = sorted({d.contender for d in swept})
    mean = {name: float(np.mean([d.validation for d in swept if d.contender == name])) for name in names}
    best = max(names, key=lambda name: (mean[name], name))
    found = _curve([d for d in swept if d.contender == best], {t.seed: t for t in tests})
    front = [found[i] for i in pareto(found)]
    return Frontier(router=best, points=tuple(front), area=area(front, best_single.cost_usd_per_1k))


def _curve(decisions: Sequence[Decision], tests: Mapping[int, Tested]) -> list[tuple[float, float]]:
    """Mean (dollars a thousand queries, score) of each trade over the seeds."""
    trades = [name for name in decisions[0].picks if name.startswith("trade ")]
    points = []
    for name in trades:
        found = [result(tests[d.seed], d.picks[name]) for d in decisions if name in d.picks]
        cost = 1000 * float(np.mean([r.costs.mean() for r in found]))
        points.append((cost, float(np.mean([r.scores.mean() for r in found]))))
    return points


def area(front: Sequence[tuple[float, float]], most: float) -> float | None:
    """Mean height of the stepped front over costs from 0 to `most`."""
    if most <= 0:
        return None
    ends = [*(cost for cost, _ in front[1:]), float("inf")]
    steps = zip(front, ends, strict=True)
    return sum(score * max(0.0, min(end, most) - min(cost, most)) for (cost, score), end in steps) / most
