"""The files of a recorded outcome table: `queries.csv.gz`, `outcomes.csv.gz` and `models.csv` in one folder.

Reading is strict and names file and line. What a table means is `tables`' part.
"""

import csv
import gzip
import json
import math
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from string import ascii_uppercase
from typing import Any, TextIO, TypeVar

import numpy as np

from coterie.errors import ConfigError, DataError
from coterie.storage.cells import LARGEST
from coterie.storage.rowfiles import LONGEST, sound, suspect
from coterie.types import Price, record

R = TypeVar("R")

QUERIES, OUTCOMES, MODELS = "queries.csv.gz", "outcomes.csv.gz", "models.csv"
HEADERS = {
    QUERIES: "query_id,dataset,task,category,question,choices,answer",
    OUTCOMES: "query_id,agent,score,input_tokens,output_tokens,cost_usd",
    MODELS: "agent,base_model,workflow,params,price_in_per_mtok,price_out_per_mtok,price_source,note",
}


@record
class Item:
    """One row of `queries.csv.gz`. `answer` is the gold side as plain JSON, None where it was not recorded."""

    id: str
    dataset: str
    task: str
    category: str
    question: str
    choices: tuple[str, ...] = ()
    answer: Any = None


@record
class Recorded:
    """One row of `models.csv`: an agent that was recorded, be it a model or a whole workflow around one."""

    agent: str
    base_model: str = ""
    workflow: str = ""
    params: str = ""
    price: Price = Price()
    price_source: str = ""
    note: str = ""


@record
class Table:
    """Q items by A agents. NaN is not recorded, which is never 0.

    Completion tokens without prompt tokens are a total of both, whose parts are not known.
    """

    folder: str
    items: tuple[Item, ...]
    models: tuple[Recorded, ...]
    scores: np.ndarray  # (Q, A) in [0, 1] or NaN
    prompt_tokens: np.ndarray  # (Q, A)
    completion_tokens: np.ndarray  # (Q, A)
    costs: np.ndarray  # (Q, A) dollars

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents, by column."""
        return tuple(model.agent for model in self.models)


def read_table(folder: Path | str) -> Table:
    """The table of a folder. Raises DataError with file and line for a malformed, unknown or repeated row."""
    folder = Path(folder)
    items = _unique(folder / QUERIES, _item, lambda item: item.id)
    models = _unique(folder / MODELS, _model, lambda model: model.agent)
    rows = {item.id: i for i, item in enumerate(items)}
    columns = {model.agent: i for i, model in enumerate(models)}
    scores, prompt, completion, costs = _cells(folder / OUTCOMES, rows, columns)
    return Table(
        folder=str(folder),
        items=tuple(items),
        models=tuple(models),
        scores=scores,
        prompt_tokens=prompt,
        completion_tokens=completion,
        costs=costs,
    )


def _cells(path: Path, rows: Mapping[str, int], columns: Mapping[str, int]) -> np.ndarray:
    """Score, both token counts and cost of each cell: (4, Q, A)."""
    size = len(rows) * len(columns)
    # flat arrays: a quarter of a million tuples would keep the garbage collector busier than the parser
    seen, places, values = bytearray(size), array("q"), array("d")
    for line, (query, agent, score, prompt, completion, cost) in _rows(path):
        if query not in rows or agent not in columns:
            raise DataError(f"{path}:{line}: {query!r}, {agent!r}: not in {QUERIES} or {MODELS}")
        place = rows[query] * len(columns) + columns[agent]
        if seen[place]:
            raise DataError(f"{path}:{line}: a second outcome of {agent!r} on {query!r}")
        seen[place] = 1
        try:
            values.extend((_share(score), _amount(prompt), _amount(completion), _amount(cost)))
        except ValueError as error:
            raise DataError(f"{path}:{line}: {error}") from None
        places.append(place)
    table = np.full((4, size), np.nan)
    table[:, np.array(places, dtype=int)] = np.array(values).reshape(-1, 4).T
    return table.reshape(4, len(rows), len(columns))


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(f"score {text!r} is not within 0 and 1")
    return value


def _amount(text: str) -> float:
    """A count or a sum of money; NaN where the field is empty."""
    if not text:
        return math.nan
    value = float(text)
    if not 0 <= value < LARGEST:
        raise ValueError(f"{text[:50]!r} is not a count or an amount below {LARGEST:g}")
    return value


def _item(fields: Sequence[str]) -> Item:
    name, dataset, task, category, question, choices, answer = fields
    if not name or not question.strip():
        raise ValueError("query_id and question must be given")
    options = _json(choices) if choices else []
    if not isinstance(options, list) or len(options) > len(ascii_uppercase):
        raise ValueError(f"choices must be a JSON list of at most {len(ascii_uppercase)} texts")
    return Item(
        id=name,
        dataset=dataset,
        task=task,
        category=category,
        question=question,
        choices=tuple(map(str, options)),
        answer=_json(answer),
    )


def _json(text: str) -> Any:
    """The value that a field states, None for an empty one."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return sound(found) if suspect(text) else found


