"""Runs the solution: its functions on request (`serve`) or the whole program once (`program`).

Knows neither the tests nor what they expect, and holds no way to the verdict.
"""

from __future__ import annotations

import os
import sys

from . import wire
from .link import MUTABLE, Link, LinkBroken, Remote

TYPE_CHECKING = False  # importing typing takes longer than all the rest of this process's start
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

OPERATIONS: dict[str, Any] = {"iter": list, "len": len, "bool": bool, "str": str}


class Solution:
    """The module that the code makes, and what the judge may do with it."""

    def __init__(self, *source: Any) -> None:
        self.source = source
        self.module = type(sys)("solution")

    def serve(self, operation: str, *args: Any) -> Any:
        if operation == "load":
            sys.modules["solution"] = self.module
            return exec(assembled(*self.source), self.module.__dict__)
        if operation == "names":
            return {n: self.module.__dict__[n] for n in args[0] if n in self.module.__dict__}
        if operation == "call":
            return call(*args)
        if operation == "attr":
            return getattr(*args)
        if operation == "set":
            return setattr(*args)
        if operation == "item":
            return args[0][args[1]]
        return OPERATIONS[operation](args[0])


def assembled(code: str, prefix: str, function: str | None) -> CodeType:
    """The code after the prefix, whole or as the body that the prefix lacks; the first way that is Python."""
    own = compiled(code)
    if not prefix:
        ways = []
    elif own is not None and function in own.co_names:
        ways = [f"{prefix}\n    pass\n\n{code}"]
    else:
        lines = code.split("\n")
        ways = [f"{prefix}\n{code}", f"{prefix}\n    {code.lstrip()}", "\n    ".join([prefix, *lines])]
    first = next(filter(None, map(compiled, ways)), own)
    return first or compile(code, "<solution>", "exec")


def compiled(code: str) -> CodeType | None:
    try:
        return compile(code, "<solution>", "exec")
    except (SyntaxError, ValueError):
        return None


def call(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[Any, Any]]:
    """The result, and the arguments that the call changed."""
    given = {k: v for k, v in (*enumerate(args), *named.items()) if type(v) in MUTABLE}
    before = {k: image(v) for k, v in given.items()}
    value = function(*args, **named)
    return value, {k: v for k, v in given.items() if image(v) not in (before[k], None)}


def mark(value: Any) -> tuple[bytes, int]:
    return (b"R", value._number) if type(value) is Remote else (b"H", id(value) >> 4 & 0xFFFFFFFF)


def image(value: Any) -> bytes | None:
    """Bytes that change when the value does; None where it cannot be written."""
    try:
        return wire.encode(value, mark)
    except (wire.WireError, RecursionError):
        return None


def serve(code: str, prefix: str, function: str | None, fd: int) -> int:
    """Answer the judge until it leaves."""
    os.environ.clear()
    link = Link(fd, Solution(code, prefix, function).serve, lambda value: True)
    try:
        while True:
            kind, *question = link.receive()
            if kind != "ask":
                return 1
            link.answer(question)
    except LinkBroken:
        return 0


def program(code: str) -> int:
    """Run the code as a script with this process's stdin and stdout. Exit status 1 after an exception."""
    os.environ.clear()
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv[:] = ["solution.py"]
    exec(compile(code, "<solution>", "exec"), module.__dict__)
    return 0
