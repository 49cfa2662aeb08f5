"""Writes docs/reference from the code: every command from its click object, every setting from its dataclass.

`make docs` runs it; tests/test_reference.py checks that the committed pages are what it writes.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import click

from coterie.backends.endpoint import Endpoint
from coterie.backends.recorded import Rule
from coterie.backends.retries import Deadlines, Retries
from coterie.cli.main import cli
from coterie.config import COMPONENTS, FILES, find
from coterie.learning.adapters import Lora
from coterie.learning.allocation import Allocation
from coterie.learning.course import Lessons
from coterie.learning.debate import Critic
from coterie.learning.engine import Optimiser
from coterie.learning.losses import Loss
from coterie.learning.practice import Drill, Practice
from coterie.learning.rewards import Rewards
from coterie.learning.routing import RoutingUpdate
from coterie.rollout import Limits
from coterie.strategies.layers import Panel
from coterie.strategies.memory import Route
from coterie.strategies.stopping import DepthRule, Weights
from coterie.tasks.catalog import KINDS
from coterie.tasks.extract import CONTRACTS
from coterie.team import Recipe
from coterie.types import Agent, Price, Sampling

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `make docs` from the code: change the code, not this page. -->"
PARTS: tuple[type, ...] = (
    Agent,
    Sampling,
    Price,
    Limits,
    Endpoint,
    Deadlines,
    Retries,
    Rule,
    Panel,
    Route,
    DepthRule,
    Weights,
)
"""Records that settings are made of, each with a section of its own."""
LEARNING: tuple[type, ...] = (
    *(Lessons, Drill, Practice, Rewards, Allocation, RoutingUpdate, Critic),
    *(Lora, Optimiser, Loss),
)
"""The same for what a learner is made of."""
NOT_SET = ("folder", "revision")
"""Fields of an agent that coterie fills in."""


def section(*lines: str) -> str:
    return "\n".join(lines).strip() + "\n"


def table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; nothing where there is no row."""
    if not rows:
        return ""
    cells = [titles, tuple("---" for _ in titles), *rows]
    return "\n" + "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


# --- commands -----------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command, its arguments and options with their defaults."""
    head = section(
        "# Command line reference",
        "",
        NOTE,
        "",
        "Exit codes: 0 done; 2 a mistake to mend, told in one line; 1 an outage or a bug; 130 interrupted.",
        "Results go to standard output, progress and advice to standard error.",
    )
    return "\n".join([head, *(command_section(path, command) for path, command in commands(cli, "coterie"))])


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Commands with their full names, in alphabetical order; a group stands before its commands."""
    for name in sorted(group.commands):
        command = group.commands[name]
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def command_section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    rows = [parameter_row(parameter, context) for parameter in command.params]
    text = inspect.cleandoc(command.help or "")
    return section(
        f"## {path}",
        "",
        "```",
        usage,
        "```",
        "",
        text,
        table(("option or argument", "value", "default", "meaning"), rows),
    )


def parameter_row(parameter: click.Parameter, context: click.Context) -> tuple[str, ...]:
    if isinstance(parameter, click.Argument):
        name = parameter.make_metavar(context).strip("[]").split("]")[0].removesuffix("...")
        return f"`{name}`", value_of(parameter), "needed" if parameter.required else "", ""
    assert isinstance(parameter, click.Option)
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    return names, value_of(parameter), default_of(parameter, context), (parameter.help or "").replace("<", "\\<")


def value_of(parameter: click.Parameter) -> str:
    """What has to be given: nothing for a flag, else a word for the kind of value."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return "flag"
    many = ", one or more" if parameter.required else ", any number"
    several = ", repeatable" if parameter.multiple else many if parameter.nargs == -1 else ""
    kind = parameter.type
    if isinstance(kind, click.Choice):
        word = ", ".join(f"`{choice}`" for choice in kind.choices)
    elif isinstance(kind, click.IntRange | click.FloatRange):
        word = number_in(kind)
    elif isinstance(kind, click.Path):
        word = "file" if not kind.dir_okay else "folder" if not kind.file_okay else "path"
    else:
        word = {"integer": "whole number", "float": "number"}.get(kind.name, "text")
        metavar = parameter.metavar if isinstance(parameter, click.Option) else None
        word = f"`{metavar}`" if metavar else word
    return word + several


