"""What several samples of one query say: avg@k and pass@k. Plain numbers; queries are averaged by the caller."""

from collections.abc import Sequence
from math import prod


def avg_at_k(values: Sequence[float]) -> float | None:
    """Mean value of a query's k judged samples; None without one."""
    return sum(values) / len(values) if values else None


def pass_at_k(n: int, passed: int, k: int) -> float | None:
    """Chance that k samples drawn from n without replacement hold one of the `passed`: 1 - C(n-c, k) / C(n, k).

    The unbiased estimate of Chen et al. 2021 (eq. 1), as their stable product. None where fewer than k samples
    have a verdict: an error is no failed sample, and fewer samples would bias the estimate. ValueError for
    k < 1 or a count that cannot be.
    """
    if k < 1 or not 0 <= passed <= n:
        raise ValueError(f"pass@{k} of {passed} passed among {n}")
    if n < k:
        return None
    return 1.0 - prod(1 - k / i for i in range(n - passed + 1, n + 1))
