"""`layers`: what the layers of a run's mixtures did."""

from dataclasses import asdict
from pathlib import Path

import click

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
from coterie.evaluation.lineup import finished
from coterie.features.sentence import Sentence


@click.command("layers")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--sentences", is_flag=True, help="Measure diversity on sentence embeddings, not on hashed n-grams.")
@options.as_json
def command(run: Path, sentences: bool, as_json: bool) -> None:
    """Show what the layers of a RUN's mixtures did: quality, diversity, reviews, depth, what stopping saves."""
    traces = layered(finished(run).traces())
    if not traces:
        raise ConfigError(f"{run}: no recipe of this run has layers")
    encoder = Sentence() if sentences else None
    found = {name: measured(rows, encoder) for name, rows in traces.items()}
    if as_json:
        options.print_json({"recipes": {name: asdict(one) for name, one in found.items()}})
        return
    for name, one in found.items():
        _print(name, one)


def _print(name: str, found: Measured) -> None:
    show.print_plain(f"{name}: {found.degraded} of {found.traces} answers degraded", LAYER, layer_rows(found))
    if found.depths:
        said = f"{name}: answers by depth{f' ({found.trend})' if found.trend else ''}"
        show.print_plain(said, DEPTH, depth_rows(found))
    if found.early is not None:
        show.out.print(early_words(found.early), markup=False)


COMMANDS = (command,)
