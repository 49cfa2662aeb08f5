"""`layers`: what the layers of a run's mixtures did."""

import os
from dataclasses import asdict
from pathlib import Path

import click
import yaml

from coterie.cli import options, show
from coterie.errors import ConfigError
from coterie.evaluation.layer_table import (
    DEPTH,
    LAYER,
    Measured,
    depth_rows,
    early_words,
    layer_rows,
    layered,
    measured,
)
from coterie.evaluation.learned_depth import learn_depth
from coterie.evaluation.lineup import finished
from coterie.evaluation.metrics import Traces
from coterie.features.sentence import Sentence
from coterie.storage.runs import write_atomically
from coterie.team import Team
from coterie.types import record


@record
class LayersOptions:
    run: Path
    sentences: bool
    learn_depth: str | None
    within_points: float
    out: Path
    as_json: bool


@click.command("layers")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--sentences", is_flag=True, help="Measure diversity on sentence embeddings, not on hashed n-grams.")
@click.option(
    "--learn-depth", metavar="RECIPE", help="Learn from the run's depth sweep when this recipe's layers may end."
)
@click.option(
    "--within-points",
    type=options.Number(0),
    default=0.0,
    show_default=True,
    help="Points below the full depth that a learned depth may lose.",
)
@click.option(
    "--out",
    "-o",
    default="learned-depth.yaml",
    show_default=True,
    type=options.Place(dir_okay=False, path_type=Path),
    help="The recipe with a learned depth that is written.",
)
@options.as_json
@options.bundle(LayersOptions)
def command(chosen: LayersOptions) -> None:
    """Show what the layers of a RUN's mixtures did: quality, diversity, reviews, depth, what stopping saves.

    With --learn-depth, write a recipe that ends the layers by a rule learned from the run.
    """
    traces = layered(finished(chosen.run).traces())
    if not traces:
        raise ConfigError(f"{chosen.run}: no recipe of this run has layers")
    if chosen.learn_depth is not None:
        _learn(chosen, chosen.learn_depth, traces)
        return
    encoder = Sentence() if chosen.sentences else None
    found = {name: measured(rows, encoder) for name, rows in traces.items()}
    if chosen.as_json:
        options.print_json({"recipes": {name: asdict(one) for name, one in found.items()}})
        return
    for name, one in found.items():
        _print(name, one)


def _learn(chosen: LayersOptions, recipe: str, traces: Traces) -> None:
    """Learn a depth from the traces of the recipe's pool; write and name the recipe that follows it."""
    team = Team.load(recipe)
    revisions = {name: agent.revision for name, agent in team.pool.items()}
    rows = [trace for found in traces.values() for trace in found if trace.revisions == revisions]
    if not rows:
        raise ConfigError(f"{chosen.run}: nothing in this run was answered by the agents of {recipe}")
    rule = learn_depth(rows, chosen.within_points / 100)
    table = {
        "extends": os.path.relpath(recipe, chosen.out.parent) if Path(recipe).is_file() else recipe,
        "name": f"{team.name}, learned depth",
        "strategy": {"layers": rule.layers, "every_layer": False, "depth": asdict(rule)},
    }
    write_atomically(chosen.out, yaml.safe_dump(table, sort_keys=False, allow_unicode=True))
    if chosen.as_json:
        options.print_json({**asdict(rule), "file": str(chosen.out)})
        return
    click.echo(
        f"{chosen.out}: {rule.accuracy:.1%} after {rule.depth:.2f} of {rule.layers} layers a query, against"
        f" {rule.full:.1%} after all, cross-validated on {rule.queries} queries"
    )


def _print(name: str, found: Measured) -> None:
    show.print_plain(f"{name}: {found.degraded} of {found.traces} answers degraded", LAYER, layer_rows(found))
    if found.depths:
        said = f"{name}: answers by depth{f' ({found.trend})' if found.trend else ''}"
        show.print_plain(said, DEPTH, depth_rows(found))
    if found.early is not None:
        show.out.print(early_words(found.early), markup=False)


COMMANDS = (command,)
