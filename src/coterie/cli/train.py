"""`train`: let a recipe with a `learner` co-evolve, or fit a recipe's router from outcomes.

Outcomes are asked for first where none are recorded.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from coterie.cli import options, show
from coterie.cli.coevolve import Asked, coevolve, test_part
from coterie.errors import ConfigError
from coterie.evaluation import study
from coterie.evaluation.lineup import finished
from coterie.learning.sinks import SINKS
from coterie.outcomes import Outcomes
from coterie.routers.extended import Extended
from coterie.storage.tables import read_table, to_outcomes
from coterie.tasks.catalog import load_task
from coterie.team import BUILTIN_RECIPE, Team
from coterie.types import Query, Router, record


@record
class TrainOptions:
    recipe: str | None
    named: str | None
    task: str | None
    runs: tuple[Path, ...]
    table: Path | None
    test: str | None
    limit: int | None
    spread: int | None
    out: Path | None
    resume: bool
    logs: tuple[str, ...]
    settings: tuple[str, ...]
    no_cache: bool
    as_json: bool


@click.command()
@click.argument("recipe", required=False)
@click.option("--recipe", "-r", "named", help=f"The same as the argument (default: {BUILTIN_RECIPE}).")
@click.option("--task", "-t", help="Ask every agent on this task first (kept beside OUT; a stopped one goes on).")
@click.option("--run", "runs", multiple=True, type=click.Path(path_type=Path), help="Outcomes of a finished run.")
@click.option("--table", type=click.Path(path_type=Path), help="A recorded outcome table (folder).")
@click.option("--test", help="The task that the router will be judged on: what it asks is left out of training.")
@click.option("--limit", "-n", type=click.IntRange(1), help="Only the first N queries of the task.")
@click.option("--spread", type=click.IntRange(5), help="Only N queries that tell a new agent apart (`extended`).")
@click.option(
    "--out",
    "-o",
    type=options.Place(path_type=Path),
    help="With a learner: the run folder. Else: file of the weights (default: the recipe's `weights`, else"
    " router.safetensors).",
)
@click.option("--resume", is_flag=True, help="With a learner: go on with the run in --out.")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Choice(list(SINKS)),
    help="With a learner: send each round's figures there too. metrics.jsonl in the run folder has them anyway.",
)
@options.settings
@options.no_cache
@options.as_json
@options.bundle(TrainOptions)
def train(chosen: TrainOptions) -> int:
    """Train RECIPE, a file or the name of a built-in recipe.

    One with a `learner` section co-evolves: its router decides which agent practises on which query, and learns
    from how well each did. The first Ctrl-C finishes the round, saves and says how to go on. Of any other recipe
    the router is fitted, from outcomes that --task, --run or --table give, and its weights are written.
    """
    recipe = _recipe(chosen)
    team = Team.load(recipe, chosen.settings, cache=options.open_cache(chosen.no_cache))
    if team.config.get("learner") is None:
        _fit(replace(chosen, recipe=recipe), team, recipe)
        return 0
    _only_of_fits(chosen)
    return coevolve(
        Asked(
            team=team,
            recipe=recipe,
            out=chosen.out,
            resume=chosen.resume,
            logs=chosen.logs,
            settings=chosen.settings,
            as_json=chosen.as_json,
        )
    )


def _recipe(chosen: TrainOptions) -> str:
    if chosen.recipe is not None and chosen.named is not None:
        raise ConfigError(f"two recipes are named, {chosen.recipe} and {chosen.named}: train one at a time")
    return chosen.recipe or chosen.named or BUILTIN_RECIPE


def _only_of_fits(chosen: TrainOptions) -> None:
    """Raises: ConfigError where an option says what outcomes to fit from, but the recipe has a learner."""
    fits = ("task", "runs", "table", "test", "limit", "spread")
    if (given := next((name for name in fits if getattr(chosen, name)), None)) is not None:
        option = "run" if given == "runs" else given
        raise ConfigError(
            f"--{option}: the recipe's `learner` says what is trained on (`learner.tasks`);"
            " --set learner=null fits its router alone"
        )


def _fit(chosen: TrainOptions, team: Team, recipe: str) -> None:
    """Fit the recipe's router from outcomes, and write its weights."""
    _only_of_learners(chosen, recipe)
    if sum((chosen.task is not None, bool(chosen.runs), chosen.table is not None)) != 1:
        raise ConfigError("give one source of outcomes: --task, --run or --table")
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


def _only_of_learners(chosen: TrainOptions, recipe: str) -> None:
    if chosen.resume or chosen.logs:
        option = "--resume" if chosen.resume else "--log"
        raise ConfigError(f"{option} goes with a recipe that has a `learner` section, and {recipe} has none")
    if chosen.out is not None and chosen.out.is_dir():
        raise ConfigError(f"{chosen.out}: is a folder; --out names the file of the weights")


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
    if test := chosen.test or test_part(chosen.task or ""):
        lines.append(f"next: {shlex.join(['coterie', 'eval', str(chosen.recipe), '--alone', '--task', test])}")
    return lines


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
