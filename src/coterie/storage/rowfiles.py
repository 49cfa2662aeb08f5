"""Rows of the files that people have: JSONL, JSON, CSV and TSV, Parquet. Strict, with file and line of each row.

What the columns mean is the caller's part.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

from coterie.errors import DataError, MissingExtra

Numbered = tuple[str, dict[str, Any]]
"""Where a row stands (`file:line`), and its values by column."""

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
LISTS = ("records", "data", "rows")
BOM = b"\xef\xbb\xbf"


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
    """One JSON value, read strictly: no key twice, no NaN."""
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
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


def json_rows(path: Path) -> tuple[dict[str, Any], list[Numbered]]:
    """A JSON file that is a list of objects, or an object with one under `records`, `data` or `rows`.

    First what stands beside the list, empty for a bare one. NaN counts as null: some libraries write it for what is
    missing.
    """
    try:
        data = json.loads(path.read_bytes().removeprefix(BOM).decode("utf-8"), parse_constant=lambda constant: None)
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
    return beside, [(f"{path}: row {number}", row) for number, row in enumerate(data, start=1)]


# --- tables -------------------------------------------------------------------------------------------


def table_rows(path: Path) -> Iterator[Numbered]:
    """Rows under the header of a CSV or TSV file, as texts, with the line that each begins on."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _under_header(path, file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start})") from None


def _under_header(path: Path, file: TextIO) -> Iterator[Numbered]:
    reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    line = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        if not header or "" in header or len(set(header)) < len(header):
            raise DataError(f"{path}:1: the first line must name every column once")
        line = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                raise DataError(f"{path}:{line}: {len(fields)} fields where {len(header)} are due")
            if any(field.strip() for field in fields):
                yield f"{path}:{line}", dict(zip(header, fields, strict=True))
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
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from None
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"{path}: row {number}", row
