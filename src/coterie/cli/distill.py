"""`distill`: train a team's reviewer on graded layers of recorded runs.

What is learned from and how is `learning`'s business; here it is opened, watched and told of.
"""

import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli import options
from coterie.cli.coevolve import INTERRUPTED, Stop
from coterie.config import nearest
from coterie.errors import ConfigError
from coterie.evaluation.lineup import finished, run_names
from coterie.learning.examples import gathered
from coterie.team import Team
from coterie.types import Trace, record

if TYPE_CHECKING:
    from coterie.learning.distillation import Distillation

PATH = click.Path(path_type=Path)


@record
class DistillOptions:
    runs: tuple[Path, ...]
    team: str
    teacher: str
    leave_out: tuple[str, ...]
    out: Path
    resume: bool
    settings: tuple[str, ...]
    no_cache: bool
    as_json: bool


@click.command("distill")
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--team", "-r", required=True, help="The recipe whose reviewer learns.")
@click.option("--teacher", default="gold", show_default=True, help="`gold`, or an agent of the team.")
@click.option("--leave-out", multiple=True, metavar="DOMAIN", help="Learn from all other domains.")
@click.option("--out", "-o", required=True, type=options.Place(path_type=Path), help="The run folder.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@options.settings
@options.no_cache
@options.as_json
@options.bundle(DistillOptions)
def command(chosen: DistillOptions) -> int:
    """Distil a reviewer: label the layers of finished RUNS and train an adapter for a team's reviewer on them.

    A layer's graded proposals are labelled by a teacher who knows the gold answers; the reviewer learns to write
    the same reviews without them. `--set learner.KEY=VALUE` changes how. The first Ctrl-C finishes the update,
    saves and says how to go on.
    """
    opened = _opened(chosen)
    try:
        return _run(chosen, opened)
    finally:
        opened.close()


def _opened(chosen: DistillOptions) -> "Distillation":
    from coterie.learning.distillation import Distillation, settings_of, teacher_of

    team = Team.load(chosen.team, chosen.settings, cache=options.open_cache(chosen.no_cache))
    settings, teacher = settings_of(team), teacher_of(chosen.teacher, team)
    traces, sources = _recorded(chosen.runs)
    domains = sorted({trace.query.domain for trace in traces})
    if unknown := sorted(set(chosen.leave_out) - set(domains)):
        raise ConfigError(f"--leave-out {unknown[0]!r}: is no domain of these runs{nearest(unknown[0], domains)}")
    material = gathered(traces, settings, team.seed, chosen.leave_out)
    with options.run_folder(chosen.out, "distill") as folder:
        return Distillation.open(team, material, teacher, sources, folder, chosen.resume)


def _recorded(paths: Sequence[Path]) -> tuple[list[Trace], list[Mapping[str, Any]]]:
    """All traces of finished runs, and what tells each run apart: its folder's name, task and seal."""
    traces: list[Trace] = []
    sources: list[Mapping[str, Any]] = []
    for path, name in zip(paths, run_names([path.resolve() for path in paths]), strict=True):
        run = finished(path)
        seal = path / "decisions.sha256"
        if not seal.is_file():
            raise ConfigError(f"{path}: is not finished: `coterie eval` with this --out goes on with it")
        traces += [trace for rows in run.traces().values() for trace in rows]
        sources.append({"run": name, "task": run.config["task"], "decisions": seal.read_text()[:64]})
    return traces, sources


def _run(chosen: DistillOptions, opened: "Distillation") -> int:
    from coterie.learning.distillation import told

    material = opened.material
    left = f" ({told(material.left_out)} left out)" if any(material.left_out.values()) else ""
    click.echo(f"run folder: {chosen.out}; {len(material.examples)} layers to learn from{left}", err=True)
    done = opened.finished
    if not done:
        import_module("coterie.learning.sft")  # what is not installed is told before a teacher is paid
        lessons = options.run_with([opened.team], opened.lessons(lambda row: True))
        domains = ", ".join(sorted({lesson.domain for lesson in lessons}))
        click.echo(f"{len(lessons)} reviews by {opened.teacher.identity}, of {domains}", err=True)
        with Stop() as stop:
            done = opened.train(lessons, lambda row: _see(row) and not stop.asked)
    _tell(chosen, opened, done)
    return 0 if done else INTERRUPTED


def _see(row: Mapping[str, Any]) -> bool:
    click.echo(f"update {row['update']} of {row['of']}: loss {row['loss']:.4f}", err=True)
    return True


def _tell(chosen: DistillOptions, opened: "Distillation", done: bool) -> None:
    from coterie.learning.distillation import RECIPE, TEAM, told

    rejected = opened.rejected()
    team = opened.folder / TEAM / RECIPE
    again = None if done else _again(chosen)
    facts = {
        "folder": str(opened.folder),
        "finished": done,
        "examples": len(opened.material.examples),
        "left_out": opened.material.left_out,
        "rejected": rejected,
        "team": str(team) if done else None,
        "resume": again,
    }
    if chosen.as_json:
        options.print_json(facts)
        return
    if rejected:
        click.echo(f"no lessons: {told(rejected)}")
    if again:
        click.echo(f"stopped; to go on: {again}", err=True)
        return
    click.echo(f"team: {team}")
    measure = shlex.join(["coterie", "eval", chosen.team, str(team), "--task", "TASK"])
    click.echo(f"compare its reviews with those of before (`coterie layers`): {measure}", err=True)


def _again(chosen: DistillOptions) -> str:
    """The exact command that goes on with the run."""
    more = [part for name in chosen.leave_out for part in ("--leave-out", name)]
    more += [part for setting in chosen.settings for part in ("--set", setting)]
    words = ["coterie", "distill", *map(str, chosen.runs), "--team", chosen.team, "--teacher", chosen.teacher]
    return shlex.join([*words, "--out", str(chosen.out), "--resume", *more])


COMMANDS = (command,)
