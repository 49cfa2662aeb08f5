"""The length penalty of Eq. 12/28."""

import pytest

from coterie.tasks.reward import length_penalty


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0.0), (800, 0.0), (900, 0.5), (1000, 1.0), (5000, 1.0)],
)
def test_penalty_grows_linearly_between_gamma_and_the_limit(length, penalty):
    """By hand for limit 1000, gamma 0.8: (900 - 800) / 200 = 0.5."""
    assert length_penalty(length, 1000) == pytest.approx(penalty)


def test_eta_scales_and_gamma_moves_the_start():
    assert length_penalty(1000, 1000, eta=0.2) == pytest.approx(0.2)
    assert length_penalty(750, 1000, gamma=0.5) == pytest.approx(0.5)


@pytest.mark.parametrize(("limit", "gamma"), [(0, 0.8), (-1, 0.8), (10, 1.0), (10, -0.1)])
def test_settings_outside_their_range_are_refused(limit, gamma):
    with pytest.raises(ValueError, match="must be"):
        length_penalty(1, limit, gamma=gamma)
