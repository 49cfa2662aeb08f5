"""`bench`: routers trained and judged on recorded outcomes; no model is asked."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from coterie.cli import options, show
from coterie.config import nearest
from coterie.errors import ConfigError
from coterie.evaluation.replay.contenders import CONTENDERS, Features, default_encoder
from coterie.evaluation.replay.jobs import default_workers
from coterie.evaluation.replay.labels import SIZES, curve
from coterie.evaluation.replay.material import Material, read_material
from coterie.evaluation.replay.newcomers import LABELS, swaps
from coterie.evaluation.replay.page import (
    TITLES,
    cells,
    labels_sheet,
    labels_table,
    replay_sheet,
    swap_sheet,
    swap_table,
    unmet_note,
)
from coterie.evaluation.replay.run import Asked, Replayed, named, replay, shared, targets_of
from coterie.evaluation.report import write_report
from coterie.types import record

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
COMPARED = ("kNN", "MLP", "forest")
NAMES = [contender.name for contender in CONTENDERS]


@click.group()
def bench() -> None:
    """Train and judge routers on recorded outcomes."""


@record
class ReplayOptions:
    table: Path
    test: Path | None
    agents: tuple[str, ...]
    routers: tuple[str, ...]
    seeds: int
    encoder: str | None
    at_most_cost: float | None
    within_points: float | None
    jobs: int | None
    out: Path | None
    as_json: bool


@bench.command("replay")
@click.argument("table", type=FOLDER)
@click.option("--test", type=FOLDER, help="Judge on this other table; what it asks is left out of training.")
@click.option("--agents", "-a", multiple=True, help="Only these agents (repeatable or separated by commas).")
@click.option("--router", "routers", multiple=True, help="Only these routers (default: all; repeatable).")
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1, 100), help="Splits and trainings.")
@click.option(
    "--encoder",
    type=click.Choice(["sentence", "hashed"]),
    help="Default: sentence where installed, up to 5,000 questions.",
)
@options.at_most_cost
@options.within_points
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(1, 256),
    help="Processes that decide, of one thread each. Default: one a core, at most 8; one for a small table.",
)
@click.option("--out", "-o", type=FOLDER, help="Run folder; an unfinished one is gone on with.")
@options.as_json
@options.bundle(ReplayOptions)
def replay_(chosen: ReplayOptions) -> None:
    """Train every router on TABLE (a folder of recorded outcomes), and judge it on the test part."""
    material, test = _materials(chosen)
    targets = targets_of(material, chosen.at_most_cost, chosen.within_points)
    contenders = named(_known(chosen.routers))
    asked = Asked(
        seeds=chosen.seeds,
        encoder=chosen.encoder or default_encoder(len(material.queries)),
        targets=targets,
        contenders=contenders,
        workers=chosen.jobs or default_workers(len(material.queries), chosen.seeds * len(contenders)),
    )
    with options.run_folder(chosen.out, f"replay-{material.name}") as out, show.progress() as watch:
        click.echo(f"run folder: {out} (go on after a stop: --out {out})", err=True)
        done = replay(asked, material, out, watch, test)
    write_report(out / "report.html", [], [replay_sheet(done)])
    if chosen.as_json:
        options.print_json(done.as_json())
    else:
        _print(done, out)


def _materials(chosen: ReplayOptions) -> tuple[Material, Material | None]:
    agents = _several(chosen.agents)
    material = read_material(chosen.table, agents)
    if chosen.test is None:
        return material, None
    return shared(material, read_material(chosen.test, agents))


def _known(names: Sequence[str]) -> tuple[str, ...]:
    wanted = _several(names)
    for name in wanted:
        if name not in NAMES:
            raise ConfigError(f"--router {name!r}: no such row{nearest(name, NAMES)}")
    return wanted


def _print(done: Replayed, out: Path) -> None:
    sizes = ", ".join(f"{n} {part}" for part, n in done.splits.items())
    against = "" if done.test == done.table else f", judged on {done.test}"
    title = f"{done.table}{against} ({sizes} queries; {len(done.rows[0].seeds)} seeds)"
    show.print_plain(title, TITLES, [cells(row) for row in done.rows])
    notes = [f"{done.missing} missing outcomes"] if done.missing else []
    notes += [f"{done.incomplete} queries that lack some are fitted on only"] if done.incomplete else []
    notes += [f"{done.dropped} training questions left out that the test asks"] if done.dropped else []
    if done.frontier is not None and done.frontier.area is not None:
        notes.append(f"frontier of {done.frontier.router}: area {done.frontier.area:.4f}")
    click.echo("; ".join([*notes, f"report: {out / 'report.html'}"]))
    if told := unmet_note(done.rows):
        click.echo(told)


@record
class SeriesOptions:
    table: Path
    agents: tuple[str, ...]
    routers: tuple[str, ...]
    seeds: int
    encoder: str | None
    labels: str
    out: Path | None
    as_json: bool


agents = click.option("--agents", "-a", multiple=True, help="Only these agents (repeatable, or with commas).")
routers = click.option(
    "--router", "routers", multiple=True, help="Only these routers (repeatable, or with commas)."
)
seeds = click.option(
    "--seeds", default=5, show_default=True, type=click.IntRange(1, 100), help="Splits and trainings."
)
encoder = click.option("--encoder", type=click.Choice(["sentence", "hashed"]), help="Default: as in `replay`.")
page = click.option("--out", "-o", type=FILE, help="Write an HTML page, too.")


@bench.command("labels")
@click.argument("table", type=FOLDER)
@agents
@routers
@seeds
@encoder
@click.option("--labels", default=",".join(map(str, SIZES)), show_default=True, help="Numbers of labelled queries.")
@page
@options.as_json
@options.bundle(SeriesOptions)
def labels_(chosen: SeriesOptions) -> None:
    """How the score of routers on TABLE grows with the number of labelled queries."""
    material = read_material(chosen.table, _several(chosen.agents))
    contenders = named(_known(chosen.routers) or COMPARED)
    features = Features.opened(chosen.encoder or default_encoder(len(material.queries)))
    with show.progress() as watch:
        found = curve(contenders, material, features, _sizes(chosen.labels), chosen.seeds, watch)
    if beyond := sorted(set(_sizes(chosen.labels)) - {one.labels for one in found}):
        click.echo(f"left out, as there are fewer labelled queries: {', '.join(map(str, beyond))}", err=True)
    if chosen.out is not None:
        write_report(chosen.out, [], [labels_sheet(material.name, found)])
    if chosen.as_json:
        rows = [{**asdict(one), "score": one.score} for one in found]
        options.print_json({"table": material.name, "rows": rows})
    else:
        show.print_plain(f"{material.name}, mean test score of {chosen.seeds} seeds", *labels_table(found))


@bench.command("swap")
@click.argument("table", type=FOLDER)
@agents
@routers
@seeds
@encoder
@click.option("--labels", default=str(LABELS), show_default=True, help="Labelled queries of the newcomers.")
@page
@options.as_json
@options.bundle(SeriesOptions)
def swap_(chosen: SeriesOptions) -> None:
    """Swap two agents of TABLE for two that a trained router never saw; compare with a full retrain."""
    material = read_material(chosen.table, _several(chosen.agents))
    if len(_known(chosen.routers)) > 1:
        raise ConfigError("--router: a swap is tried with one router")
    [contender] = named(_known(chosen.routers) or ("forest",))
    features = Features.opened(chosen.encoder or default_encoder(len(material.queries)))
    [size, *more] = _sizes(chosen.labels)
    if more:
        raise ConfigError("--labels: a swap is tried with one number of labels")
    with show.progress() as watch:
        found = swaps(contender, material, features, chosen.seeds, watch, size)
    if chosen.out is not None:
        write_report(chosen.out, [], [swap_sheet(material.name, found)])
    if chosen.as_json:
        rows = [{**asdict(one), "loss": one.loss} for one in found]
        options.print_json({"table": material.name, "router": contender.name, "rows": rows})
    else:
        show.print_plain(f"{material.name}, {contender.name}, {size} labels", *swap_table(found))


def _several(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def _sizes(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ConfigError(f"--labels {text!r}: expected whole numbers with commas between") from None
    if not found or found[0] < 5:
        raise ConfigError(f"--labels {text!r}: at least five labels are needed")
    return found


COMMANDS = (bench,)
