"""Runs the tests. Calls go to the solution's process, every comparison is made here on plain values.

It alone holds the verdict channel and the nonce; it never runs a line of the solution.
"""

from __future__ import annotations

import builtins

from . import wire
from .link import Link, LinkBroken, attempt, write_all

TYPE_CHECKING = False  # importing typing takes longer than all the rest of this process's start
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

BROKEN = (SyntaxError, ImportError, wire.Uncarried, wire.WireError)


class Report:
    """Writes the verdict, a line an event: nonce, what, number, reason; tab between."""

    def __init__(self, fd: int, nonce: str) -> None:
        self.fd = fd
        self.nonce = nonce

    def say(self, what: str, number: int = 0, reason: str = "") -> None:
        plain = " ".join(reason.split()).encode("ascii", "backslashreplace").decode()[:300]
        write_all(self.fd, f"{self.nonce}\t{what}\t{number}\t{plain}\n".encode())


def call_back(operation: str, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The one thing a solution may ask: call a function that a test gave it."""
    if operation != "call":
        raise TypeError("only functions are lent")
    return function(*args, **named), {}


def free_names(code: CodeType) -> set[str]:
    """Names that the code looks up and Python itself does not have."""
    names = {n for n in code.co_names if not hasattr(builtins, n)}
    return names.union(*(free_names(c) for c in code.co_consts if hasattr(c, "co_names")))


def outcome(code: CodeType, space: dict[str, Any]) -> tuple[str, str]:
    """pass, fail or broken (the test itself is at fault), and why."""
    _, error = attempt(lambda: exec(code, space))
    if error is None:
        return "pass", ""
    own = isinstance(error, BROKEN) and not hasattr(error, "remote")
    return "broken" if own else "fail", told(error)


def told(error: BaseException) -> str:
    """An exception as a reason."""
    text, _ = attempt(lambda: str(error))  # may hold an object of the solution
    kind = "assertion is false" if type(error) is AssertionError else type(error).__name__
    return f"{kind}: {text}" if text else kind


def judge(job: dict[str, Any], link_fd: int, verdict_fd: int) -> int:
    """Run the setup and every test of `job`, telling each outcome as soon as it is known."""
    report = Report(verdict_fd, job["nonce"])
    codes, error = attempt(lambda: [compile(t, "<test>", "exec") for t in (job["setup"], *job["tests"])])
    if error is not None:
        report.say("broken", 0, f"a test does not compile: {error}")
        return 0
    link = Link(link_fd, call_back, callable)
    space, error = attempt(lambda: loaded(link, job["function"], codes))
    if error is not None:
        report.say("unloaded", 0, told(error))
        return 0
    for number, code in enumerate(codes):
        status, reason = outcome(code, space)
        if number or status != "pass":
            report.say(status, number, reason)
        if number == 0 and status != "pass":
            return 0
    report.say("done")
    return 0


def loaded(link: Link, function: str | None, codes: list[CodeType]) -> dict[str, Any]:
    """The namespace of the tests: what they need of the solution, by its names."""
    link.ask("load")
    wanted = set().union(*map(free_names, codes)) | ({function} if function else set())
    found = link.ask("names", sorted(wanted))
    if not isinstance(found, dict):
        raise LinkBroken("no names")
    if function and function not in found:
        raise NameError(f"the code does not define {function}")
    return {"__name__": "tests"} | {k: v for k, v in found.items() if k in wanted}
