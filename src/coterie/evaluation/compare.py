"""Recipes against a baseline, question by question: differences with intervals, tests, effects by domain, cost.

It computes from a lineup; wording, drawing and printing are elsewhere. An error is a dropped pair, never a wrong
answer; a question that one side lacks is dropped and counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from coterie.errors import ConfigError
from coterie.evaluation.effect import Cost, Effect, Pair, Part, PassAt, cost, effect, parts, pass_at
from coterie.evaluation.lineup import By, Entrant, Key
from coterie.evaluation.stats import holm
from coterie.evaluation.student import TTest, paired_t, welch_t
from coterie.types import record


@record
class Dropped:
    """Questions that were not compared: one side lacks them, asks another question, or has no verdict."""

    one_side: int
    other_question: int
    no_verdict: int

    @property
    def total(self) -> int:
        return self.one_side + self.other_question + self.no_verdict


@record
class Seeds:
    """The comparison over seeds, on the `n` questions for which every seed of both sides has a verdict.

    Means and standard deviations are of the seeds' means. Equal sets of seeds are paired, others are not.
    """

    n: int
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    test: TTest
    p_holm: float | None = None

    @property
    def deviations(self) -> tuple[float, float]:
        return stdev(self.ours), stdev(self.theirs)


@record
class Comparison:
    """One recipe against the baseline. Holm's family for `p_holm` are all comparisons of one table.

    `errors` are the samples without a verdict because something failed, ours and theirs.
    """

    name: str
    baseline: str
    effect: Effect
    dropped: Dropped
    errors: tuple[int, int]
    cost: Cost
    p_holm: float | None = None
    seeds: Seeds | None = None
    parts: tuple[Part, ...] = ()
    pass_at: tuple[PassAt, ...] = ()


def compare(
    found: Sequence[Entrant], baseline: Entrant, *, by: By | None = None, ks: Sequence[int] = ()
) -> list[Comparison]:
    """Every other entrant against the baseline, in order, p-values adjusted by Holm over them.

    ConfigError where nobody has as many judged samples as a k of `ks`.
    """
    _enough(found, ks)
    rows = [_comparison(entrant, baseline, by, ks) for entrant in found if entrant is not baseline]
    adjusted = holm([row.effect.p_value for row in rows])
    over_seeds = holm([row.seeds.test.p_value if row.seeds else None for row in rows])
    return [_adjusted(*each) for each in zip(rows, adjusted, over_seeds, strict=True)]


def _adjusted(row: Comparison, p_holm: float | None, over_seeds: float | None) -> Comparison:
    seeds = row.seeds and replace(row.seeds, p_holm=over_seeds)
    return replace(row, p_holm=p_holm, seeds=seeds)


def _enough(found: Sequence[Entrant], ks: Sequence[int]) -> None:
    most = max((entrant.samples for entrant in found), default=0)
    if ks and max(ks) > most:
        raise ConfigError(f"pass@{max(ks)} needs {max(ks)} judged samples a query; there are {most} at most")


def _comparison(ours: Entrant, theirs: Entrant, by: By | None, ks: Sequence[int]) -> Comparison:
    pairs, dropped = matched(ours, theirs)
    whole = effect([(a.mean, b.mean) for a, b in pairs])
    return Comparison(
        name=ours.name,
        baseline=theirs.name,
        effect=whole,
        dropped=dropped,
        errors=(_errors(ours), _errors(theirs)),
        cost=cost(pairs, whole.difference),
        seeds=over_seeds(ours, theirs, pairs),
        parts=tuple(parts(pairs, by)) if by else (),
        pass_at=tuple(pass_at(pairs, k) for k in ks),
    )


def _errors(entrant: Entrant) -> int:
    return sum(answers.errors for answers in entrant.answers.values())


def matched(ours: Entrant, theirs: Entrant) -> tuple[list[Pair], Dropped]:
    """The answers of both sides to one question, where both have a verdict, in a fixed order; what was dropped."""
    shared = sorted(ours.answers.keys() & theirs.answers.keys())
    pairs = [(ours.answers[key], theirs.answers[key]) for key in shared]
    judged = [(a, b) for a, b in pairs if a.mean is not None and b.mean is not None]
    known = {key[0] for key in shared}
    mine, other = (_ids(side.answers.keys()) - known for side in (ours, theirs))
    dropped = Dropped(
        one_side=len(mine ^ other), other_question=len(mine & other), no_verdict=len(pairs) - len(judged)
    )
    return judged, dropped


def _ids(keys: Iterable[Key]) -> set[str]:
    return {key[0] for key in keys}


def over_seeds(ours: Entrant, theirs: Entrant, pairs: Sequence[Pair]) -> Seeds | None:
    """The t-test over seeds; None with fewer than two on a side, or no question that all of them answered."""
    sides = ours.replicates, theirs.replicates
    if min(map(len, sides)) < 2:
        return None
    whole = [(a, b) for a, b in pairs if all(map(a.values.get, sides[0])) and all(map(b.values.get, sides[1]))]
    if not whole:
        return None
    paired = set(sides[0]) == set(sides[1])
    names = (sides[0], sides[0]) if paired else sides
    mine = tuple(fmean(fmean(a.values[name]) for a, _ in whole) for name in names[0])
    other = tuple(fmean(fmean(b.values[name]) for _, b in whole) for name in names[1])
    test = (paired_t if paired else welch_t)(mine, other)
    return None if test is None else Seeds(n=len(whole), ours=mine, theirs=other, test=test)


# --- for machines ------------------------------------------------------------------------------------


def to_json(rows: Sequence[Comparison], found: Sequence[Entrant], baseline: str, measure: str) -> dict[str, Any]:
    """The machine-readable comparison. What is unknown or undefined is null; points are percentage points.

    {"baseline", "measure", "recipes": [{"name", "runs", "replicates", "questions", "samples"}],
    "comparisons": [{"name", "n", "mean", "baseline_mean", "points", "ci", "test", "p_value", "p_holm",
    "mcnemar_mid_p", "wins", "losses", "ties", "odds_ratio", "cohens_h",
    "dropped": {"one_side", "other_question", "no_verdict"}, "errors": {"ours", "baseline"},
    "cost": {"usd_per_1k", "baseline_usd_per_1k", "difference_usd_per_1k", "tokens", "baseline_tokens", "verdict",
    "points_per_usd_per_1k"}, "over_seeds": null or {"test", "n", "means", "baseline_means", "sd", "baseline_sd",
    "points", "ci", "t", "df", "p_value", "p_holm"}, "domains": [{"name", and the keys from n to cohens_h}],
    "pass_at_k": [{"k", "n", "value", "baseline", "points", "ci"}]}]}
    """
    recipes = [
        {"name": e.name, "runs": list(e.runs), "replicates": list(e.replicates), "questions": len(e.answers)}
        | {"samples": e.samples}
        for e in found
    ]
    return {"baseline": baseline, "measure": measure, "recipes": recipes, "comparisons": [_json(r) for r in rows]}


def _json(row: Comparison) -> dict[str, Any]:
    return {
        "name": row.name,
        **_effect_json(row.effect, row.p_holm),
        "dropped": {
            "one_side": row.dropped.one_side,
            "other_question": row.dropped.other_question,
            "no_verdict": row.dropped.no_verdict,
        },
        "errors": {"ours": row.errors[0], "baseline": row.errors[1]},
        "cost": _cost_json(row.cost),
        "over_seeds": _seeds_json(row.seeds),
        "domains": [{"name": part.name, **_effect_json(part.effect, part.p_holm)} for part in row.parts],
        "pass_at_k": [
            {"k": p.k, "n": p.n, "value": p.ours, "baseline": p.theirs, "points": _points(p.difference)}
            | {"ci": _ends(p.ci)}
            for p in row.pass_at
        ],
    }


def _effect_json(found: Effect, p_holm: float | None) -> dict[str, Any]:
    return {
        "n": found.n,
        "mean": found.ours,
        "baseline_mean": found.theirs,
        "points": _points(found.difference),
        "ci": _ends(found.ci),
        "test": found.test,
        "p_value": found.p_value,
        "p_holm": p_holm,
        "mcnemar_mid_p": found.mid_p,
        "wins": found.wins,
        "losses": found.losses,
        "ties": found.ties,
        "odds_ratio": found.odds,
        "cohens_h": found.cohens_h,
    }


def _cost_json(found: Cost) -> dict[str, Any]:
    ours, theirs, more = (None if c is None else 1000 * c for c in (found.ours, found.theirs, found.difference))
    return {
        "usd_per_1k": ours,
        "baseline_usd_per_1k": theirs,
        "difference_usd_per_1k": more,
        "tokens": found.tokens[0],
        "baseline_tokens": found.tokens[1],
        "verdict": found.verdict,
        "points_per_usd_per_1k": found.points_per_dollar,
    }


def _seeds_json(found: Seeds | None) -> dict[str, Any] | None:
    if found is None:
        return None
    test = found.test
    return {
        "test": test.test,
        "n": found.n,
        "means": list(found.ours),
        "baseline_means": list(found.theirs),
        "sd": found.deviations[0],
        "baseline_sd": found.deviations[1],
        "points": _points(test.difference),
        "ci": _ends(test.ci),
        "t": test.t,
        "df": test.df,
        "p_value": test.p_value,
        "p_holm": found.p_holm,
    }


def _points(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _ends(ci: tuple[float, float] | None) -> list[float] | None:
    return None if ci is None else [100 * end for end in ci]
