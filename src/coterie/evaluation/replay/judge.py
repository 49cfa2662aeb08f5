"""The second half of a replay: what the decisions scored and cost, as rows with intervals and paired tests."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from coterie.evaluation.curves import Bin, calibration_error, reliability_bins
from coterie.evaluation.replay.decide import Decision
from coterie.evaluation.replay.material import plain
from coterie.evaluation.stats import holm, mean_interval, paired_test
from coterie.outcomes import Outcomes
from coterie.types import record

BASELINE = "best single"
FIRST = (BASELINE, "domain-only", "random", "cheapest")
ENDS = (*FIRST, "majority", "oracle")
HALF = 0.5
BUDGETS = 40


@record
class Row:
    """One router, or one variant of it. Means over the test queries, then over the seeds.

    `score` in [0, 1] with a 95 % bootstrap interval over the queries; `gain` in points over the best single agent
    with a paired one, `p_value` of the paired test on the same queries and `p_holm` adjusted for all rows of the
    table; `seeds` the mean score of each seed. `validation` is the mean score on the validation parts, by which
    routers may be selected. `cost_usd_per_1k` is None where costs were not recorded. `ece` is the calibration error
    of the score that was predicted for the agent chosen, `bins` what it is made of; None and empty for routers that
    predict no chance. `unmet` counts the seeds in which no trade met the target on validation. `seconds` are the
    processor's for all of a seed's work: settings tried, fitted, asked.
    """

    name: str
    score: float
    ci: tuple[float, float]
    gain: float
    gain_ci: tuple[float, float]
    p_value: float | None
    cost_usd_per_1k: float | None
    calls: float
    seeds: tuple[float, ...]
    p_holm: float | None = None
    validation: float | None = None
    ece: float | None = None
    bins: tuple[Bin, ...] = ()
    unmet: int = 0
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
    """The best agent of each query in hindsight, the cheapest of equal ones (an unknown cost is never cheapest)."""
    scores, costs = tested.outcomes.scores, tested.outcomes.costs
    dear = np.nan_to_num(costs, nan=float(np.nan_to_num(costs).max()) + 1.0)
    best = np.where(scores == scores.max(axis=1, keepdims=True), dear, np.inf)
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
    """All rows: the baselines first, then each router and its variants, in the order in which they came, then the
    router that validation selects."""
    by_seed = {tested.seed: tested for tested in tests}
    found: dict[tuple[str, str], list[Decision]] = {}
    for decision in decisions:
        for variant in ("", *variants):
            if variant in decision.picks:
                found.setdefault((decision.contender, variant), []).append(decision)
    base = [result(by_seed[d.seed], d.picks[""]) for d in found[BASELINE, ""]]
    rows = [_row(key, made, base, by_seed) for key, made in found.items()]
    ends = [
        row("majority", [majority(t) for t in tests], base, float(len(tests[0].outcomes.agents))),
        row("oracle", [oracle(t) for t in tests], base, 1.0),
    ]
    first = [one for one in rows if one.name in FIRST]
    routers = [one for one in rows if one not in first]
    return adjusted([*first, *ends, *routers, *_selected(routers)])


def _row(
    key: tuple[str, str], decisions: Sequence[Decision], base: Sequence[Result], tests: Mapping[int, Tested]
) -> Row:
    """The row of one variant of a contender, with what the decisions say beside their picks."""
    contender, variant = key
    results = [result(tests[d.seed], d.picks[variant]) for d in decisions]
    chances = [chance for d in decisions for chance in d.chances]
    came = [score for d, r in zip(decisions, results, strict=True) if d.chances for score in r.scores.tolist()]
    bins = tuple(reliability_bins(chances, came)) if chances and not variant else ()
    return replace(
        row(f"{contender}, {variant}" if variant else contender, results, base, 1.0),
        validation=None if contender in FIRST or variant else float(np.mean([d.validation for d in decisions])),
        ece=calibration_error(bins) if bins else None,
        bins=bins,
        unmet=sum(variant in d.unmet for d in decisions),
        seconds=round(float(np.mean([d.seconds for d in decisions])), 2),
        setting=decisions[0].setting,
    )


def _selected(routers: Sequence[Row]) -> list[Row]:
    """The router with the best mean validation score under a name of its own: a figure not chosen by the test."""
    known = [one for one in routers if one.validation is not None]
    best = max(known, key=lambda one: (one.validation or 0.0, one.name), default=None)
    return [] if best is None else [replace(best, name=f"selected on validation: {best.name}")]


def adjusted(rows: Sequence[Row]) -> list[Row]:
    """The rows with Holm's p over the routers' rows; the selected one is not counted twice."""
    family = [one for one in rows if one.name not in ENDS and not one.name.startswith("selected")]
    p = dict(zip([one.name for one in family], holm([one.p_value for one in family]), strict=True))
    return [replace(one, p_holm=p.get(one.name.removeprefix("selected on validation: "))) for one in rows]


def row(name: str, found: Sequence[Result], base: Sequence[Result], calls: float) -> Row:
    """One row from the results of all seeds. A query that several seeds test counts once, with its mean."""
    ours, theirs = by_query(found), by_query(base)
    ids = sorted(ours.keys() & theirs.keys())
    pairs = [ours[i] for i in ids], [theirs[i] for i in ids]
    means = tuple(float(np.nanmean(r.scores)) for r in found)
    costs = [float(np.mean(r.costs)) for r in found]
    score = float(np.mean(means))
    gain = score - float(np.mean([np.nanmean(r.scores) for r in base]))
    return Row(
        name=name,
        score=score,
        ci=_around(score, float(np.mean(pairs[0])), mean_interval(pairs[0])),
        gain=100 * gain,
        gain_ci=_around(100 * gain, 100 * float(np.mean(pairs[0]) - np.mean(pairs[1])), _points(pairs)),
        p_value=None if name == BASELINE else paired_test(*pairs).p_value,
        cost_usd_per_1k=_per_1k(costs),
        calls=calls,
        seeds=means,
    )


def _around(value: float, centre: float, ends: tuple[float, float]) -> tuple[float, float]:
    """An interval of the mean over queries, moved to the mean over seeds, which weighs queries otherwise."""
    return ends[0] + value - centre, ends[1] + value - centre


def _points(pairs: tuple[Sequence[float], Sequence[float]]) -> tuple[float, float]:
    lo, hi = mean_interval([100 * (ours - theirs) for ours, theirs in zip(*pairs, strict=True)])
    return lo, hi


def by_query(found: Sequence[Result]) -> dict[str, float]:
    """The mean score of each query over the seeds that test it."""
    scores: dict[str, list[float]] = {}
    for one in found:
        for name, score in zip(one.ids, one.scores.tolist(), strict=True):
            scores.setdefault(name, []).append(score)
    return {name: float(np.mean(values)) for name, values in scores.items()}


def _per_1k(costs: Sequence[float]) -> float | None:
    found = plain(float(np.mean(costs)))
    return None if found is None else 1000 * found


@record
class Frontier:
    """What score can be had for how much money, with the router that did best on validation.

    `points` are (dollars a thousand queries, score) on the test queries, by cost, means over the seeds: for each of
    a row of budgets, the trade that scores best on validation within it. Nothing is chosen on the test. `area` is
    the mean, over costs from 0 to the best single agent's, of the score of the last point at most so dear (0 before
    the first); RouterBench's AIQ but for the range.
    """

    router: str
    points: tuple[tuple[float, float], ...]
    area: float | None


def frontier(decisions: Sequence[Decision], tests: Sequence[Tested], best_single: Row) -> Frontier | None:
    """The front of the router that did best on validation; None where costs were not recorded."""
    swept = [d for d in decisions if d.swept]
    if not swept or best_single.cost_usd_per_1k is None:
        return None
    names = {d.contender for d in swept}
    mean = {name: float(np.mean([d.validation for d in swept if d.contender == name])) for name in names}
    best = max(sorted(mean), key=lambda name: mean[name])
    points = _points_of([d for d in swept if d.contender == best], {t.seed: t for t in tests})
    return Frontier(router=best, points=points, area=area(points, best_single.cost_usd_per_1k))


def _points_of(decisions: Sequence[Decision], tests: Mapping[int, Tested]) -> tuple[tuple[float, float], ...]:
    """Mean test (dollars a thousand queries, score) of the trades that validation chooses within each budget."""
    costs = np.array([cost for d in decisions for cost, _ in d.swept])
    least = max(min(cost for cost, _ in d.swept) for d in decisions)
    points: dict[tuple[int, ...], tuple[float, float]] = {}
    for budget in np.geomspace(max(least, 1e-12), max(costs.max(), 1e-12), BUDGETS):
        trades = tuple(_within(d.swept, float(budget) * (1 + 1e-9)) for d in decisions)
        found = [result(tests[d.seed], d.picks[f"trade {i}"]) for d, i in zip(decisions, trades, strict=True)]
        spent = 1000 * float(np.mean([r.costs.mean() for r in found]))
        points[trades] = (spent, float(np.mean([r.scores.mean() for r in found])))
    return tuple(sorted(points.values()))


def _within(swept: Sequence[tuple[float, float]], budget: float) -> int:
    """The trade with the best score on validation among those within the budget; the cheaper one of equal ones."""
    affordable = [i for i, (cost, _) in enumerate(swept) if cost <= budget]
    return max(affordable, key=lambda i: (swept[i][1], -swept[i][0]))


def area(front: Sequence[tuple[float, float]], most: float) -> float | None:
    """Mean height of the stepped front over costs from 0 to `most`."""
    if most <= 0:
        return None
    ends = [*(cost for cost, _ in front[1:]), float("inf")]
    steps = zip(front, ends, strict=True)
    return sum(score * max(0.0, min(end, most) - min(cost, most)) for (cost, score), end in steps) / most
