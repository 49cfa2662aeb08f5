"""Options that several commands share, and what they open."""

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import click

from coterie.errors import ConfigError
from coterie.storage.cache import Cache, default_path
from coterie.team import BUILTIN_RECIPE, Backends, Team

T = TypeVar("T")
Command = Callable[..., Any]

recipe = click.option(
    "--recipe", "-r", default=BUILTIN_RECIPE, show_default=True, help="Recipe file, or name of a built-in recipe."
)
settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a recipe setting, e.g. strategy.threshold=0.9.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
no_cache = click.option("--no-cache", is_flag=True, help="Neither read nor write the call cache.")


class Number(click.FloatRange):
    """A finite number in a range; click takes `nan` and `inf` for numbers, which pass bounds or mean nothing."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(click.FLOAT.convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return float(super().convert(found, param, ctx))


at_most_cost = click.option("--at-most-cost", type=Number(0), help="Dollars a thousand queries that may be spent.")
within_points = click.option(
    "--within-points", type=Number(), help="Points below the best single agent that may be lost."
)


def bundle(record: type[T]) -> Callable[[Callable[[T], Any]], Command]:
    """Hand all options of a command to it as one record, whose fields have the options' names."""

    def wrap(function: Callable[[T], Any]) -> Command:
        def command(**values: Any) -> Any:  # click's own calling convention
            return function(record(**values))

        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return command

    return wrap


class Place(click.Path):
    """A path that is written to. An empty one is refused: it would be the folder that one is in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("is empty: name a folder or a file", param, ctx)
        return super().convert(value, param, ctx)


def open_cache(no_cache: bool) -> Cache | None:
    """The user's call cache, or none."""
    return None if no_cache else Cache(default_path())


def load_teams(recipes: Sequence[str], settings: Sequence[str], cache: Cache | None) -> list[Team]:
    """The teams of several recipes; those with equal backend options share their open backends."""
    opened: dict[str, Backends] = {}
    teams = []
    for name in recipes:
        team = Team.load(name, settings, cache=cache)
        key = json.dumps(team.backends.options, sort_keys=True, default=str)
        team.backends = opened.setdefault(key, team.backends)
        teams.append(team)
    return teams


def new_folder(task: str) -> Path:
    """Where a run goes that was given no folder: a new one, made here so that nobody else gets it."""
    wanted = Path("runs") / f"{_slug(task)}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be made ({error.strerror}): name a folder by --out") from None
    return folder


@contextmanager
def run_folder(given: Path | None, task: str) -> Iterator[Path]:
    """The folder that was given, or a new one; of what is made nothing is left where the work could not begin."""
    folder = given or new_folder(task)
    absent = [one for one in (folder, *folder.parents) if not os.path.exists(one)]
    try:
        yield folder
    finally:
        with suppress(OSError):  # one with a file in it stays, as does `runs` with other runs
            for one in absent if given else (folder, folder.parent):
                one.rmdir()


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in Path(name).with_suffix("").as_posix()).strip("-")[-40:]


def run_with(teams: Sequence[Team], work: Coroutine[Any, Any, T]) -> T:
    """Run to the end and close the teams' backends, whatever happens."""

    async def closing() -> T:
        try:
            return await work
        finally:
            for team in teams:
                await team.backends.aclose()

    return asyncio.run(closing())


def print_json(value: Any) -> None:
    """Print one object; JSON has no NaN and no infinity, so that these are null."""
    text = json.dumps(_finite(value), ensure_ascii=False, indent=2, allow_nan=False)
    click.echo(text.encode(errors="replace").decode())


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value
