"""A training run in a folder: opens a recipe's pool for learning, advances it, keeps record and checkpoints.

run.json                the resolved configuration; a run under another one is not gone on with
metrics.jsonl           one row a round; `seconds` is the only part that differs between two equal runs
checkpoints/            the newest states (`checkpoint`)
team/                   what came of it: agents as PEFT folders, the router's weights, a recipe that fills in both
"""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter

from coterie import __version__
from coterie.config import build
from coterie.errors import ConfigError, CoterieError, DataError, Diverged
from coterie.learning.checkpoint import Checkpoint, Damaged, newest, save
from coterie.learning.course import Course, Lessons, prepared
from coterie.learning.engines import close, engines_of
from coterie.learning.practice import prompt_limit
from coterie.learning.remote import WorkerLost
from coterie.learning.rewards import verdicts
from coterie.pool import read_agent, write_agent
from coterie.rollout import read_by
from coterie.storage.runs import Run, append_line, read_lines, write_atomically
from coterie.tasks.catalog import load_task, reader_of
from coterie.team import Team
from coterie.types import Pool, Query, draw

log = logging.getLogger(__name__)
RESTARTS = 3
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
METRICS, CHECKPOINTS, TEAM, RECIPE = "metrics.jsonl", "checkpoints", "team", "team.yaml"
ASKED = TypeAdapter(Query)
Done = TypeVar("Done")
Watch = Callable[[Mapping[str, Any]], bool]
"""Sees every round's row; False asks for a stop after it."""


@dataclass
class Training:
    """An opened run. Holds the folder's lock for as long as it lives."""

    run: Run
    team: Team
    course: Course
    lost: tuple[int, int] = (0, 0)
    kept: int = 0  # the round that a checkpoint was last written of, or taken up

    @staticmethod
    def open(team: Team, folder: Path, resume: bool) -> "Training":
        """A new run in an empty folder, or with `resume` the one that is there, from its newest checkpoint.

        Raises: ConfigError for a recipe that cannot learn, a folder that holds something already, or another run's.
        """
        settings = settings_of(team)
        _fitting(folder, resume)
        queries = queries_of(settings, team)
        run = Run.open(folder, _config(team, queries))
        with _nothing_left(folder, when=not resume), ExitStack() as undo:
            training = Training(run, team, opened(settings, team, queries))
            undo.callback(training.close)
            training._take_up(folder)
            undo.pop_all()
        return training

    def advance(self, watch: Watch) -> bool:
        """Rounds until the budget is used up or `watch` asks for a stop; True where it is used up.

        Raises: Diverged, after that round is recorded and kept where it is whole. What ends a round in the middle
        loses what was learned since the last checkpoint; `open` goes on from there. So does this run where a worker
        is lost, in a round or between two; WorkerLost where that would go on for ever.
        """
        return self._in_spite_of_losses(lambda: self._advance(watch))

    def _advance(self, watch: Watch) -> bool:
        going = True
        while going and not self.course.finished:
            try:
                row = self.course.round()
            except Diverged as stop:
                if stop.row is not None:
                    append_line(self.run.path / METRICS, stop.row)
                    self.save()
                raise
            append_line(self.run.path / METRICS, row)
            if row["round"] % self.course.settings.checkpoint_every == 0:
                self.save()
            going = watch(row)
        self.save()
        return self.course.finished

    def save(self) -> Path:
        """A checkpoint of now. Raises: WorkerLost; `advance` begins again where it meets that."""
        path = save(self.run.path / CHECKPOINTS, self.course.state(), self.course.settings.keep)
        self.kept = self.course.rounds
        return path

    def export(self) -> Path:
        """Write what came of it as a team: PEFT folders, router weights, a recipe. Returns the recipe's path."""
        return self._in_spite_of_losses(lambda: export(self.course, self.team, self.run.path / TEAM))

    def close(self) -> None:
        """Take the agents off their bases and let go of the folder."""
        close(self.course.engines)
        if self.run.lock is not None:
            self.run.lock.close()

    def _in_spite_of_losses(self, act: Callable[[], Done]) -> Done:
        """What `act` gives, begun again with new workers whenever one is lost, be it while they are opened."""
        ready = True
        while True:
            try:
                if not ready:
                    self._begin_again()
                return act()
            except WorkerLost as lost:
                ready = False
                self._count(lost)

    def _count(self, lost: WorkerLost) -> None:
        """Raises: WorkerLost the RESTARTS-th time without a new checkpoint in between: it would happen for ever."""
        place = self.kept
        self.lost = (place, self.lost[1] + 1 if self.lost[0] == place else 1)
        if self.lost[1] >= RESTARTS:
            raise WorkerLost(
                f"{lost}, {RESTARTS} times after round {place}: is memory short? --resume goes on from there"
            ) from lost
        log.warning("%s: going on from round %d with new workers", lost, place)

    def _begin_again(self) -> None:
        """New workers, from the newest checkpoint; the rounds since then are made again."""
        self._open_again()
        self._take_up(self.run.path)

    def _open_again(self) -> None:
        """The course as it was before its first round."""
        before = self.course
        close(before.engines)
        self.course = opened(before.settings, self.team, tuple(before.queries.values()))

    def _load(self, found: Checkpoint) -> None:
        """Raises: Damaged, the course opened again, where the checkpoint is not one of this run's."""
        try:
            self.course.load(found)
        except WorkerLost:
            raise
        except (CoterieError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            self._open_again()
            place, why = self.run.path / CHECKPOINTS, " ".join(str(error).split())
            raise Damaged(
                f"{place}: the one of round {found.round} is damaged or of another version ({why})"
            ) from None

    def _take_up(self, folder: Path) -> None:
        """Go on from the newest checkpoint; rounds recorded after it will be made again."""
        rows = recorded(folder / METRICS)
        found = newest(folder / CHECKPOINTS, self._load)
        if found is None and len(rows) > self.course.settings.checkpoint_every:
            raise DataError(
                f"{folder}: {len(rows)} rounds are recorded, but there is no checkpoint to go on from: put"
                f" {CHECKPOINTS}/ back, or choose another folder"
            )
        last = self.kept = 0 if found is None else found.round
        if len(rows) < last:
            raise DataError(
                f"{folder / METRICS}: has {len(rows)} rounds where the newest checkpoint is of round {last}; remove"
                f" the checkpoints after round {len(rows)} to go on from an earlier one"
            )
        write_atomically(folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows[:last]))


