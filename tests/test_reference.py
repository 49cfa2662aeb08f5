"""docs/reference is what the code says: generated, whole, and the same wherever it is generated."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import click
import pytest

from coterie.cli.main import cli
from coterie.config import COMPONENTS, check_keys, find

DOCS = Path(__file__).parents[1] / "docs"


def generator():
    """docs/generate.py as a module."""
    spec = spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


generate = generator()


def part(page: str, head: str) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    text = (DOCS / "reference" / page).read_text(encoding="utf-8")
    assert f"\n{head}\n" in text, head
    marks = head.split(" ")[0]
    return re.split(rf"\n#{{1,{len(marks)}}} ", text.split(f"\n{head}\n")[1])[0]


def leaves(group: click.Group, path: str = "coterie") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}")


@pytest.mark.parametrize("path", generate.pages(), ids=lambda path: path.name)
def test_the_committed_page_is_what_the_code_says(path):
    assert path.read_text(encoding="utf-8") == generate.pages()[path], "run `make docs` and commit what it writes"


def test_the_pages_do_not_depend_on_terminal_hash_seed_or_folder(tmp_path):
    code = (
        "import runpy, sys; made = runpy.run_path(sys.argv[1]); "
        "sys.stdout.buffer.write(''.join(made['pages']().values()).encode())"
    )
    environment = os.environ | {"COLUMNS": "40", "PYTHONHASHSEED": "7", "LANG": "C", "COTERIE_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(DOCS / "generate.py")],
        capture_output=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.stdout.decode() == "".join(generate.pages().values())
    assert str(Path.home()) not in done.stdout.decode()


@pytest.mark.parametrize("path", [path for path, _ in leaves(cli)])
def test_every_command_stands_with_all_that_it_takes(path):
    command, text = dict(leaves(cli))[path], part("cli.md", f"## {path}")
    first_line = (command.help or "").strip().splitlines()[0]
    assert first_line in text
    for parameter in command.params:
        names = parameter.opts if isinstance(parameter, click.Option) else []
        assert all(f"`{name}`" in text for name in names), parameter
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(command.params)
    unexplained = [row for row in rows if row.startswith("| `-") and row.endswith("|  |")]
    assert not unexplained, "every option says what it is for"


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, known in COMPONENTS.items() for name in known])
def test_every_component_stands_with_settings_that_a_recipe_takes(kind, name):
    text, cls = part("config.md", f"### {name}"), find(kind, name)
    settings = re.findall(r"(?m)^\| `(\w+)` \|", text)
    check_keys(cls, dict.fromkeys(settings), name)
    public = {f.name for f in fields(cls) if f.init and not f.name.startswith("_")}
    assert public - set(settings) <= {"model", "answer"}
    assert len(text.strip().split("\n\n")[0]) > 20, "it says what it is"


@pytest.mark.parametrize(
    ("place", "row"),
    [
        ("### vote", "| `threshold` | number ≥ 0 | `0.7` |"),
        ("### forest", "| `encoder` | an [encoder](#encoders) | `hashed` |"),
        ("### cost_aware", "| `router` | a [router](#routers) | needed |"),
        ("### mlp", "| `objective` | `best` or `share` or `reward` | `reward` |"),
        ("## Endpoint", "| `base_url` | text | needed |"),
        ("## Endpoint", "| `deadlines` | [Deadlines](#deadlines) | [as below](#deadlines) |"),
        ("## Limits", "| `cost_usd` | number ≥ 0 or `null` | `null` |"),
        ("## Contracts", "| `chat` | `raw` | no |"),
    ],
)
def test_types_and_defaults_are_in_words(place, row):
    assert row in part("config.md", place)
