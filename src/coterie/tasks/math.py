"""Grading and comparing mathematical answers. The equivalence itself is `math_equality.equal`.

What exact rules cannot decide goes to Math-Verify in a child process, which starts at the first such question.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from coterie.tasks.extract import boxes, last_box
from coterie.tasks.math_equality import Undecided, equal
from coterie.tasks.math_forms import Form, read
from coterie.tasks.math_text import tidy
from coterie.tasks.math_worker import prover
from coterie.types import Score

_LONGEST = 2_000
_PROVABLE = 1_500
_KNOWN = r"""
frac sqrt cdot pi pm mp infty leq geq neq in cup cap emptyset sin cos tan cot sec csc arcsin arccos arctan sinh cosh
tanh log ln exp lg circ binom min max gcd lfloor rfloor lceil rceil sum prod int lim to pmod bmod alpha beta gamma
delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho sigma tau phi varphi chi psi omega Gamma
Delta Theta Lambda Sigma Phi Psi Omega begin end
"""
_PLAIN = re.compile(r"[-+]?[0-9.]+(?:/[0-9]+)?")
_TIMES = re.compile(r"\\times|\\cdot|×|·|\*+")
_POWER_OF_TEN = re.compile(r"(?:[0-9.]+\s*\*\s*)?\b10\s*\^\s*(?:\{[-+−]?[0-9]+\}|[-+−]?[0-9]+)")
_LEFT_TO_DO = re.compile(r"[0-9)}]\s*[-+−*]\s*[0-9.({\\]|[0-9)]\s*(?:\^\s*\{?\s*[-+−0-9]|!)|\\(?:sqrt|d?binom)\b")
_COMMANDS = frozenset(_KNOWN.split())


def verify(answer: str | None, text: str, reference: Mapping[str, Any]) -> Score:
    """Grade `answer`, extracted from `text`, against `reference["answer"]`.

    A missing answer fails. Two different boxes in one text fail even if the last is right. Where the reference is
    a plain number, what is left to be worked out fails too: `3 + 4` answers no question for 7. `error`, never
    `fail`, where the reference is unusable, time runs out or the `tasks` extra is needed and absent.
    """
    gold = str(reference.get("answer") or "").strip() if reference.get("answer") != 0 else "0"
    if not gold:
        return Score(verdict="error", value=None, answer=answer, reason="the reference holds no answer")
    if answer is None or not answer.strip():
        return Score(verdict="fail", value=0.0, answer=None, reason="no answer")
    try:
        if not _equal(gold, answer):
            return Score(verdict="fail", value=0.0, answer=answer, reason="not equal to the reference")
        if not _worked_out(gold, answer):
            return Score(
                verdict="fail", value=0.0, answer=answer, reason="equal to the reference, but not worked out"
            )
        if not _one_box(answer, text):
            return Score(verdict="fail", value=0.0, answer=answer, reason="several different boxed answers")
    except Undecided as error:
        return Score(verdict="error", value=None, answer=answer, reason=str(error))
    return Score(verdict="pass", value=1.0, answer=answer)


def same(a: str, b: str) -> bool:
    """Whether two answers count as one vote: the rules of `verify`, symmetric; undecided is different."""
    try:
        return _equal(*sorted((a, b), key=lambda text: (len(text), text)))
    except Undecided:
        return False


def _worked_out(gold: str, answer: str) -> bool:
    """Whether an equal answer is a number where the reference is one. Behind an equals sign stands what counts; a
    power of ten is a way to write a number.
    """
    if not _PLAIN.fullmatch(tidy(gold)):
        return True
    result = _TIMES.sub("*", answer.rpartition("=")[2])
    return not _LEFT_TO_DO.search(_POWER_OF_TEN.sub("1", result))


def _one_box(answer: str, text: str) -> bool:
    """Whether all boxes of the text that the answer was read from agree."""
    found = boxes(text)
    if len(found) < 2 or last_box(text) != answer:
        return True
    return all(_equal(answer, other) for other in set(found) - {answer})


def _equal(gold: str, answer: str) -> bool:
    """Raises Undecided."""
    if gold == answer:
        return True
    if max(len(gold), len(answer)) > _LONGEST:
        return False
    return equal(_read(gold), _read(answer), _prove)


@lru_cache(maxsize=2048)
def _read(text: str) -> Form:
    return read(text)


@lru_cache(maxsize=4096)
def _prove(gold: str, answer: str) -> bool:
    """Ask Math-Verify, with texts that its grammar reads to the end. Raises Undecided."""
    if len(gold) > _PROVABLE or not _legible(gold):
        raise Undecided("the reference is no expression that can be compared")
    return len(answer) <= _PROVABLE and _legible(answer) and prover().prove(gold, answer)


def _legible(text: str) -> bool:
    r"""Whether Math-Verify reads all of `text`: it stops without a word at what it does not know."""
    commands = re.findall(r"\\([A-Za-z]+)", text)
    rest = re.sub(r"\\(?:[A-Za-z]+|\\|[{}])|(?<=[A-Za-z])_\{[0-9A-Za-z]+\}", "", text)
    if not set(commands) <= _COMMANDS or re.search(r"[^0-9A-Za-z+\-/^(){}\[\]|=<>!.,'&% ]|[A-Za-z]{4}", rest):
        return False
    return all(text.count(a) == text.count(b) for a, b in ("{}", "()", "[]") if "," not in text)
