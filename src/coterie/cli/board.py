"""What a training run looks like in a terminal: a live table, or a line now and then. It trains nothing."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coterie.cli import show
from coterie.types import record

RECENT = 10  # rounds that speed is measured over
COLUMNS = {
    "familiarity": "familiarity",
    "updates": "updates",
    "depth": "buffer",
    "reward": "reward",
    "share": "share",
}
Row = Mapping[str, Any]


@record
class Budget:
    """Where a run stands and where it ends, by what is counted: queries, updates, maybe completions."""

    used: Mapping[str, Any]
    most: Mapping[str, int]

    def gone(self, used: Mapping[str, Any]) -> float:
        """The share of the budget that is used up: of whatever ends first."""
        return float(min(1.0, max(used[name] / most for name, most in self.most.items())))


class Board:
    """The newest figures of a run, each agent's last known ones, how fast it goes, what was warned of."""

    def __init__(self, agents: Sequence[str], start: Budget, now: Callable[[], float] = time.monotonic) -> None:
        self.start, self.now = start, now
        self.began = now()
        self.rows: deque[tuple[float, int]] = deque([(self.began, start.used["tokens"])], RECENT + 1)
        self.row: Row = {}
        self.last: dict[str, dict[str, Any]] = {name: {} for name in agents}
        self.warned: set[str] = set()

    def take(self, row: Row) -> list[str]:
        """Take up a round; what there is to be warned of for the first time."""
        if row["tokens"] < self.rows[-1][1]:  # rounds are made again: a worker was lost
            self.rows.clear()
        self.row = row
        self.rows.append((self.now(), row["tokens"]))
        for name, own in row["agents"].items():
            known = self.last.setdefault(name, {})
            known |= {key: value for key, value in own.items() if value is not None}
        for name in set(self.last) - set(row["agents"]):
            del self.last[name]
        fresh = [(key, words) for key, words in alarms(row) if key not in self.warned]
        self.warned |= {key for key, _ in fresh}
        return [words for _, words in fresh]

    # --- figures -------------------------------------------------------------------------------------

    def speed(self) -> float | None:
        """Sampled tokens a second over the last rounds; None before there is one."""
        (first, before), (last, tokens) = self.rows[0], self.rows[-1]
        return (tokens - before) / (last - first) if last > first else None

    def left(self) -> float | None:
        """Seconds that the rest of the budget takes at this start's pace; None before a round."""
        if not self.row:
            return None
        first, gone = self.start.gone(self.start.used), self.start.gone(self.row)
        return (1 - gone) / (gone - first) * (self.rows[-1][0] - self.began) if gone > first else None

    def facts(self) -> dict[str, str]:
        """The run's figures in words, by what they are."""
        row, left = self.row, self.left()
        return {
            "round": str(row["round"]),
            **{name: f"{row[name]:,}/{most:,}" for name, most in self.start.most.items()},
            "reward": figure(row["reward"]),
            "solved": share(row["solved"]),
            "agents a query": figure(row.get("active"), 2),
            "zero variance": share(row["zero_variance"]),
            "tokens/s": figure(self.speed(), 0),
            "left": "?" if left is None else span(left),
        }

    # --- how it looks --------------------------------------------------------------------------------

    def line(self) -> str:
        """One line with all of it."""
        whole = ", ".join(f"{name} {words}" for name, words in self.facts().items())
        agents = "; ".join(f"{name}: {', '.join(cells)}" for name, cells in self._agents())
        return f"{whole} | {agents}"

    def drawn(self) -> Group | Text:
        """The table, and the run's figures above it."""
        if not self.row:
            return Text(f"first round, {span(self.now() - self.began)}", style="dim")
        table = Table("agent", *COLUMNS.values())
        for column in table.columns[1:]:
            column.justify = "right"
        for name, cells in self._agents(names=False):
            table.add_row(escape(name), *cells)
        whole = "   ".join(f"[dim]{name}[/] {words}" for name, words in self.facts().items())
        done = self.start.gone(self.row) >= 1
        below = "" if done else f"next round since {span(self.now() - self.rows[-1][0])}"
        return Group(Text.from_markup(whole), table, Text(below, style="dim"))

    def _agents(self, names: bool = True) -> list[tuple[str, list[str]]]:
        found = []
        for name, own in self.last.items():
            cells = {
                "familiarity": figure(own.get("familiarity")),
                "updates": f"{own.get('updates', 0):,}",
                "depth": str(own.get("depth", 0)),
                "reward": figure(own.get("reward")),
                "share": share(own.get("share")),
            }
            found.append((name, [f"{COLUMNS[key]} {words}" if names else words for key, words in cells.items()]))
        return found


def alarms(row: Row) -> list[tuple[str, str]]:
    """What is wrong in a round, each with the key under which it is said once."""
    agents = row["agents"]
    found = []
    if row.get("collapsed"):
        name = max(agents, key=lambda name: (agents[name]["share"], name))
        found.append(("collapsed", f"collapse: {name} has {share(agents[name]['share'])} of the load"))
    if row["errors"]:
        why = "no verdict on some completions; they are left out"
        found.append(("errors", f"{row['errors']:,} errors of verifiers so far: {why}"))
    for name, own in agents.items():
        if own.get("starved"):
            found.append((f"starved {name}", f"{name} starves: {share(own['share'])} of the load"))
        if own.get("skipped"):
            found.append((f"skipped {name}", f"{name}: an update was skipped, its numbers were none"))
    return found


@contextmanager
def watching(board: Board) -> Iterator[Callable[[Row], None]]:
    """What is to see each row: the live table, or lines where no terminal is watching."""
    if not show.err.is_terminal:
        yield _lines(board)
        return
    with Live(get_renderable=board.drawn, console=show.err, refresh_per_second=2) as live:

        def see(row: Row) -> None:
            for words in board.take(row):
                warn(words)
            live.refresh()

        yield see


def _lines(board: Board) -> Callable[[Row], None]:
    last = [float("-inf")]

    def see(row: Row) -> None:
        for words in board.take(row):
            warn(words)
        done = board.start.gone(row) >= 1
        if done or board.now() - last[0] >= show.LINE_EVERY:
            last[0] = board.now()
            click.echo(board.line(), err=True)

    return see


def warn(words: str) -> None:
    """Say a warning, above a live table where there is one."""
    show.err.print(f"warning: {words}", markup=False, soft_wrap=True)


def figure(value: float | None, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """A share in percent, or a dash where there is none."""
    return "–" if value is None else f"{100 * value:.1f} %"


def span(seconds: float) -> str:
    """A time in words: 42 s, 3 min 05 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
