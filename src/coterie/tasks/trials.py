"""Runs code against tests in the sandbox and tells what was seen. It gives no score: that is `code`."""

import os
import secrets
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from coterie.errors import SandboxError
from coterie.tasks.confine import Box, readable
from coterie.tasks.levels import Level, Limits
from coterie.types import record


@record
class Statements:
    """Tests of functions: `tests` about the solution, after `setup`; `function` must exist (None: any).

    `prefix` is text that the solution may go on from. Only it and `function` ever reach the solution.
    """

    tests: Sequence[str]
    setup: str = ""
    function: str | None = None
    prefix: str = ""


@record
class Trial:
    """What came of the tests: how many there were, which passed (by index), the first trouble."""

    total: int
    passed: frozenset[int]
    reason: str = ""


def run_tests(code: str, tests: Statements, level: Level, limits: Limits) -> Trial:
    """The statements in turn, by a judge in a sandbox of its own. Raises SandboxError: there can be no verdict."""
    nonce = secrets.token_hex(16)
    known = {"code": code, "prefix": tests.prefix, "function": tests.function}
    hidden = {"nonce": nonce, "tests": list(tests.tests), "setup": tests.setup, "function": tests.function}
    with ExitStack() as stack:
        ends = [stack.enter_context(end) for pair in (socket.socketpair(), socket.socketpair()) for end in pair]
        solution, judge = (stack.enter_context(Box(level, limits)) for _ in range(2))
        here, verdict, link, other = ends[0], ends[1], ends[2], ends[3]
        solution.start(known | {"role": "serve"}, (other.fileno(), -1))
        judge.start(hidden | {"role": "judge"}, (link.fileno(), verdict.fileno()))
        for end in (verdict, link, other):
            end.close()
        solution.ready()
        judge.ready()
        events, ended = follow(here, nonce, limits.seconds)
        if solution.finish() < 0:
            return abandoned(len(tests.tests), level)
    return conclude(events, ended, len(tests.tests), level, limits)


def follow(here: socket.socket, nonce: str, seconds: float) -> tuple[list[tuple[str, int, str]], bool]:
    """The judge's events until it is done, and whether the channel ended before time was up."""
    end = time.monotonic() + seconds
    data = b""
    while readable(here.fileno(), end):
        part = here.recv(1 << 16)
        data += part
        if not part or b"\tdone\t" in data:
            return events_in(data, nonce), True
    return events_in(data, nonce), False


def events_in(data: bytes, nonce: str) -> list[tuple[str, int, str]]:
    """(what, test number, reason) of every whole line that carries the nonce."""
    rows = [line.decode("ascii", "replace").split("\t") for line in data.split(b"\n")[:-1]]
    return [(row[1], int(row[2]), row[3]) for row in rows if len(row) == 4 and row[0] == nonce]


def abandoned(total: int, level: Level) -> Trial:
    """Nothing counts once the solution's supervisor is lost: our fault, unless the solution could reach it."""
    if level.separate:
        raise SandboxError("the solution's supervisor ended")
    return Trial(total=total, passed=frozenset(), reason="the solution attacked its supervisor")


def conclude(events: list[tuple[str, int, str]], ended: bool, total: int, level: Level, limits: Limits) -> Trial:
    """What the events amount to."""
    for what, number, reason in events:
        if what == "broken":
            raise SandboxError(f"test {number} is at fault: {reason}" if number else reason)
    passed = frozenset(number - 1 for what, number, _ in events if what == "pass")
    troubles = [f"test {n}: {r}" if n else r for what, n, r in events if what in ("fail", "unloaded")]
    complete = any(what in ("done", "unloaded") or (what == "fail" and not n) for what, n, _ in events)
    if complete:
        return Trial(total=total, passed=passed, reason=troubles[0] if troubles else "")
    if not ended:
        troubles.append(f"not done after {limits.seconds:g} s")
    elif level.separate:
        raise SandboxError("the judge ended without a verdict")
    else:
        troubles.append("the judge was killed")
    return Trial(total=total, passed=passed, reason=troubles[-1])


def run_programs(code: str, tests: Sequence[Mapping[str, str]], level: Level, limits: Limits) -> Trial:
    """The program once for each test, `input` on its stdin; `output` is compared here, token by token.

    Raises SandboxError where there can be no verdict.
    """
    end = limits.seconds
    passed, reason = set(), ""
    for number, test in enumerate(tests):
        if end <= 0:
            reason = reason or f"test {number + 1}: not done in time"
            break
        output, trouble, used = run_program(code, test["input"], level, limits, end)
        end -= used
        if not trouble and output.split() != test["output"].split():
            trouble = "wrong output"
        if not trouble:
            passed.add(number)
        reason = reason or (trouble and f"test {number + 1}: {trouble}")
    return Trial(total=len(tests), passed=frozenset(passed), reason=reason)


def run_program(code: str, text: str, level: Level, limits: Limits, seconds: float) -> tuple[str, str, float]:
    """(stdout, trouble or "", seconds used) of one run. Raises SandboxError if it could not be run."""
    with tempfile.TemporaryFile() as stdin, Box(level, limits) as box:
        stdin.write(text.encode("utf-8", "surrogatepass"))
        stdin.seek(0)
        source, sink = os.pipe()
        for fd, mode in ((stdin.fileno(), 0o444), (sink, 0o666)):
            os.fchmod(fd, mode)  # so that a program with a user of its own can open /dev/stdin and /dev/stdout
        with open(source, "rb", buffering=0) as reader:
            with open(sink, "wb", buffering=0):
                box.start({"role": "program", "code": code}, streams=(stdin.fileno(), sink))
            box.ready()
            began = time.monotonic()
            data, trouble = drain(reader.fileno(), began + seconds, limits.output)
            trouble = trouble or box.outcome(began + seconds)
            return data.decode("utf-8", "replace"), trouble, time.monotonic() - began


def drain(fd: int, end: float, most: int) -> tuple[bytes, str]:
    """What is written until the other end is closed; trouble where that is too late or too much."""
    parts: list[bytes] = []
    total = 0
    while total <= most:
        if not readable(fd, end):
            return b"".join(parts), "not done in time"
        part = os.read(fd, 1 << 16)
        if not part:
            return b"".join(parts), ""
        parts.append(part)
        total += len(part)
    return b"".join(parts), f"more than {most} bytes of output"
