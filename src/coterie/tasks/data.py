"""From items in files to queries that hide their gold, and the check that a file's golds can be graded.

Reading is in `items`; grading an answer is in `catalog`.
"""

import ast
import hashlib
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from coterie.config import nearest
from coterie.errors import ConfigError, DataError
from coterie.tasks import instruction, math
from coterie.tasks.choice import render
from coterie.tasks.extract import CONTRACTS
from coterie.tasks.items import Case, Item, Paragraph, lines, parse, read_items
from coterie.types import Message, Messages, Query, record

__all__ = [
    "CONTRACTS_OF",
    "Case",
    "Item",
    "Paragraph",
    "Report",
    "check",
    "prompt",
    "read_items",
    "to_query",
]

CONTRACTS_OF: Mapping[str, str] = {
    "chat": "raw",
    "choice": "letter",
    "code_function": "fence",
    "code_stdio": "fence",
    "instruction": "raw",
    "math": "boxed",
    "qa": "answer",
    "reasoning_gym": "answer",
    "recorded": "raw",
}
"""The usual answer contract of each built-in kind of item."""

DOMAIN_KEYS = ("subtask", "category", "subject")
PROBE = "0.123456"
METRICS = (None, "exact", "python_literal", "f1")


# --- queries ------------------------------------------------------------------------------------------


def to_query(item: Item, contract: str | None = None) -> Query:
    """The query of an item, its prompt written for `contract` (None: the usual one of its kind).

    Only question, context, options and the name of a wanted function enter the messages; answer, tests and
    meta never do. ConfigError for an unknown contract.
    """
    name = contract or CONTRACTS_OF.get(item.task, "text")
    return Query(
        id=item.id,
        messages=prompt(_asked(item), name),
        task=item.task,
        contract=name,
        reference=_reference(item),
        metadata={"source": item.source, "domain": _domain(item)},
    )


def prompt(text: str, contract: str) -> Messages:
    """What is asked, followed by the contract's suffix and, where it has one, its prefilled answer."""
    if contract not in CONTRACTS:
        raise ConfigError(f"unknown contract {contract!r}{nearest(contract, CONTRACTS)}")
    suffix, prefill = CONTRACTS[contract].suffix.strip(), CONTRACTS[contract].prefill
    user = Message(role="user", content=f"{text}\n\n{suffix}" if suffix else text)
    return (user, Message(role="assistant", content=prefill)) if prefill else (user,)


def _asked(item: Item) -> str:
    parts = [f"{part.title}\n{part.text}" if part.title else part.text for part in item.context or []]
    parts.append(render(item.question, item.choices) if item.choices else item.question)
    if item.task == "code_function" and item.fn_name:
        parts.append(f"Write the Python function `{item.fn_name}`.")
    if item.task == "code_stdio":
        parts.append("Write a Python program that reads standard input and writes to standard output.")
    return "\n\n".join(parts)


def _reference(item: Item) -> Mapping[str, Any] | None:
    match item.task:
        case "chat":
            return None
        case "choice":
            return {"answer": item.answer, "choices": item.choices}
        case "qa":
            answers = [item.answer] if isinstance(item.answer, str) else item.answer
            return {"answers": answers, "metric": item.meta.get("metric")}
        case "code_function":
            table = {"tests": item.tests, "test_setup": item.meta.get("test_setup") or "", "fn_name": item.fn_name}
            return table | ({"prefix": item.question} if item.meta.get("prompt_is_code_prefix") else {})
        case "code_stdio":
            return {"tests": [case.model_dump() for case in item.tests or [] if isinstance(case, Case)]}
        case "instruction":
            ids, arguments = item.instruction_id_list, item.instruction_kwargs
            return {"prompt": item.question, "instruction_id_list": ids, "instruction_kwargs": arguments}
        case _:
            return {"answer": item.answer}


def _domain(item: Item) -> str:
    found = (item.meta.get(key) for key in DOMAIN_KEYS)
    return next((value for value in found if isinstance(value, str) and value), item.source)


# --- checking -----------------------------------------------------------------------------------------


@record
class Problem:
    """One problem of a data file. `id` is None where the line could not be read."""

    file: str
    line: int
    id: str | None
    message: str


@record
class Report:
    """What a check saw: files, items, items per kind and per source, and every problem found."""

    files: int
    items: int
    tasks: Mapping[str, int]
    sources: Mapping[str, int]
    problems: tuple[Problem, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data with the fields of this record."""
        return asdict(self)

    def __str__(self) -> str:
        """The counts in one line, then one line a problem (`file:line: id: what`)."""
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.tasks.items())) or "none"
        verdict = f"{len(self.problems)} problems" if self.problems else "no problem"
        rest = (f"{p.file}:{p.line}: {f'{p.id}: ' if p.id else ''}{p.message}" for p in self.problems)
        return "\n".join([f"{self.files} files, {self.items} items ({kinds}): {verdict}", *rest])


def check(path: Path | str) -> Report:
    """Check a data file, or all `*.jsonl` files below a folder, line by line; a bad line does not end it.

    Found are lines that do not read, ids and questions that occur twice (in one file, or in two files of one
    folder: a test item among the training items), golds that cannot be graded. DataError if there is no file.
    """
    files = sorted(Path(path).rglob("*.jsonl")) if Path(path).is_dir() else [Path(path)]
    if not files:
        raise DataError(f"{path}: holds no .jsonl file")
    tasks: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    found: list[Problem] = []
    seen: dict[tuple[str, bytes], str] = {}
    for file in files:
        for line, item, problems in _checked(file):
            found += [_problem(file, line, item, message) for message in problems]
            if item is not None:
                tasks[item.task] += 1
                sources[item.source] += 1
                found += [_problem(file, line, item, message) for message in _repeated(file, line, item, seen)]
    return Report(
        files=len(files), items=tasks.total(), tasks=dict(tasks), sources=dict(sources), problems=tuple(found)
    )


def _problem(file: Path, line: int, item: Item | None, message: str) -> Problem:
    return Problem(file=str(file), line=line, id=item.id if item else None, message=message)


def _checked(file: Path) -> Iterator[tuple[int, Item | None, list[str]]]:
    for line, raw in lines(file):
        where = f"{file}:{line}"
        try:
            item = parse(raw, where)
        except DataError as error:
            yield line, None, [str(error).removeprefix(f"{where}: ")]
        else:
            yield line, item, GOLDS[item.task](item)


def _repeated(file: Path, line: int, item: Item, seen: dict[tuple[str, bytes], str]) -> list[str]:
    """Whether the id or the question was seen in this folder; remembers both (as digests: files may be large)."""
    context = [part.model_dump() for part in item.context or []]
    question = json.dumps([item.question.split(), item.choices, context])
    found = []
    for what, text in (("id", item.id), ("question", question)):
        key = (f"{file.parent}/{what}", hashlib.sha256(text.encode()).digest()[:12])
        if key in seen:
            found.append(f"the {what} is already in {seen[key]}")
        seen.setdefault(key, f"{file.name}:{line}")
    return found


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
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _function_gold(item: Item) -> list[str]:
    if not item.tests or not all(isinstance(test, str) and test.strip() for test in item.tests):
        return ["there is no test, or one that is not a statement"]
    program = "\n".join([str(item.meta.get("test_setup") or ""), *map(str, item.tests)])
    try:
        ast.parse(program)
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
