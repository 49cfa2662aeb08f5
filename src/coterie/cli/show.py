"""How results look in a terminal: tables, progress, and a trace in words."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from coterie.evaluation import evaluate
from coterie.evaluation.metrics import Row
from coterie.evaluation.table import table as worded
from coterie.rollout import Limits
from coterie.tasks.catalog import reader_of
from coterie.team import Team
from coterie.types import Routing, Trace, Turn

WIDE, ROOMY = 240, 140
NARROW = {"Recipe", "Accuracy", "pass@k", "95 %", "p", "Tokens", "Agents", "Errors", "p50"}
"""What a narrow terminal shows; `--json` and the report have the rest."""

out = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, highlight=False)
LINE_EVERY = 10.0


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """The comparison table."""
    titles, lines = worded(rows)
    table = Table(title=escape(title), title_justify="left")
    kept = [i for i, title in enumerate(titles) if out.width >= ROOMY or title in NARROW]
    for i in kept:
        table.add_column(titles[i], justify="right" if i else "left", no_wrap=True)
    for line in lines:
        table.add_row(*(escape(line[i]) for i in kept))
    out.print(table)


def print_plain(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of words; the first column is to the left."""
    table = Table(title=escape(title), title_justify="left")
    for i, name in enumerate(titles):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table)


@dataclass
class Pace:
    """How fast the present phase goes, counted from where it began or was gone on with."""

    phase: str = ""
    first: int = 0
    start: float = 0.0

    def rate(self, step: evaluate.Progress) -> float:
        """Items a second."""
        if step.phase != self.phase or step.done < self.first:
            self.phase, self.first, self.start = step.phase, step.done, time.monotonic()
        return (step.done - self.first) / max(time.monotonic() - self.start, 1e-3)


@contextmanager
def progress() -> Iterator[evaluate.Watch]:
    """Live progress with rate and time left; a plain line now and then where no terminal is watching."""
    if not err.is_terminal:
        yield _lines()
        return
    rate = TextColumn("{task.fields[rate]}")
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        rate,
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err) as bars:
        known: dict[str, TaskID] = {}
        pace = Pace()

        def watch(step: evaluate.Progress) -> None:
            if step.phase not in known:
                known[step.phase] = bars.add_task(escape(step.phase), total=step.total, rate="")
            speed = f"{pace.rate(step):.1f}/s"
            bars.update(known[step.phase], completed=step.done, total=step.total, rate=speed)

        yield watch


def _lines() -> evaluate.Watch:
    pace, last = Pace(), [0.0]

    def watch(step: evaluate.Progress) -> None:
        speed = pace.rate(step)
        if time.monotonic() - last[0] < LINE_EVERY and step.done < step.total:
            return
        last[0] = time.monotonic()
        left = f", {(step.total - step.done) / speed:.0f} s left" if speed > 0 and step.done < step.total else ""
        err.print(f"{step.phase}: {step.done}/{step.total} ({speed:.1f}/s{left})", markup=False)

    return watch


def print_routing(routing: Routing, asked: Sequence[str]) -> None:
    """Whom a query would be sent to."""
    table = Table("agent", "familiarity", "weight", "asked")
    for name in routing.ranked():
        raw = f"{routing.scores[name]:.3f}" if name in routing.scores else "none"
        table.add_row(escape(name), raw, f"{routing.weights[name]:.3f}", "yes" if name in asked else "")
    out.print(table)


def explain(trace: Trace, team: Team) -> None:
    """A trace in words: who was asked, why, what each said, what settled it."""
    routing = trace.routings[-1] if trace.routings else Routing(weights={})
    asked = [*(turn.agent for turn in trace.turns), *(failure.agent for failure in trace.failures)]
    out.print(f"Question: {trace.query.text}", markup=False)
    for name in routing.ranked():
        said = "asked" if name in asked else "not asked"
        out.print(
            f"  {name}: {_raw(routing, name)}weight {routing.weights[name]:.3f}, {said}",
            markup=False,
        )
    threshold = getattr(team.strategy, "threshold", None)
    if threshold is not None and routing.scores:
        total = sum(routing.score(name) for name in set(asked))
        everybody = set(asked) == set(routing.weights)
        why = ", so everybody was asked" if everybody and total < threshold else ""
        out.print(
            f"The familiarity of those asked sums to {total:.3f}; the threshold is {threshold:g}{why}.",
            markup=False,
        )
    for turn in trace.turns:
        out.print(_turn(turn), markup=False)
    for failure in trace.failures:
        out.print(f"{failure.agent} failed: {failure.message}", markup=False)
    if (vote := _vote(trace, routing)) is not None:
        out.print(vote, markup=False)
    out.print(_settled(trace, team.limits), markup=False)


def _raw(routing: Routing, name: str) -> str:
    return f"familiarity {routing.scores[name]:.3f}, " if name in routing.scores else ""


def _turn(turn: Turn) -> str:
    used = turn.completion.prompt_tokens + turn.completion.completion_tokens
    text = " ".join(turn.completion.text.split())
    short = text if len(text) <= 160 else f"{text[:159]}…"
    answer = "no answer read" if turn.answer is None else f"answer {turn.answer!r}"
    answer = answer if turn.answers else "helps the others"
    if not turn.part:
        return f"{turn.agent} said {short!r} ({answer}; {used} tokens)"
    read = f"; read {', '.join(f'#{n}' for n in turn.reads)}" if turn.reads else ""
    role = f"layer {turn.layer}, {turn.part}"
    return f"#{turn.index} {role}: {turn.agent} said {short!r} ({answer}{read}; {used} tokens)"


def _vote(trace: Trace, routing: Routing) -> str | None:
    """How many of those asked gave the answer that settled it, and their share of the weight."""
    turns = [turn for turn in trace.turns if turn.answers]
    if trace.answer is None or len(turns) < 2:
        return None
    same = reader_of(trace.query).same
    agreed = [turn.agent for turn in turns if turn.answer is not None and same(trace.answer, turn.answer)]
    if any(turn.part for turn in turns):
        return f"{len(agreed)} of {len(turns)} answers are {trace.answer!r}."
    weight = sum(routing.score(name) for name in agreed)
    total = sum(routing.score(turn.agent) for turn in turns)
    return f"{len(agreed)} of {len(turns)} said {trace.answer!r} ({weight:.3f} of {total:.3f} by weight)."


def _settled(trace: Trace, limits: Limits) -> str:
    cost = "unknown" if trace.cost is None else f"${trace.cost:.6f}"
    tail = f"{trace.tokens} tokens, cost {cost}, {trace.seconds:.2f} s"
    if trace.final is None:
        return f"Nobody answered ({trace.stopped}); {tail}."
    note = "" if trace.stopped == "done" else f" (stopped by a limit: {limits})"
    note += f" (degraded: {trace.degraded})" if trace.degraded else ""
    return f"Settled by {trace.turns[trace.final].agent}{note}: {trace.answer or trace.text.strip()!r}; {tail}."
