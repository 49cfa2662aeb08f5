"""What the documents say, done: commands run, recipes load, programs run, links and files are there.

Agents are scripted and features hashed here; what stands for the embedded model answers without it.
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml

from coterie.cli.main import cli, run
from coterie.config import COMPONENTS
from coterie.evaluation.demo import write_recipe
from coterie.outcomes import Outcomes
from coterie.storage.tables import write_table
from coterie.tasks.catalog import load_task
from coterie.team import Team, recipe_file
from coterie.types import State

ROOT = Path(__file__).parents[1]
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*GUIDES, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "results").rglob("*.md"))]
HEAVY = {("models", "fetch"), ("demo",)}
"""Commands that bring or run the embedded model: they are parsed and not run."""
SHELL = {"make", "coterie", "source"}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_guide = pytest.mark.parametrize("path", GUIDES, ids=named)
each_page = pytest.mark.parametrize("path", PAGES, ids=named)


# --- reading ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """A fenced block, or a `span` of code in the text."""

    language: str
    text: str


FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$|(?<!`)`([^`\n]+)`(?!`)", re.DOTALL | re.MULTILINE)


def pieces(path: Path) -> list[Piece]:
    """All code of a document, in order."""
    found = FENCE.finditer(path.read_text(encoding="utf-8"))
    return [Piece("span", m[3]) if m[3] else Piece(m[1], m[2]) for m in found]


def blocks(path: Path) -> list[Piece]:
    return [piece for piece in pieces(path) if piece.language != "span"]


def lines(piece: Piece) -> Iterator[list[str]]:
    """The words of each shell command, comments and leading assignments left out."""
    for line in piece.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words:
            yield words


def commands(path: Path) -> list[list[str]]:
    """The words after `coterie` of every command line: in shell blocks, and in the text where it starts a span."""
    shell = [p for p in pieces(path) if p.language == "bash" or (p.language == "span" and p.text.startswith("coterie "))]
    return [words[1:] for piece in shell for words in lines(piece) if words[0] == "coterie"]


def without_code(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


# --- commands are there -------------------------------------------------------------------------------


def resolved(words: Sequence[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that the words name, and those that are left for it; a usage error where there is none."""
    command: click.Command = cli
    context, rest = click.Context(cli, info_name="coterie"), list(words)
    while isinstance(command, click.Group) and rest:
        name, found, rest = command.resolve_command(context, rest)
        assert name is not None
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    return command, context, rest


def parse(words: Sequence[str]) -> None:
    """Read a command line as it would be before it is run. Words that name a command and no more only find it."""
    command, context, rest = resolved(words)
    if rest:
        command.make_context(context.info_name, rest, parent=context.parent)


@each_page
def test_every_command_line_is_accepted(path):
    for words in commands(path):
        try:
            parse(words)
        except click.ClickException as error:
            pytest.fail(f"{named(path)}: coterie {shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("line", ["evil", "train --tsk x", "eval -n 0 --task x", "data chekc x", "cache clear --no"])
def test_a_command_line_that_is_not_there_is_noticed(line):
    with pytest.raises(click.ClickException):
        parse(line.split())


def targets() -> dict[str, str]:
    """Makefile targets with their recipes."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return {m[1]: m[2] for m in re.finditer(r"^([\w./]+):(?!=).*\n((?:\t.*\n?)*)", text, re.MULTILINE)}


@each_page
def test_every_make_target_is_there(path):
    spans = [p.text for p in pieces(path) if p.language in ("span", "bash")]
    wanted = {name for text in spans for name in re.findall(r"(?m)^(?:[A-Z]+=\S+ )?make ([a-z][\w-]*)", text)}
    assert wanted <= targets().keys()


def test_the_makefile_calls_commands_that_are_there():
    called = [line for recipe in targets().values() for line in re.findall(r"\$\(BIN\)/coterie (.*)", recipe)]
    assert len(called) >= 2
    for line in called:
        parse(shlex.split(re.sub(r"\$\((\w+)\)", r"\1", line)))


@each_guide
def test_every_block_is_of_a_kind_that_is_tested(path):
    for block in blocks(path):
        assert block.language in ("bash", "yaml", "python", ""), block.text
        if block.language == "bash":
            assert {words[0] for words in lines(block)} <= SHELL, block.text


def test_the_readme_is_short_and_names_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert re.search(r"^make demo\b", text, re.MULTILINE)
    assert re.search(r"^make test\b", text, re.MULTILINE)


# --- links and files are there ------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ +(.*)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@each_page
def test_every_relative_link_leads_somewhere(path):
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)", without_code(path)):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        file = path.parent / place if place else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@each_page
def test_every_file_that_is_named_is_there(path):
    for piece in pieces(path):
        for place in re.findall(r"(?<![\w/.])(?:src|tests|docs|benchmarks)/[\w./-]*\w", piece.text):
            assert list(ROOT.glob(place)), place


@each_guide
def test_nothing_is_left_to_be_filled_in(path):
    assert not re.search(r"^[A-Z]{4,}$|\b(?:TODO|FIXME|TBD|XXX)\b", without_code(path), re.MULTILINE)


def test_the_flow_is_drawn_alike_wherever_it_is_drawn():
    drawn = [b.text for name in ("README.md", "docs/architecture.md") for b in blocks(ROOT / name) if "──►" in b.text]
    assert len(drawn) == 2
    assert drawn[0] == drawn[1]


def test_the_files_of_the_readme_are_there():
    """Each name in the list below `src/coterie/`: a module or folder of the folder that its line is about."""
    [listing] = [b.text for b in blocks(ROOT / "README.md") if b.text.startswith("src/coterie/")]
    folder, seen = ROOT / "src" / "coterie", 0
    for line in listing.splitlines()[1:]:
        if not line.startswith(" "):
            break
        for word in re.split(r" {2,}", line.strip())[0].split():
            if line.startswith("  ") and line[2] != " " and word.endswith("/"):
                folder = ROOT / "src" / "coterie" / word
                assert folder.is_dir(), word
                continue
            place = folder.parent if word.endswith(".py") else folder
            place = ROOT / "src" / "coterie" if word.endswith(".py") else place
            assert list(place.glob(word.rstrip("/") if word.endswith(("/", ".py")) else f"{word}.py")), word
            seen += 1
    assert seen > 60


def test_the_table_of_parts_names_every_built_in_one():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for kind, known in COMPONENTS.items():
        [row] = re.findall(rf"^\| {kind.capitalize()} \|.*\|(.*)\|$", text, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", row)) == set(known)


# --- a desk to work at --------------------------------------------------------------------------------

SUMS = [(f"Add {n} to {n + 1}.", str(2 * n + 1)) for n in range(2, 26)]
TOWNS = [(f"Which number is {word} written as a numeral?", str(n)) for n, word in enumerate("one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split(), 1)]  # fmt: skip
