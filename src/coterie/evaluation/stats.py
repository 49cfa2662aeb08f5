"""Intervals of a mean and of a paired difference, paired tests, Holm's adjustment, effect sizes: on plain numbers.

It knows no traces and no recipes. Everything random is seeded, so that equal numbers give equal intervals and
p-values. Tests over a few seeds, which need Student's t, are in `student`.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np

from coterie.types import record

RESAMPLES = 10_000
BLOCK = 4_000_000  # numbers held at once while resampling
FEW = 32  # up to this many distinct values a resample is drawn as their counts
EXACT = 16  # up to this many unequal pairs every sign pattern is counted


@record
class Paired:
    """A paired comparison. `n` pairs were compared, `dropped` had a side without a value.

    `difference` is the mean of ours minus theirs; `p_value` is two-sided; both None without a pair.
    """

    p_value: float | None
    difference: float | None
    n: int
    dropped: int
    wins: int
    losses: int


def mean_interval(
    values: Sequence[float], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron 1979). No value: (NaN, NaN); one value: it twice."""
    sample = np.asarray(values, dtype=float)
    if not sample.size:
        return float("nan"), float("nan")
    means = np.concatenate(list(_resampled_means(sample, resamples, np.random.default_rng(seed))))
    tail = (1 - level) / 2
    lo, hi = np.quantile(means, (tail, 1 - tail))
    return float(lo), float(hi)


def _resampled_means(sample: np.ndarray, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    distinct, counts = np.unique(sample, return_counts=True)
    block = max(1, BLOCK // sample.size)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        if distinct.size <= FEW:
            # How often each value is drawn is multinomial: binary data costs two numbers a resample.
            drawn = rng.multinomial(sample.size, counts / sample.size, size=size)  # (R, U)
            yield drawn @ distinct / sample.size
        else:
            yield np.sort(sample)[rng.integers(0, sample.size, size=(size, sample.size))].mean(axis=1)


def wilson(passes: float, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927); (NaN, NaN) for n = 0."""
    if not n:
        return float("nan"), float("nan")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, shrink = passes / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / shrink
    half = z / shrink * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    lo = 0.0 if passes == 0 else max(0.0, middle - half)
    hi = 1.0 if passes == n else min(1.0, middle + half)
    return lo, hi


def accuracy_interval(
    values: Sequence[float], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Interval of a mean of values in [0, 1]: the percentile bootstrap, but Wilson's where all are 0 or all are 1.

    A bootstrap of equal values has width 0, which would call 5 of 5 right a certainty.
    """
    if len(values) and min(values) == max(values) and values[0] in (0, 1):
        return wilson(sum(values), len(values), level=level)
    return mean_interval(values, level=level, resamples=resamples, seed=seed)


def paired_test(
    ours: Sequence[float | None], theirs: Sequence[float | None], *, resamples: int = RESAMPLES, seed: int = 0
) -> Paired:
    """Sign-flip permutation test of the mean difference over pairs; on binary values it is McNemar's exact test.

    A pair with a None (an error, a query one side lacks) is dropped and counted. Pairs that are all equal
    give p = 1. Exact where all differences have one size or at most 16 are not zero; else `resamples` random
    sign patterns, with (hits + 1) / (resamples + 1), which is never 0.
    """
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    differences = np.array([float(a) - float(b) for a, b in pairs])  # (n,)
    return Paired(
        p_value=_sign_flip(differences[differences != 0], resamples, seed) if pairs else None,
        difference=float(differences.mean()) if pairs else None,
        n=len(pairs),
        dropped=len(ours) - len(pairs),
        wins=int((differences > 0).sum()),
        losses=int((differences < 0).sum()),
    )


def _sign_flip(moved: np.ndarray, resamples: int, seed: int) -> float:
    if not moved.size:
        return 1.0
    size = np.abs(moved)
    if np.allclose(size, size[0], rtol=1e-9, atol=0):
        return binomial_test(int((moved > 0).sum()), moved.size)
    limit = abs(moved.sum()) - 1e-9 * size.sum()
    if moved.size <= EXACT:
        patterns = (np.arange(2**moved.size)[:, None] >> np.arange(moved.size)) & 1  # (2^n, n)
        return float((np.abs((2 * patterns - 1) @ moved) >= limit).mean())
    hits = sum(int((np.abs(total) >= limit).sum()) for total in _flipped_sums(moved, resamples, seed))
    return (hits + 1) / (resamples + 1)


def _flipped_sums(moved: np.ndarray, resamples: int, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    block = max(1, BLOCK // moved.size)
    for start in range(0, resamples, block):
        size = (min(block, resamples - start), moved.size)
        yield (2.0 * rng.integers(0, 2, size=size, dtype=np.int8) - 1) @ moved


def binomial_test(wins: int, n: int) -> float:
    """Two-sided exact p-value of `wins` among n fair coin flips: min(1, 2 P(X <= min(wins, n - wins)))."""
    term = total = 1
    for i in range(min(wins, n - wins)):
        term = term * (n - i) // (i + 1)
        total += term
    return float(min(1.0, 2 * total / 2**n))


def paired_interval(
    differences: Sequence[float], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean paired difference; a pair is what is drawn (one a query).

    Values are differences of numbers in [0, 1]. Where all are equal a bootstrap has width 0, which would call
    5 equal pairs a certainty. Then Wilson's bound on the share of pairs that may differ from the rest decides:
    n pairs of difference 0 give (-u, u), n of difference 1 give (1 - 2u, 1), u being its upper end for 0 of n.
    No difference: (NaN, NaN).
    """
    if not len(differences) or min(differences) != max(differences) or differences[0] not in (-1, 0, 1):
        return mean_interval(differences, level=level, resamples=resamples, seed=seed)
    value, (_, unseen) = float(differences[0]), wilson(0, len(differences), level=level)
    reach = unseen if value == 0 else 2 * unseen
    return max(-1.0, value - reach), min(1.0, value + reach)


def mcnemar(wins: int, losses: int, *, mid: bool = False) -> float:
    """McNemar's test (1947) by its exact binomial law: two-sided, on the pairs that differ; 1.0 without any.

    The exact p-value is what Coterie reports: its error rate never exceeds the level. `mid` gives the mid-p
    version (Fagerland, Lydersen and Laake 2013), which counts what was seen half and is less conservative.
    """
    exact = binomial_test(wins, wins + losses)
    if not mid or wins == losses:
        return exact
    seen = math.comb(wins + losses, min(wins, losses))
    return exact - float(seen / 2 ** (wins + losses))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment (1979), in the order given: it holds the family-wise error rate.

    The i-th smallest of m is multiplied by m - i + 1, is at least its predecessor and at most 1. A None (no test
    was possible) stays None and is no member of the family.
    """
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * p))
        adjusted[i] = highest
    return adjusted


def cohens_h(ours: float, theirs: float) -> float:
    """Cohen's h (1988) of two shares in [0, 1]: 2 asin(sqrt(p)) - 2 asin(sqrt(q)); 0.2 is small, 0.8 large."""
    return 2 * math.asin(math.sqrt(min(1.0, ours))) - 2 * math.asin(math.sqrt(min(1.0, theirs)))


def odds_ratio(wins: int, losses: int) -> float | None:
    """Odds of a win among the pairs that differ (the conditional estimate); None without a loss: no bound."""
    return wins / losses if losses else None