def recorded(file: Path) -> list[dict[str, Any]]:
    """The recorded rounds, every one once and in order. Raises: DataError for a record that was changed."""
    rows = list(read_lines(file))
    for number, row in enumerate(rows, 1):
        if type(row.get("round")) is not int or row["round"] != number:
            raise DataError(f"{file}:{number}: is not round {number}: the record was changed")
    return rows


def _fitting(folder: Path, resume: bool) -> None:
    """Raises: ConfigError for a folder that a run cannot begin in, or not go on in."""
    if resume and not os.path.exists(folder / "run.json"):
        raise ConfigError(f"{folder}: holds no run to go on with")
    if not resume and os.path.exists(folder / "run.json"):
        raise ConfigError(f"{folder}: holds a run already: go on with it by --resume, or choose another folder")
    # A process that was killed while it began leaves its lock and drafts.
    held = sorted(one.name for one in folder.iterdir() if one.name[0] != ".") if os.path.isdir(folder) else []
    if not resume and held:
        raise ConfigError(f"{folder}: holds {held[0]!r}, and a run begins in an empty folder: choose another one")


@contextmanager
def _nothing_left(folder: Path, when: bool) -> Iterator[None]:
    """Where a new run cannot begin, its folder holds none: the same command, mended, is not refused."""
    begun = False
    try:
        yield
        begun = True
    finally:
        if when and not begun:
            (folder / "run.json").unlink(missing_ok=True)
            (folder / ".lock").unlink(missing_ok=True)


def settings_of(team: Team) -> Lessons:
    """The recipe's `learner` as it suits the team. Raises: ConfigError where it has none or cannot learn by it."""
    return learner_of(team.config, team.name).suited(team)


def learner_of(recipe: object, where: str) -> Lessons:
    """The `learner` of a recipe's table. Raises: ConfigError where it has none, or one that trains no adapters."""
    table = recipe.get("learner") if isinstance(recipe, Mapping) else None
    if table is None:
        raise ConfigError(f"{where}: has no `learner` section: there is nothing that says how it learns")
    learner = build("learner", table, f"{where}: ")
    if not isinstance(learner, Lessons):
        name = type(learner).__name__
        raise ConfigError(f"{where}: learner {name} trains no team; `distill` is for `coterie distill`")
    return learner


