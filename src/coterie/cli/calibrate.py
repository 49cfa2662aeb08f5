"""`calibrate`: set what a dollar must buy for a cost-aware router, on labelled queries."""

from dataclasses import asdict
from pathlib import Path

import click

from coterie.cli import options
from coterie.cli.train import recorded
from coterie.errors import ConfigError
from coterie.evaluation.choosing import choose
from coterie.routers.choice import Choice, Target
from coterie.team import Team
from coterie.types import record

PATH = click.Path(path_type=Path)


@record
class CalibrateOptions:
    recipe: str
    runs: tuple[Path, ...]
    table: Path | None
    at_most_cost: float | None
    within_points: float | None
    out: Path
    settings: tuple[str, ...]
    as_json: bool


@click.command("calibrate")
@options.recipe
@click.option("--run", "runs", multiple=True, type=PATH, help="Outcomes of a finished run.")
@click.option("--table", type=PATH, help="A recorded outcome table (folder).")
@options.at_most_cost
@options.within_points
@click.option(
    "--out",
    "-o",
    default="choice.json",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.",
)
@options.settings
@options.as_json
@options.bundle(CalibrateOptions)
def command(chosen: CalibrateOptions) -> None:
    """Set the trade of a recipe's `cost_aware` router for a target; write the file its `choice` names.

    Use queries that the router was not fitted on.
    """
    target = _target(chosen)
    if bool(chosen.runs) == (chosen.table is not None):
        raise ConfigError("give one source of outcomes: --run or --table")
    team = Team.load(chosen.recipe, chosen.settings)
    found = choose(team.router, recorded(team, chosen.runs, chosen.table), team.pool, target)
    found.save(chosen.out)
    if chosen.as_json:
        options.print_json({**asdict(found), "file": str(chosen.out)})
    else:
        click.echo(_words(found, chosen.out))


def _target(chosen: CalibrateOptions) -> Target:
    if (chosen.at_most_cost is None) == (chosen.within_points is None):
        raise ConfigError("give one target: --at-most-cost or --within-points")
    if chosen.at_most_cost is not None:
        return Target(kind="at_most_cost", value=chosen.at_most_cost)
    return Target(kind="within_points", value=chosen.within_points or 0.0)


def _words(found: Choice, file: Path) -> str:
    lo, hi = found.interval
    return (
        f"on {found.queries} queries: score {found.score:.3f} ({lo:.3f} to {hi:.3f}) at "
        f"${found.cost_usd_per_1k:.4f} a thousand queries, a trade of {found.trade:.4g} a dollar; wrote {file}"
    )


COMMANDS = (command,)
