"""Which answers a reasoning-gym scorer may see: some of them run the answer as code. Judges form, not truth."""

import ast
import math
import re

LONGEST = 20_000
EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
ARITHMETIC = frozenset({"countdown", "puzzle24"})
ALGEBRA = frozenset({"intermediate_integration", "polynomial_multiplication", "simple_integration"})
FUNCTIONS = "Abs acos asin atan cos cosh cot csc exp log sec sin sinh sqrt tan tanh"
LARGEST = 1000


def unfit(dataset: str, answer: str) -> str:
    """Why the scorer of `dataset` must not see this answer; empty if it may.

    reasoning-gym 0.1.25 passes answers to `eval` (EVALUATED) and to sympy's `parse_expr`, which evaluates
    (ARITHMETIC, ALGEBRA): only literals, and expressions of bounded size without calls, get through.
    """
    if len(answer) > LONGEST:
        return "the answer is far too long"
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
        tree = ast.parse(text.strip(), mode="eval")
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
    if len(text) > 500 or text.count("(") > 40:
        return False
    try:
        return _digits(ast.parse(text.strip(), mode="eval").body) <= LARGEST
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
