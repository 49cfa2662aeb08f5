"""Math-Verify in child processes that can be killed: the only place that runs symbolic code for `math`.

Asked only what `math_equality` cannot decide. The processes are `worker`'s.
"""

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

from coterie.errors import MissingExtra
from coterie.tasks.math_equality import Undecided
from coterie.tasks.worker import CHILDREN, Crew, Unanswered, children, kept

_ALARM = 5  # seconds that Math-Verify gives itself for each parse and each comparison
_WALL = 4.0 * _ALARM


def available() -> bool:
    """Whether Math-Verify is installed; importing it is left to the children."""
    return importlib.util.find_spec("math_verify") is not None


class Prover(Crew):
    """Children that hold two expressions for equal or not."""

    def __init__(self, size: int = CHILDREN, *, wall: float = _WALL) -> None:
        super().__init__("coterie.tasks.math_worker:decider", size, wall)

    def prove(self, reference: str, answer: str) -> bool:
        """Whether Math-Verify holds two expressions for equal. Raises Undecided, also after `wall` seconds."""
        if not available():
            raise Undecided(str(MissingExtra("math-verify", "tasks")))
        try:
            reply = self.ask(reference, answer)
        except Unanswered as error:
            raise Undecided(str(error)) from error
        if isinstance(reply, str):
            raise Undecided(reply)
        return bool(reply)


@cache
def prover() -> Prover:
    """The prover of this process."""
    return kept(Prover(children()))


# --- the child's side --------------------------------------------------------------------------------

_EXPECTED = (
    ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RuntimeError, AssertionError, MemoryError,
    SyntaxError,
)  # fmt: skip


def decider() -> Callable[[str, str], bool | str]:
    """The work: true, false, or a text that says why neither."""
    from math_verify import LatexExtractionConfig, parse, verify
    from math_verify.errors import TimeoutException

    def read(text: str) -> list[Any]:
        found: list[Any] = parse(
            f"${text}$",
            [LatexExtractionConfig()],
            fallback_mode="no_fallback",
            parsing_timeout=_ALARM,
            raise_on_error=True,
        )
        return found

    def decide(reference: str, answer: str) -> bool | str:
        try:
            gold, given = read(reference), read(answer)
            if not gold:
                return "Math-Verify cannot read the reference"
            if not given:
                return False
            return verify(gold, given, timeout_seconds=_ALARM, raise_on_error=True) or _same_function(gold, given)
        except TimeoutException:
            return f"no decision within Math-Verify's {_ALARM} s"
        except _EXPECTED as error:
            return f"Math-Verify failed: {type(error).__name__}"

    return decide


_POINTS = ((7, 5), (-7, 5), (13, 11), (3, 17), (-3, 17), (29, 3), (-29, 3), (101, 7))


def _same_function(gold: list[Any], given: list[Any]) -> bool:
    """Equal as real functions: sqrt(1/n) and 1/sqrt(n), which sympy keeps apart as complex ones.

    Compared at eight rational points of each sign and several sizes; where one side is real the other must be.
    """
    from sympy import Expr, Rational

    a, b = gold[0], given[0]
    if not isinstance(a, Expr) or not isinstance(b, Expr) or a.free_symbols != b.free_symbols:
        return False
    names = sorted(a.free_symbols, key=str)
    if not 0 < len(names) <= 3:
        return False
    seen = 0
    for p, q in _POINTS:
        point = {name: Rational(p + i, q) for i, name in enumerate(names)}
        x, y = complex(a.subs(point).evalf(25)), complex(b.subs(point).evalf(25))
        real = [abs(value.imag) <= 1e-15 * (1 + abs(value)) for value in (x, y)]
        if real[0] != real[1] or (real[0] and abs(x - y) > 1e-12 * (1 + abs(x))):
            return False
        seen += real[0]
    return seen >= 3
