"""Intervals and the paired test against values derived by hand or by another way of counting."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.evaluation import stats
from coterie.evaluation.stats import (
    accuracy_interval,
    binomial_test,
    cohens_h,
    holm,
    mcnemar,
    mean_interval,
    odds_ratio,
    paired_interval,
    paired_test,
    wilson,
)

CELLS = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0]))


def test_no_value_has_no_interval():
    assert all(math.isnan(end) for end in mean_interval([]))
    assert all(math.isnan(end) for end in accuracy_interval([]))
    assert all(math.isnan(end) for end in wilson(0, 0))


def test_one_value_and_equal_values_are_their_own_interval():
    assert mean_interval([0.3]) == (0.3, 0.3)
    assert mean_interval([0.5] * 7) == (0.5, 0.5)


def test_bootstrap_of_a_proportion_is_near_the_normal_interval():
    """Half width 1.96 * sqrt(0.4 * 0.6 / 400) = 0.048."""
    lo, hi = mean_interval([1.0] * 160 + [0.0] * 240)
    assert lo == pytest.approx(0.4 - 0.048, abs=0.006)
    assert hi == pytest.approx(0.4 + 0.048, abs=0.006)


def test_bootstrap_of_scores_is_near_the_normal_interval():
    values = np.random.default_rng(0).uniform(size=500)
    half = 1.96 * values.std() / np.sqrt(500)
    lo, hi = mean_interval(values.tolist())
    assert (lo, hi) == (
        pytest.approx(values.mean() - half, abs=half / 5),
        pytest.approx(values.mean() + half, abs=half / 5),
    )


def test_a_wider_level_is_wider():
    values = [0.0, 1.0, 1.0, 0.0, 1.0, 0.5, 0.25, 1.0]
    narrow, wide = mean_interval(values, level=0.5), mean_interval(values, level=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_interval_is_seeded_and_blind_to_order():
    values = [0.0] * 13 + [1.0] * 20 + [0.5] * 4
    assert mean_interval(values, seed=3) == mean_interval(values[::-1], seed=3)
    assert mean_interval(values, resamples=500, seed=3) != mean_interval(values, resamples=500, seed=4)


def test_blocks_change_nothing_but_memory(monkeypatch):
    values = np.random.default_rng(1).uniform(size=50).tolist()
    whole = mean_interval(values, resamples=2000)
    monkeypatch.setattr(stats, "BLOCK", 50 * 64)
    assert mean_interval(values, resamples=2000) == pytest.approx(whole)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    samples = [rng.binomial(1, 0.3, size=60).astype(float).tolist() for _ in range(300)]
    covered = [lo <= 0.3 <= hi for lo, hi in (mean_interval(s, resamples=2000) for s in samples)]
    assert 0.90 <= np.mean(covered) <= 0.99


def test_wilson_against_published_values():
    """10 of 20: 0.2993 to 0.7007; 0 of 10: 0 to 0.2775 (Newcombe 1998)."""
    assert wilson(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10)[1] == 1.0


def test_all_right_is_no_certainty():
    lo, hi = accuracy_interval([1.0] * 5)
    assert hi == 1.0
    assert 0.5 < lo < 0.6
    assert accuracy_interval([0.0] * 5)[0] == 0.0
    assert accuracy_interval([0.5] * 5) == (0.5, 0.5)


def test_binary_pairs_give_mcnemars_exact_test():
    """8 wins, 2 losses: 2 * (1 + 10 + 45) / 1024 = 0.109375; equal pairs do not count."""
    ours = [True] * 8 + [False] * 2 + [True] * 30
    theirs = [False] * 8 + [True] * 2 + [True] * 30
    found = paired_test(ours, theirs)
    assert found.p_value == pytest.approx(0.109375)
    assert (found.n, found.wins, found.losses, found.dropped) == (40, 8, 2, 0)
    assert found.difference == pytest.approx(6 / 40)


def test_scores_are_tested_exactly_while_few():
    """Differences 1, 2, 3 have the most extreme sums for 2 of 8 sign patterns."""
    assert paired_test([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]).p_value == pytest.approx(0.25)


def test_random_signs_agree_with_all_signs(monkeypatch):
    rng = np.random.default_rng(2)
    ours, theirs = rng.uniform(size=14).tolist(), (rng.uniform(size=14) - 0.2).tolist()
    exact = paired_test(ours, theirs).p_value
    monkeypatch.setattr(stats, "EXACT", 0)
    assert paired_test(ours, theirs, resamples=20_000).p_value == pytest.approx(exact, abs=0.012)


def test_a_sampled_p_value_is_never_zero():
    ours = [1 + i / 100 for i in range(60)]
    assert paired_test(ours, [0.0] * 60, resamples=999).p_value == pytest.approx(1 / 1000)


def test_missing_sides_are_dropped_and_counted():
    """R23: an outage on one side is no loss of it."""
    found = paired_test([1.0, None, 1.0, None], [0.0, 1.0, None, None])
    assert (found.n, found.dropped, found.wins, found.losses) == (1, 3, 1, 0)


def test_no_pair_has_no_p_value():
    found = paired_test([None, 1.0], [1.0, None])
    assert (found.p_value, found.difference, found.dropped) == (None, None, 2)
    assert paired_test([], []).p_value is None


def test_equal_sides_give_one():
    assert paired_test([1.0, 0.0, 0.5], [1.0, 0.0, 0.5]).p_value == 1.0


def test_sides_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="zip"):
        paired_test([1.0], [1.0, 0.0])


def test_binomial_test_of_many_flips_is_near_the_normal_one():
    """z = (5150 - 5000 - 0.5) / 50 = 2.99, p = 0.00279."""
    assert binomial_test(5150, 10_000) == pytest.approx(0.00279, rel=0.02)
    assert binomial_test(0, 0) == 1.0


@given(st.lists(st.tuples(CELLS, CELLS), max_size=24))
def test_the_test_is_symmetric_and_a_probability(pairs):
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    here, there = paired_test(ours, theirs, resamples=200), paired_test(theirs, ours, resamples=200)
    assert here.n == there.n
    assert (here.wins, here.losses) == (there.losses, there.wins)
    assert here.n + here.dropped == len(pairs)
    assert (here.p_value is None) == (here.n == 0)
    if here.p_value is not None:
        assert 0 < here.p_value <= 1


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=30))
def test_an_interval_of_accuracies_stays_in_range_and_holds_the_mean(values):
    lo, hi = accuracy_interval(values, resamples=2000)
    assert 0.0 <= lo <= np.mean(values) + 1e-12
    assert np.mean(values) - 1e-12 <= hi <= 1.0


def test_the_paired_interval_is_of_the_difference_and_not_of_two_means():
    """Ours is always 0.03 above theirs: the pairs hardly vary, however much the queries do."""
    rng = np.random.default_rng(3)
    theirs = rng.uniform(0, 0.9, size=200)
    ours = theirs + 0.03 + rng.normal(0, 0.01, size=200)
    lo, hi = paired_interval((ours - theirs).tolist())
    assert 0.02 < lo < 0.03 < hi < 0.04
    assert mean_interval(ours.tolist())[0] < mean_interval(theirs.tolist())[1]


def test_paired_binary_differences_are_near_the_normal_interval():
    """30 wins, 10 losses of 200: 0.1 with variance 0.2 - 0.01, half width 1.96 * sqrt(0.19 / 200) = 0.0604."""
    lo, hi = paired_interval([1.0] * 30 + [-1.0] * 10 + [0.0] * 160)
    assert (lo, hi) == (pytest.approx(0.1 - 0.0604, abs=0.006), pytest.approx(0.1 + 0.0604, abs=0.006))


def test_equal_pairs_are_no_certainty():
    """Wilson's upper end for 0 of 20 is 0.1611: so many pairs may differ, each by 1 at most."""
    assert paired_interval([0.0] * 20) == pytest.approx((-0.1611, 0.1611), abs=1e-4)
    assert paired_interval([1.0] * 20) == pytest.approx((1 - 2 * 0.1611, 1.0), abs=1e-4)
    assert paired_interval([-1.0] * 20) == pytest.approx((-1.0, 2 * 0.1611 - 1), abs=1e-4)
    assert all(math.isnan(end) for end in paired_interval([]))


