"""One's own log of outcomes: a long table with a row for each query and agent, in JSONL, CSV or Parquet."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from coterie.errors import DataError
from coterie.storage.cells import NO_SCORE, Cell, amount, counts, options, plain, share, text
from coterie.storage.rowfiles import header_of, rows_of

COLUMNS = (
    "query",
    "agent",
    "score",
    "id",
    "dataset",
    "task",
    "category",
    "choices",
    "answer",
    "prompt_tokens",
    "completion_tokens",
    "tokens",
    "cost",
)
"""`query`, `agent` and `score` are needed; `tokens` is the sum of both counts, `cost` is in dollars.

`completion_tokens` need `prompt_tokens` or `tokens` beside them, else nothing is known of what the call used.
"""


def log_cells(path: Path, columns: Mapping[str, str], ignore: tuple[str, ...]) -> Iterator[Cell]:
    """The cells of a log. `columns` says what ours are called there. DataError for a column that is not known."""
    ours = {theirs: name for name, theirs in columns.items()}
    for where, row in rows_of(path):
        named = {ours.get(key, key): value for key, value in row.items() if key not in ignore}
        if unknown := next((key for key in named if key not in COLUMNS), None):
            advice = f"name what it is (--column score={unknown}) or leave it out (--ignore {unknown})"
            raise DataError(f"{where}: unknown column {unknown!r}{_nearest(unknown)}; {advice}")
        yield _cell(named, where, path.stem)


def refuse_unknown(paths: Sequence[Path], columns: Mapping[str, str], ignore: tuple[str, ...]) -> None:
    """DataError for a column that is none of a log's, and for one that is named or ignored but in no file."""
    if unknown := next((name for name in columns if name not in COLUMNS), None):
        raise DataError(f"unknown column {unknown!r} of a log{_nearest(unknown)}")
    if not columns and not ignore:
        return
    there = {name for path in paths for name in _names(path)}
    if absent := next((name for name in (*columns.values(), *ignore) if name not in there), None):
        known = ", ".join(sorted(map(str, there))) or "none"
        raise DataError(f"{', '.join(map(str, paths))}: there is no column {absent!r} (it has {known})")


def _names(path: Path) -> Iterator[str]:
    if path.suffix.lower() in (".csv", ".tsv"):
        yield from header_of(path)
    else:
        yield from (name for _, row in rows_of(path) for name in row)


def _cell(row: Mapping[str, Any], where: str, name: str) -> Cell:
    score = share(row.get("score"), where, "score") if "score" in row else _absent(where, row)
    names = ("prompt_tokens", "completion_tokens", "tokens")
    prompt, completion = counts(row, where, names)
    return Cell(
        id=str(row.get("id") or ""),
        dataset=str(row.get("dataset") or name),
        task=str(row.get("task") or ""),
        category=str(row.get("category") or ""),
        question=text(row, where, "query"),
        choices=options(row.get("choices"), where),
        answer=plain(row.get("answer")) if row.get("answer") != "" else None,
        agent=text(row, where, "agent"),
        score=score,
        reason=NO_SCORE if score is None else "",
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost=amount(row.get("cost"), where, "cost"),
    )


def _absent(where: str, row: Mapping[str, Any]) -> float:
    raise DataError(f"{where}: there is no column 'score' (it has {', '.join(sorted(map(str, row)))})")


def _nearest(name: str) -> str:
    close = get_close_matches(name, COLUMNS, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(COLUMNS)}"
