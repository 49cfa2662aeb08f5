"""The gold of an item: as texts, and what is wrong with it that its verifier could never judge."""

import importlib.util
import re
from collections.abc import Callable, Mapping
from string import ascii_uppercase

from coterie.config import nearest
from coterie.tasks import instruction, math
from coterie.tasks.items import Case, Item
from coterie.tasks.syntax import literal_value, parsed
from coterie.types import Query

PROBE = "0.123456"
METRICS = (None, "exact", "python_literal", "f1")


def gold_texts(query: Query) -> tuple[str, ...]:
    """The gold answers that a query has as texts, the usual one first; of options the letter, then its text.

    None for what is graded by tests or rules.
    """
    reference = query.reference or {}
    answer, choices = reference.get("answer"), reference.get("choices") or ()
    found = [answer, *(reference.get("answers") or ())]
    letters = ascii_uppercase[: len(choices)]
    found += [choices[letters.index(answer)]] if isinstance(answer, str) and answer in list(letters) else []
    return tuple(dict.fromkeys(str(one) for one in found if one is not None and str(one)))


def _math_gold(item: Item) -> list[str]:
    """A gold that only equal text could match is found by grading a number against it (docs/faults.md, golds)."""
    if not isinstance(item.answer, str) or not item.answer.strip():
        return ["the answer is not a text"]
    if re.fullmatch(r"-?\d+(\.\d+)?", item.answer) or importlib.util.find_spec("math_verify") is None:
        return []
    probe = math.verify(PROBE, PROBE, {"answer": item.answer})
    return [f"the answer cannot be compared: {probe.reason}"] if probe.verdict == "error" else []


def _choice_gold(item: Item) -> list[str]:
    options = item.choices or []
    if not 2 <= len(options) <= len(ascii_uppercase) or not all(option.strip() for option in options):
        return ["fewer than two options, too many, or an empty one"]
    letters = ascii_uppercase[: len(options)]
    if not isinstance(item.answer, str) or len(item.answer) != 1 or item.answer not in letters:
        return [f"the answer {item.answer!r} is not the letter of an option (A to {letters[-1]})"]
    gold = options[letters.index(item.answer)]
    equal = [letter for letter, option in zip(letters, options, strict=True) if option == gold]
    return [f"the right option stands twice: {' and '.join(equal)}"] if len(equal) > 1 else []


def _qa_gold(item: Item) -> list[str]:
    answers = [item.answer] if isinstance(item.answer, str) else item.answer or []
    metric = item.meta.get("metric")
    if not answers or not all(answer.strip() for answer in answers):
        return ["there is no accepted answer, or an empty one"]
    if metric not in METRICS:
        return [f"unknown metric {metric!r}{nearest(str(metric), filter(None, METRICS))}"]
    return [
        f"{answer!r} is not a Python literal"
        for answer in answers
        if metric == "python_literal" and not _literal(answer)
    ]


def _literal(text: str) -> bool:
    try:
        literal_value(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _function_gold(item: Item) -> list[str]:
    if not item.tests or not all(isinstance(test, str) and test.strip() for test in item.tests):
        return ["there is no test, or one that is not a statement"]
    program = "\n".join([str(item.meta.get("test_setup") or ""), *map(str, item.tests)])
    try:
        parsed(program)
    except (SyntaxError, ValueError) as error:
        return [f"the tests do not parse: {error}"]
    return []


def _stdio_gold(item: Item) -> list[str]:
    good = bool(item.tests) and all(isinstance(test, Case) for test in item.tests or [])
    return [] if good else ["there is no test, or one without input and output"]


def _instruction_gold(item: Item) -> list[str]:
    return instruction.problems(item.instruction_id_list, item.instruction_kwargs)


GOLDS: Mapping[str, Callable[[Item], list[str]]] = {
    "chat": lambda item: [],
    "choice": _choice_gold,
    "code_function": _function_gold,
    "code_stdio": _stdio_gold,
    "instruction": _instruction_gold,
    "math": _math_gold,
    "qa": _qa_gold,
}
"""What is wrong with the gold of an item of each kind."""
