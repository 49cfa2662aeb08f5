"""Exact values of written rational numbers: 1/2004!, 3.50, 0.\\overline{3}, (2^{2005}+1)/(3\\cdot2^{2006}).

Reads what `math_text.tidy` writes. Anything that is not certainly rational has no value here.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

_BITS = 32_768
_FACTORIAL = 3_000
_DEPTH = 60
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<repeat>\\overline\{[0-9]+\})?(?P<exponent>[eE][+-]?[0-9]{1,5})?"
    r"|(?P<symbol>\\frac|\\sqrt|\\cdot|[-+/^!%(){}]))"
)


class Inexact(Exception):
    """No exact rational value is known."""


@dataclass(frozen=True)
class Huge:
    """A whole number beyond every bound here: different from any value that is written out."""


Value = Fraction | Huge


def rational(text: str) -> Value | None:
    """The value of `text`, or None where it is not an exact rational within bounds."""
    try:
        return _Reader(_tokens(text)).whole()
    except (Inexact, ZeroDivisionError):
        return None


def _tokens(text: str) -> list[str | Fraction]:
    found: list[str | Fraction] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Inexact
        found.append(match["symbol"] or _number(match))
        position = match.end()
    return found


def _number(match: re.Match[str]) -> Fraction:
    digits, repeat, exponent = match["number"], match["repeat"], int((match["exponent"] or "e0")[1:])
    if len(digits) > 4_000 or abs(exponent) > 4_000:
        raise Inexact
    value = Fraction(digits.removesuffix(".") if digits != "." else "0")
    if repeat:
        period = repeat[len(r"\overline{") : -1]
        places = len(digits.partition(".")[2])
        if "." not in digits or len(period) > 100:
            raise Inexact
        value += Fraction(int(period), (10 ** len(period) - 1) * 10**places)
    return value * Fraction(10) ** exponent


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _BITS:
        raise Inexact
    return value


def _fraction(value: Value) -> Fraction:
    if isinstance(value, Huge):
        raise Inexact
    return value


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, Huge) or isinstance(exponent, Huge):
        small = isinstance(base, Fraction) and (base.denominator != 1 or abs(base) < 2)
        if small or (isinstance(exponent, Fraction) and (exponent.denominator != 1 or exponent < 1)):
            raise Inexact
        return Huge()
    if exponent.denominator != 1:
        return _root(base, exponent)
    size = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent.numerator)
    if size <= _BITS:
        return base**exponent.numerator
    if base in (0, 1, -1) and exponent > 0:
        return base if base != -1 else Fraction(1 - 2 * (exponent.numerator % 2))
    if base.denominator == 1 and exponent > 0 and (abs(base.numerator).bit_length() - 1) * exponent > _BITS:
        return Huge()
    raise Inexact


def _root(base: Fraction, exponent: Fraction) -> Fraction:
    """Only square roots of squares are read here."""
    if exponent.denominator != 2 or base < 0 or abs(exponent.numerator) > 64:
        raise Inexact
    root = Fraction(math.isqrt(base.numerator), math.isqrt(base.denominator))
    if root * root != base:
        raise Inexact
    return _bounded(root**exponent.numerator)


def _factorial(value: Value) -> Value:
    if isinstance(value, Fraction) and (value.denominator != 1 or value < 0):
        raise Inexact
    if isinstance(value, Huge) or value > _FACTORIAL:
        return Huge()
    return Fraction(math.factorial(value.numerator))


class _Reader:
    """Recursive descent over the tokens; multiplication may be left out before a bracket, root or fraction."""

    def __init__(self, tokens: list[str | Fraction]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    def whole(self) -> Value:
        value = self.sum()
        if self.at != len(self.tokens):
            raise Inexact
        return value

    def peek(self) -> str | Fraction | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, symbol: str) -> bool:
        found = self.peek() == symbol
        self.at += found
        return found

    def sum(self) -> Value:
        self.depth += 1
        if self.depth > _DEPTH:
            raise Inexact
        value = self.product()
        while (sign := self.peek()) in ("+", "-"):
            self.at += 1
            term = _fraction(self.product())
            value = _bounded(_fraction(value) + (term if sign == "+" else -term))
        self.depth -= 1
        return value

    def product(self) -> Value:
        value, divided = self.signed(), False
        while True:
            if self.take(r"\cdot"):
                value = _bounded(_fraction(value) * _fraction(self.signed()))
            elif self.take("/"):
                value, divided = _bounded(_fraction(value) / _fraction(self.signed())), True
            elif self.peek() in ("(", "{", r"\frac", r"\sqrt"):
                if divided:  # 1/2(3) is read both ways
                    raise Inexact
                value = _bounded(_fraction(value) * _fraction(self.power()))
            else:
                return value

    def signed(self) -> Value:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.peek() == "-"
            self.at += 1
        value = self.power()
        return -value if negative and isinstance(value, Fraction) else value

    def power(self) -> Value:
        value = self.postfix()
        if self.take("^"):
            return _power(value, self.group("{", "}"))
        return value

    def postfix(self) -> Value:
        value = self.atom()
        while (sign := self.peek()) in ("!", "%"):
            self.at += 1
            if sign == "!" and self.peek() == "!":  # the double factorial is another function
                raise Inexact
            value = _factorial(value) if sign == "!" else _fraction(value) / 100
        return value

    def atom(self) -> Value:
        token = self.peek()
        self.at += 1
        if isinstance(token, Fraction):
            return token
        if token == r"\frac":
            return _bounded(_fraction(self.group("{", "}")) / _fraction(self.group("{", "}")))
        if token == r"\sqrt":
            return _root(_fraction(self.group("{", "}")), Fraction(1, 2))
        self.at -= 1
        return self.group("(", ")") if token == "(" else self.group("{", "}")

    def group(self, opening: str, closing: str) -> Value:
        if not self.take(opening):
            raise Inexact
        value = self.sum()
        if not self.take(closing):
            raise Inexact
        return value
