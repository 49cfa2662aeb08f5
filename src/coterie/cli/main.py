"""The `coterie` command and its one door for errors: a user's mistake is one line and exit code 2, a bug
shows its traceback and exit code 1."""

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper

import click

from coterie import __version__
from coterie.cli import (
    agents,
    bench,
    calibrate,
    checks,
    compare,
    data,
    demo,
    distill,
    layers,
    runs,
    simulate,
    team,
    train,
)
from coterie.errors import CoterieError, UserError

PARTS = (team, train, distill, simulate, runs, demo, calibrate, compare, layers, bench, agents, data, checks)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="coterie")
def cli() -> None:
    """Send each query to the smallest group of LLM agents able to answer it."""


for command in (command for part in PARTS for command in part.COMMANDS):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    wanted = os.environ.get("COTERIE_LOG", "").upper()
    level = wanted if wanted in logging.getLevelNamesMapping() else "WARNING"
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=level)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # text from models may hold what the terminal cannot show
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    try:
        code = cli.main(args=None if arguments is None else list(arguments), standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            kept = "what was finished is kept: the same --out goes on from there (train, distill: with --resume)"
            return _fail(f"interrupted; {kept}", 130)
        return _fail("not done", 1)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader left: flushing must not complain
        return 0
    except (click.ClickException, CoterieError, OSError) as error:
        return _fail(*_told(error))
    except Exception:  # noqa: BLE001 - the door: everything unforeseen is a bug and shows where it is
        traceback.print_exc()
        return 1


def _told(error: Exception) -> tuple[str, int]:
    """One line about an error that is no bug, and the exit code: 2 where the caller can mend it."""
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "coterie"
        return f"{error.format_message()} (see {command} --help)", 2
    if isinstance(error, click.ClickException):
        return error.format_message(), 2
    if isinstance(error, UserError):
        return str(error), 2
    if isinstance(error, OSError):
        return f"{error.filename or type(error).__name__}: {error.strerror or error}", 1
    return f"{type(error).__name__}: {error}", 1


def _fail(message: str, code: int) -> int:
    click.echo(f"coterie: {' '.join(message.split())}", err=True)
    return code
