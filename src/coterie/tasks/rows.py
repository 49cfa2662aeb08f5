"""People's own data as items: the full schema in JSONL, short rows of a question and an answer, and CSV.

What a short row leaves out is filled in where there is one sensible value, and asked for where there is not.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from hashlib import sha256
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from coterie.config import nearest
from coterie.errors import DataError
from coterie.storage.rowfiles import header_of, lines, loads, parsed, table_rows
from coterie.tasks.items import TASKS, Item, validated
from coterie.types import record

COLUMNS = (*Item.model_fields, "domain")
TABLES = (".csv", ".tsv")
TEXTS = {"id", "source", "task", "question", "answer", "domain", "fn_name"}
OPTION = re.compile(r"(?:choice|option)?[ _]?([A-Ja-j])")
NUMBER = re.compile(r"-?\d+(\.\d+)?")


@record
class Reading:
    """How a file is to be read: `kind` of its rows, `columns` (ours: theirs), columns to `ignore`."""

    kind: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()

    def check(self, tasks: tuple[str, ...] = TASKS) -> None:
        """DataError for a kind of task, or a column of ours, that does not exist."""
        if self.kind is not None and self.kind not in tasks:
            raise DataError(f"unknown task {self.kind!r}{nearest(self.kind, tasks)}")
        for name in self.columns:
            if name not in COLUMNS and not OPTION.fullmatch(name):
                raise DataError(f"unknown column {name!r} of an item{nearest(name, COLUMNS)}")


AS_IT_IS = Reading()


def refuse_unknown(paths: Iterable[Path], reading: Reading) -> None:
    """DataError for a column to ignore that none of these files has."""
    if not reading.ignore:
        return
    files = list(paths)
    known = dict.fromkeys(name for path in files for name in _names(path))
    if unknown := next((name for name in reading.ignore if name not in known), None):
        raise DataError(f"{', '.join(map(str, files))}: there is no column {unknown!r}{nearest(unknown, known)}")


def _names(path: Path) -> Iterator[str]:
    if path.suffix.lower() in TABLES:
        yield from header_of(path)
        return
    for number, raw in lines(path):
        # a line that does not read is reported where rows are made of lines
        with suppress(DataError):
            yield from loads(raw, f"{path}:{number}")


def read_rows(path: Path | str, tasks: tuple[str, ...] = TASKS, reading: Reading = AS_IT_IS) -> list[Item]:
    """All items of a file of one's own. DataError names file, line and what is wrong; ids must be unique."""
    refuse_unknown([Path(path)], reading)
    seen: dict[str, str] = {}
    items = []
    for where, found in entries(Path(path), tasks, reading):
        if isinstance(found, DataError):
            raise found
        if found.id in seen:
            raise DataError(f"{where}: id {found.id!r} is already on line {seen[found.id].rpartition(':')[2]}")
        seen[found.id] = where
        items.append(found)
    return items


def entries(
    path: Path, tasks: tuple[str, ...] = TASKS, reading: Reading = AS_IT_IS
) -> Iterator[tuple[str, Item | DataError]]:
    """Each row of a file with where it stands (`file:line`): an item, or what is wrong with it.

    DataError where the file itself cannot be read.
    """
    reading.check(tasks)
    if path.suffix.lower() in TABLES:
        _present(dict.fromkeys(header_of(path)), f"{path}:1", reading)
        for where, row in table_rows(path):
            yield where, _entry(path, where, row, tasks, reading)
    else:
        for number, raw in lines(path):
            yield f"{path}:{number}", _entry(path, f"{path}:{number}", raw, tasks, reading)


def _entry(
    path: Path, where: str, raw: bytes | Mapping[str, str], tasks: tuple[str, ...], reading: Reading
) -> Item | DataError:
    try:
        table = loads(raw, where) if isinstance(raw, bytes) else _cells(raw, where, reading)
        table = renamed(table, where, reading)
        return validated(completed(table, path, where, reading), where, tasks)
    except DataError as error:
        return error


# --- columns ------------------------------------------------------------------------------------------


def renamed(table: Mapping[str, Any], where: str, reading: Reading) -> dict[str, Any]:
    """The row under our names; DataError for a column that was named and is not there."""
    _present(table, where, reading)
    ours = {theirs: name for name, theirs in reading.columns.items()}
    kept = {key: value for key, value in table.items() if key not in reading.ignore}
    return {ours.get(key, key): value for key, value in kept.items() if key in ours or key not in reading.columns}


