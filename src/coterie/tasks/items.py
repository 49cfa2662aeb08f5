"""The schema of data files and their strict reading, one JSON object a line. Makes no prompts, grades nothing."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.config import nearest
from coterie.errors import DataError

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


def lines(path: Path | str) -> Iterator[tuple[int, bytes]]:
    """The numbered non-blank lines of a file, one at a time; DataError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            yield from ((number, text) for number, raw in enumerate(file, start=1) if (text := _bare(raw, number)))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _bare(raw: bytes, number: int) -> bytes:
    """A line without surrounding space and, on the first line, without a byte-order mark."""
    return raw.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else raw.strip()


def parse(raw: bytes, where: str, tasks: tuple[str, ...] = TASKS) -> Item:
    """One line as an Item; DataError of one line that starts with `where`."""
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise DataError(f"{where}: expected one JSON object a line, found {type(data).__name__}")
    try:
        item = Item.model_validate(data)
    except ValidationError as error:
        raise DataError(f"{where}: {_complaint(error)}") from None
    if item.task not in tasks:
        raise DataError(f"{where}: unknown task {item.task!r}{nearest(item.task, tasks)}")
    return item


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return table


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _complaint(error: ValidationError) -> str:
    """The first fault in one line; an unknown key comes before the key that is missing in its stead."""
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    first = faults[0]
    path = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("list[", "str")))
    if first["type"] == "extra_forbidden":
        return f"unknown key {path!r}{nearest(str(first['loc'][-1]), _known(first['loc']))}"
    if first["type"] == "missing":
        return f"key {path!r} is missing"
    return f"key {path!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _known(location: tuple[int | str, ...]) -> list[str]:
    models: Mapping[int | str, type[BaseModel]] = {"context": Paragraph, "tests": Case}
    return list(models.get(location[0], Item).model_fields)
