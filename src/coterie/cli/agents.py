"""`agents`: the expert folders that a recipe's pool is read from."""

import asyncio
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from coterie.cli import options, show
from coterie.cli.exporting import export
from coterie.config import nearest, override, validate
from coterie.errors import BackendError, ConfigError, UserError
from coterie.pool import FILE, read_agent, read_pool, write_agent
from coterie.team import BUILTIN_RECIPE, Backends, Team
from coterie.types import Agent, record

folder = click.option(
    "--experts",
    default="experts",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of expert folders.",
)


@click.group()
def agents() -> None:
    """List, add, swap and remove expert folders; export adapters."""


agents.add_command(export)


@agents.command("list")
@click.option(
    "--experts", type=click.Path(path_type=Path), help="Folder of expert folders (default: the recipe's pool)."
)
@click.option("--recipe", "-r", default=BUILTIN_RECIPE, show_default=True, help="Recipe whose pool is listed.")
@options.as_json
def list_(experts: Path | None, recipe: str, as_json: bool) -> None:
    """Say who is in a pool."""
    pool = read_pool(["*"], str(experts), experts) if experts else Team.load(recipe).pool
    rows = [facts(pool[name]) for name in sorted(pool)]
    if as_json:
        options.print_json({"agents": rows})
        return
    table = Table("agent", "role", "model", "adapter", "$/M in", "$/M out", "revision")
    for row in rows:
        table.add_row(*(escape("unknown" if value is None else str(value)) for value in row.values()))
    show.out.print(table)


def facts(agent: Agent) -> dict[str, Any]:
    """One line about an agent."""
    return {
        "name": agent.name,
        "role": agent.role,
        "model": agent.model,
        "adapter": Path(agent.adapter).name if agent.adapter else "",
        "prompt_price": agent.price.prompt,
        "completion_price": agent.price.completion,
        "revision": agent.revision,
    }


@record
class Wanted:
    """What `add` and `swap` are told about an agent."""

    name: str
    experts: Path
    model: str | None
    adapter: Path | None
    instruction: str | None
    settings: tuple[str, ...]
    check: bool
    as_json: bool


def described(command: Any) -> Any:
    """The options that `add` and `swap` share."""
    parts = (
        click.argument("name"),
        folder,
        click.option("--model", help="<backend>:<model>, such as builtin:smollm2-135m."),
        click.option(
            "--adapter", type=click.Path(path_type=Path), help="LoRA adapter folder (PEFT); it is copied."
        ),
        click.option("--instruction", help="System message of this agent."),
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="E.g. sampling.temperature=0."),
        click.option("--check/--no-check", default=True, help="Load the agent once before anything is changed."),
        options.as_json,
    )
    for part in reversed(parts):
        command = part(command)
    return command


@agents.command()
@described
@options.bundle(Wanted)
def add(wanted: Wanted) -> None:
    """Write the expert folder NAME."""
    if not wanted.model:
        raise ConfigError("--model is needed, such as --model builtin:smollm2-135m")
    target = _folder(wanted.experts, wanted.name)
    if target.exists():
        raise ConfigError(f"{target} exists; `coterie agents swap {wanted.name}` replaces it")
    _write(wanted, target, {"name": wanted.name})


@agents.command()
@described
@options.bundle(Wanted)
def swap(wanted: Wanted) -> None:
    """Put another model, adapter, instruction or setting into the expert folder NAME."""
    target = _existing(wanted.experts, wanted.name)
    _write(wanted, target, _table(read_agent(target)))


def _table(agent: Agent) -> dict[str, Any]:
    return {key: value for key, value in asdict(agent).items() if key not in ("folder", "revision")}