def _present(row: Mapping[str, Any], where: str, reading: Reading) -> None:
    if absent := next((theirs for theirs in reading.columns.values() if theirs not in row), None):
        raise DataError(f"{where}: there is no column {absent!r}{nearest(absent, row)}")


def _cells(row: Mapping[str, str], where: str, reading: Reading) -> dict[str, Any]:
    """The cells of a table that are not empty, lists and objects read as JSON, option columns as `choices`."""
    _present(row, where, reading)
    ours = {theirs: name for name, theirs in reading.columns.items()}
    table: dict[str, Any] = {}
    options: dict[str, str] = {}
    for column, text in row.items():
        if column in reading.ignore or not text.strip():
            continue
        name = ours.get(column, column)
        found = OPTION.fullmatch(name) if name not in COLUMNS else None
        if found:
            options[found[1].upper()] = text.strip()
        else:
            _known(column, name, where)
            table[column] = _cell(name, text, f"{where}: column {column!r}")
    if options:
        table["choices"] = _in_order(options, where)
    return table | {theirs: None for theirs in reading.columns.values() if theirs in row and theirs not in table}


def _known(column: str, name: str, where: str) -> None:
    if name not in COLUMNS:
        advice = f"name what it is (--column answer={column}) or leave it out (--ignore {column})"
        raise DataError(f"{where}: unknown column {column!r}{nearest(name, COLUMNS)}; {advice}")


def _cell(name: str, text: str, where: str) -> Any:
    wanted = name not in TEXTS or (name == "answer" and text.lstrip().startswith("["))
    return parsed(text.encode(), where) if wanted else text.strip()


def _in_order(options: Mapping[str, str], where: str) -> list[str]:
    letters = ascii_uppercase[: len(options)]
    if "".join(sorted(options)) != letters:
        raise DataError(f"{where}: options {', '.join(sorted(options))} leave out a letter of {', '.join(letters)}")
    return [options[letter] for letter in letters]


# --- what a short row leaves out ----------------------------------------------------------------------


def completed(table: Mapping[str, Any], path: Path, where: str, reading: Reading) -> dict[str, Any]:
    """The row with id, source and task filled in; DataError where the kind of task is not clear.

    The id is a digest of question and options, the source the file's name. A row's own values are kept.
    """
    row = {key: value for key, value in table.items() if value is not None}
    if "question" not in row:
        return dict(table)  # the schema's check says so
    if "domain" in row:
        row["meta"] = {"category": str(row.pop("domain"))} | dict(row.get("meta") or {})
    row.setdefault("source", path.stem)
    row["task"] = row.get("task") or reading.kind or _guessed(row, where)
    row["answer"] = _answer(row, where)
    if "id" not in row:
        facts = json.dumps([row["question"], row.get("choices"), row.get("context")], ensure_ascii=False)
        row["id"] = f"{path.stem}-{sha256(facts.encode(errors='surrogatepass')).hexdigest()[:12]}"
    return row


def _guessed(row: Mapping[str, Any], where: str) -> str:
    """The kind of task where only one is possible."""
    answer, tests = row.get("answer"), row.get("tests")
    if row.get("choices"):
        return "choice"
    if row.get("instruction_id_list"):
        return "instruction"
    if tests and isinstance(tests, Sequence):
        return "code_stdio" if isinstance(tests[0], Mapping) else "code_function"
    if isinstance(answer, list):
        return "qa"
    if answer is None:
        return "chat"
    if not isinstance(answer, bool) and NUMBER.fullmatch(str(answer).replace(",", "")):
        return "math"
    raise DataError(
        f"{where}: the kind of task is not clear: give it as `task` in the row, as --kind math or --kind qa,"
        " or in a task's name as FILE?kind=qa"
    )


def _answer(row: Mapping[str, Any], where: str) -> Any:
    """The answer as the schema has it: numbers as text, an option's text as its letter."""
    answer, choices = row.get("answer"), row.get("choices")
    if row["task"] == "choice" and isinstance(choices, list) and answer is not None:
        return _letter(answer, choices, where)
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return str(answer)
    return answer


def _letter(answer: Any, choices: Sequence[Any], where: str) -> Any:
    if isinstance(answer, int):
        raise DataError(f"{where}: the answer {answer} may count options from 0 or from 1; give its letter")
    letters = ascii_uppercase[: len(choices)]
    if not isinstance(answer, str) or answer in letters:
        return answer
    places = [i for i, option in enumerate(choices) if str(option).strip() == answer.strip()]
    if len(places) == 1:
        return letters[places[0]]
    return answer.upper() if answer.upper() in letters else answer
