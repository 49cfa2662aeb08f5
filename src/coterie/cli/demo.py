"""`demo`: the whole of it on the embedded model. A router is fitted and compared with every baseline; then
four adapters and their router co-evolve, and are measured before and after.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from coterie.cli import coevolve, options, show, trained
from coterie.cli.runs import run_view
from coterie.evaluation import demo as demo_study
from coterie.evaluation import study
from coterie.evaluation.evaluate import Entry, evaluate, run_config
from coterie.evaluation.metrics import rows, to_json
from coterie.evaluation.report import write_report
from coterie.storage.cache import Cache
from coterie.storage.runs import Run
from coterie.tasks.catalog import load_task
from coterie.team import BUILTIN_RECIPE, Team
from coterie.types import Trace, record

LEARNED, MEASURED = "coevolution-{}", "before-and-after-{}"
"""Folders of the training run and, in it, of its evaluation, by completions and by test queries."""


@record
class BeforeAfter:
    """Scored traces of the team before training and after it, and where both runs lie."""

    training: Path
    folder: Path
    task: str
    baseline: str
    traces: Mapping[str, Sequence[Trace]]


@click.command()
@click.option(
    "--out", "-o", default="runs/demo", show_default=True, type=click.Path(path_type=Path), help="Run folder."
)
@click.option("--train", "n_train", default=demo_study.TRAIN, show_default=True, help="Training queries.")
@click.option("--test", "n_test", default=demo_study.TEST, show_default=True, help="Test queries.")
@click.option(
    "--completions",
    default=demo_study.COMPLETIONS,
    show_default=True,
    type=click.IntRange(0),
    help="Sampled in the training run; 0 leaves it out.",
)
@options.settings
@options.as_json
def demo(out: Path, n_train: int, n_test: int, completions: int, settings: tuple[str, ...], as_json: bool) -> int:
    """Fit a router over four agents and compare it with every baseline; then let agents and router co-evolve.

    --set is about the first of the two teams, the built-in one.
    """
    cache = options.open_cache(no_cache=False)
    team = Team.load(BUILTIN_RECIPE, settings, cache=cache)
    train_task, test_task = demo_study.tasks(n_train, n_test, team.contracts)
    with show.progress() as watch:
        done = options.run_with([team], study.compare(team, train_task, test_task, out, watch))
    demo_study.write_recipe(out / "team.yaml", team.config)
    measured: BeforeAfter | None = None
    if completions:
        run = out / LEARNED.format(completions)
        if (recipe := learned(run, completions)) is None:
            click.echo("the same command goes on", err=True)
            return coevolve.INTERRUPTED
        measured = measure(recipe, n_test, run, cache)
    tell(done, measured, as_json)
    write_page(out, done, measured)
    click.echo(
        f"report: {out / 'report.html'}; ask the fitted team: coterie ask -r {out / 'team.yaml'} '...'", err=True
    )
    return 0


def learned(folder: Path, completions: int) -> Path | None:
    """The recipe of the team that a training run ends in, begun or gone on with; None where it was interrupted."""
    from coterie.learning.training import Training

    team = Team.load(demo_study.LEARNS, [f"learner.completions={completions}"])
    training = Training.open(team, folder, resume=(folder / "run.json").exists())
    try:
        return training.export() if coevolve.advance(training, ()) else None
    finally:
        training.close()


def measure(recipe: Path, size: int, training: Path, cache: Cache | None) -> BeforeAfter:
    """The agents as they were, all asked, and the trained team, on questions that no training has seen."""
    before = Team.load(demo_study.LEARNS, ["router=uniform", "strategy=top_k", "name=before"], cache=cache)
    after = Team.load(recipe, ["name=after"], cache=cache, backends=before.backends)
    name = coevolve.test_part(next(iter(before.config["learner"]["tasks"])))
    task = load_task(name, limit=size, contracts=before.contracts)
    entries = [Entry(team=team, queries=task.queries) for team in (before, after)]
    folder = training / MEASURED.format(size)
    run = Run.open(folder, run_config(task, entries, before.name))
    with show.progress() as watch:
        found = options.run_with([before, after], evaluate(entries, run, watch=watch))
    return BeforeAfter(training=training, folder=folder, task=name, baseline=before.name, traces=found)


def tell(done: study.Study, measured: BeforeAfter | None, as_json: bool) -> None:
    """Print both comparisons."""
    tables = [one for one in (done, measured) if one is not None]
    if as_json:
        found = [to_json(one.task, rows(one.traces, one.baseline)) for one in tables]
        options.print_json({**found[0], "coevolution": found[1] if measured else None})
        return
    for one in tables:
        show.print_rows(f"{one.task}, tested against {one.baseline}", rows(one.traces, one.baseline))


def write_page(out: Path, done: study.Study, measured: BeforeAfter | None) -> None:
    """The comparison, the curves of the training run, and capability by domain before and after it."""
    views = [replace(run_view(done.folders[0]), name="demo", traces=done.traces)]
    sheets = []
    if measured is not None:
        before, after = trained.of_one_run(measured.traces)
        sheets = trained.sheets_of([measured.training], trained.Extras(before=before, after=after))
        views.append(run_view(measured.folder))
    write_report(out / "report.html", views, sheets)


COMMANDS = (demo,)
