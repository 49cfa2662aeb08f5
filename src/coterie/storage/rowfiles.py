"""Rows of the files that people have: JSONL, JSON, CSV and TSV, Parquet. Strict, with file and line of each row.

What the columns mean is the caller's part.
"""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

from coterie.errors import DataError, MissingExtra

Numbered = tuple[str, dict[str, Any]]
"""Where a row stands (`file:line`), and its values by column."""

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
LISTS = ("records", "data", "rows")
BOM = b"\xef\xbb\xbf"
DEEPEST = 100
"""Levels of nesting in a JSON value: libraries give up at different depths, none of them with a line number."""
LONGEST = 2**31 - 1
"""Characters in a field of a table; Python's own bound is less than a long prompt."""


def rows_of(path: Path) -> Iterator[Numbered]:
    """All rows of a file, by its suffix. DataError with file and line for whatever cannot be read."""
    match path.suffix.lower():
        case ".csv" | ".tsv":
            yield from table_rows(path)
        case ".parquet":
            yield from _parquet(path)
        case ".json":
            yield from json_rows(path)[1]
        case ".jsonl" | ".ndjson":
            yield from ((f"{path}:{number}", loads(raw, f"{path}:{number}")) for number, raw in lines(path))
        case other:
            raise DataError(f"{path}: unknown kind of file {other!r}; give one of {', '.join(SUFFIXES)}")


# --- JSON ---------------------------------------------------------------------------------------------


def lines(path: Path | str) -> Iterator[tuple[int, bytes]]:
    """The numbered non-blank lines of a file, one at a time; DataError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            yield from ((number, text) for number, raw in enumerate(file, start=1) if (text := _bare(raw, number)))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _bare(raw: bytes, number: int) -> bytes:
    """A line without surrounding space and, on the first line, without a byte-order mark."""
    return raw.removeprefix(BOM).strip() if number == 1 else raw.strip()


def loads(raw: bytes, where: str) -> dict[str, Any]:
    """One JSON object; DataError of one line that starts with `where` for anything else."""
    data = parsed(raw, where)
    if not isinstance(data, dict):
        raise DataError(f"{where}: expected one JSON object a line, found {type(data).__name__}")
    return data


def parsed(raw: bytes, where: str) -> Any:
    """One JSON value, read strictly: no key twice, no NaN, no number beyond floats, nothing that is not `sound`."""
    try:
        text = raw.decode("utf-8")
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
        return sound(data) if suspect(text) else data
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return table


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is beyond what can be computed with")
    return value


def suspect(text: str) -> bool:
    """Whether what this JSON text says may fail `sound`; where not, there is no need to look."""
    return "\\ud" in text or "\\uD" in text or text.count("[") + text.count("{") > DEEPEST


def sound(data: Any) -> Any:
    """A JSON value; ValueError where it could not be written again: half of a character, or nested too deep."""
    level = [data]
    for _ in range(DEEPEST):
        for text in (value for value in level if isinstance(value, str)):
            _refuse_halves(text)
        level = [inner for value in level for inner in _within(value)]
        if not level:
            return data
    raise ValueError(f"nested more than {DEEPEST} levels deep")


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (*value, *value.values())
    return value if isinstance(value, list) else ()


def _refuse_halves(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"\\u{ord(text[error.start]):x} is half of a character") from None


def json_rows(path: Path) -> tuple[dict[str, Any], list[Numbered]]:
    """A JSON file that is a list of objects, or an object with one under `records`, `data` or `rows`.

    First what stands beside the list, empty for a bare one. NaN counts as null: some libraries write it for what is
    missing.
    """
    try:
        text = path.read_bytes().removeprefix(BOM).decode("utf-8")
        data = json.loads(text, parse_constant=lambda constant: None, parse_float=_finite)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    beside: dict[str, Any] = {}
    if isinstance(data, dict):
        name = next((name for name in LISTS if isinstance(data.get(name), list)), "")
        beside = {key: value for key, value in data.items() if key != name}
        data = data.get(name)
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise DataError(f"{path}: expected a list of objects, or one under {', '.join(LISTS)}")
    rows = [(f"{path}: row {number}", row) for number, row in enumerate(data, start=1)]
    if suspect(text):
        for where, value in [(str(path), beside), *rows]:
            _sound_at(where, value)
    return beside, rows


def _sound_at(where: str, value: dict[str, Any]) -> None:
    try:
        sound(value)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None


# --- tables -------------------------------------------------------------------------------------------


def table_rows(path: Path) -> Iterator[Numbered]:
    """Rows under the header of a CSV or TSV file, as texts, with the line that each begins on."""
    for line, header, fields in _lines_of_table(path):
        if any(field.strip() for field in fields):
            yield f"{path}:{line}", dict(zip(header, fields, strict=True))


def header_of(path: Path) -> tuple[str, ...]:
    """The columns of a CSV or TSV file, also of one without rows."""
    return next(_lines_of_table(path))[1]


def _lines_of_table(path: Path) -> Iterator[tuple[int, tuple[str, ...], list[str]]]:
    """Line, columns and fields of each row; the header comes first, without fields."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _under_header(path, file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start})") from None


def _under_header(path: Path, file: TextIO) -> Iterator[tuple[int, tuple[str, ...], list[str]]]:
    csv.field_size_limit(LONGEST)
    reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    line = 1
    try:
        header = tuple(name.strip() for name in next(reader, []))
        if not header or "" in header or len(set(header)) < len(header):
            raise DataError(f"{path}:1: the first line must name every column once")
        yield 1, header, []
        line = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                raise DataError(f"{path}:{line}: {len(fields)} fields where {len(header)} are due")
            yield line, header, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{line}: cannot be read ({error})") from None


def _parquet(path: Path) -> Iterator[Numbered]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data") from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from None
    for number, row in enumerate(rows, start=1):
        yield f"{path}: row {number}", row
