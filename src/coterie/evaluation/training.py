"""A training run as a sheet of the report: its course over queries, who practised how much, where the time went.

Reads the rows that the run left (metrics.jsonl); it trains, encodes and grades nothing.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import DataError
from coterie.evaluation.curves import COLOURS, At, Series, course
from coterie.evaluation.sheet import Card, Sheet, plain_table, scrolling
from coterie.evaluation.table import count, percent
from coterie.storage.runs import Run, read_lines

METRICS = "metrics.jsonl"
COUNTERS = ("round", "queries", "updates")
TABLES = ("agents", "router", "ledger", "seconds")
POINTS = 100  # on a line; more would not be told apart
Row = Mapping[str, Any]
Value = Callable[[Row], float | None]


def is_training(folder: Path) -> bool:
    """Whether a run folder is that of a training run."""
    file = folder / "run.json"
    return file.is_file() and "co-evolution of" in str(Run.load(folder).config.get("task"))


def rows_of(folder: Path) -> list[Row]:
    """The rounds of a training run that are recorded, whole ones only.

    Raises: DataError where there is none yet, or one is not of this version.
    """
    file = folder / METRICS
    rows: list[Row] = list(read_lines(file))
    for number, row in enumerate(rows, 1):
        if not _whole(row):
            raise DataError(f"{file}:{number}: is no round of this version")
    if not rows:
        raise DataError(f"{folder}: no round of this training run is finished yet")
    return rows


def _whole(row: Row) -> bool:
    """Whether a row has the counters of a round, and figures only where figures belong."""
    agents = row.get("agents")
    if not isinstance(agents, dict) or not all(isinstance(row.get(key), int) for key in COUNTERS):
        return False
    if not all(isinstance(each, dict) for each in agents.values()):
        return False
    figures = [value for key, value in row.items() if key not in TABLES]
    figures += [value for each in agents.values() for value in each.values()]
    return all(value is None or isinstance(value, int | float) for value in figures)


def training_sheet(folder: Path, more: Sequence[Card] = ()) -> Sheet:
    """The sheet of a training run; `more` cards come after its curves. Raises: as `rows_of`, and `Run.load`."""
    run, rows = Run.load(folder), rows_of(folder)
    last = rows[-1]
    about = f"{run.config['task']}: {count(last['round'])} rounds, {count(last['queries'])} queries"
    about += f", {count(last['updates'])} updates, {count(last.get('tokens', 0))} tokens sampled"
    return Sheet(name=folder.name, about=about, cards=(*course_cards(rows), *more, *table_cards(rows)))


# --- curves -------------------------------------------------------------------------------------------


def course_cards(rows: Sequence[Row]) -> list[Card]:
    """The paper's curves: reward, active agents, familiarity, updates; and what tells whether training is sound."""
    spread = _spread_note(rows)
    return [
        _card("Reward", [_line("all agents", rows, _top("reward"))], spread),
        _card("Solved in practice", [_line("all agents", rows, _top("solved"))], spread, percent=True),
        _card("Agents a query", [_line("agents", rows, _top("active"))], f"Exploration included. {spread}"),
        _by_agent("Familiarity by agent", rows, "familiarity", f"Mean over a round's queries. {spread}"),
        _by_agent("Updates by agent", rows, "updates", "Optimiser steps so far.", state=True),
        _by_agent("Share of the load by agent", rows, "share", "Over the last queries routed.", percent=True),
        _by_agent("Reward by agent", rows, "reward", f"On the queries that the agent practised on. {spread}"),
        _by_agent("Buffer depth by agent", rows, "depth", f"Queries that wait to be practised on. {spread}"),
        _card(
            "Groups without variance",
            [_line("all agents", rows, _top("zero_variance"))],
            f"Share of groups whose completions all score alike: they teach the agent nothing. {spread}",
            percent=True,
        ),
        _card(
            "Balance of the load",
            [_line("load entropy", rows, _top("load_entropy"))],
            "1 where all agents have equal shares, 0 where one has all.",
        ),
    ]


def _spread_note(rows: Sequence[Row]) -> str:
    if len(rows) <= POINTS:
        return "A point is a round."
    return f"A point is the mean of {-(-len(rows) // POINTS)} rounds or fewer, the band their middle four fifths."