def number_in(kind: click.IntRange | click.FloatRange) -> str:
    word = "whole number" if isinstance(kind, click.IntRange) else "number"
    if kind.min is not None and kind.max is not None:
        return f"{word}, {kind.min} to {kind.max}"
    ends = [f"≥ {kind.min}" if kind.min is not None else "", f"≤ {kind.max}" if kind.max is not None else ""]
    return " ".join([word, *filter(None, ends)])


def default_of(option: click.Option, context: click.Context) -> str:
    if option.required:
        return "needed"
    found = option.get_default(context)
    if option.is_flag and option.secondary_opts:
        return f"`{(option.opts if found else option.secondary_opts)[0]}`"
    plain = isinstance(found, str | int | float) and not isinstance(found, bool)
    return f"`{found}`" if plain and not option.is_flag and found != "" else ""


# --- settings -----------------------------------------------------------------------------------------


def config_page() -> str:
    """Every key of a recipe, and every built-in component with its settings."""
    head = section(
        "# Recipe reference",
        "",
        NOTE,
        "",
        "A recipe is one YAML file. A component is a name (`strategy: vote`) or a mapping whose `use` is the name",
        "and whose other keys are the settings listed here (`strategy: {use: vote, threshold: 0.9}`). An unknown",
        "key is refused. None is written `null`, or left out where it is the default. A relative file is looked",
        "for beside the recipe. `--set key.path=value` overrides a setting for one command.",
        "",
        "An agent is a mapping, or a text that names expert folders (`experts/*`; `coterie agents` writes them).",
    )
    recipe = section("## Recipe", "", text_of(Recipe), settings(Recipe))
    kinds = [section(f"## {plural(kind).capitalize()}", "", ABOUT[kind]) + components(kind) for kind in ABOUT]
    parts, learning = ([part_section(part) for part in found] for found in (PARTS, LEARNING))
    return "\n".join([head, recipe, *parts, *kinds, *learning, contracts_section()])


ABOUT: Mapping[str, str] = {
    "router": "Weighs the agents for a query. A package adds one through the entry point group `coterie.router`.",
    "encoder": "Turns queries into the vectors that routers learn from (entry points `coterie.encoder`).",
    "strategy": "How agents work together (entry points `coterie.strategy`).",
    "backend": "An agent's `model` is `<backend>:<model>`; these are the settings below `backends.<backend>` (entry"
    " points `coterie.backend`).",
    "learner": "How `coterie train` trains the team (entry points `coterie.learner`); answering does not read it.",
}


def plural(kind: str) -> str:
    return "strategies" if kind == "strategy" else f"{kind}s"


def components(kind: str) -> str:
    return "".join(
        "\n" + section(f"### {name}", "", text_of(find(kind, name)), settings(find(kind, name), kind))
        for name in sorted(COMPONENTS[kind])
    )


def part_section(part: type) -> str:
    rows = "" if part is Retries else settings(part)  # an endpoint's own settings fill it
    return section(f"## {part.__name__}", "", text_of(part), rows)


def text_of(described: type) -> str:
    """The docstring of a class."""
    return inspect.cleandoc(described.__doc__ or "")


def settings(described: type, kind: str = "") -> str:
    """The table of a class's settings."""
    hints = typing.get_type_hints(described, include_extras=True)
    rows = [
        (f"`{found.name}`", wording(hints[found.name], found.name), default_in(found))
        for found in fields(described)
        if is_setting(found, hints[found.name], kind)
    ]
    return table(("setting", "value", "default"), rows)


def is_setting(found: "Field[Any]", hint: Any, kind: str) -> bool:
    """Whether it can stand in a recipe: no private field, no function, no model, which the agent names."""
    hidden = not found.init or found.name.startswith("_") or found.name in NOT_SET
    code = any(typing.get_origin(option) is Callable for option in (hint, *typing.get_args(hint)))
    return not (hidden or code or (kind == "backend" and found.name == "model"))