def queries_of(settings: Lessons, team: Team) -> tuple[Query, ...]:
    """The training queries of all tasks.

    Raises: ConfigError where there is no task; DataError for a query without a reference, or one that its verifier
    cannot work on.
    """
    found: list[Query] = []
    for name, size in settings.tasks.items():
        queries = load_task(name, limit=size, seed=team.seed, contracts=team.contracts).queries
        if (blind := next((query.id for query in queries if query.reference is None), None)) is not None:
            raise DataError(f"{name}: query {blind}: has no reference, so that no answer to it can be rewarded")
        _gradable(name, queries, settings.rewards.patience)
        found += queries
    if not found:
        raise ConfigError("learner.tasks: names no task: there is nothing to train on")
    return tuple(found)


def _gradable(task: str, queries: Sequence[Query], patience: float) -> None:
    """Grade no answer at all to the first query of each kind. Raises: DataError for one that gets no verdict."""
    first: dict[tuple[str, ...], Query] = {}
    for query in queries:
        reference = query.reference or {}
        first.setdefault((query.task, query.contract, str(reference.get("metric")), *sorted(reference)), query)
    scores = verdicts([("", query) for query in first.values()], patience)
    for query, score in zip(first.values(), scores, strict=True):
        if score.verdict == "error":
            raise DataError(f"{task}: query {query.id}: cannot be graded: {score.reason}")


def opened(settings: Lessons, team: Team, queries: Sequence[Query]) -> Course:
    """The pool in training from its start: fresh adapters, or those that the agents bring along.

    Raises: ConfigError where an agent cannot learn as it is set up; nothing stays open then.
    """
    agents = [team.pool[name] for name in settings.learners(team.pool)]
    pool = Pool({agent.name: prepared(agent) for agent in agents})
    with ExitStack() as undo:
        engines = engines_of(settings, agents, team.seed)
        undo.callback(close, engines)
        for query in {(query.task, query.contract): query for query in queries}.values():
            for agent in agents:
                prompt_limit(read_by(agent, reader_of(query)), engines[agent.name].context)
        made = settings.begin(team, pool, queries, engines)
        undo.pop_all()
    return made


def export(course: Course, team: Team, folder: Path) -> Path:
    """Agents as plain PEFT folders, and the recipe of them and of whatever else was learned.

    Agents that were not to learn come along as they are.
    """
    others = sorted(set(team.pool) - set(course.engines))
    agents, folders = {}, folders_of([*course.names, *others])
    for name, place in folders.items():
        home, agent = folder / "agents" / place, team.pool[name]
        if name in course.engines:
            course.engines[name].write(course.policy(name), home / "adapter")
            agent = replace(agent, adapter=str((home / "adapter").resolve()))
        write_agent(home, replace(agent, folder=None))
        agents[name] = read_agent(home)
    table = {key: value for key, value in team.config.items() if key != "learner"}
    table = course.furnished(table, Pool(agents), folder)
    table |= {"agents": [f"agents/{place}" for place in folders.values()]}
    table["name"] = f"{team.name}, trained"  # an evaluation of both keeps them apart by name
    path = folder / RECIPE
    write_atomically(path, yaml.safe_dump(table, sort_keys=False, allow_unicode=True))
    return path


def folders_of(names: Sequence[str]) -> dict[str, str]:
    """A folder's name for every agent: its own where that is plain and no other's but for case, else a digest."""
    taken = Counter(name.casefold() for name in names)
    return {
        name: name if PLAIN.fullmatch(name) and taken[name.casefold()] == 1 else f"agent-{draw(0, name):016x}"
        for name in names
    }


def _config(team: Team, queries: Sequence[Query]) -> dict[str, Any]:
    """What identifies a run. Of its queries all that is asked, read and graded by: ids outlive changed data."""
    parts = {"id", "messages", "task", "contract", "reference"}
    digest = draw(0, *(ASKED.dump_json(query, include=parts).decode() for query in queries))
    agents = {
        name: asdict(agent) | {"folder": None, "sampling": agent.sampling.facts()}
        for name, agent in team.pool.items()
    }
    return {
        "coterie": __version__,
        "task": f"co-evolution of {team.name}",
        "recipe": json.loads(json.dumps(team.config, default=str)),
        "agents": agents,
        "queries": {"count": len(queries), "digest": f"{digest:x}"},
    }
