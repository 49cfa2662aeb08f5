"""How strongly a process is confined, and the command line that does it. Starts nothing itself."""

import os
import random
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from coterie.errors import SandboxError
from coterie.types import record

# The environment is ours, so -I would only add that hashes differ from run to run, and verdicts with them.
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
ISOLATED = ("-s", "-P", "-S", "-B", "-X", "utf8", "-c")
SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/nix/store", "/etc/ld.so.cache")


@record
class Limits:
    """What one item may use. `seconds` is wall clock for compiling and all tests together.

    `memory` is bytes of address space a process, `processes` counts threads too, `file` is bytes of one
    file, `folder` bytes of all files (bwrap only), `output` bytes of stdout.
    """

    seconds: float = 10.0
    memory: int = 1 << 30
    processes: int = 8
    file: int = 16 << 20
    folder: int = 64 << 20
    output: int = 4 << 20

    def resources(self) -> dict[str, int]:
        """Names and values for setrlimit."""
        return {
            "RLIMIT_CPU": int(self.seconds) + 2,
            "RLIMIT_AS": self.memory,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.file,
            "RLIMIT_NOFILE": 64,
            "RLIMIT_CORE": 0,
        }


@record
class Level:
    """How a process is confined. `drop`: started as root, it becomes a user that nobody else is.

    `namespace`: bubblewrap's new user namespace rather than root's own rights make the sandbox.
    """

    name: Literal["bwrap", "subprocess"]
    drop: bool = False
    namespace: bool = False

    @property
    def separate(self) -> bool:
        """True where the solution can't send signals to the processes that watch it."""
        return self.name == "bwrap" or self.drop

    def command(self, folder: str, limits: Limits) -> list[str]:
        """The start of the command line: an isolated Python about to run the text that follows."""
        python = [os.path.realpath(getattr(sys, "_base_executable", sys.executable)), *ISOLATED]
        return python if self.name == "subprocess" else [*self.bubble(folder, limits), *python]

    def bubble(self, folder: str, limits: Limits) -> list[str]:
        """bubblewrap's own arguments."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxError("bwrap is not installed")
        spaces = ["user", "ipc", "pid", "net", "uts", "cgroup"][0 if self.namespace else 1 :]
        needed = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if self.drop else ()
        small = ["--perms", "0777", "--size", str(limits.folder), "--tmpfs"]
        return [
            bwrap,
            *(f"--unshare-{s}" for s in spaces),
            *("--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL", *needed),
            *(x for name, value in ENVIRONMENT.items() for x in ("--setenv", name, value)),
            *("--proc", "/proc", "--dev", "/dev", *small, "/dev/shm", *small, "/tmp", *small, folder),
            *(x for path in mounts() for x in (*open_parents(path), *shown(path))),
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"),
        ]


def mounts() -> list[str]:
    """Folders of the system and of the interpreter, none inside another."""
    return [*SYSTEM, *(p for p in (os.path.realpath(sys.base_prefix),) if not p.startswith(("/usr/", "/nix/")))]


def open_parents(path: str) -> list[str]:
    """The folders above a mount, which bubblewrap would make readable to their owner alone."""
    return [x for p in reversed(Path(path).parents[:-1]) for x in ("--perms", "0755", "--dir", str(p))]


def shown(path: str) -> Iterable[str]:
    if os.path.islink(path):
        return "--symlink", os.readlink(path), path
    return "--ro-bind-try", path, path


def stranger() -> int:
    """A user id that no process has, far from those that systems give out."""
    return 0x60000000 + random.SystemRandom().randrange(0x10000000)


def reachable(path: str) -> bool:
    """True where any user may read `path`."""
    places = [Path(path), *Path(path).parents]
    return all(p.stat().st_mode & 0o005 == 0o005 for p in places)
