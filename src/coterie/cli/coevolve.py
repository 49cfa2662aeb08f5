"""The half of `train` that trains adapters: a recipe with a `learner` co-evolves in a run folder.

Opens, watches, stops and ends a run; what a round is, is `learning`'s business.
"""

import os
import shlex
import signal
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import click

from coterie.cli import board, options
from coterie.errors import ConfigError
from coterie.learning import sinks
from coterie.team import Team
from coterie.types import record

if TYPE_CHECKING:
    from coterie.learning.training import Training

INTERRUPTED = 130
STOPPING = b"\nthis round is finished and saved first; once more to stop at once\n"


@record
class Asked:
    """What the command line says about a run."""

    team: Team
    recipe: str
    out: Path | None
    resume: bool
    logs: tuple[str, ...]
    settings: tuple[str, ...]
    as_json: bool


def coevolve(asked: Asked) -> int:
    """Begin a run or go on with one, to its end or to where it is interrupted; the exit code."""
    _check(asked)
    from coterie.learning.training import Training

    with options.run_folder(asked.out, f"train {asked.team.name}") as folder:
        training = Training.open(asked.team, folder, asked.resume)
    try:
        return _run(asked, training)
    finally:
        training.close()


def _run(asked: Asked, training: "Training") -> int:
    state, folder = training.course, training.run.path
    again = _again(asked, folder)
    stands = f"goes on after round {state.rounds}" if state.rounds else "begins"
    click.echo(f"run folder: {folder} ({stands}; curves: coterie report {_quoted(folder)})", err=True)
    for words in state.settings.remarks(state.pool):
        board.warn(words)
    finished = False
    try:
        finished = advance(training, asked.logs)
    finally:
        if not finished and (folder / "run.json").is_file():
            click.echo(f"to go on: {again}", err=True)
    exported = training.export()
    _tell(asked, training, exported, again)
    return 0 if finished else INTERRUPTED


def _check(asked: Asked) -> None:
    """Raises what can be said before a model is loaded or a folder made."""
    if asked.resume and asked.out is None:
        raise ConfigError("--resume goes on with a run: name its folder by --out")
    if asked.out is not None and os.path.exists(asked.out) and not os.path.isdir(asked.out):
        raise ConfigError(f"{asked.out}: is no folder: a run is kept in one")
    sinks.check(asked.logs)


def advance(training: "Training", logs: Sequence[str]) -> bool:
    """Rounds until the end or a signal; True at the end."""
    state, run = training.course, training.run
    used = {"queries": state.asked, "updates": state.updates, **state.spent}
    bounds = {name: getattr(state.settings, name) for name in ("queries", "updates", "completions")}
    start = board.Budget(used=used, most={name: most for name, most in bounds.items() if most is not None})
    name = sinks.identity(run.path) if logs else ""
    about = sinks.About(folder=run.path, id=name, config=run.config, rounds=state.rounds)
    with (
        sinks.opened(logs, about, board.warn) as log,
        board.watching(board.Board(state.names, start)) as see,
        Stop() as stop,
    ):

        def watch(row: Any) -> bool:
            log.write(row)
            see(row)
            return not stop.asked

        return training.advance(watch)


class Stop:
    """While it is open, the first SIGINT, SIGTERM or SIGHUP asks for an end after the round, the next ends at once.

    Where SIGHUP is ignored (`nohup`), it stays so.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.asked = False
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            heard = [one for one in self.SIGNALS if one != signal.SIGHUP or not ignored]
            self.before = {one: signal.signal(one, self._hear) for one in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one, before in self.before.items():
            signal.signal(one, before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        try:
            os.write(2, STOPPING)  # not through a stream: what the signal interrupts may be writing to it
        except OSError:
            _leave_terminal()


def _leave_terminal() -> None:
    """Say nothing more where the terminal is gone: a line that cannot be written would end the run unsaved."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for one in (1, 2):
        if stat.S_ISCHR(os.fstat(one).st_mode):
            os.dup2(nowhere, one)
    os.close(nowhere)


def _again(asked: Asked, folder: Path) -> str:
    """The exact command that goes on with the run."""
    settings = [part for setting in asked.settings for part in ("--set", setting)]
    logs = [part for name in asked.logs for part in ("--log", name)]
    return shlex.join(["coterie", "train", asked.recipe, "--out", str(folder), "--resume", *settings, *logs])


def _tell(asked: Asked, training: "Training", exported: Path, again: str) -> None:
    state = training.course
    counts = {name: state.engines[name].counts(state.policy(name))[0] for name in state.names}
    facts = {
        "folder": str(training.run.path),
        "finished": state.finished,
        "rounds": state.rounds,
        "queries": state.asked,
        "updates": state.updates,
        "agents": counts,
        **state.spent,
        "errors": state.errors,
        "team": str(exported),
        "resume": None if state.finished else again,
    }
    if asked.as_json:
        options.print_json(facts)
        return
    updates = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    click.echo(
        f"{'finished' if state.finished else 'stopped'} after round {state.rounds:,}: {state.asked:,}"
        f" queries, {state.updates:,} updates ({updates}), {state.spent['tokens']:,} tokens"
    )
    click.echo(f"team: {exported}")
    test = next((part for name in state.settings.tasks if (part := test_part(name))), "TASK")
    measure = ["coterie", "eval", asked.recipe, str(exported), "--task", test]
    click.echo(f"measure it against what it was: {shlex.join(measure)}", err=True)
    click.echo(f"ask it: {shlex.join(['coterie', 'ask', '-r', str(exported)])} '...'", err=True)


def test_part(task: str) -> str:
    """The name of the part that goes with a training part; empty for other names."""
    target, sign, parameters = task.partition("?")
    return f"{target.removesuffix('/train')}/test{sign}{parameters}" if target.endswith("/train") else ""


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
