"""Student's t against SciPy, and where there is nothing to test with."""

import numpy as np
import pytest

from coterie.evaluation.student import incomplete_beta, paired_t, quantile, two_sided, welch_t

scipy_stats = pytest.importorskip("scipy.stats")
special = pytest.importorskip("scipy.special")


@pytest.mark.parametrize("a", [0.5, 1.0, 2.5, 40.0, 900.0])
@pytest.mark.parametrize("b", [0.5, 1.0, 7.0, 300.0])
def test_the_incomplete_beta_function_is_scipys(a, b):
    for x in (0.0, 1e-9, 0.03, 0.3, 0.5, 0.8, 0.999, 1.0):
        assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), abs=1e-11)


@pytest.mark.parametrize("df", [1, 2, 3.7, 4, 30, 1000])
def test_the_distribution_is_scipys(df):
    for t in (0.0, 0.3, -1.7, 4.0, 25.0):
        assert two_sided(t, df) == pytest.approx(2 * scipy_stats.t.sf(abs(t), df), rel=1e-8)
    for share in (0.75, 0.975, 0.995):
        assert quantile(share, df) == pytest.approx(scipy_stats.t.ppf(share, df), rel=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_both_tests_are_scipys(seed):
    rng = np.random.default_rng(seed)
    ours, theirs = rng.normal(0.62, 0.01, size=5).tolist(), rng.normal(0.6, 0.03, size=5).tolist()
    paired, truth = paired_t(ours, theirs), scipy_stats.ttest_rel(ours, theirs)
    assert (paired.t, paired.p_value) == pytest.approx((truth.statistic, truth.pvalue))
    assert paired.ci == pytest.approx(tuple(truth.confidence_interval(0.95)))
    welch, truth = welch_t(ours, theirs[:3]), scipy_stats.ttest_ind(ours, theirs[:3], equal_var=False)
    assert (welch.t, welch.df, welch.p_value) == pytest.approx((truth.statistic, truth.df, truth.pvalue))
    assert welch.ci == pytest.approx(tuple(truth.confidence_interval(0.95)))


def test_one_seed_is_no_sample():
    assert paired_t([0.5], [0.4]) is None
    assert welch_t([0.5], [0.4, 0.3]) is None


def test_seeds_that_do_not_vary_have_no_p_value():
    """Greedy decoding gives every seed the same score: that is no evidence about seeds."""
    found = paired_t([0.5, 0.5, 0.5], [0.3, 0.3, 0.3])
    assert (found.p_value, found.t, found.ci) == (None, None, None)
    assert found.difference == pytest.approx(0.2)
    assert welch_t([0.5, 0.5], [0.3, 0.3, 0.3]).p_value is None


def test_unequal_lengths_are_not_paired():
    with pytest.raises(ValueError, match="zip"):
        paired_t([0.1, 0.2], [0.1, 0.2, 0.3])