def wording(hint: Any, name: str = "") -> str:
    """A type in words."""
    if name in FILES:
        return "file or `null`"
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return bounded(inner[0], inner[1:], name)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" if value else "nothing" for value in inner)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(wording(option, name) for option in inner)
    if origin in (tuple, list):
        return f"list of {wording(inner[0], name.removesuffix('s')).removeprefix('an ')}"
    if origin is Mapping:
        return "mapping" if inner[1] is Any else f"mapping of names to {wording(inner[1])}"
    return component_or_part(hint, name)


def component_or_part(hint: Any, name: str) -> str:
    if is_dataclass(hint):
        title = hint.__name__  # type: ignore[union-attr]
        return f"[{title}](#{title.lower()})"
    if hint is Any:
        return named_part(name)
    words = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", type(None): "`null`"}
    return words.get(hint, str(hint))


def named_part(name: str) -> str:
    """What a setting without a type of its own holds, by its name."""
    if name == "agent":
        return "an [agent](#agent)"
    article = "an" if name.startswith(tuple("aeiou")) else "a"
    return f"{article} [{name}](#{plural(name)})" if name in COMPONENTS else "anything"


def bounded(hint: Any, notes: tuple[Any, ...], name: str) -> str:
    """A type with its bounds: number ≥ 0 < 1."""
    marks = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "a multiple of"}
    found = [bound for note in notes for bound in getattr(note, "metadata", ())]
    ends = [
        f"{mark} {getattr(bound, key):g}" for bound in found for key, mark in marks.items() if hasattr(bound, key)
    ]
    return " ".join([wording(hint, name), *ends])


def default_in(found: "Field[Any]") -> str:
    if found.default is MISSING and found.default_factory is MISSING:
        return "needed"
    value = found.default_factory() if found.default_factory is not MISSING else found.default
    return shown(value)


def shown(value: Any) -> str:
    """A default as a recipe would have it."""
    names = {target: name for known in COMPONENTS.values() for name, target in known.items()}
    target = f"{type(value).__module__}:{type(value).__qualname__}"
    if target in names:
        return f"`{names[target]}`"
    if is_dataclass(value):
        return f"[as below](#{type(value).__name__.lower()})"
    if value is None or isinstance(value, bool):
        return f"`{ {None: 'null', True: 'true', False: 'false'}[value] }`".replace("` ", "`")
    if isinstance(value, tuple | list):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, Mapping):
        return "`{}`" if not value else f"`{dict(value)}`"
    return f"`{value}`" if value != "" else "`''`"


def contracts_section() -> str:
    """Answer contracts, and the usual one of each kind of task."""
    contracts = [
        (f"`{found.name}`", quoted(found.suffix), quoted(found.prefill), ", ".join(map(quoted, found.stop)))
        for found in sorted(CONTRACTS.values(), key=lambda found: found.name)
    ]
    kinds = [
        (f"`{name}`", f"`{kind.contract}`", "no" if kind.open_ended or kind.contract == "raw" else "yes")
        for name, kind in sorted(KINDS.items())
    ]
    return section(
        "## Contracts",
        "",
        "`contracts` maps a kind of task to an answer contract: what is added to a question, and how its answer is",
        "read.",
        table(("contract", "added to the question", "prefilled answer", "ends at"), contracts),
        "",
        "Kinds of task; more come through the entry point group `coterie.task`.",
        table(("kind", "usual contract", "answers can be voted on"), kinds),
    )


def quoted(text: str) -> str:
    """A text in one cell of a table."""
    flat = text.strip("\n").replace("\n", "⏎")
    return f"`` {flat} ``" if "`" in flat else f"`{flat}`" if flat else ""


def pages() -> dict[Path, str]:
    """What stands in each file."""
    return {FOLDER / "cli.md": cli_page(), FOLDER / "config.md": config_page()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        click.echo(f"wrote {path}")
