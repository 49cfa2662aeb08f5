"""A confined Python process: how it is started at each level, and how it ends with all that it left.

What runs in it is the package `box`; what is run and what came of it is `trials`.
"""

import marshal
import os
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coterie.errors import SandboxError
from coterie.tasks.box import wire
from coterie.tasks.levels import ENVIRONMENT, Level, Limits, reachable, stranger

START_SECONDS = 60.0
END_SECONDS = 5.0
JOB_BYTES = 1 << 30
# In the order of their imports. Compiled here once: reading and compiling them costs as much as starting Python.
PARTS = ("wire", "link", "kernel", "guard", "candidate", "judge", "supervisor")
LAUNCH = """
import marshal, os, sys
source, start = map(int, sys.argv[2:4])
sys.modules["box"] = type(sys)("box")
for name, code in marshal.loads(os.pread(source, start, 0)):
    part = sys.modules["box." + name] = type(sys)("box." + name)
    part.__package__ = "box"
    exec(code, part.__dict__)
part.main()
"""


class Box:
    """One confined process and what belongs to it: its folder, its descriptors. A context manager."""

    def __init__(self, level: Level, limits: Limits) -> None:
        self.level = level
        self.limits = limits
        self.user = stranger() if level.drop else 0
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = self.make_folder()
        self.control, self.inner = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`

    def __enter__(self) -> "Box":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def make_folder(self) -> str:
        """The throw-away folder: a real one, or a name for one that exists only inside."""
        if self.level.name == "bwrap":
            return "/box"
        folder = tempfile.mkdtemp(prefix="coterie-box-")
        if self.user:
            os.chown(folder, self.user, self.user)
        return folder

    def start(self, job: dict[str, Any], fds: Sequence[int] = (-1, -1), streams: Sequence[int] = ()) -> None:
        """Start the process. `job`: what to do; `fds`: link and verdict; `streams`: its stdin and stdout.

        Raises SandboxError if it cannot be started.
        """
        job = job | {"folder": self.folder, "user": self.user, "limits": self.bounds()}
        job["reading"] = self.user and not reachable(sys.base_prefix)
        stdin, stdout = streams or (subprocess.DEVNULL, subprocess.DEVNULL)
        with tempfile.TemporaryFile() as source:
            start = source.write(program())
            source.write(wire.encode(job, limit=JOB_BYTES))
            source.flush()
            control = self.inner.fileno()
            command = self.level.command(self.folder, self.limits)
            command += [LAUNCH, *map(str, (control, source.fileno(), start, *fds)), self.folder]
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=self.errors,
                    env=ENVIRONMENT,
                    cwd="/",
                    pass_fds=[n for n in (control, source.fileno(), *fds) if n >= 0],
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxError(f"cannot start {command[0]}: {error}") from None
        self.inner.close()

    def bounds(self) -> dict[str, int]:
        """Resource limits by name; a user who has other processes is allowed these besides."""
        bounds = self.limits.resources()
        if self.level.name == "subprocess" and not self.user:
            bounds["RLIMIT_NPROC"] += threads_of(os.getuid())
        return bounds

    def ready(self) -> None:
        """Wait until the process is confined and about to begin; SandboxError if it never is."""
        self.control.settimeout(START_SECONDS)
        try:
            answer = self.control.recv(1)
        except TimeoutError:
            raise SandboxError(f"the sandbox did not start within {START_SECONDS:.0f} s") from None
        except OSError as error:
            raise SandboxError(f"the sandbox did not start: {error}") from None
        if not answer:
            raise SandboxError(f"the sandbox did not start: {self.complaint()}")

    def outcome(self, end: float) -> str:
        """How the process ended by the time `end` (monotonic): "" where it did so by itself and in order."""
        assert self.process is not None
        try:
            status = self.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return "not done in time"
        return f"exit status {status}" if status else ""

    def complaint(self) -> str:
        """What the process wrote about its own failure."""
        self.finish()
        self.errors.seek(0)
        lines = self.errors.read(1 << 16).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")[:300]

    def finish(self) -> int:
        """End the process and everything below it; its exit status."""
        self.control.close()
        if self.process is None:
            return -1
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self) -> None:
        """Leave nothing behind: no process, no file, no descriptor."""
        code = self.finish()
        if self.level.name == "subprocess":
            if code < 0:
                sweep(self.folder, self.user)
            shutil.rmtree(self.folder, ignore_errors=True)
        self.inner.close()
        self.errors.close()


def threads_of(user: int) -> int:
    """Threads that `user` has now, which is what RLIMIT_NPROC is compared with."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            total += len(os.listdir(folder / "task")) if folder.stat().st_uid == user else 0
        except OSError:
            continue
    return total


def sweep(folder: str, user: int) -> None:
    """Kill what was left when the supervisor was lost: all of `user`, all that started or works in `folder`."""
    end = time.monotonic() + END_SECONDS
    while time.monotonic() < end:
        found = [int(p.name) for p in Path("/proc").glob("[0-9]*") if belongs(p, folder, user)]
        if not found:
            return
        for pid in found:
            try:
                resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))
                os.kill(pid, 9)
            except OSError:
                continue


def belongs(process: Path, folder: str, user: int) -> bool:
    try:
        status = (process / "status").read_text(errors="replace")
        if "\nState:\tZ" in status:
            return False
        if user and f"\nUid:\t{user}\t" in status:
            return True
        if b"\0" + folder.encode() + b"\0" in (process / "cmdline").read_bytes():
            return True
        return os.readlink(process / "cwd").startswith(folder)
    except OSError:
        return False


def readable(fd: int, end: float) -> bool:
    """Wait until there is something to read or the time `end` (monotonic) has come."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, (end - time.monotonic()) * 1000)))


@cache
def program() -> bytes:
    """The code of package `box`, for `LAUNCH` to run."""
    folder = Path(__file__).parent / "box"
    files = {name: folder / f"{name}.py" for name in PARTS}
    codes = [(name, compile(file.read_text("utf-8"), str(file), "exec")) for name, file in files.items()]
    return marshal.dumps(codes)
