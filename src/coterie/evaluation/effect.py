"""What a set of paired answers says: the difference with interval and test, by domain, in cost, in pass@k.

`compare` pairs the answers and puts these together.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from coterie.evaluation.lineup import Answers, By
from coterie.evaluation.samples import pass_at_k
from coterie.evaluation.stats import cohens_h, holm, mcnemar, odds_ratio, paired_interval, paired_test
from coterie.types import record

Pair = tuple[Answers, Answers]
"""One question: ours and theirs."""


@record
class Effect:
    """Ours minus theirs over `n` questions. `difference` and `ci` (95 %, paired bootstrap) are shares of 1.

    `ours` and `theirs` are the two means. Binary values are tested by McNemar's exact test (`mid_p`: its mid-p
    version), others by the sign-flip test. `odds` are wins over losses; `cohens_h` compares the two shares.
    All None where no pair is left.
    """

    n: int
    ours: float | None
    theirs: float | None
    difference: float | None
    ci: tuple[float, float] | None
    test: Literal["mcnemar", "sign-flip"] | None
    p_value: float | None
    mid_p: float | None
    wins: int
    losses: int
    odds: float | None
    cohens_h: float | None

    @property
    def ties(self) -> int:
        return self.n - self.wins - self.losses


@record
class Cost:
    """Mean dollars and tokens a query on the compared questions; dollars None as soon as one is unknown.

    `points_per_dollar` is the change in percentage points for each extra dollar a 1,000 queries: given only where
    quality and cost go the same way, since for a `better, cheaper` recipe a ratio says nothing.
    """

    ours: float | None
    theirs: float | None
    tokens: tuple[float, float]
    difference: float | None
    verdict: str | None
    points_per_dollar: float | None


@record
class Part:
    """The effect within one domain. Holm's family are the domains of one comparison."""

    name: str
    effect: Effect
    p_holm: float | None


@record
class PassAt:
    """pass@k of both sides, over the `n` questions that have k judged samples on both."""

    k: int
    n: int
    ours: float | None
    theirs: float | None
    difference: float | None
    ci: tuple[float, float] | None


def effect(pairs: Sequence[tuple[float | None, float | None]]) -> Effect:
    """The effect over pairs of values in [0, 1]; a pair with a None is left out."""
    judged = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not judged:
        return Effect(
            n=0, ours=None, theirs=None, difference=None, ci=None, test=None, p_value=None, mid_p=None,
            wins=0, losses=0, odds=None, cohens_h=None,
        )  # fmt: skip
    mine, other = [a for a, _ in judged], [b for _, b in judged]
    binary = {*mine, *other} <= {0.0, 1.0}
    found = paired_test(mine, other)
    return Effect(
        n=len(judged),
        ours=fmean(mine),
        theirs=fmean(other),
        difference=found.difference,
        ci=paired_interval([a - b for a, b in judged]),
        test="mcnemar" if binary else "sign-flip",
        p_value=found.p_value,
        mid_p=mcnemar(found.wins, found.losses, mid=True) if binary else None,
        wins=found.wins,
        losses=found.losses,
        odds=odds_ratio(found.wins, found.losses),
        cohens_h=cohens_h(fmean(mine), fmean(other)),
    )


def parts(pairs: Sequence[Pair], by: By) -> list[Part]:
    """The effect within each domain (or source, or kind of task), sorted by its name."""
    groups: dict[str, list[tuple[float | None, float | None]]] = {}
    for a, b in pairs:
        groups.setdefault(a.labels[by], []).append((a.mean, b.mean))
    effects = [(name, effect(groups[name])) for name in sorted(groups)]
    adjusted = holm([found.p_value for _, found in effects])
    return [Part(name=name, effect=e, p_holm=p) for (name, e), p in zip(effects, adjusted, strict=True)]


def pass_at(pairs: Sequence[Pair], k: int) -> PassAt:
    """pass@k of both sides. The interval is over questions."""
    both = [(_pass(a, k), _pass(b, k)) for a, b in pairs]
    known = [(a, b) for a, b in both if a is not None and b is not None]
    if not known:
        return PassAt(k=k, n=0, ours=None, theirs=None, difference=None, ci=None)
    gaps = [a - b for a, b in known]
    return PassAt(
        k=k,
        n=len(known),
        ours=fmean(a for a, _ in known),
        theirs=fmean(b for _, b in known),
        difference=fmean(gaps),
        ci=paired_interval(gaps),
    )


def _pass(answers: Answers, k: int) -> float | None:
    """Mean pass@k over the replicates that have k judged samples."""
    found = [pass_at_k(len(passed), sum(passed), k) for passed in answers.passes.values()]
    known = [p for p in found if p is not None]
    return fmean(known) if known else None


def cost(pairs: Sequence[Pair], gained: float | None) -> Cost:
    """What the pairs cost; `gained` is the difference in quality as a share."""
    ours, theirs = (_dollars([pair[side] for pair in pairs]) for side in (0, 1))
    tokens = tuple(fmean(pair[side].tokens for pair in pairs) if pairs else 0.0 for side in (0, 1))
    difference = None if ours is None or theirs is None else ours - theirs
    verdict = None if difference is None or gained is None else _verdict(gained, difference)
    ratio = None
    if difference and gained and (difference > 0) == (gained > 0):
        ratio = 100 * gained / (1000 * difference)
    return Cost(
        ours=ours,
        theirs=theirs,
        tokens=(tokens[0], tokens[1]),
        difference=difference,
        verdict=verdict,
        points_per_dollar=ratio,
    )


def _dollars(answers: Sequence[Answers]) -> float | None:
    known = [a.cost for a in answers if a.cost is not None]
    return fmean(known) if answers and len(known) == len(answers) else None


def _verdict(gained: float, dearer: float) -> str:
    quality = "equal" if gained == 0 else "better" if gained > 0 else "worse"
    price = "same cost" if dearer == 0 else "dearer" if dearer > 0 else "cheaper"
    return f"{quality}, {price}"
