"""Named functions run in child processes that can be killed: for code that may hang, run away or crash.

A child starts with the first question, answers many, and ends with the interpreter, with its parent or when its
time is up. No sandbox: what runs here is ours or a library's; code that models write goes to `sandbox`.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

CHILDREN = 4
_BOOT = "import json,sys; sys.path[:]=json.loads(sys.argv[1]); from coterie.tasks.worker import serve; serve()"
_START = 120.0  # seconds to import what the work needs, also on a machine that is busy
_GRACE = 5.0
_MEMORY = 4 << 30


class Lost(Exception):
    """The child died without a word."""


class Unanswered(Exception):
    """There is no reply to this question; says why."""


class Child:
    """One process that does one kind of work, and the line to it. Its owner lends it to one thread at a time."""

    def __init__(self, work: str, wall: float) -> None:
        ours, theirs = socket.socketpair()
        self.line, self.rest, self.owner = ours, b"", os.getpid()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), work, str(wall)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},  # no order of a set by chance
                start_new_session=True,  # a signal that asks its owner to stop asks the whole group
            )
        self.ready = False

    def ask(self, question: bytes, wall: float) -> Any:
        """The child's reply; TimeoutError after `wall` seconds, Lost when it is dead."""
        try:
            if not self.ready:
                self.ready = bool(self._reply(_START))
            self.line.settimeout(wall)
            self.line.sendall(question)
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


class Crew:
    """A few children of one kind for any number of threads; each is started when first needed.

    `work` is `<module>:<function>`; the child calls it once, and what it returns answers the questions. Arguments
    and replies are JSON. `wall` is how many seconds one question may take.
    """

    def __init__(self, work: str, size: int, wall: float) -> None:
        self.work, self.size, self.wall = work, size, wall
        self.free = threading.BoundedSemaphore(size)
        self.lock = threading.Lock()
        self.idle: list[Child] = []
        self.alive: set[Child] = set()

    def ask(self, *arguments: Any) -> Any:
        """What the work returns. Raises Unanswered when time is up or the child dies; TypeError for no JSON."""
        question = json.dumps(arguments).encode() + b"\n"
        with self.free:
            try:
                return self._asked(question)
            except Lost:  # an idle child may have been killed by others: one fresh one
                return self._again(question)
            except TimeoutError as error:
                raise Unanswered(f"no decision within {self.wall:g} s") from error

    def _again(self, question: bytes) -> Any:
        try:
            return self._asked(question)
        except Lost as error:
            raise Unanswered("the checking process died") from error
        except TimeoutError as error:
            raise Unanswered(f"no decision within {self.wall:g} s") from error

    def _asked(self, question: bytes) -> Any:
        child, answered = self._take(), False
        try:
            reply = child.ask(question, self.wall)
            answered = True
        finally:
            self._return(child, answered=answered)
        return reply

    def _take(self) -> Child:
        with self.lock:
            child = self.idle.pop() if self.idle else Child(self.work, self.wall)
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

    def forget(self) -> None:
        """In a forked process: it must not share its parent's lines, nor a lock that was held."""
        for child in self.alive:
            child.line.close()
        self.free, self.lock = threading.BoundedSemaphore(self.size), threading.Lock()
        self.idle, self.alive = [], set()


C = TypeVar("C", bound=Crew)


def kept(crew: C) -> C:
    """The crew, closed when this process ends and forgotten by its forks."""
    atexit.register(crew.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=crew.forget)
    return crew


def children() -> int:
    """How many children a process keeps of one kind."""
    return max(1, min(CHILDREN, os.cpu_count() or 1))


# --- the child's side --------------------------------------------------------------------------------


def serve() -> None:
    """Answer questions from standard input until it ends; the first line out says that the work is ready."""
    _limit_memory()
    questions, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    answer, wall = _work(sys.argv[2]), float(sys.argv[3])
    replies.write(b"true\n")
    for line in questions:
        # In C code no Python alarm rings: the kernel ends a process that outlives its parent's patience.
        signal.setitimer(signal.ITIMER_PROF, wall + _GRACE)
        replies.write(json.dumps(answer(*json.loads(line))).encode() + b"\n")
        signal.setitimer(signal.ITIMER_PROF, 0)


def _work(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    made: Callable[..., Any] = getattr(import_module(module), function)()
    return made


def _limit_memory() -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
