"""Run teams over a task, seal their decisions, grade: the loop behind `coterie eval`. Prints nothing.

Everything finished is on disk at once, so a run that was killed goes on where it stopped.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coterie import __version__
from coterie.errors import ConfigError
from coterie.evaluation.outage import sealed
from coterie.storage.runs import Run, text_key
from coterie.tasks import catalog
from coterie.tasks.task import Task
from coterie.team import Team
from coterie.types import Query, State, Trace, record


@record
class Progress:
    """How far one phase is: `recipe` (or `grading`), items done of how many."""

    phase: str
    done: int
    total: int


Watch = Callable[[Progress], None]


@record
class Entry:
    """One row of an evaluation: a team, the queries as its contracts word them, how often each is solved."""

    team: Team
    queries: tuple[Query, ...]
    samples: int = 1

    @property
    def total(self) -> int:
        """Rollouts that it takes."""
        return len(self.queries) * self.samples


def run_config(task: Task, entries: Sequence[Entry], baseline: str | None) -> dict[str, Any]:
    """What identifies a run: resuming is allowed only where all of it is the same."""
    return {
        "coterie": __version__,
        "task": task.name,
        "n": len(task.queries),
        "baseline": baseline,
        "recipes": {entry.team.name: _identity(entry) for entry in entries},
    }


def _identity(entry: Entry) -> dict[str, Any]:
    team = entry.team
    facts = [[text_key(query, ""), [asdict(message) for message in query.messages]] for query in entry.queries]
    several = {"samples": entry.samples} if entry.samples > 1 else {}  # runs from before there were any go on
    return several | {
        "config": dict(team.config),
        "revisions": {agent.name: agent.revision for agent in team.pool.values()},
        "router": _router_identity(team.router),
        "strategy": repr(team.strategy),
        "limits": repr(team.limits),
        "queries": sha256(json.dumps(facts).encode(errors="surrogatepass")).hexdigest(),
    }


def _router_identity(router: Any) -> str:
    """The router's settings, and a digest of its weights where it has any."""
    settings = repr(replace(router, weights=None) if hasattr(router, "weights") else router)
    if not hasattr(router, "save"):
        return settings
    with TemporaryDirectory() as folder:
        file = Path(folder) / "router.safetensors"
        try:
            router.save(file)
        except ConfigError:
            if getattr(router, "weights", None) is not None:
                raise  # weights that cannot be read are no router without any
            return f"{settings} untrained"
        return f"{settings} {sha256(file.read_bytes()).hexdigest()}"


def check(entries: Sequence[Entry]) -> None:
    """Route one query of each entry, as routers tell only then that they do not fit the pool. Asks no agent.

    Raises: what the router raises, ConfigError where it was fitted for other agents.
    """
    for entry in entries:
        for query in entry.queries[:1]:
            entry.team.router.route(State(query, entry.team.pool))


async def evaluate(
    entries: Sequence[Entry], run: Run, *, concurrency: int = 16, watch: Watch = lambda progress: None
) -> dict[str, list[Trace]]:
    """Solve, seal, grade. Returns the scored traces by recipe, in the order of the queries."""
    found = run.traces()
    for entry in entries:
        found[entry.team.name] = await _completed(entry, run, found.get(entry.team.name, []), concurrency, watch)
    traces = in_order(entries, found)
    sealed(run, traces)
    await grade_all(traces, run, watch)
    return {name: [run.scored(trace) for trace in rows] for name, rows in traces.items()}


async def _completed(entry: Entry, run: Run, traces: list[Trace], concurrency: int, watch: Watch) -> list[Trace]:
    """The entry's traces: those that the run has, and the missing ones, solved now and appended to it."""
    name, finished = entry.team.name, {(trace.query.id, trace.sample) for trace in traces}
    todo = {
        sample: [query for query in entry.queries if (query.id, sample) not in finished]
        for sample in range(entry.samples)
    }
    missing = {query.id: query for queries in todo.values() for query in queries}
    total = entry.total
    watch(Progress(phase=name, done=total - sum(map(len, todo.values())), total=total))
    await entry.team.warm(list(missing.values()))
    for sample, queries in todo.items():
        async with aclosing(entry.team.solve_all(queries, concurrency, sample=sample)) as solved:
            async for trace in solved:
                run.append(name, trace)
                traces.append(trace)
                watch(Progress(phase=name, done=min(len(traces), total), total=total))
    return traces


def in_order(entries: Sequence[Entry], traces: Mapping[str, Sequence[Trace]]) -> dict[str, list[Trace]]:
    """The traces of each entry in the order of its queries, a query's samples one after the other."""
    found = {}
    for entry in entries:
        known = {(trace.query.id, trace.sample): trace for trace in traces.get(entry.team.name, ())}
        wanted = [(query.id, sample) for query in entry.queries for sample in range(entry.samples)]
        found[entry.team.name] = [known[key] for key in wanted if key in known]
    return found


async def grade_all(traces: Mapping[str, Sequence[Trace]], run: Run, watch: Watch) -> None:
    """Grade every text that has no verdict yet, each once, however many recipes gave it.

    As many at a time as there are processors: programs are graded against the clock.
    """
    jobs: dict[str, tuple[Query, str]] = {}
    for trace in (trace for rows in traces.values() for trace in rows):
        for turn in filter(lambda turn: turn.answers, trace.turns):
            key = text_key(trace.query, turn.completion.text)
            if key not in run.scores:
                jobs[key] = (trace.query, turn.completion.text)
    free, done = asyncio.Semaphore(os.cpu_count() or 1), 0

    async def grade(query: Query, text: str) -> None:
        nonlocal done
        async with free:
            verdict = await asyncio.to_thread(catalog.verify, text, query)
        run.grade(query, text, verdict)
        done += 1
        watch(Progress(phase="grading", done=done, total=len(jobs)))

    try:
        async with asyncio.TaskGroup() as group:
            for query, text in jobs.values():
                group.create_task(grade(query, text))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
