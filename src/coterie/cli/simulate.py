"""`simulate`: what settings of co-evolution do, tried on simulated agents before any model is trained."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import TypeAdapter, ValidationError

from coterie.cli import options, show
from coterie.config import override, validate
from coterie.evaluation.evaluate import Progress
from coterie.evaluation.report import write_report
from coterie.storage.runs import write_atomically
from coterie.types import record

if TYPE_CHECKING:
    from coterie.learning.mechanisms import Runs
    from coterie.learning.simulate import Simulated, Simulation


@record
class SimulateOptions:
    agents: int
    domains: int
    queries: int
    settings: tuple[str, ...]
    seeds: int
    mechanisms: bool
    variants: tuple[str, ...]
    out: Path | None
    as_json: bool


@click.command("simulate")
@click.option("--agents", default=4, show_default=True, type=click.IntRange(1, 1024), help="How many agents.")
@click.option("--domains", default=4, show_default=True, type=click.IntRange(1, 256), help="Kinds of query.")
@click.option("--queries", "-n", default=64_000, show_default=True, type=click.IntRange(1), help="To train on.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting: allocation.tau=0.8, routing.margin=null, world.gain=0.05.",
)
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1, 100), help="Runs, seeds 0, 1, ….")
@click.option(
    "--mechanisms", is_flag=True, help="All ablations of the CERA-MoA paper, and what they are said to show."
)
@click.option(
    "--variant", "variants", multiple=True, help="With --mechanisms: only these (repeatable) and the default."
)
@click.option(
    "--out",
    "-o",
    type=options.Place(file_okay=False, path_type=Path),
    help="Folder for the results and an HTML page; finished runs in it are taken as they are.",
)
@options.as_json
@options.bundle(SimulateOptions)
def command(chosen: SimulateOptions) -> None:
    """Let simulated agents and the real allocation, ledger and router code co-evolve.

    Agents have a skill in each domain that grows with practice and suffers from practice elsewhere; nothing is
    loaded or asked. Shows what thresholds, margins and exploration do.
    """
    planned = _planned(chosen)
    for name, settings in planned.items():
        for warning in settings.warnings():
            click.echo(f"{name}: {warning}", err=True)
    runs = _run(planned, chosen.seeds, chosen.out)
    if chosen.out is not None:
        from coterie.cli.simulated import sheet_of

        write_report(chosen.out / "report.html", [], [sheet_of(runs)])
        click.echo(f"wrote {chosen.out / 'report.html'}", err=True)
    if chosen.as_json:
        options.print_json(_as_json(runs))
    else:
        _print(runs)


def _planned(chosen: SimulateOptions) -> "dict[str, Simulation]":
    """Settings by variant; ConfigError of one line for a wrong one."""
    from coterie.config import nearest
    from coterie.errors import ConfigError
    from coterie.learning.mechanisms import DEFAULT, VARIANTS
    from coterie.learning.simulate import SMALL, Simulation

    for name in chosen.variants:
        if not chosen.mechanisms or name not in VARIANTS:
            where = nearest(name, VARIANTS) if chosen.mechanisms else "; it goes with --mechanisms"
            raise ConfigError(f"--variant {name!r}: no such variant{where}")
    plain = {
        "agents": chosen.agents,
        "queries": chosen.queries,
        "world": {"domains": chosen.domains},
        "routing": dict(SMALL),
    }
    wanted = [DEFAULT, *(chosen.variants or VARIANTS)] if chosen.mechanisms else [DEFAULT]
    return {
        name: validate(Simulation, override(plain, (*chosen.settings, *VARIANTS[name])), "simulate")
        for name in dict.fromkeys(wanted)
    }


def _run(planned: "Mapping[str, Simulation]", seeds: int, out: Path | None) -> "Runs":
    """All variants and seeds, each kept in the folder as soon as it is there."""
    found: dict[str, list[Simulated]] = {}
    with show.progress() as watch:
        for name, settings in planned.items():
            found[name] = [_one(name, settings, seed, out, watch) for seed in range(seeds)]
    return found


def _one(name: str, settings: "Simulation", seed: int, out: Path | None, watch: Any) -> "Simulated":
    from coterie.learning.simulate import Simulated, simulate

    file = None if out is None else out / f"{name.replace(' ', '-')}-{seed}.json"
    kept = TypeAdapter(Simulated)
    if (
        file is not None
        and (known := _known(kept, file)) is not None
        and (known.settings, known.seed) == (settings, seed)
    ):
        return known
    phase = f"{name}, seed {seed}"
    done = simulate(settings, seed, lambda done, total: watch(Progress(phase=phase, done=done, total=total)))
    if file is not None:
        write_atomically(file, json.dumps(kept.dump_python(done, mode="json"), indent=1))
    return done


def _known(kept: "TypeAdapter[Simulated]", file: Path) -> "Simulated | None":
    """What an earlier run left; None where there is none, or none of this version."""
    try:
        return kept.validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def _as_json(runs: "Runs") -> dict[str, Any]:
    from coterie.learning.mechanisms import signs
    from coterie.learning.simulate import Simulated

    kept = TypeAdapter(Simulated)
    table = {name: [kept.dump_python(run, mode="json") for run in found] for name, found in runs.items()}
    return {"runs": table, "signs": [{**asdict(one), "verdict": one.verdict} for one in signs(runs)]}


def _print(runs: "Runs") -> None:
    from coterie.cli.simulated import TITLES, rows, sign_rows
    from coterie.learning.mechanisms import signs

    first: Sequence[Simulated] = next(iter(runs.values()))
    world, settings = first[0].settings.world, first[0].settings
    title = f"{settings.agents} agents, {world.domains} domains, {settings.queries:,} queries, {len(first)} seeds"
    show.print_plain(title, TITLES, rows(runs))
    for name, paper, measured, verdict in sign_rows(signs(runs)):
        click.echo(f"{name}: {verdict}\n  paper: {paper}\n  here: {measured}")


COMMANDS = (command,)
