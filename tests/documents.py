"""Reading the documents: their blocks and spans of code, and the command lines in them. Tests of docs share it."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from coterie.cli.main import cli

ROOT = Path(__file__).parents[1]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


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
    shell = [
        p for p in pieces(path) if p.language == "bash" or (p.language == "span" and p.text.startswith("coterie "))
    ]
    return [words[1:] for piece in shell for words in lines(piece) if words[0] == "coterie"]


def without_code(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


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