def _model(fields: Sequence[str]) -> Recorded:
    name, base, workflow, params, price_in, price_out, source, note = fields
    if not name:
        raise ValueError("agent must be given")
    prompt, completion = (_amount(p) if p else None for p in (price_in, price_out))
    return Recorded(
        agent=name,
        base_model=base,
        workflow=workflow,
        params=params,
        price=Price(prompt=prompt, completion=completion),
        price_source=source,
        note=note,
    )


def _unique(path: Path, parse: Callable[[Sequence[str]], R], name: Callable[[R], str]) -> list[R]:
    """The file's rows as records whose names differ."""
    found: dict[str, R] = {}
    for line, fields in _rows(path):
        try:
            row = parse(fields)
        except ValueError as error:
            raise DataError(f"{path}:{line}: {error}") from None
        if name(row) in found:
            raise DataError(f"{path}:{line}: {name(row)!r} is there twice")
        found[name(row)] = row
    return list(found.values())


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Each row under the header, with the line it begins on (a quoted field may span several)."""
    try:
        with _text(path) as file:
            yield from _parsed(path, file)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a recorded table has {', '.join(HEADERS)}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _parsed(path: Path, file: TextIO) -> Iterator[tuple[int, list[str]]]:
    columns, line = HEADERS[path.name].split(","), 1
    csv.field_size_limit(LONGEST)
    reader = csv.reader(file, strict=True)
    try:
        if next(reader, []) != columns:
            raise DataError(f"{path}:1: the columns must be {HEADERS[path.name]}")
        line = reader.line_num + 1
        for fields in reader:
            if len(fields) != len(columns):
                raise DataError(f"{path}:{line}: {len(fields)} fields where {len(columns)} are due")
            yield line, fields
            line = reader.line_num + 1
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}:{line}: cannot be read ({error})") from None


def _text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


# --- writing -----------------------------------------------------------------------------------------


def save_table(folder: Path | str, table: Table) -> None:
    """Write the table's three files, all of them or none. Equal tables give equal bytes.

    Raises: DataError for what `read_table` would refuse or read as something else, before anything is written;
    ConfigError where the folder cannot be written.
    """
    folder = Path(folder)
    models = _checked(folder / MODELS, map(_model_row, table.models), _model, _model_row)
    items = _checked(folder / QUERIES, map(_item_row, table.items), _item, _item_row)
    _refuse_outcomes(folder / OUTCOMES, table)
    contents = {
        MODELS: _encoded(folder / MODELS, models),
        QUERIES: _encoded(folder / QUERIES, items),
        OUTCOMES: _encoded(folder / OUTCOMES, _outcome_rows(table)),
    }
    _put(folder, contents)


def _checked(
    path: Path, rows: Iterator[list[str]], parse: Callable[[Sequence[str]], R], again: Callable[[R], list[str]]
) -> list[list[str]]:
    """The rows, each of which reads back as what it was made of; names are there once."""
    found: list[list[str]] = []
    try:
        for row in rows:
            "".join(row).encode()
            if again(parse(row)) != row:
                raise ValueError("would not be read back as it is")
            found.append(row)
    except UnicodeEncodeError as error:
        reason = f"\\u{ord(error.object[error.start]):x} is half of a character"
        raise DataError(f"{path}: row {len(found) + 1}: cannot be written ({reason})") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{path}: row {len(found) + 1}: cannot be written ({error})") from None
    name, times = next(iter(Counter(row[0] for row in found).most_common(1)), ("", 0))
    if times > 1:
        raise DataError(f"{path}: cannot be written ({name!r} is there twice)")
    return found


def _refuse_outcomes(path: Path, table: Table) -> None:
    there = ~np.isnan(table.scores)
    if not ((table.scores[there] >= 0) & (table.scores[there] <= 1)).all():
        raise DataError(f"{path}: cannot be written (a score is not within 0 and 1)")
    for part in (table.prompt_tokens, table.completion_tokens, table.costs):
        known = part[there & ~np.isnan(part)]
        if not ((known >= 0) & (known < LARGEST)).all():
            raise DataError(f"{path}: cannot be written (a count or amount is not within 0 and {LARGEST:g})")


class _Lines:
    """Takes the rows of a csv.writer and ends them as Unix does."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def write(self, row: str) -> None:
        self.found.append(row.removesuffix("\r\n") + "\n")


