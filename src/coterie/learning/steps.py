"""Steps that can be checked in a text: chains of arithmetic with their stated result. It knows no gold answer."""

import re
from collections.abc import Iterator
from fractions import Fraction

from coterie.types import record

_NUMBER = r"-?\d+(?:\.\d+)?"
_OPERATOR = r"(?:[-+*/×÷−]|\bx\b)"
_CHAIN = re.compile(rf"(?<![\w.])({_NUMBER}(?:\s*{_OPERATOR}\s*{_NUMBER})+)\s*=\s*({_NUMBER})(?![\w%])(?!\.\d)")
_PART = re.compile(rf"\s*({_OPERATOR})?\s*({_NUMBER})")
_MOST = 30  # digits: what is longer is no step that a text is judged by


@record
class Step:
    """A line of arithmetic that a text writes: what stands before the equals sign, and whether its result holds."""

    left: str
    holds: bool


def steps(text: str) -> list[Step]:
    """The steps of a text, in order; `a = b = c` counts by its first result."""
    found = []
    for match in _CHAIN.finditer(text):
        value = _value(match[1])
        if value is not None and len(match[2]) <= _MOST:
            found.append(Step(left=match[1], holds=_close(value, match[2])))
    return found


def _close(value: Fraction, stated: str) -> bool:
    """Whether the stated result is the value, rounded to as many places as it has."""
    places = len(stated.partition(".")[2])
    return abs(value - Fraction(stated)) <= (Fraction(1, 2 * 10**places) if places else 0)


def _value(chain: str) -> Fraction | None:
    """The value of a chain, products before sums; None for a division by zero and for what is too long."""
    if len(chain) > 4 * _MOST:
        return None
    terms: list[Fraction] = []
    for sign, number in _signed(chain):
        if sign == "/" and not number:
            return None
        if sign in "*/":
            terms[-1] = terms[-1] * number if sign == "*" else terms[-1] / number
        else:
            terms.append(-number if sign == "-" else number)
    return sum(terms, Fraction(0))


def _signed(chain: str) -> Iterator[tuple[str, Fraction]]:
    place = 0
    first = re.match(_NUMBER, chain)
    if first is not None:
        yield "+", Fraction(first[0])
        place = first.end()
    for match in _PART.finditer(chain, place):
        sign = {"×": "*", "x": "*", "÷": "/", "−": "-"}.get(match[1] or "+", match[1] or "+")
        yield sign, Fraction(match[2])
