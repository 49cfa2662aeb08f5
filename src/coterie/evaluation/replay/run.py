"""A whole replay, and the folder it leaves: decisions as they are made, their seal, the table."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coterie import __version__
from coterie.errors import DataError
from coterie.evaluation.evaluate import Progress, Watch
from coterie.evaluation.replay.contenders import CONTENDERS, Contender, Features
from coterie.evaluation.replay.decide import Decision, Plan, Task, baselines
from coterie.evaluation.replay.jobs import Job, Work, decided
from coterie.evaluation.replay.judge import BASELINE, Frontier, Row, Tested, frontier, rows_of
from coterie.evaluation.replay.material import Material, narrowed
from coterie.routers.choice import Target
from coterie.storage.runs import Run, append_line, read_lines, write_atomically
from coterie.tasks.contamination import without_seen
from coterie.types import record

DECISIONS, SEAL, TABLE = "decisions.jsonl", "decisions.sha256", "table.json"
TIMES = "times.jsonl"
"""Seconds stand beside the decisions, not in them: the same replay gives the same seal."""
DECISION = TypeAdapter(Decision)
DEFAULT = "cheapest within 0 points"


@record
class Asked:
    """What a replay is to do. `targets` are cost-aware variants by the name of their rows.

    `workers` processes decide; what they decide does not hang on their number. With two or more, the module that
    was started has to be importable without doing anything (`if __name__ == "__main__"`).
    """

    seeds: int = 5
    encoder: str = "sentence"
    targets: Mapping[str, Target] = field(default_factory=dict)
    contenders: tuple[Contender, ...] = CONTENDERS
    workers: int = 1


@record
class Replayed:
    """A finished replay."""

    table: str
    test: str
    splits: Mapping[str, int]
    missing: int
    incomplete: int
    dropped: int
    rows: tuple[Row, ...]
    frontier: Frontier | None
    decisions: tuple[Decision, ...]

    def as_json(self) -> dict[str, Any]:
        """`{"table", "test", "splits", "missing", "dropped", "rows", "frontier", ...}`: `bench replay --json`."""
        front = self.frontier
        return {
            "table": self.table,
            "test": self.test,
            "splits": dict(self.splits),
            "missing": self.missing,
            "incomplete": self.incomplete,
            "dropped": self.dropped,
            "rows": [asdict(row) for row in self.rows],
            "frontier": [{"cost_usd_per_1k": cost, "score": score} for cost, score in front.points]
            if front
            else [],
            "frontier_router": front.router if front else None,
            "frontier_area": front.area if front else None,
        }


def targets_of(material: Material, at_most_cost: float | None, within_points: float | None) -> dict[str, Target]:
    """The cost-aware variants: what was asked for, else the lowest cost at the best single agent's score."""
    if not material.priced:
        if at_most_cost is not None or within_points is not None:
            raise DataError(f"{material.name}: costs are not known for every outcome, so that none can be weighed")
        return {}
    found: dict[str, Target] = {}
    if at_most_cost is not None:
        found[f"at most ${at_most_cost:g} / 1k"] = Target(kind="at_most_cost", value=at_most_cost)
    if within_points is not None:
        found[f"within {within_points:g} points"] = Target(kind="within_points", value=within_points)
    return found or {DEFAULT: Target(kind="within_points", value=0.0)}


def replay(asked: Asked, material: Material, folder: Path, watch: Watch, test: Material | None = None) -> Replayed:
    """Decide, seal, judge. Goes on where a stopped one with the same configuration left off."""
    tasks, dropped = _tasks(asked, material, test)
    run = Run.open(folder, _config(asked, material, test))
    features = Features.opened(asked.encoder)
    _encode(features, material, test, watch)
    done = _decided(asked, tasks, material, features, folder, watch)
    _seal(run.path)
    order = [*(d.contender for d in baselines(tasks[0], material)), *(c.name for c in asked.contenders)]
    found = [done[name, task.seed] for name in order for task in tasks]
    tests = [Tested(seed=task.seed, outcomes=task.test) for task in tasks]
    rows = rows_of(found, tests, tuple(asked.targets))
    single = next(row for row in rows if row.name == BASELINE)
    sizes = {"train": len(tasks[0].train.queries), "validation": len(tasks[0].validation.queries)}
    finished = Replayed(
        table=material.name,
        test=(test or material).name,
        splits={**sizes, "test": len(tasks[0].test.queries)},
        missing=material.missing,
        incomplete=len(material.queries) - len(material.complete),
        dropped=dropped,
        rows=tuple(rows),
        frontier=frontier(found, tests, single),
        decisions=tuple(found),
    )
    write_atomically(folder / TABLE, json.dumps(finished.as_json(), indent=2, ensure_ascii=False) + "\n")
    return finished


def _decided(
    asked: Asked, tasks: Sequence[Task], material: Material, features: Features, folder: Path, watch: Watch
) -> dict[tuple[str, int], Decision]:
    """All decisions, those from earlier among them; each is written as soon as those before it are."""
    done = _read(folder)
    names = [contender.name for contender in asked.contenders]
    jobs = [
        Job(contender=c, task=task) for task in tasks for c in asked.contenders if (c.name, task.seed) not in done
    ]
    work = Work(jobs=tuple(jobs), material=material, encoder=asked.encoder, plan=Plan(targets=asked.targets))
    total = len(tasks) * len(names)
    with closing(decided(work, features, asked.workers)) as made:
        for task in tasks:
            for baseline in baselines(task, material):
                _keep(folder, done, baseline)
            for name in names:
                ready = sum(known in names for known, _ in done)
                watch(Progress(phase=f"{name}, seed {task.seed}", done=ready, total=total))
                _keep(folder, done, done.get((name, task.seed)) or next(made))
    watch(Progress(phase="decided", done=total, total=total))
    return done


