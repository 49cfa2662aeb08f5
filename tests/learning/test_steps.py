"""Arithmetic that a text writes, and whether it holds."""

import pytest

from coterie.learning.steps import steps


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12 + 3 = 15", [("12 + 3", True)]),
        ("so 12+3=16.", [("12+3", False)]),
        ("2 + 3 * 4 = 14", [("2 + 3 * 4", True)]),
        ("2 + 3 × 4 = 20", [("2 + 3 × 4", False)]),
        ("7 x 8 = 56 and 56 - 60 = -4", [("7 x 8", True), ("56 - 60", True)]),
        ("10 ÷ 4 = 2.5", [("10 ÷ 4", True)]),
        ("10 / 3 = 3.33", [("10 / 3", True)]),
        ("10 / 3 = 3.34", [("10 / 3", False)]),
        ("-3 - -4 = 1", [("-3 - -4", True)]),
        ("5 − 7 = -2", [("5 − 7", True)]),
        ("1 + 1 = 2 = 2", [("1 + 1", True)]),
        ("0.1 + 0.2 = 0.3", [("0.1 + 0.2", True)]),
        ("4 / 0 = 4", []),
        ("x = 4, f(2) = 3, 4 = 4", []),
        ("50 + 10 = 60%", []),
        ("3 + 4 is 7", []),
        ("", []),
        ("9" * 400 + " + 1 = 2", []),
    ],
)
def test_steps_of_a_text(text, found):
    assert [(step.left, step.holds) for step in steps(text)] == found
