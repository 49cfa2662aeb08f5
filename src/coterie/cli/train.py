"""`train`: fit a recipe's router from outcomes, asking for them first where none are recorded."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from coterie.cli import options, show
from coterie.errors import ConfigError
from coterie.evaluation import study
from coterie.evaluation.lineup import finished
from coterie.outcomes import Outcomes
from coterie.routers.extended import Extended
from coterie.storage.tables import read_table, to_outcomes
from coterie.tasks.catalog import load_task
from coterie.team import Team
from coterie.types import Query, Router, record

FILE = click.Path(dir_okay=False, path_type=Path)


@record
class TrainOptions:
    recipe: str
    task: str | None
    runs: tuple[Path, ...]
    table: Path | None
    test: str | None
    limit: int | None
    spread: int | None
    out: Path | None
    settings: tuple[str, ...]
    no_cache: bool
    as_json: bool


@click.command()
@options.recipe
@click.option("--task", "-t", help="Ask every agent on this task first (kept beside OUT; a stopped one goes on).")
@click.option("--run", "runs", multiple=True, type=click.Path(path_type=Path), help="Outcomes of a finished run.")
@click.option("--table", type=click.Path(path_type=Path), help="A recorded outcome table (folder).")
@click.option("--test", help="The task that the router will be judged on: what it asks is left out of training.")
@click.option("--limit", "-n", type=click.IntRange(1), help="Only the first N queries of the task.")
@click.option("--spread", type=click.IntRange(5), help="Only N queries that tell a new agent apart (`extended`).")
@click.option(
    "--out", "-o", type=FILE, help="File of the weights (default: the recipe's `weights`, else router.safetensors)."
)
@options.settings
@options.no_cache
@options.as_json
@options.bundle(TrainOptions)
def train(chosen: TrainOptions) -> None:
    """Fit a recipe's router from outcomes, and write its weights."""
    if sum((chosen.task is not None, bool(chosen.runs), chosen.table is not None)) != 1:
        raise ConfigError("give one source of outcomes: --task, --run or --table")
    team = Team.load(chosen.recipe, chosen.settings, cache=options.open_cache(chosen.no_cache))
    router = _to_fit(team.router)
    out = chosen.out or Path(getattr(team.router, "weights", None) or "router.safetensors")
    outcomes, left_out = _outcomes(replace(team, router=router), chosen, out)
    if not set(outcomes.agents) & set(team.pool):
        raise ConfigError(f"there are no outcomes of this team's agents ({', '.join(team.pool)}) as they are now")
    fitted = router.fit(outcomes)
    out.parent.mkdir(parents=True, exist_ok=True)
    fitted.save(out)
    facts = {"queries": len(outcomes.queries), "agents": outcomes.means(), "weights": str(out)}
    facts |= {"missing": _missing(team, outcomes)}
    facts |= {"left_out": left_out} if chosen.test else {}
    if chosen.as_json:
        options.print_json(facts)
    else:
        means = ", ".join(f"{name} {mean:.3f}" for name, mean in outcomes.means().items())
        note = f", {left_out} left out as {chosen.test} asks them too" if chosen.test else ""
        click.echo(f"fitted on {len(outcomes.queries)} queries{note} (mean score: {means}); wrote {out}")
        for line in (*_lost(_missing(team, outcomes), len(outcomes.queries)), *_advice(team, chosen, out)):
            click.echo(line, err=True)


def _to_fit(router: Router) -> study.Learned:
    """The router without what it has learned; agents that were added to a trained one stay."""
    fresh = study.learned(router)
    kept = isinstance(router, Extended) and router.weights is not None and Path(router.weights).is_file()
    return router if isinstance(router, Extended) and kept else fresh


def _missing(team: Team, outcomes: Outcomes) -> dict[str, int]:
    """How many queries each solver has no outcome on, where there are any."""
    seen = dict(zip(outcomes.agents, (~np.isnan(outcomes.scores)).sum(axis=0).tolist(), strict=True))
    counts = {name: len(outcomes.queries) - int(seen.get(name, 0)) for name in team.pool.names()}
    return {name: count for name, count in counts.items() if count}


def _lost(missing: Mapping[str, int], size: int) -> list[str]:
    """A line for each agent that taught nothing on some queries: a failed call is no wrong answer."""
    return [f"warning: {name} has no outcome on {n} of {size} queries" for name, n in missing.items()]


def _advice(team: Team, chosen: TrainOptions, out: Path) -> list[str]:
    """What is left to do: let the recipe name the weights, and measure."""
    lines, named = [], getattr(team.router, "weights", None)
    if named is None or Path(named).resolve() != out.resolve():
        lines.append(f"to use them, name them in the recipe: router: {{weights: {out.resolve()}}}")
    if test := chosen.test or _test_part(chosen.task or ""):
        lines.append(f"next: {shlex.join(['coterie', 'eval', chosen.recipe, '--alone', '--task', test])}")
    return lines


def _test_part(task: str) -> str:
    """The name of the part that goes with a training part; empty for other names."""
    target, sign, parameters = task.partition("?")
    return f"{target.removesuffix('/train')}/test{sign}{parameters}" if target.endswith("/train") else ""


def _outcomes(team: Team, chosen: TrainOptions, out: Path) -> tuple[Outcomes, int]:
    """What to fit on, and how many queries are left out of it because the test asks them too."""
    test = () if chosen.test is None else load_task(chosen.test).queries
    if chosen.task is None:
        outcomes, left_out = study.unseen_outcomes(recorded(team, chosen.runs, chosen.table), test)
        return outcomes.take(_telling(team, outcomes.queries, chosen.spread)), left_out
    whole = load_task(chosen.task, limit=chosen.limit, contracts=team.contracts)
    task, left_out = study.unseen(whole, test)
    rows = _telling(team, task.queries, chosen.spread)
    task = replace(task, queries=tuple(task.queries[i] for i in rows))
    folder = study.collected(team, task, out.with_suffix(".outcomes"))
    with show.progress() as watch:
        return options.run_with([team], study.collect(team, task, folder, watch)), left_out


def recorded(team: Team, runs: Sequence[Path], table: Path | None) -> Outcomes:
    """Outcomes of the team's agents as they are now, from a recorded table or from finished runs."""
    if table is not None:
        return to_outcomes(read_table(table), team.pool)
    traces = (trace for path in runs for found in finished(path).traces().values() for trace in found)
    return Outcomes.from_traces(traces, team.pool)


def _telling(team: Team, queries: Sequence[Query], count: int | None) -> Sequence[int]:
    """Rows of the queries to fit on: all, or those that tell a new agent apart."""
    if count is None:
        return range(len(queries))
    if not isinstance(team.router, Extended):
        raise ConfigError(
            "--spread chooses queries for the router `extended`: wrap the recipe's trained router in it"
        )
    return team.router.spread(queries, count)


COMMANDS = (train,)
