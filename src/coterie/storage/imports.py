"""Routing rows that people already have, as a recorded outcome table.

`forms` reads LLMRouter's, LLMRouterBench's and RouterArena's rows, `logs` one's own. Outcomes that are missing stay
missing and are counted.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np

from coterie.errors import DataError
from coterie.storage.cells import Cell
from coterie.storage.forms import FORMS
from coterie.storage.logs import log_cells, refuse_unknown
from coterie.storage.rowfiles import SUFFIXES
from coterie.storage.tablefile import Item, Recorded, Table
from coterie.types import Price, record

LOG = "log"
NAMES = (*FORMS, LOG)
"""What `import_rows` reads."""


@record
class Imported:
    """A table, and what did not get into it: outcomes missing by (agent, reason), cells with several outcomes."""

    table: Table
    rows: int
    missing: Mapping[tuple[str, str], int]
    repeated: int

    def lines(self) -> list[str]:
        """The counts in words, one line each."""
        table = self.table
        outcomes = int((~np.isnan(table.scores)).sum())
        found = [
            f"{len(table.items)} queries, {len(table.models)} agents, {outcomes} outcomes from {self.rows} rows"
        ]
        found += [f"missing: {agent}: {count} × {why}" for (agent, why), count in sorted(self.missing.items())]
        if self.repeated:
            found.append(f"averaged: {self.repeated} outcomes of a query that the agent answered before")
        return found


def import_rows(
    form: str,
    paths: Iterable[Path],
    *,
    prices: Mapping[str, Price] | None = None,
    columns: Mapping[str, str] | None = None,
    ignore: tuple[str, ...] = (),
) -> Imported:
    """The rows of files of one form as a table; nothing is written.

    A folder stands for all files below it. `prices` by agent go into the table; `columns` (ours: theirs) and
    `ignore` are for `log`. DataError with file and line for a row that is not of the form.
    """
    files = [file for path in paths for file in _files(path, form)]
    if form == LOG:
        refuse_unknown(files, columns or {}, ignore)
        found = (cell for file in files for cell in _some(file, log_cells(file, columns or {}, ignore)))
        return gathered(found, prices or {})
    if columns or ignore:
        raise DataError(f"{form} has columns of its own: naming or leaving out columns is for form log")
    return gathered((cell for file in files for cell in _some(file, FORMS[form](file))), prices or {})


def _some(file: Path, cells: Iterator[Cell]) -> Iterator[Cell]:
    empty = True
    for cell in cells:
        empty = False
        yield cell
    if empty:
        raise DataError(f"{file}: holds no row")


def _files(path: Path, form: str) -> list[Path]:
    """The file, or the files below a folder: of LLMRouterBench's several runs of a model the newest."""
    if not os.path.isdir(path):
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if form == "llmrouterbench":
        newest = {file.parent: file for file in sorted(found, key=lambda file: file.stem[-15:])}
        found = sorted(newest.values())
    if not found:
        raise DataError(f"{path}: holds no {', '.join(SUFFIXES)} file")
    return found


# --- the table ----------------------------------------------------------------------------------------


def gathered(cells: Iterable[Cell], prices: Mapping[str, Price]) -> Imported:
    """Cells as a table: queries and agents in the order of their first rows, repeated outcomes averaged.

    A query is its text within a data set: where no id is given its id is a digest of both. DataError for an id with
    two texts, or where there is no row.
    """
    items: dict[str, Item] = {}
    agents: dict[str, None] = {}
    missing: Counter[tuple[str, str]] = Counter()
    values: dict[tuple[str, str], list[tuple[float, float, float, float]]] = {}
    rows = 0
    for cell in cells:
        rows += 1
        item = _item(cell)
        if items.setdefault(item.id, item).question != item.question:
            raise DataError(f"query {item.id!r} has two different texts")
        agents.setdefault(cell.agent)
        if cell.score is None:
            missing[cell.agent, cell.reason] += 1
        else:
            found = (cell.score, cell.prompt_tokens, cell.completion_tokens, cell.cost)
            values.setdefault((item.id, cell.agent), []).append(found)
    if not rows:
        raise DataError("there are no rows in these files")
    table = _table(list(items.values()), list(agents), values, prices)
    return Imported(table=table, rows=rows, missing=missing, repeated=sum(map(len, values.values())) - len(values))


def _item(cell: Cell) -> Item:
    facts = "\0".join([cell.dataset, cell.question, *cell.choices]).encode(errors="surrogatepass")
    return Item(
        id=cell.id or f"{cell.dataset or 'query'}-{sha256(facts).hexdigest()[:12]}",
        dataset=cell.dataset,
        task=cell.task,
        category=cell.category,
        question=cell.question,
        choices=cell.choices,
        answer=cell.answer,
    )


def _mean(found: list[tuple[float, float, float, float]]) -> np.ndarray:
    """Mean score, prompt tokens, completion tokens and cost; in totals where one of the calls has a total only."""
    values = np.array(found)  # (N, 4)
    if np.isnan(values[:, 1]).any():
        values[:, 2] += np.nan_to_num(values[:, 1])
        values[:, 1] = np.nan
    mean: np.ndarray = values.mean(axis=0)
    return mean


def _table(
    items: list[Item],
    agents: list[str],
    values: Mapping[tuple[str, str], list[tuple[float, float, float, float]]],
    prices: Mapping[str, Price],
) -> Table:
    if unknown := next((name for name in prices if name not in agents), None):
        raise DataError(f"prices: no row is of agent {unknown!r}; there are {', '.join(sorted(agents))}")
    rows, columns = ({name: i for i, name in enumerate(names)} for names in ([item.id for item in items], agents))
    cells = np.full((4, len(items), len(agents)), np.nan)
    for (query, agent), found in values.items():
        cells[:, rows[query], columns[agent]] = _mean(found)
    models = [
        Recorded(agent=name, price=prices[name], price_source="given") if name in prices else Recorded(agent=name)
        for name in agents
    ]
    return Table(
        folder="",
        items=tuple(items),
        models=tuple(models),
        scores=cells[0],
        prompt_tokens=cells[1],
        completion_tokens=cells[2],
        costs=cells[3],
    )
