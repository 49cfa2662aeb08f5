"""`eval` and `report`: work that takes minutes, shows progress, and resumes after a kill; its page."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from coterie.cli import options, show, trained
from coterie.config import nearest
from coterie.errors import ConfigError
from coterie.evaluation import study
from coterie.evaluation.evaluate import Entry, check, evaluate, run_config
from coterie.evaluation.lineup import finished
from coterie.evaluation.metrics import rows, to_json
from coterie.evaluation.outage import Outage, forget, outage
from coterie.evaluation.report import RunView, write_report
from coterie.storage.runs import Run
from coterie.tasks.catalog import load_task
from coterie.team import BUILTIN_RECIPE, Team
from coterie.types import Query, Trace, record

FILE = click.Path(dir_okay=False, path_type=Path)
Scored = Mapping[str, Sequence[Trace]]


@record
class EvalOptions:
    recipes: tuple[str, ...]
    task: str
    limit: int | None
    samples: int
    out: Path | None
    baseline: str | None
    alone: bool
    contracts: tuple[str, ...]
    concurrency: int
    retry: bool
    settings: tuple[str, ...]
    no_cache: bool
    as_json: bool


@click.command("eval")
@click.argument("recipes", nargs=-1)
@click.option(
    "--task",
    "-t",
    required=True,
    help="Name of a task (see `coterie data list`), a JSONL or CSV file, or a part of one (mine.jsonl/test).",
)
@click.option("--limit", "-n", type=click.IntRange(1), help="Only the first N queries.")
@click.option(
    "--samples",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Solve each query so often: avg@k and pass@k.",
)
@click.option("--out", "-o", type=options.Place(path_type=Path), help="Run folder; an unfinished one goes on.")
@click.option("--baseline", help="Recipe that the others are tested against (default: the first).")
@click.option("--alone", is_flag=True, help="Measure each agent of the first recipe by itself, too.")
@click.option(
    "--contract", "contracts", multiple=True, metavar="KIND=NAME", help="Answer contract for a kind of task."
)
@click.option(
    "--concurrency", default=16, show_default=True, type=click.IntRange(1, 1024), help="Queries solved at a time."
)
@click.option("--retry", is_flag=True, help="Ask the queries of the run in --out again that failed in an outage.")
@options.settings
@options.no_cache
@options.as_json
@options.bundle(EvalOptions)
def eval_(chosen: EvalOptions) -> int:
    """Measure RECIPES (default: the built-in team) on a task."""
    if chosen.retry and (chosen.out is None or not (chosen.out / "run.json").is_file()):
        raise ConfigError("--retry goes on with a run: name its folder by --out")
    names = chosen.recipes or (BUILTIN_RECIPE,)
    teams = options.load_teams(names, chosen.settings, options.open_cache(chosen.no_cache))
    teams += study.alone(teams[0]) if chosen.alone else []
    _distinct([team.name for team in teams], chosen.baseline)
    entries = _entries(teams, chosen)
    task = load_task(chosen.task, limit=chosen.limit)
    baseline = chosen.baseline or (teams[0].name if len(teams) > 1 else None)
    config = run_config(task, entries, baseline)
    check(entries)
    with options.run_folder(chosen.out, task.name) as out:
        run = Run.open(out, config)
    click.echo(f"run folder: {out} (go on after a stop: --out {out}; page: coterie report {out})", err=True)
    if chosen.retry:
        click.echo(f"asked again: {forget(run)} queries that had failed", err=True)
    with show.progress() as watch:
        work = evaluate(entries, run, concurrency=chosen.concurrency, watch=watch)
        traces = options.run_with(teams, work)
    _print(task.name, traces, baseline, chosen.as_json)
    return _told(outage(traces), out)


def _told(found: Outage, out: Path) -> int:
    """Say what failed and how it is asked again; the exit code, 1 where nothing was answered."""
    if found.failed:
        again = f"the same command with --out {shlex.quote(str(out))} --retry asks them again"
        click.echo(f"warning: {found.words()}; {again}", err=True)
    return int(0 < found.failed == found.total)


def _entries(teams: Sequence[Team], chosen: EvalOptions) -> list[Entry]:
    """A row for each team, its queries in the words of its contracts; the task is read once for equal contracts."""
    given = dict(_pair(text) for text in chosen.contracts)
    wanted = [{**team.contracts, **given} for team in teams]
    read: dict[str, tuple[Query, ...]] = {}
    for contracts in wanted:
        if repr(contracts) not in read:
            read[repr(contracts)] = load_task(chosen.task, limit=chosen.limit, contracts=contracts).queries
    return [
        Entry(team=team, queries=read[repr(contracts)], samples=chosen.samples)
        for team, contracts in zip(teams, wanted, strict=True)
    ]


def _pair(text: str) -> tuple[str, str]:
    kind, sign, name = text.partition("=")
    if not sign:
        raise ConfigError(f"--contract {text!r}: expected KIND=NAME, such as math=answer")
    return kind, name


def _distinct(names: Sequence[str], baseline: str | None) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two recipes are named {name!r}; give one another `name`")
    if baseline is not None and baseline not in names:
        raise ConfigError(f"--baseline {baseline!r} is none of the recipes' names{nearest(baseline, names)}")


def _print(task: str, traces: Scored, baseline: str | None, as_json: bool) -> None:
    found = rows(traces, baseline)
    if as_json:
        options.print_json(to_json(task, found))
    else:
        against = f", tested against {baseline}" if baseline else ""
        show.print_rows(f"{task}{against}", found)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", "-o", default="report.html", show_default=True, type=FILE, help="Page to write.")
@click.option(
    "--before",
    type=click.Path(path_type=Path),
    help="Of a training run: the evaluation of the team that it began with, for capability by domain.",
)
@click.option(
    "--after",
    type=click.Path(path_type=Path),
    help="And that of the trained team; the same run as --before where it holds both, in this order.",
)
@click.option(
    "--states", type=click.IntRange(trained.FEWEST), help="Of a training run: map N of its queries by t-SNE."
)
def report(runs: tuple[Path, ...], out: Path, before: Path | None, after: Path | None, states: int | None) -> None:
    """Write one HTML file about RUNS, finished evaluations or training runs, that opens offline."""
    training, evaluations = trained.apart(runs)
    first, second = (None if path is None else run_view(path).traces for path in (before, after))
    if first is not None and before == after:
        first, second = trained.of_one_run(first)
    sheets = trained.sheets_of(training, trained.Extras(before=first, after=second, states=states))
    write_report(out, [run_view(path) for path in evaluations], sheets)
    click.echo(f"wrote {out}")


def run_view(path: Path) -> RunView:
    """A run folder as the report shows it, its recipes in the order they were given."""
    run = finished(path)
    order = list(run.config.get("recipes") or {})
    traces = run.traces()
    kept = {
        name: traces[name] for name in sorted(traces, key=lambda n: order.index(n) if n in order else len(order))
    }
    config = (path / "run.json").read_text(encoding="utf-8")
    return RunView(
        name=path.name, task=run.config["task"], baseline=run.config.get("baseline"), traces=kept, config=config
    )


COMMANDS = (eval_, report)