def _by_agent(
    title: str, rows: Sequence[Row], key: str, note: str, *, percent: bool = False, state: bool = False
) -> Card:
    """A line an agent, of many those that practised most. Of a `state`, a point's last value counts."""
    names = agents_of(rows)
    steps = {name: _last(rows, name, "updates") or 0.0 for name in names}
    shown = [name for name in names if name in sorted(names, key=lambda n: (-steps[n], n))[:COLOURS]]
    hidden = f" Shown are the {len(shown)} of {len(names)} with most updates." if len(shown) < len(names) else ""
    lines = [_line(name, rows, _own(name, key), state=state) for name in shown]
    return _card(title, lines, note + hidden, percent=percent)


def _card(title: str, series: Sequence[Series], note: str, *, percent: bool = False) -> Card:
    drawn = course(f"{title} against queries", series, label="Queries", percent=percent)
    return Card(title=title, markup=scrolling(drawn, "plot"), note=note)


def agents_of(rows: Sequence[Row]) -> list[str]:
    """All agents that ever took part, in the order in which they appear."""
    return list(dict.fromkeys(name for row in rows for name in row["agents"]))


def _top(key: str) -> Value:
    return lambda row: row.get(key)


def _own(name: str, key: str) -> Value:
    return lambda row: row["agents"].get(name, {}).get(key)


def _line(name: str, rows: Sequence[Row], value: Value, *, state: bool = False) -> Series:
    known = [(row["queries"], found) for row in rows if (found := value(row)) is not None]
    if not known:
        return Series(name=name, points=())
    parts = np.array_split(np.array(known, dtype=float), min(POINTS, len(known)))
    return Series(name=name, points=tuple(_at(part, state) for part in parts))


def _at(part: np.ndarray, state: bool) -> At:
    """A point from (queries, value) of some rounds."""
    x, values = part[:, 0], part[:, 1]
    if state or len(values) == 1:
        return At(x=float(x[-1]), y=float(values[-1]), lo=float(values[-1]), hi=float(values[-1]))
    lo, hi = np.percentile(values, (10, 90))
    return At(x=float(x.mean()), y=float(values.mean()), lo=float(lo), hi=float(hi))


# --- tables -------------------------------------------------------------------------------------------

TITLES = (
    "Agent",
    "Updates",
    "Skipped",
    "Queries",
    "Share",
    "Familiarity",
    "Reward",
    "Solved",
    "Waiting",
    "Evicted",
)
KEYS = ("updates", "skipped", "allocated", "share", "familiarity", "reward", "solved", "depth", "evicted")
HINTS = (
    "",
    "Optimiser steps",
    "Updates left out because their numbers were none",
    "Queries that were given to the agent",
    "Part of the load over the last queries routed",
    "Mean of the last round's queries",
    "Mean of the last round in which the agent practised",
    "Share of completions that solved their query, in that round",
    "Queries in the buffer",
    "Queries that fell out of the full buffer",
)
PHASES = ("route", "sample", "verify", "learn", "router")


def table_cards(rows: Sequence[Row]) -> list[Card]:
    """Where every agent ended, and which part of a round took how long."""
    table = [[name, *(_cell(key, _last(rows, name, key)) for key in KEYS)] for name in agents_of(rows)]
    errors = rows[-1].get("errors", 0)
    note = f"{count(errors)} completions had no verdict." if errors else "Every completion had a verdict."
    times = plain_table(("Part of a round", "Seconds", "Share"), _times(rows))
    return [
        Card(title="Where the agents ended", markup=plain_table(TITLES, table, HINTS), note=note),
        Card(title="Where the time went", markup=times, note="Of the rounds that are recorded."),
    ]


def _last(rows: Sequence[Row], name: str, key: str) -> float | None:
    """An agent's newest value that is known."""
    found = (row["agents"].get(name, {}).get(key) for row in reversed(rows))
    return next((float(value) for value in found if value is not None), None)


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    if key in ("share", "solved"):
        return percent(value)
    return f"{value:.3f}" if key in ("familiarity", "reward") else count(int(value))


def _times(rows: Sequence[Row]) -> list[list[str]]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row.get("seconds", {}))
    whole = sum(total.values())
    order = [*(key for key in PHASES if key in total), *sorted(set(total) - set(PHASES))]
    return [[key, f"{total[key]:,.1f}", percent(total[key] / whole)] for key in order] if whole else []
