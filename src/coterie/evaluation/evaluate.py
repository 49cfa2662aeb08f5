"""Run teams over a task, seal their decisions, grade: the loop behind `coterie eval`. Prints nothing.

Everything finished is on disk at once, so a run that was killed goes on where it stopped.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from coterie import __version__
from coterie.storage.runs import Run, text_key
from coterie.tasks import catalog
from coterie.tasks.task import Task
from coterie.team import Team
from coterie.types import Query, Trace, record


@record
class Progress:
    """How far one phase is: `recipe` (or `grading`), items done of how many."""

    phase: str
    done: int
    total: int


Watch = Callable[[Progress], None]


@record
class Entry:
    """One row of an evaluation: a team and the queries as its contracts word them."""

    team: Team
    queries: tuple[Query, ...]


def run_config(task: Task, entries: Sequence[Entry], baseline: str | None) -> dict[str, Any]:
    """What identifies a run: resuming is allowed only where all of it is the same."""
    return {
        "coterie": __version__,
        "task": task.name,
        "n": len(task.queries),
        "baseline": baseline,
        "recipes": {
            entry.team.name: {
                "config": dict(entry.team.config),
                "revisions": {a.name: a.revision for a in entry.team.pool.values()},
                "queries": text_key(entry.queries[0], repr([q.messages for q in entry.queries])),
            }
            for entry in entries
        },
    }


async def evaluate(
    entries: Sequence[Entry], run: Run, *, concurrency: int = 16, watch: Watch = lambda progress: None
) -> dict[str, list[Trace]]:
    """Solve, seal, grade. Returns the scored traces by recipe, in the order of the queries."""
    for entry in entries:
        await solve_missing(entry, run, concurrency, watch)
    traces = in_order(entries, run.traces())
    run.seal(traces)
    await asyncio.to_thread(grade_all, traces, run, watch)
    return {name: [run.scored(trace) for trace in rows] for name, rows in traces.items()}


async def solve_missing(entry: Entry, run: Run, concurrency: int, watch: Watch) -> None:
    """Solve the queries of one entry that the run has no trace of."""
    name, team = entry.team.name, entry.team
    finished = {trace.query.id for trace in run.traces().get(name, [])}
    todo = [query for query in entry.queries if query.id not in finished]
    done, total = len(entry.queries) - len(todo), len(entry.queries)
    watch(Progress(phase=name, done=done, total=total))
    await team.warm(todo)
    async for trace in team.solve_all(todo, concurrency):
        run.append(name, trace)
        done += 1
        watch(Progress(phase=name, done=done, total=total))


def in_order(entries: Sequence[Entry], traces: Mapping[str, Sequence[Trace]]) -> dict[str, list[Trace]]:
    """The traces of each entry in the order of its queries."""
    found = {}
    for entry in entries:
        by_id = {trace.query.id: trace for trace in traces.get(entry.team.name, ())}
        found[entry.team.name] = [by_id[query.id] for query in entry.queries if query.id in by_id]
    return found


def grade_all(traces: Mapping[str, Sequence[Trace]], run: Run, watch: Watch, threads: int = 4) -> None:
    """Grade every text that has no verdict yet, each once, however many recipes gave it."""
    todo: dict[str, tuple[Query, str]] = {}
    for trace in (trace for rows in traces.values() for trace in rows):
        for turn in trace.turns:
            key = text_key(trace.query, turn.completion.text)
            if key not in run.scores:
                todo[key] = (trace.query, turn.completion.text)
    if not todo:
        return
    watch(Progress(phase="grading", done=0, total=len(todo)))
    with ThreadPoolExecutor(threads) as pool:
        jobs = list(todo.values())
        verdicts = pool.map(lambda job: catalog.verify(job[1], job[0]), jobs)
        for done, ((query, text), verdict) in enumerate(zip(jobs, verdicts, strict=True), 1):
            run.grade(query, text, verdict)
            watch(Progress(phase="grading", done=done, total=len(todo)))
