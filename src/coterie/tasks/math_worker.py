"""Math-Verify in child processes that can be killed: the only place that runs symbolic code.

Asked only what `math_equality` cannot decide. A child starts with the first question and ends with the
interpreter, with its parent or when its time is up.
"""

import atexit
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from coterie.errors import MissingExtra
from coterie.tasks.math_equality import Undecided

_BOOT = "import json,sys; sys.path[:]=json.loads(sys.argv[1]); from coterie.tasks.math_worker import serve; serve()"
_START = 120.0  # seconds to import sympy, also on a machine that is busy
_ALARM = 5  # seconds that Math-Verify gives itself for each parse and each comparison
_WALL = 4.0 * _ALARM
_MEMORY = 4 << 30
_CHILDREN = 4


def available() -> bool:
    """Whether Math-Verify is installed; importing it is left to the children."""
    return importlib.util.find_spec("math_verify") is not None


class Lost(Exception):
    """The child died without a word."""


class Child:
    """One checking process and the line to it. Its owner lends it to one thread at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.line, self.rest, self.owner = ours, b"", os.getpid()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        self.ready = False

    def ask(self, reference: str, answer: str, wall: float) -> Any:
        """The child's reply; TimeoutError after `wall` seconds, Lost when it is dead."""
        try:
            if not self.ready:
                self.ready = bool(self._reply(_START))
            self.line.settimeout(wall)
            self.line.sendall(json.dumps([reference, answer]).encode() + b"\n")
            return self._reply(wall)
        except TimeoutError:
            raise
        except OSError as error:
            raise Lost from error

    def _reply(self, wall: float) -> Any:
        """The next line, read before `wall` seconds have passed in all."""
        end = time.monotonic() + wall
        while b"\n" not in self.rest:
            self.line.settimeout(max(end - time.monotonic(), 1e-3))
            data = self.line.recv(65536)
            if not data:
                raise Lost
            self.rest += data
        found, _, self.rest = self.rest.partition(b"\n")
        return json.loads(found)

    def close(self) -> None:
        """Kill and reap; in a forked copy of the owner only the line is closed."""
        self.line.close()
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()


class Prover:
    """A few children for any number of threads; each is started when first needed."""

    def __init__(self, size: int = _CHILDREN, *, wall: float = _WALL) -> None:
        self.size, self.wall = size, wall
        self.free = threading.BoundedSemaphore(size)
        self.lock = threading.Lock()
        self.idle: list[Child] = []
        self.alive: set[Child] = set()

    def prove(self, reference: str, answer: str) -> bool:
        """Whether Math-Verify holds two expressions for equal. Raises Undecided, also after `wall` seconds."""
        if not available():
            raise Undecided(str(MissingExtra("math-verify", "tasks")))
        with self.free:
            try:
                reply = self._asked(reference, answer)
            except Lost:  # an idle child may have been killed by others: one fresh one
                reply = self._again(reference, answer)
            except TimeoutError as error:
                raise Undecided(f"no decision within {self.wall:g} s") from error
        if isinstance(reply, str):
            raise Undecided(reply)
        return bool(reply)

    def _again(self, reference: str, answer: str) -> Any:
        try:
            return self._asked(reference, answer)
        except Lost as error:
            raise Undecided("the checking process died") from error
        except TimeoutError as error:
            raise Undecided(f"no decision within {self.wall:g} s") from error

    def _asked(self, reference: str, answer: str) -> Any:
        child, answered = self._take(), False
        try:
            reply = child.ask(reference, answer, self.wall)
            answered = True
        finally:
            self._return(child, answered=answered)
        return reply

    def _take(self) -> Child:
        with self.lock:
            child = self.idle.pop() if self.idle else Child()
            self.alive.add(child)
            return child

    def _return(self, child: Child, *, answered: bool) -> None:
        """An answering child waits for the next question; any other one ends."""
        with self.lock:
            keep = answered and child in self.alive
            if keep:
                self.idle.append(child)
            else:
                self.alive.discard(child)
        if not keep:
            child.close()

    def close(self) -> None:
        """End every child."""
        with self.lock:
            children, self.alive, self.idle = self.alive, set(), []
        for child in children:
            child.close()


@cache
def prover() -> Prover:
    """The prover of this process."""
    found = Prover(max(1, min(_CHILDREN, os.cpu_count() or 1)))
    atexit.register(found.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _forget(found))
    return found


def _forget(found: Prover) -> None:
    """A forked process must not share its parent's lines, nor a lock that was held."""
    for child in found.alive:
        child.line.close()
    found.free, found.lock = threading.BoundedSemaphore(found.size), threading.Lock()
    found.idle, found.alive = [], set()


# --- the child's side --------------------------------------------------------------------------------

_EXPECTED = (
    ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RuntimeError, AssertionError, MemoryError,
    SyntaxError,
)  # fmt: skip


def serve() -> None:
    """Answer questions from standard input until it ends: true, false, or a text that says why neither."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    questions, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    decide = _decider()
    replies.write(b"true\n")
    for line in questions:
        # In C code no Python alarm rings: the kernel ends a process that outlives its parent's patience.
        signal.setitimer(signal.ITIMER_PROF, _WALL + _ALARM)
        replies.write(json.dumps(decide(*json.loads(line))).encode() + b"\n")
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory() -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _decider() -> Callable[[str, str], bool | str]:
    from math_verify import LatexExtractionConfig, parse, verify
    from math_verify.errors import TimeoutException

    def read(text: str) -> list[Any]:
        found: list[Any] = parse(
            f"${text}$",
            [LatexExtractionConfig()],
            fallback_mode="no_fallback",
            parsing_timeout=_ALARM,
            raise_on_error=True,
        )
        return found

    def decide(reference: str, answer: str) -> bool | str:
        try:
            gold, given = read(reference), read(answer)
            if not gold:
                return "Math-Verify cannot read the reference"
            if not given:
                return False
            return verify(gold, given, timeout_seconds=_ALARM, raise_on_error=True) or _same_function(gold, given)
        except TimeoutException:
            return f"no decision within Math-Verify's {_ALARM} s"
        except _EXPECTED as error:
            return f"Math-Verify failed: {type(error).__name__}"

    return decide


_POINTS = ((7, 5), (-7, 5), (13, 11), (3, 17), (-3, 17), (29, 3), (-29, 3), (101, 7))


def _same_function(gold: list[Any], given: list[Any]) -> bool:
    """Equal as real functions: sqrt(1/n) and 1/sqrt(n), which sympy keeps apart as complex ones.

    Compared at eight rational points of each sign and several sizes; where one side is real the other must be.
    """
    from sympy import Expr, Rational

    a, b = gold[0], given[0]
    if not isinstance(a, Expr) or not isinstance(b, Expr) or a.free_symbols != b.free_symbols:
        return False
    names = sorted(a.free_symbols, key=str)
    if not 0 < len(names) <= 3:
        return False
    seen = 0
    for p, q in _POINTS:
        point = {name: Rational(p + i, q) for i, name in enumerate(names)}
        x, y = complex(a.subs(point).evalf(25)), complex(b.subs(point).evalf(25))
        real = [abs(value.imag) <= 1e-15 * (1 + abs(value)) for value in (x, y)]
        if real[0] != real[1] or (real[0] and abs(x - y) > 1e-12 * (1 + abs(x))):
            return False
        seen += real[0]
    return seen >= 3
