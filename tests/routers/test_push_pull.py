"""The familiarity objective against values derived by hand."""

import math

import numpy as np
import pytest
import torch

from coterie.routers.push_pull import familiarity, push_pull, relative_advantage, smallest_margin

NAN = float("nan")


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, 0.0], [0.5, -0.5]),
        ([1.0, 0.0, NAN], [0.5, -0.5, NAN]),
        ([1.0, 1.0, 0.0], [1 / 3, 1 / 3, -2 / 3]),
        ([0.25, NAN, NAN], [0.25, NAN, NAN]),
        ([NAN, -0.5, NAN], [NAN, 0.0, NAN]),
        ([0.1, 0.1, 0.1], [0.0, 0.0, 0.0]),
        ([0.0, 0.0, NAN], [0.0, 0.0, NAN]),
        ([NAN, NAN, NAN], [NAN, NAN, NAN]),
    ],
)
def test_relative_advantage(scores, expected):
    """Eq. 9, solo rule C13; R23: a missing outcome is neither 0 nor part of the mean; R18: no direction."""
    np.testing.assert_allclose(relative_advantage(np.array([scores])), [expected], atol=1e-12)


def test_equal_scores_give_exactly_zero_despite_rounding():
    """R18: 0.1 + 0.1 + 0.1 is not 0.3 in floating point, and a residue of 1e-17 must not become a direction."""
    found = relative_advantage(np.full((1, 7), 0.1))
    assert (found == 0).all()


def test_loss_and_gradient_by_hand():
    """Margin 1. Pull 0.5*0.5 = 0.25; push 0.25*(1-0.4) = 0.15; 1.2 is beyond the margin: 0. Sum 0.4.

    d/dd: +0.5 (advantage), -0.25 (-|advantage|), 0.
    """
    distance = torch.tensor([[0.5, 0.4, 1.2]], requires_grad=True)
    loss = push_pull(distance, torch.tensor([[0.5, -0.25, -0.25]]), 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.4)
    torch.testing.assert_close(distance.grad, torch.tensor([[0.5, -0.25, 0.0]]))


def test_loss_is_a_sum_over_pairs():
    """C24: two queries cost the sum of both."""
    d, a = torch.tensor([[0.5, 0.4], [1.0, 0.2]]), torch.tensor([[0.5, -0.5], [1.0, -1.0]])
    each = [push_pull(d[i : i + 1], a[i : i + 1], 1.0).item() for i in range(2)]
    assert each == pytest.approx([0.25 + 0.3, 1.0 + 0.8])
    assert push_pull(d, a, 1.0).item() == pytest.approx(sum(each))


def test_missing_outcomes_cost_nothing_and_carry_no_gradient():
    """R23."""
    distance = torch.tensor([[0.5, 0.9]], requires_grad=True)
    push_pull(distance, torch.tensor([[0.5, NAN]]), 1.0).backward()
    torch.testing.assert_close(distance.grad, torch.tensor([[0.5, 0.0]]))


def test_a_failure_at_the_start_is_left_alone():
    """C11: distances begin near 1.41, beyond the margin, so only successes train."""
    distance = torch.tensor([[1.41, 1.41]], requires_grad=True)
    push_pull(distance, torch.tensor([[0.5, -0.5]]), 1.0).backward()
    torch.testing.assert_close(distance.grad, torch.tensor([[0.5, 0.0]]))


def test_familiarity_range():
    """exp(-2 d) on [0, 2]: 1 down to e^-4 = 0.0183."""
    found = familiarity(torch.tensor([0.0, 1.0, 2.0]), 2.0)
    torch.testing.assert_close(found, torch.tensor([1.0, math.exp(-2), math.exp(-4)]))


@pytest.mark.parametrize(("agents", "expected"), [(4, 0.871), (3, 0.728)])
def test_smallest_margin(agents, expected):
    """docs/methods.md, margin rule: at the margin all agents together just reach the threshold."""
    margin = smallest_margin(agents, 0.7, 2.0)
    assert margin == pytest.approx(expected, abs=5e-4)
    assert agents * math.exp(-2 * margin) == pytest.approx(0.7)
