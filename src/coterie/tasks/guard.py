"""What is known of reasoning-gym's scorers: which only compare, which answers they would run as code, and which
pass wrong answers (those data sets are graded here). Versions: reasoning-gym 0.1.25.
"""

import ast
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from coterie.tasks.syntax import parsed

LONGEST = 20_000
EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
ARITHMETIC = frozenset({"countdown", "puzzle24"})
ALGEBRA = frozenset({"intermediate_integration", "polynomial_multiplication", "simple_integration"})
COMPARED = frozenset(
    {
        "ab",
        "chain_sum",
        "circuit_logic",
        "decimal_chain_sum",
        "dice",
        "family_relationships",
        "path_star",
        "products",
    }
    | {"self_reference", "spell_backward", "zebra_puzzles"}
)
"""Data sets whose own scorer is, as read in its source, one comparison: of texts, or of two `Decimal`s."""

FUNCTIONS = "Abs acos asin atan cos cosh cot csc exp log sec sin sinh sqrt tan tanh"
LARGEST = 1000


def unfit(dataset: str, answer: str) -> str:
    """Why the scorer of `dataset` must not see this answer; empty if it may.

    Answers go to `eval` (EVALUATED) and to sympy's `parse_expr`, which evaluates (ARITHMETIC, ALGEBRA): only
    literals, and expressions of bounded size, get through. A distance from NaN counts as none in
    complex_arithmetic.
    """
    if len(answer) > LONGEST:
        return "the answer is far too long"
    if dataset == "complex_arithmetic" and re.search(r"nan|inf", answer, re.IGNORECASE):
        return "the answer is not a finite number"
    if dataset in EVALUATED and not _is_data(answer):
        return "the answer is neither the asked text nor plain data"
    if dataset in ARITHMETIC and not re.fullmatch(r"(?!.*\*\s*\*)[\d\s+*/().-]{1,300}", answer.strip()):
        return "the answer is not an arithmetic expression"
    if dataset in ALGEBRA and not _is_algebra(answer):
        return "the answer is not an algebraic expression of reasonable size"
    return ""


def _is_data(text: str) -> bool:
    """Whether evaluating the text is harmless: a literal, or no Python expression at all."""
    try:
        tree = parsed(text.strip(), "eval")
    except (SyntaxError, ValueError):
        return True
    except (MemoryError, RecursionError):
        return False
    try:
        ast.literal_eval(tree)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_algebra(text: str) -> bool:
    # An exponent such as 1e99999999 is a small float here and a huge number to sympy.
    if len(text) > 500 or text.count("(") > 40 or re.search(r"[\d.]e[+-]?\d", text, re.IGNORECASE):
        return False
    try:
        return _digits(parsed(text.strip(), "eval").body) <= LARGEST
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False


def _digits(node: ast.AST) -> float:
    """An upper bound of the digits of any number within; ValueError for all that is not elementary algebra."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return len(str(value))
        case ast.Name(id=name) if len(name) == 1 or name == "pi":
            return 1
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=inner):
            return _digits(inner)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _digits(left) * _exponent(right)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return _digits(left) + _digits(right)
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in FUNCTIONS.split():
            return _digits(inner)
        case _:
            raise ValueError("not elementary algebra")


def _exponent(node: ast.AST) -> float:
    """The factor by which raising to this power lengthens a number."""
    size = _digits(node)
    numbers = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
    if size > 6 or any(isinstance(number, int | float) and abs(number) > 100 for number in numbers):
        raise ValueError("too large an exponent")
    return math.prod(max(float(number), 1.0) for number in numbers if isinstance(number, int | float))


# --- data sets whose scorer passes wrong answers ------------------------------------------------------


def _halting(answer: str, entry: Mapping[str, Any]) -> bool:
    """The same word. The scorer compares truth values of texts, and any text is true."""
    return answer.strip(" .*`").casefold() == str(entry["answer"]).casefold()


def _probability(answer: str, entry: Mapping[str, Any]) -> bool:
    """Within 1e-4. The scorer passes every prefix of the right digits, `0` among them."""
    if len(answer) > 60 or re.search(r"e[+-]?\d{3}", answer, re.IGNORECASE):
        return False  # 1e99999999 as a fraction fills the memory
    try:
        return abs(Fraction(answer.replace(",", "").strip()) - Fraction(entry["answer"])) <= Fraction(1, 10_000)
    except (ValueError, ZeroDivisionError):
        return False


def _twenty_four(answer: str, entry: Mapping[str, Any]) -> bool:
    """Exactly 24 from exactly the given numbers. The scorer takes any four numbers, and 24.9 for 24."""
    numbers = sorted(int(number) for number in re.findall(r"\d+", answer))
    if numbers != sorted(entry["metadata"]["numbers"]):
        return False
    try:
        return _value(parsed(answer.strip(), "eval").body) == 24
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return False


def _value(node: ast.AST) -> Fraction:
    match node:
        case ast.Constant(value=int() as value):
            return Fraction(value)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _value(left) / _value(right)
        case _:
            raise ValueError("not arithmetic")


REGRADED: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "coin_flip": _probability,
    "game_of_life_halting": _halting,
    "puzzle24": _twenty_four,
}
"""Whether an answer is right, for the data sets that are graded here."""