def test_mcnemar_exact_and_mid_p_by_hand_and_against_scipy():
    """8 wins, 2 losses: exact 112 / 1024; the mid-p takes off P(X = 2) = 45 / 1024."""
    binomtest = pytest.importorskip("scipy.stats").binomtest
    assert mcnemar(8, 2) == pytest.approx(112 / 1024)
    assert mcnemar(8, 2, mid=True) == pytest.approx(67 / 1024)
    assert mcnemar(3, 3) == mcnemar(3, 3, mid=True) == mcnemar(0, 0) == 1.0
    for wins, losses in ((1, 0), (40, 21), (500, 590)):
        assert mcnemar(wins, losses) == pytest.approx(binomtest(wins, wins + losses).pvalue)
    assert 0 < mcnemar(3000, 2500, mid=True) < mcnemar(3000, 2500)


def test_holm_by_hand():
    """0.01 * 4, 0.03 * 3, 0.04 * 2 which is less than its predecessor, 0.6; a None is no member of the family."""
    assert holm([0.04, 0.01, None, 0.6, 0.03]) == pytest.approx([0.09, 0.04, None, 0.6, 0.09])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_never_helps(p_values):
    adjusted = holm(p_values)
    assert all(a >= p for a, p in zip(adjusted, p_values, strict=True))
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_effect_sizes_by_hand():
    """h of 0.5 and 0: 2 asin(sqrt(0.5)) = pi / 2."""
    assert cohens_h(0.5, 0.0) == pytest.approx(math.pi / 2)
    assert cohens_h(0.2, 0.7) == -cohens_h(0.7, 0.2)
    assert odds_ratio(6, 3) == 2.0
    assert odds_ratio(6, 0) is None
