"""Short answers: normalised exact match, token F1, and Python literals compared by value and type."""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.tasks.syntax import literal_value
from coterie.types import Score

_LONGEST = 20_000
_TRIMMED = " \t.'\""
_DEEPEST = 60
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset(("yes", "no", "noanswer"))


def verify(answer: str | None, text: str, reference: Mapping[str, Any]) -> Score:
    """Grade `answer` against any of `reference["answers"]` by `reference["metric"]`.

    None and `f1`: SQuAD's normalised exact match decides; the value is token F1 for `f1`, else 1 or 0 with
    F1 in the reason. `exact`: equal after `general`. `python_literal`: equal values of equal types.
    A missing answer fails; `error` for a reference without answers or with an unknown metric.
    """
    accepted = reference.get("answers") or ()
    answers = [accepted] if isinstance(accepted, str) else [str(gold) for gold in accepted]
    metric = reference.get("metric")
    matches = _METRICS.get(metric)
    if not answers or matches is None:
        reason = f"unknown metric {metric!r}" if answers else "the reference holds no answer"
        return Score(verdict="error", value=None, answer=answer, reason=reason)
    if metric == "python_literal":
        answer = _written(answer, text)
    if answer is None or not answer.strip():
        return Score(verdict="fail", value=0.0, answer=None, reason="no answer")
    if len(answer) > _LONGEST:
        return Score(verdict="fail", value=0.0, answer=answer[:200], reason=f"longer than {_LONGEST} characters")
    return _score(any(matches(answer, gold) for gold in answers), answer, answers, metric)


def _score(passed: bool, answer: str, answers: Sequence[str], metric: str | None) -> Score:
    overlap = f1(answer, answers)
    value = overlap if metric == "f1" and not passed else float(passed)
    reason = "" if passed else f"F1 {overlap:.2f}" if metric in (None, "f1") else "not equal to the reference"
    return Score(verdict="pass" if passed else "fail", value=value, answer=answer, reason=reason)


def same(a: str, b: str) -> bool:
    """Whether two answers count as one vote: equal literals where both are written as literals, else equal
    text after normalisation."""
    if max(len(a), len(b)) > _LONGEST:
        return a == b
    x, y = literal(a), literal(b)
    if x and y:
        return _identical(x[0], y[0])
    structured = any(found and isinstance(found[0], list | tuple | dict | set) for found in (x, y))
    return _general_match(a, b) if structured else _exact_match(a, b)


# --- open answers ------------------------------------------------------------------------------------


def normalised(text: str) -> str:
    """SQuAD's normalisation: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _exact_match(answer: str, gold: str) -> bool:
    """Equal after normalisation; texts of which nothing is left are compared as they are."""
    x, y = normalised(answer), normalised(gold)
    return x == y if x or y else answer.split() == gold.split()


def f1(answer: str, golds: Sequence[str]) -> float:
    """The best harmonic mean of token precision and recall over the accepted answers, in [0, 1]."""
    return max((_f1(normalised(answer), normalised(gold)) for gold in golds), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _CLOSED or gold in _CLOSED):
        return 0.0
    x, y = answer.split(), gold.split()
    if not x or not y:
        return float(x == y)
    common = sum((Counter(x) & Counter(y)).values())
    return 2 * common / (len(x) + len(y))


# --- closed answers ----------------------------------------------------------------------------------

_PREFIX = re.compile(r"(?i)^(?:the\s+)?(?:final\s+)?answer\s*[:：]\s*")
_BRACKETS = 8  # pairs that are taken off at most
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def general(text: str) -> str:
    """CERA-MoA's rule for its general domain: no `Answer:`, no outer brackets, single letters upper-case,
    single spaces."""
    text = " ".join(_PREFIX.sub("", text.strip()).split())
    for _ in range(_BRACKETS):
        if len(text) < 3 or not _wrapped(text):
            break
        text = text[1:-1].strip()
    return text.upper() if len(text) == 1 else text


def _wrapped(text: str) -> bool:
    """Whether the first character opens a bracket that the last one closes."""
    closing = _PAIRS.get(text[0])
    if closing is None or text[-1] != closing:
        return False
    depth = 0
    for i, character in enumerate(text):
        depth += (character == text[0]) - (character == closing)
        if depth == 0:
            return i == len(text) - 1
    return False


def _general_match(answer: str, gold: str) -> bool:
    return general(answer) == general(gold)


# --- Python literals ---------------------------------------------------------------------------------

_NOISY = re.compile(r"[^'\"]*[0-9](?:and|or|if|in|is|else|for|not)\b")  # the parser warns about `1in` on stderr
_FENCE = re.compile(r"^(`{3,})[\w+-]*[ \t]*\n?(.*?)\n?[ \t]*\1$", re.DOTALL)


def literal(text: str) -> tuple[Any] | None:
    """The literal's value in a one-tuple, or None. Backticks and a fence around it are taken off."""
    text = _PREFIX.sub("", text.strip())
    if found := _FENCE.match(text):
        text = found[2].strip()
    text = text.strip("`").strip()
    if len(text) > _LONGEST or _depth(text) > _DEEPEST or _NOISY.match(text):
        return None
    try:
        return (literal_value(text),)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _depth(text: str) -> int:
    """An upper bound of how deep the literal nests, signs included: the parser is not asked beyond it."""
    deepest = depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    signs = max((len(run) for run in re.findall(r"(?:[-+~]\s*+)++", text)), default=0)
    return deepest + signs


def _identical(a: Any, b: Any) -> bool:
    """Equal with equal types at every place: True is not 1, 1 is not 1.0, a list is no tuple."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_identical, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and _identical_items(a, b)
    if isinstance(a, set | frozenset):
        return {(type(x), x) for x in a} == {(type(x), x) for x in b}
    return bool(a == b)


def _identical_items(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    keys = {key: key for key in b}
    return all(key in b and _identical(key, keys[key]) and _identical(value, b[key]) for key, value in a.items())


def _literal_match(answer: str, gold: str) -> bool:
    x, y = literal(answer), literal(gold)
    return x is not None and y is not None and _identical(x[0], y[0])


def _written(answer: str | None, text: str) -> str | None:
    """The answer as the text writes it: readers take off quotes and full stops that literals need."""
    line = text.strip().removeprefix("Answer:").strip().partition("\n")[0].strip().strip("`")
    if len(line) <= _LONGEST and line.strip(_TRIMMED) == (answer or "").strip(_TRIMMED) and literal(line):
        return line
    quoted = (mark + str(answer) + mark for mark in "'\"")
    return next((form for form in quoted if line.startswith(form)), answer)


_METRICS: Mapping[str | None, Callable[[str, str], bool]] = {
    None: _exact_match,
    "f1": _exact_match,
    "exact": _general_match,
    "python_literal": _literal_match,
}
