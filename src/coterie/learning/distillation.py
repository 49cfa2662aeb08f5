"""A reviewer being distilled, in a folder: labels, the set that is learned from, a training run, a team with it.

run.json                what it is made from; a run made from something else is not gone on with
labels.jsonl            the teacher's word on each example, appended
examples.jsonl, .sha256 the set that is learned from: prompts as served and reviews, sealed before training
metrics.jsonl           a row an update
checkpoints/, team/     the newest states (`checkpoint`); the team whose reviewer has the adapter
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from coterie import __version__
from coterie.config import FILES, build, laid_over, nearest
from coterie.errors import AllAgentsFailed, ConfigError, DataError
from coterie.learning.examples import Distill, Example, Gathered, completion, digest, prompt
from coterie.learning.teachers import Asked, Gold, Label, Teacher, checked
from coterie.pool import read_agent, write_agent
from coterie.storage.runs import Run, append_line, read_lines, write_atomically
from coterie.strategies.layers import Panel
from coterie.strategies.prompts import rationale_room
from coterie.team import Team
from coterie.types import Agent, Messages, record

LABELS, EXAMPLES, SEAL = "labels.jsonl", "examples.jsonl", "examples.sha256"
TEAM, RECIPE, REVIEWER = "team", "team.yaml", "reviewer"
TOO_LONG = "a rationale is longer than the reviewer's max_tokens leave room for"
Watch = Callable[[Mapping[str, Any]], bool]
"""Sees a row for each label and each update; False asks for a stop."""


@record
class Lesson:
    """One row of the set: a prompt as it is served, and the review to be learned."""

    id: str
    domain: str
    layer: int
    prompt: Messages
    completion: str


LESSON, LABEL = TypeAdapter(Lesson), TypeAdapter(Label)


@dataclass
class Distillation:
    """An opened run; it holds the folder's lock."""

    run: Run
    team: Team
    student: Agent
    settings: Distill
    teacher: Teacher
    material: Gathered
    room: int

    @staticmethod
    def open(
        team: Team,
        material: Gathered,
        teacher: Teacher,
        sources: Sequence[Mapping[str, Any]],
        folder: Path,
        resume: bool,
    ) -> "Distillation":
        """A new run in an empty folder, or with `resume` the one that is there.

        Raises: ConfigError where there is nothing to learn from, a folder holds a run already, or another one's.
        """
        if not material.examples:
            raise ConfigError(f"there is nothing to learn from: {told(material.left_out) or 'no reviewed layer'}")
        begun = (folder / "run.json").exists()
        if begun and not resume:
            raise ConfigError(f"{folder}: holds a run already: go on with it by --resume, or choose another folder")
        if resume and not begun:
            raise ConfigError(f"{folder}: holds no run to go on with")
        settings, student = settings_of(team), student_of(team)
        facts = {
            "coterie": __version__,
            "task": f"distillation of {student.name}, {team.name}",
            "settings": json.loads(json.dumps(asdict(settings))),
            "seed": team.seed,
            "teacher": teacher.identity,
            "student": asdict(student) | {"folder": None},
            "examples": {"count": len(material.examples), "digest": digest(material.examples)},
            "left_out": dict(material.left_out),
            "sources": [dict(source) for source in sources],
        }
        run = Run.open(folder, json.loads(json.dumps(facts)))
        return Distillation(run, team, student, settings, teacher, material, room_of(team, student))

    @property
    def folder(self) -> Path:
        return self.run.path

    # --- the set -------------------------------------------------------------------------------------

    async def lessons(self, watch: Watch) -> list[Lesson]:
        """The set: as it was sealed, else labelled now as far as that is missing, and sealed.

        Raises: DataError where the sealed set was changed, or every label is missing or rejected.
        """
        file, seal = self.folder / EXAMPLES, self.folder / SEAL
        if not seal.exists():
            labels = await self._labels(watch)
            made = [self._lesson(one, labels[one.id]) for one in self.material.examples if one.id in labels]
            found = [lesson for lesson in made if lesson is not None]
            if not found:
                raise DataError(f"{self.folder}: the teacher gave no label that can be learned from; see {LABELS}")
            text = "".join(
                json.dumps(LESSON.dump_python(one, mode="json"), ensure_ascii=False) + "\n" for one in found
            )
            write_atomically(file, text)
            write_atomically(seal, f"{hashlib.sha256(text.encode()).hexdigest()}  {EXAMPLES}\n")
        if not file.is_file() or not seal.read_text().startswith(hashlib.sha256(file.read_bytes()).hexdigest()):
            raise DataError(f"{file}: was changed after it was sealed; choose another folder")
        return [LESSON.validate_python(row) for row in read_lines(file)]

    async def _labels(self, watch: Watch) -> dict[str, Label]:
        """A label for each example; those whose teacher failed have none, and are asked for again by a resume."""
        file, wanted = self.folder / LABELS, {example.id: example for example in self.material.examples}
        rows = [row for row in read_lines(file) if row.get("example") in wanted]
        write_atomically(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        found = {row["example"]: LABEL.validate_python(row["label"]) for row in rows}
        for number, (name, example) in enumerate(wanted.items(), 1):
            if name not in found:
                try:
                    found[name] = self._fitting(checked(example, await self.teacher.label(example)))
                except AllAgentsFailed:
                    continue
                append_line(file, {"example": name, "query": example.query.id, "label": asdict(found[name])})
            watch({"labelled": number, "of": len(wanted)})
        return found

    def _fitting(self, label: Label) -> Label:
        """The label, rejected where a rationale is longer than the student's reply would be held to."""
        numbers = range(1, len(label.rationales) + 1)
        room = rationale_room(numbers, self.student.sampling.max_tokens) if numbers else 0
        return Label(rejected=TOO_LONG) if any(len(text) > room for text in label.rationales) else label

    def _lesson(self, example: Example, label: Label) -> Lesson | None:
        if label.rejected:
            return None
        return Lesson(
            id=example.id,
            domain=example.query.domain,
            layer=example.layer,
            prompt=prompt(example, self.student, self.room),
            completion=completion(label.scores, label.rationales),
        )

    def rejected(self) -> dict[str, int]:
        """How many labels were rejected, by reason, and how many are missing."""
        rows = [LABEL.validate_python(row["label"]) for row in read_lines(self.folder / LABELS)]
        counts = Counter(label.rejected for label in rows if label.rejected)
        counts["the teacher failed"] = len(self.material.examples) - len(rows)
        return {reason: count for reason, count in counts.items() if count}

    # --- training -------------------------------------------------------------------------------------

    def train(self, lessons: Sequence[Lesson], watch: Watch) -> bool:
        """Train to the end or to where `watch` asks for a stop; True where it is finished, and the team written.

        Raises: MissingExtra without trl; ConfigError where the student cannot learn as it is set up.
        """
        from coterie.learning import sft

        adapter = sft.trained(self.student, self.settings, lessons, self.folder, self.team.seed, watch)
        if adapter is None:
            return False
        sft.write(self._home() / "adapter", adapter, self.settings, self.student)
        export(self.team, self.student, self._home(), self.folder / TEAM)
        return True

    def _home(self) -> Path:
        return self.folder / TEAM / "agents" / REVIEWER

    @property
    def finished(self) -> bool:
        return (self.folder / TEAM / RECIPE).is_file()

    def close(self) -> None:
        """Let go of the folder."""
        if self.run.lock is not None:
            self.run.lock.close()


def export(team: Team, student: Agent, home: Path, folder: Path) -> Path:
    """The team as a recipe, its reviewer the one in `home`; the recipe's path."""
    from coterie.learning.training import folders_of

    trained = replace(student, role="reviewer", adapter=str((home / "adapter").resolve()), folder=None)
    write_agent(home, trained)
    read_agent(home)  # an agent that cannot be read again is no export
    others = sorted(name for name in team.pool if name != student.name and team.pool[name].role != "reviewer")
    places = {name: place for name, place in folders_of([REVIEWER, *others]).items() if name != REVIEWER}
    for name, place in places.items():
        write_agent(folder / "agents" / place, replace(team.pool[name], folder=None))
    table = {key: value for key, value in team.config.items() if key != "learner"}
    table |= {"router": _found_again(team.config.get("router", "uniform"), team.router)}
    table |= {
        "agents": [f"agents/{REVIEWER}", *(f"agents/{place}" for place in places.values())],
        "name": f"{team.name}, distilled reviewer",
    }
    write_atomically(folder / RECIPE, yaml.safe_dump(table, sort_keys=False, allow_unicode=True))
    return folder / RECIPE


def _found_again(table: Any, router: Any) -> Any:
    """A router's table with the files it names as whole paths: the recipe is written to another folder."""
    if not isinstance(table, Mapping):
        return table
    files = {key: str(Path(value).resolve()) for key in FILES if (value := getattr(router, key, None)) is not None}
    inner = {"router": _found_again(table["router"], router.router)} if "router" in table else {}
    return {**table, **files, **inner}


def told(counts: Mapping[str, int]) -> str:
    """Counts by reason, in words."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)


def settings_of(team: Team) -> Distill:
    """The recipe's `learner` where it is one for distilling, else the defaults with its `learner.KEY` settings.

    Raises: ConfigError for another learner.
    """
    table = team.config.get("learner")
    table = {"use": table} if isinstance(table, str) else table or {}
    found = build("learner", laid_over({"use": "distill"}, table), f"{team.name}: ")
    if not isinstance(found, Distill):
        raise ConfigError(f"{team.name}: its `learner` is for `coterie train`; --set learner=distill distils")
    if found.batch % found.micro_batch:
        raise ConfigError(
            f"{team.name}: learner.batch {found.batch} is no multiple of micro_batch {found.micro_batch}"
        )
    if found.least > found.most:
        raise ConfigError(f"{team.name}: learner.least {found.least} is more than learner.most {found.most}")
    return found


def student_of(team: Team) -> Agent:
    """The team's reviewer. Raises: ConfigError where it has none, or one that has an adapter already."""
    names = team.pool.names("reviewer")
    if not names:
        raise ConfigError(f"{team.name}: has no agent with role reviewer, who would be the one to learn")
    agent = team.pool[names[0]]
    if agent.adapter is not None:
        raise ConfigError(f"{team.name}: reviewer {agent.name!r} has an adapter already; name one without")
    if not agent.model.startswith(("local:", "builtin:")):
        raise ConfigError(
            f"{team.name}: reviewer {agent.name!r} is {agent.model}; only a local model can be trained"
        )
    return agent


def room_of(team: Team, student: Agent) -> int:
    """About how many tokens the prompt of a review may have, as the team's strategy says."""
    panel = getattr(team.strategy, "panel", None)
    return (panel if isinstance(panel, Panel) else Panel()).room(student)


def teacher_of(name: str, team: Team) -> Teacher:
    """`gold`, or an agent of a team. Raises: ConfigError for one that the team does not have."""
    if name == "gold":
        return Gold()
    if name not in team.pool:
        raise ConfigError(
            f"--teacher {name!r} is neither gold nor an agent of {team.name}{nearest(name, team.pool)}"
        )
    return Asked(team, team.pool[name], room_of(team, team.pool[name]))
