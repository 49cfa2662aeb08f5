"""The `coterie` command and its one door for errors: a user's mistake is one line and exit code 2, a bug
shows its traceback and exit code 1."""

import logging
import os
import sys
import traceback
from collections.abc import Sequence

import click

from coterie import __version__
from coterie.cli import agents, checks, runs, team
from coterie.errors import CoterieError, UserError

COMMANDS = (*team.COMMANDS, *runs.COMMANDS, *agents.COMMANDS, *checks.COMMANDS)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="coterie")
def cli() -> None:
    """Send each query to the smallest group of LLM agents able to answer it."""


for command in COMMANDS:
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    logging.basicConfig(
        format="%(levelname)s %(name)s: %(message)s", level=os.environ.get("COTERIE_LOG", "WARNING")
    )
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    try:
        code = cli.main(args=None if arguments is None else list(arguments), standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "coterie"
        return _fail(f"{error.format_message()} (see {command} --help)", 2)
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except UserError as error:
        return _fail(str(error), 2)
    except CoterieError as error:
        return _fail(f"{type(error).__name__}: {error}", 1)
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            return _fail("interrupted; what was finished is kept: the same --out goes on from there", 130)
        return _fail("not done", 1)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader left: flushing must not complain
        return 0
    except Exception:  # noqa: BLE001 - the door: everything unforeseen is a bug and shows where it is
        traceback.print_exc()
        return 1


def _fail(message: str, code: int) -> int:
    click.echo(f"coterie: {' '.join(message.split())}", err=True)
    return code