def _keep(folder: Path, done: dict[tuple[str, int], Decision], made: Decision) -> None:
    """Write a decision, unless it is there."""
    if (made.contender, made.seed) in done:
        return
    row = DECISION.dump_python(made, mode="json")
    append_line(folder / TIMES, {key: row[key] for key in ("contender", "seed", "seconds")})
    append_line(folder / DECISIONS, row | {"seconds": 0.0})
    done[made.contender, made.seed] = made


def _tasks(asked: Asked, material: Material, test: Material | None) -> tuple[list[Task], int]:
    """The work of each seed, and how many training questions were left out because the test asks them."""
    if test is None:
        return [Task.of(material, material.split(seed), seed) for seed in range(asked.seeds)], 0
    if test.outcomes.agents != material.outcomes.agents:
        raise DataError(f"{test.name}: has other agents than {material.name}: {', '.join(test.outcomes.agents)}")
    _, seen = without_seen(material.queries, test.queries)
    known = {query.id for query in seen}
    kept = [i for i, query in enumerate(material.queries) if query.id not in known]
    if not kept:
        raise DataError(f"{material.name}: every question is in {test.name} too: none is left to learn from")
    rest = Material(material.name, material.outcomes.take(kept))
    if not test.complete:
        raise DataError(
            f"{test.name}: has no query that all agents have an outcome of: {', '.join(rest.outcomes.agents)}"
        )
    judged = test.outcomes.take(sorted(test.complete))
    tasks = []
    for seed in range(asked.seeds):
        split = rest.split(seed)
        task = Task.of(rest, replace(split, train=(*split.train, *split.test)), seed)
        tasks.append(replace(task, test=judged))
    return tasks, len(seen)


def shared(first: Material, second: Material) -> tuple[Material, Material]:
    """Both tables for the agents that are in both. Raises: DataError where fewer than two are."""
    names = set(first.outcomes.agents) & set(second.outcomes.agents)
    if len(names) < 2:
        raise DataError(f"{first.name} and {second.name} have {len(names)} agents in common; routing needs two")
    both = []
    for one in (first, second):
        both.append(Material(one.name, narrowed(one.outcomes, [name in names for name in one.outcomes.agents])))
    return both[0], both[1]


def _encode(features: Features, material: Material, test: Material | None, watch: Watch) -> None:
    """All questions through both encoders, before any router asks for them."""
    queries = [*material.queries, *(test.queries if test is not None else ())]
    for name, encoder in (("words", features.words), ("sentences", features.sentence)):
        for start in range(0, len(queries), 512):
            watch(Progress(phase=f"encoding {name}", done=start, total=len(queries)))
            encoder.encode([query.messages for query in queries[start : start + 512]])
        watch(Progress(phase=f"encoding {name}", done=len(queries), total=len(queries)))


def _config(asked: Asked, material: Material, test: Material | None) -> dict[str, Any]:
    """What identifies a replay: one with other settings or data is not gone on with."""
    return {
        "coterie": __version__,
        "task": f"replay of {material.name}",
        "data": _digest(material),
        "test": None if test is None else {test.name: _digest(test)},
        "agents": list(material.outcomes.agents),
        "seeds": asked.seeds,
        "encoder": asked.encoder,
        "targets": {name: asdict(target) for name, target in asked.targets.items()},
        "contenders": {c.name: [dict(table) for table in c.candidates] for c in asked.contenders},
    }


def _digest(material: Material) -> str:
    """Of questions and outcomes."""
    total = hashlib.sha256("\0".join(material.digests).encode())
    for values in (material.outcomes.scores, material.outcomes.costs):
        total.update(values.tobytes())
    return total.hexdigest()[:16]


def _read(folder: Path) -> dict[tuple[str, int], Decision]:
    """What an earlier process decided."""
    times = {(row.get("contender"), row.get("seed")): row.get("seconds") for row in read_lines(folder / TIMES)}
    found = {}
    for number, line in enumerate(read_lines(folder / DECISIONS), 1):
        try:
            decision: Decision = DECISION.validate_python(line)
        except ValidationError:
            raise DataError(f"{folder / DECISIONS}:{number}: is no decision of this version") from None
        key = decision.contender, decision.seed
        taken = times.get(key)
        found[key] = replace(decision, seconds=taken) if isinstance(taken, float) else decision
    return found


def _seal(folder: Path) -> None:
    """Hash the decisions before the first of them is judged; refuse a folder whose sealed ones have changed."""
    digest = hashlib.sha256((folder / DECISIONS).read_bytes()).hexdigest()
    seal = folder / SEAL
    if seal.exists() and not seal.read_text(errors="replace").startswith(digest):
        raise DataError(f"{folder}: {DECISIONS} was changed after it was sealed")
    write_atomically(seal, f"{digest}  {DECISIONS}\n")


def named(names: Sequence[str]) -> tuple[Contender, ...]:
    """The contenders of these names, all where none is given."""
    return tuple(c for c in CONTENDERS if not names or c.name in names)
