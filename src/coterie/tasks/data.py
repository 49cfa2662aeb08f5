"""Checking data: every problem of files, folders and benchmarks, and every question that stands in two splits.

Reading is in `rows` and `hub`, making queries in `prompts`, what a good gold is in `golds`.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import DataError
from coterie.tasks import catalog, hub
from coterie.tasks.contamination import digest
from coterie.tasks.golds import GOLDS
from coterie.tasks.items import Case, Item, Paragraph, read_items
from coterie.tasks.prompts import CONTRACTS_OF, prompt, to_query
from coterie.tasks.rows import AS_IT_IS, TABLES, Reading, entries, refuse_unknown
from coterie.types import record

__all__ = [
    "CONTRACTS_OF",
    "GOLDS",
    "Case",
    "Item",
    "Paragraph",
    "Report",
    "check",
    "check_all",
    "prompt",
    "read_items",
    "to_query",
]
SUFFIXES = (".jsonl", *TABLES)


@record
class Problem:
    """One problem of a data file. `id` is None where the line could not be read."""

    file: str
    line: int
    id: str | None
    message: str


@record
class Report:
    """What a check saw: files, items, items per kind and per source, every problem found, and remarks."""

    files: int
    items: int
    tasks: Mapping[str, int]
    sources: Mapping[str, int]
    problems: tuple[Problem, ...]
    remarks: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data with the fields of this record."""
        return asdict(self)

    def __str__(self) -> str:
        """The counts in one line, then one line a problem (`file:line: id: what`)."""
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.tasks.items())) or "none"
        verdict = f"{len(self.problems)} problems" if self.problems else "no problem"
        rest = (f"{p.file}:{p.line}: {f'{p.id}: ' if p.id else ''}{p.message}" for p in self.problems)
        return "\n".join([f"{self.files} files, {self.items} items ({kinds}): {verdict}", *self.remarks, *rest])


@dataclass
class Seen:
    """Where ids and questions stood first: ids by folder, questions by folder and overall."""

    ids: dict[tuple[str, str], str] = field(default_factory=dict)
    here: dict[tuple[str, str], str] = field(default_factory=dict)
    anywhere: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def repeated(self, file: str, line: int, item: Item) -> list[str]:
        """What of this item stood before: its id or question in its folder, or its question in another split.

        Files of equal names in two folders are the same split of two tasks, which may share questions.
        """
        folder, _, name = file.rpartition("/")
        place, question, split = f"{name}:{line}", digest(to_query(item)), name.partition(".")[0]
        found = []
        if (folder, item.id) in self.ids:
            found.append(f"the id is already in {self.ids[folder, item.id]}")
        if (folder, question) in self.here:
            found.append(f"the question is already in {self.here[folder, question]}")
        elif other := next((where for s, where in self.anywhere.get(question, []) if s != split), None):
            found.append(f"the question is already in {other}")
        self.ids.setdefault((folder, item.id), place)
        self.here.setdefault((folder, question), place)
        self.anywhere.setdefault(question, []).append((split, f"{file}:{line}"))
        return found


def check(path: Path | str, reading: Reading = AS_IT_IS) -> Report:
    """`check_all` of one file, folder or benchmark."""
    return check_all([str(path)], reading)[0]


def check_all(names: Sequence[str], reading: Reading = AS_IT_IS) -> list[Report]:
    """Check data files (JSONL, CSV), all of them below a folder, or `hub:` benchmarks; a bad line does not end it.

    Found are lines that do not read, golds that cannot be graded, ids and questions that occur twice in one folder,
    and questions that stand in two splits of whatever task (a test item among the training items). DataError if
    there is no file.
    """
    reading.check(catalog.file_kinds())
    refuse_unknown([file for name in names if not name.startswith(hub.PREFIX) for file in _files(name)], reading)
    seen = Seen()
    return [_report(name, reading, seen) for name in names]


def _report(name: str, reading: Reading, seen: Seen) -> Report:
    if name.startswith(hub.PREFIX):
        loaded = hub.load(name)
        rows = ((number, item) for number, item in enumerate(loaded.items, start=1))
        return _counted({name: rows}, seen, tuple(filter(None, [loaded.remark()])))
    return _counted({str(file): _numbered(file, reading) for file in _files(name)}, seen)


def _files(name: str) -> list[Path]:
    path = Path(name)
    files = [path]
    if os.path.isdir(path):
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(f"{path}: holds no .jsonl file and no .csv file")
    return files


def _numbered(file: Path, reading: Reading) -> Iterator[tuple[int, Item | DataError]]:
    for where, found in entries(file, catalog.file_kinds(), reading):
        yield int(where.rpartition(":")[2]), found


def _gold(item: Item) -> list[str]:
    """What is wrong with the gold of an item; an installed kind says so by its verdict on an empty text."""
    if item.task in GOLDS:
        return GOLDS[item.task](item)
    score = catalog.verify("", to_query(item, catalog.find_kind(item.task).contract))
    return [f"the answer cannot be graded: {score.reason}"] if score.verdict == "error" else []


def _counted(
    files: Mapping[str, Iterator[tuple[int, Item | DataError]]], seen: Seen, remarks: tuple[str, ...] = ()
) -> Report:
    tasks: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    problems: list[Problem] = []
    for file, rows in files.items():
        for line, found in rows:
            if isinstance(found, DataError):
                message = str(found).removeprefix(f"{file}:{line}: ")
                problems.append(Problem(file=file, line=line, id=None, message=message))
                continue
            tasks[found.task] += 1
            sources[found.source] += 1
            messages = [*_gold(found), *seen.repeated(file, line, found)]
            problems += [Problem(file=file, line=line, id=found.id, message=text) for text in messages]
    return Report(
        files=len(files),
        items=tasks.total(),
        tasks=dict(tasks),
        sources=dict(sources),
        problems=tuple(problems),
        remarks=remarks,
    )
