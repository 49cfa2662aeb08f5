"""Which protection this machine offers, tried out before it is relied on.

Code of agents is run by `trials` at the best level that works: bubblewrap, else a process group with limits.
"""

import shutil
import sys
import threading
from collections.abc import Iterator
from functools import cache
from os import getuid

from coterie.errors import SandboxError
from coterie.tasks.levels import Level, Limits
from coterie.tasks.trials import Statements, run_program, run_tests
from coterie.types import record

LOCK = threading.Lock()
PROBE_LIMITS = Limits(seconds=20.0)
PROBE = """
import os, socket
def reaches():
    try:
        socket.create_connection(("127.0.0.1", 9), 1)
    except ConnectionRefusedError:
        return False
    except OSError:
        return False
    return True
def writes(path):
    try:
        open(path, "w").close()
    except OSError:
        return False
    return True
def forks():
    for count in range(100):
        try:
            child = os.fork()
        except OSError:
            return count
        if child == 0:
            os._exit(0)
    return 100
rights = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm"))]
names = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
print("root" if any(int(r, 16) for r in rights) else "no-rights")
print("alone" if os.getppid() == 1 else "among-others")
print("no-network" if names == ["lo"] and not reaches() else "network")
print("read-only" if not any(map(writes, ("/x", "/usr/x", "/dev/x", "/coterie/x"))) else "writable")
print("bounded" if forks() < 50 else "unbounded")
print("own-folder" if writes("x") and os.listdir() == ["x"] else "no-folder")
"""
PROBED = ["no-rights", "alone", "no-network", "read-only", "bounded", "own-folder"]
TEST_LIMITS = Limits(seconds=20.0, memory=256 << 20)
TESTS = Statements(tests=("assert f(1) == 2",), function="f")
SELF_TESTS = (
    ("a known pass", "def f(x):\n    return x + 1", True, 20.0),
    ("a known fail", "def f(x):\n    return x + 2", False, 20.0),
    ("an endless loop", "def f(x):\n    while True:\n        pass", False, 0.3),
    ("a memory hog", "def f(x):\n    return x + len([bytes(1 << 20) for _ in range(1024)]) - 1023", False, 20.0),
)


@record
class Sandbox:
    """The level that is used, what was found wanting of better ones, and why nothing can be run (or "")."""

    level: Level
    wanting: str = ""
    fault: str = ""


def levels() -> Iterator[Level]:
    """From the strongest down. Root becomes nobody in particular: limits on processes do not bind root."""
    root = getuid() == 0
    if root:
        yield Level(name="bwrap", drop=True)
    yield Level(name="bwrap", namespace=True)
    yield Level(name="subprocess", drop=root)


def wanting(level: Level) -> str:
    """What a probe inside found missing at this level; "" where all is as it should be."""
    if level.name == "subprocess":
        return ""
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    try:
        output, trouble, _ = run_program(PROBE, "", level, PROBE_LIMITS, PROBE_LIMITS.seconds)
    except SandboxError as error:
        return str(error)
    missing = [good for good, seen in zip(PROBED, output.split(), strict=False) if good != seen]
    return trouble or ", ".join(f"not {m}" for m in missing) or ("" if output.split() == PROBED else "no answer")


def self_test(level: Level) -> str:
    """Programs whose verdict is known; the first that gets another one, or "" (LiveBench#536)."""
    for name, code, right, seconds in SELF_TESTS:
        limits = Limits(seconds=seconds, memory=TEST_LIMITS.memory)
        try:
            trial = run_tests(code, TESTS, level, limits)
        except SandboxError as error:
            return f"self-test, {name}: {error}"
        if (len(trial.passed) == 1) is not right:
            return f"self-test, {name}: {'passed' if trial.passed else trial.reason}"
    return ""


def chosen() -> Sandbox:
    """The sandbox of this process, found and tried at first use. Safe from any thread."""
    with LOCK:
        return found()


@cache
def found() -> Sandbox:
    if sys.platform != "linux":
        return Sandbox(level=Level(name="subprocess"), fault="code can be run on Linux only")
    troubles = []
    for level in levels():
        trouble = wanting(level)
        if not trouble:
            break
        troubles.append(trouble)
    return Sandbox(level=level, wanting="; ".join(dict.fromkeys(troubles)), fault=self_test(level))


def protection() -> str:
    """One line for people: how code of agents is confined on this machine, and what that does not stop."""
    sandbox = chosen()
    if sandbox.fault:
        return f"code cannot be run: {sandbox.fault}"
    if sandbox.level.name == "bwrap":
        user = "as an unprivileged user of its own" if sandbox.level.drop else "in its own user namespace"
        return f"bwrap: no network, read-only system, throw-away folder in memory, own processes, {user}"
    user = "an unprivileged user of its own" if sandbox.level.drop else "your own user, whose files it might change"
    return (
        f"subprocess (weaker protection): limits, own session, throw-away folder, {user}; network, programs and "
        f"other files are refused to Python code only. Install bubblewrap for more ({sandbox.wanting})"
    )