def _encoded(path: Path, rows: Iterable[Sequence[str]]) -> bytes:
    # the writer quotes what holds a character of its own line end: told "\n" alone, it leaves a lone "\r" bare
    text = _Lines()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(HEADERS[path.name].split(","))
    writer.writerows(rows)
    data = "".join(text.found).encode()
    # no time of writing inside, so that the folder's digest depends on the outcomes only
    return gzip.compress(data, mtime=0) if path.suffix == ".gz" else data


def _put(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write every file beside its place, then move all in; on a fault nothing is left of them."""
    if other := next((folder / name for name in contents if os.path.isdir(folder / name)), None):
        raise ConfigError(f"{other}: is not a regular file")
    drafts = {folder / f".{name}.{os.getpid()}": name for name in contents}
    made = not os.path.exists(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for draft, name in drafts.items():
            draft.write_bytes(contents[name])
        for draft, name in drafts.items():
            draft.replace(folder / name)
    except OSError as error:
        raise ConfigError(f"{folder}: the table cannot be written ({error.strerror or error})") from None
    finally:
        with suppress(OSError):
            for draft in drafts:
                draft.unlink(missing_ok=True)
            if made and not any(folder.iterdir()):
                folder.rmdir()


def _item_row(item: Item) -> list[str]:
    choices = json.dumps(item.choices, ensure_ascii=False) if item.choices else ""
    answer = "" if item.answer is None else json.dumps(item.answer, ensure_ascii=False)
    return [item.id, item.dataset, item.task, item.category, item.question, choices, answer]


def _model_row(model: Recorded) -> list[str]:
    prices = ["" if p is None else _number(p) for p in (model.price.prompt, model.price.completion)]
    return [model.agent, model.base_model, model.workflow, model.params, *prices, model.price_source, model.note]


def _outcome_rows(table: Table) -> Iterator[list[str]]:
    parts = (table.scores, table.prompt_tokens, table.completion_tokens, table.costs)
    for row, column in np.argwhere(~np.isnan(table.scores)):
        yield [table.items[row].id, table.agents[column], *(_number(part[row, column]) for part in parts)]


def _number(value: float) -> str:
    """The shortest text that reads back as the same number; empty for NaN."""
    if math.isnan(value):
        return ""
    return str(int(value)) if value == int(value) else repr(float(value))