def _write(wanted: Wanted, target: Path, table: dict[str, Any]) -> None:
    """Prepare the whole new folder beside the old one, check it, then put it in place."""
    given = {"model": wanted.model, "instruction": wanted.instruction}
    table |= {key: value for key, value in given.items() if value is not None}
    agent: Agent = validate(Agent, override(table, wanted.settings), f"agent {wanted.name}")
    draft = _beside(target, "new")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        _draft(draft, target, agent, wanted.adapter)
        fresh = read_agent(draft)
        if fresh.name != wanted.name:
            raise ConfigError(f"agent {wanted.name}: its folder names it; it cannot be set to {fresh.name!r}")
        if wanted.check:
            asyncio.run(_prepare(fresh))
        _place(draft, target)
    except OSError as error:
        raise UserError(f"{target} is left as it was: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    fresh = read_agent(target)
    if wanted.as_json:
        options.print_json({"folder": str(target), **facts(fresh)})
    else:
        click.echo(f"{target}: revision {fresh.revision}")


def _draft(draft: Path, target: Path, agent: Agent, adapter: Path | None) -> None:
    """The new folder: whatever else lies in the old one, such as a model, the adapter and the description."""

    def replaced(folder: str, names: list[str]) -> list[str]:
        return [FILE, "adapter"] if Path(folder) == target else []

    draft.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        shutil.copytree(target, draft, ignore=replaced)
    else:
        draft.mkdir()
    source = adapter or (Path(agent.adapter) if agent.adapter else None)
    write_agent(draft, agent if source is None else replace(agent, adapter=_copied(source, draft)))


def _place(draft: Path, target: Path) -> None:
    """Two renames; whatever ends them, `_recover` makes it the old folder or the new one."""
    try:
        if target.exists():
            target.rename(_beside(target, "old"))
        draft.rename(target)
    finally:
        _recover(target)


def _recover(target: Path) -> None:
    """Undo or end a swap that was cut short: the old folder returns where there is no other, else it goes."""
    old = _beside(target, "old")
    if old.exists() and not target.exists():
        old.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _beside(target: Path, state: str) -> Path:
    """A folder that no pool reads: patterns do not match a leading dot."""
    return target.with_name(f".{target.name}.{state}")


def _copied(source: Path, draft: Path) -> str:
    if not (source / "adapter_config.json").is_file():
        raise ConfigError(f"{source}: is no PEFT adapter folder, it has no adapter_config.json")
    shutil.copytree(source, draft / "adapter")
    return str((draft / "adapter").resolve())


async def _prepare(agent: Agent) -> None:
    backends = Backends()
    if getattr(backends.of(agent), "serves_many", False):
        return  # which servers there are is said in a recipe, and there is none here
    try:
        await backends.of(agent).prepare(agent)
    except BackendError as error:
        raise ConfigError(f"agent {agent.name!r} cannot be loaded: {error}") from None
    finally:
        await backends.aclose()


@agents.command()
@click.argument("name")
@folder
@options.as_json
def remove(name: str, experts: Path, as_json: bool) -> None:
    """Delete the expert folder NAME."""
    path = _existing(experts, name)
    gone = _beside(path, "gone")
    try:
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)  # a removal that is cut short leaves no half of an agent
        shutil.rmtree(gone)
    except OSError as error:
        raise UserError(f"{path}: cannot be removed: {error}") from error
    if as_json:
        options.print_json({"folder": str(path), "name": name, "removed": True})
    else:
        click.echo(f"removed {path}")


def _folder(experts: Path, name: str) -> Path:
    """The folder of an agent, which need not exist."""
    if not name or name.startswith(".") or Path(name).name != name:
        raise ConfigError(f"agent name {name!r} must be a plain folder name")
    target = experts / name
    _recover(target)
    return target


def _existing(experts: Path, name: str) -> Path:
    target = _folder(experts, name)
    if not (target / FILE).is_file():
        known = [path.parent.name for path in experts.glob(f"[!.]*/{FILE}")]
        raise ConfigError(f"no expert folder {name!r} in {experts}{nearest(name, known)}")
    return target


COMMANDS = (agents,)
