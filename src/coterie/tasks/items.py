"""The schema of data files and their strict reading, one JSON object a line. Makes no prompts, grades nothing."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.config import nearest
from coterie.errors import DataError
from coterie.storage.rowfiles import lines, loads

__all__ = ["TASKS", "Case", "Item", "Paragraph", "lines", "parse", "read_items", "validated"]
TASKS = ("chat", "choice", "code_function", "code_stdio", "instruction", "math", "qa")
"""The built-in kinds of item that a file may hold."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Paragraph(_Strict):
    """One paragraph of context."""

    title: str
    text: str


class Case(_Strict):
    """One run of a program: what it reads and what it must write."""

    input: str
    output: str


class Item(_Strict):
    """One line of a data file; the gold side is in `answer`, `tests`, `instruction_kwargs` and `meta`.

    `answer` is a text (math: number or LaTeX; choice: the letter of one of `choices`) or the list of accepted
    texts (qa). `tests` are statements that must pass after the candidate's code and `meta.test_setup`
    (code_function), or runs of a program (code_stdio). `instruction_id_list` and `instruction_kwargs` have one
    entry a constraint. `meta.metric` says how qa is compared (exact, python_literal, f1; absent: normalised
    exact match); `meta.subtask`, `category` or `subject` is the item's domain.
    """

    id: str
    source: str
    task: str
    question: str
    answer: str | list[str] | None = None
    choices: list[str] | None = None
    context: list[Paragraph] | None = None
    tests: list[str] | list[Case] | None = None
    fn_name: str | None = None
    instruction_id_list: list[str] | None = None
    instruction_kwargs: list[dict[str, Any]] | None = None
    meta: dict[str, Any] = {}


def read_items(path: Path | str, tasks: tuple[str, ...] = TASKS) -> list[Item]:
    """All items of a file. DataError names file, line and the wrong key; ids must be unique.

    `tasks` are the kinds of item that may occur. A byte-order mark, CRLF and blank lines are tolerated.
    """
    seen: dict[str, int] = {}
    items = []
    for line, raw in lines(path):
        item = parse(raw, f"{path}:{line}", tasks)
        if item.id in seen:
            raise DataError(f"{path}:{line}: id {item.id!r} is already on line {seen[item.id]}")
        seen[item.id] = line
        items.append(item)
    return items


def parse(raw: bytes, where: str, tasks: tuple[str, ...] = TASKS) -> Item:
    """One line as an Item; DataError of one line that starts with `where`."""
    return validated(loads(raw, where), where, tasks)


def validated(table: Mapping[str, Any], where: str, tasks: tuple[str, ...] = TASKS) -> Item:
    """Keys and values as an Item; DataError of one line that starts with `where` and names all keys that miss."""
    try:
        item = Item.model_validate(dict(table))
    except ValidationError as error:
        raise DataError(f"{where}: {_complaint(error)}") from None
    if item.task not in tasks:
        raise DataError(f"{where}: unknown task {item.task!r}{nearest(item.task, tasks)}")
    return item


def _complaint(error: ValidationError) -> str:
    """What is wrong in one line: all unknown and all missing keys, else the first value of a wrong type."""
    faults = error.errors()
    unknown = [fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"]
    meant = {name for place in unknown for name in get_close_matches(str(place[-1]), _known(place), n=1)}
    missing = [repr(_path(fault["loc"])) for fault in faults if fault["type"] == "missing"]
    missing = [name for name in missing if name.strip("'").split(".")[-1] not in meant]
    parts = [f"unknown key {_path(place)!r}{nearest(str(place[-1]), _known(place))}" for place in unknown]
    if missing:
        parts.append(
            f"key {missing[0]} is missing" if len(missing) == 1 else f"keys {_listed(missing)} are missing"
        )
    if parts:
        return "; ".join(dict.fromkeys(parts))
    return f"key {_path(faults[0]['loc'])!r}: {faults[0]['msg'][0].lower()}{faults[0]['msg'][1:]}"


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location if not str(part).startswith(("list[", "str")))


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _known(location: tuple[int | str, ...]) -> list[str]:
    models: Mapping[int | str, type[BaseModel]] = {"context": Paragraph, "tests": Case}
    return list(models.get(location[0], Item).model_fields)
