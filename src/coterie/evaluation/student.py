"""Student's t for comparisons over seeds: paired and Welch's, with the interval of the difference.

In plain Python, since SciPy is no dependency of the base install. A t-test over seeds tells about other seeds
on the same queries; the tests over queries are in `stats`.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal

from coterie.types import record

PRECISION, TINY, MOST_STEPS = 1e-15, 1e-300, 10_000


@record
class TTest:
    """A two-sided t-test of a difference of means, with its 95 % interval.

    `p_value` and `t` are None where the seeds do not vary at all: then there is nothing to measure with.
    """

    test: Literal["paired t", "welch t"]
    difference: float
    ci: tuple[float, float] | None
    t: float | None
    df: float
    p_value: float | None


def paired_t(ours: Sequence[float], theirs: Sequence[float], *, level: float = 0.95) -> TTest | None:
    """Student's paired t-test (1908), df = n - 1. None with fewer than two pairs; unequal lengths: ValueError."""
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(gaps) < 2:
        return None
    error = stdev(gaps) / math.sqrt(len(gaps))
    return _test("paired t", fmean(gaps), error, len(gaps) - 1, level)


def welch_t(ours: Sequence[float], theirs: Sequence[float], *, level: float = 0.95) -> TTest | None:
    """Welch's t-test (1947) of independent groups, df by Satterthwaite. None with fewer than two a side."""
    if min(len(ours), len(theirs)) < 2:
        return None
    a, b = (stdev(side) ** 2 / len(side) for side in (ours, theirs))
    spread = a * a / (len(ours) - 1) + b * b / (len(theirs) - 1)
    df = (a + b) ** 2 / spread if spread else float(len(ours) + len(theirs) - 2)
    return _test("welch t", fmean(ours) - fmean(theirs), math.sqrt(a + b), df, level)


def _test(name: Literal["paired t", "welch t"], difference: float, error: float, df: float, level: float) -> TTest:
    if error <= 1e-12 * max(1.0, abs(difference)):
        return TTest(test=name, difference=difference, ci=None, t=None, df=df, p_value=None)
    t, reach = difference / error, quantile((1 + level) / 2, df) * error
    ends = (difference - reach, difference + reach)
    return TTest(test=name, difference=difference, ci=ends, t=t, df=df, p_value=two_sided(t, df))


def two_sided(t: float, df: float) -> float:
    """P(|T| >= |t|) for Student's t with `df` degrees of freedom: I_x(df / 2, 1 / 2) at x = df / (df + t^2)."""
    return incomplete_beta(df / 2, 0.5, df / (df + t * t))


def quantile(share: float, df: float) -> float:
    """The t that a share (0.5 to below 1) of the distribution lies below, by bisection."""
    low, high = 0.0, 1.0
    while two_sided(high, df) > 2 * (1 - share):
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > 2 * (1 - share) else (low, middle)
    return high


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), 0 <= x <= 1, by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - incomplete_beta(b, a, 1 - x)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) / (a * _fraction(a, b, x))


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d1 / (1 + d2 / (1 + ...)), by Lentz's method: the ratios of successive numerators and denominators."""
    value = up = 1.0
    down = 0.0
    for step in range(1, MOST_STEPS):
        term = _term(a, b, x, step)
        up = 1 + term / up or TINY
        down = 1 / (1 + term * down or TINY)
        value *= up * down
        if abs(up * down - 1) < PRECISION:
            break
    return value


def _term(a: float, b: float, x: float, step: int) -> float:
    m, odd = divmod(step, 2)
    if odd:
        return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
    return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
