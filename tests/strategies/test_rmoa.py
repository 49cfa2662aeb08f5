"""The greedy choice of diverse answers, by hand."""

import numpy as np
import pytest

from coterie.strategies.rmoa import diverse


def test_the_most_unlike_first_then_the_farthest_from_those_chosen():
    """Angles 0, 10, 90, 95 degrees: the mean likeness is lowest for 0 (1, .98, 0, -.09), farthest from it is 95."""
    angles = np.deg2rad([0, 10, 90, 95])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert diverse(rows, 2) == [0, 3]
    assert diverse(rows * [[3.0], [1.0], [0.5], [2.0]], 2) == [0, 3]  # lengths do not matter
    assert diverse(rows, 9) == [0, 3, 1, 2]


@pytest.mark.parametrize("rows", [np.zeros((4, 3)), np.ones((4, 3))])
def test_ties_go_to_the_earlier_and_nothing_is_taken_twice(rows):
    assert diverse(rows, 3) == [0, 1, 2]
