"""pass@k against counting every subset of the samples."""

from itertools import combinations

import pytest

from coterie.evaluation.samples import avg_at_k, pass_at_k


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_pass(n):
    for passed in range(n + 1):
        samples = [True] * passed + [False] * (n - passed)
        for k in range(1, n + 1):
            subsets = [any(chosen) for chosen in combinations(samples, k)]
            assert pass_at_k(n, passed, k) == pytest.approx(sum(subsets) / len(subsets))


def test_many_samples_do_not_overflow():
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)
    assert pass_at_k(10_000, 5_000, 64) == pytest.approx(1.0)


def test_fewer_samples_than_k_say_nothing():
    assert pass_at_k(3, 1, 4) is None
    assert pass_at_k(0, 0, 1) is None


def test_pass_at_one_is_the_mean():
    assert pass_at_k(8, 3, 1) == pytest.approx(avg_at_k([1.0] * 3 + [0.0] * 5))
    assert avg_at_k([]) is None


@pytest.mark.parametrize(("n", "passed", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0)])
def test_counts_that_can_not_be_are_refused(n, passed, k):
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, passed, k)
