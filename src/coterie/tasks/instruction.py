"""Verifier of instruction items (IFEval): which of an item's constraints does the answer satisfy?

Strict reading, every constraint on the answer as it stands. The rules themselves are in `instruction_rules`.
"""

from collections.abc import Mapping
from typing import Any

from coterie.config import nearest
from coterie.errors import MissingExtra
from coterie.tasks.instruction_rules import RULES
from coterie.types import Score


def problems(ids: Any, arguments: Any) -> list[str]:
    """What keeps a list of instruction ids with their arguments from being judged; empty if nothing does.

    An unknown id, a missing, unknown or unreadable argument: no default is ever drawn in its place. An
    argument that is null counts as absent.
    """
    if not isinstance(ids, list) or not ids:
        return ["there is no instruction"]
    if not isinstance(arguments, list) or len(arguments) != len(ids):
        given = len(arguments) if isinstance(arguments, list) else "no"
        return [f"{len(ids)} instruction ids but {given} sets of arguments"]
    found = [_problem(name, table) for name, table in zip(ids, arguments, strict=True)]
    return [problem for problem in found if problem]


def _problem(name: Any, table: Any) -> str:
    rule = RULES.get(name) if isinstance(name, str) else None
    if rule is None:
        return f"unknown instruction {name!r}" + (nearest(name, RULES) if isinstance(name, str) else "")
    if not isinstance(table, Mapping):
        return f"{name}: the arguments are not a mapping"
    given = {key for key, value in table.items() if value is not None}
    if missing := sorted(rule.arguments.keys() - given):
        return f"{name}: argument {missing[0]!r} is missing"
    if unknown := sorted(given - rule.arguments.keys()):
        return f"{name}: unknown argument {unknown[0]!r}{nearest(unknown[0], rule.arguments)}"
    try:
        _read(name, table)
    except ValueError as error:
        return f"{name}: {error}"
    return ""


def _read(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for key, reader in RULES[name].arguments.items():
        try:
            values[key] = reader(table[key])
        except ValueError as error:
            raise ValueError(f"argument {key!r}: {error}, not {table[key]!r}") from None
    return values


def verify(answer: str | None, text: str, reference: Mapping[str, Any]) -> Score:
    """The share of satisfied constraints (docs/methods.md, rewards); `pass` if all are, failed ones in `reason`.

    `reference` holds `instruction_id_list` and `instruction_kwargs`. Constraints that cannot be judged
    (unknown id, bad or missing argument) give `error`; an empty answer satisfies none.
    """
    ids: Any = reference.get("instruction_id_list")
    arguments: Any = reference.get("instruction_kwargs")
    if found := problems(ids, arguments):
        return Score(verdict="error", value=None, answer=answer, reason="; ".join(found))
    try:
        failed = _failed(answer or "", ids, arguments)
    except MissingExtra as error:
        return Score(verdict="error", value=None, answer=answer, reason=str(error))
    value = 1 - len(failed) / len(ids)
    reason = f"not followed: {', '.join(failed)}" if failed else ""
    return Score(verdict="fail" if failed else "pass", value=value, answer=answer, reason=reason)


def _failed(answer: str, ids: list[str], arguments: list[Mapping[str, Any]]) -> list[str]:
    if not answer.strip():
        return list(ids)
    pairs = zip(ids, arguments, strict=True)
    return [name for name, table in pairs if not RULES[name].follows(answer, **_read(name, table))]


def same(a: str, b: str) -> bool:
    """Whether two answers are one text. Such answers are open-ended: they are not voted on."""
    return a.strip() == b.strip()
