"""Calls over a socket between the judge and the solution, one at a time, nested where one calls back.

Comparisons never travel: an object that is not plain data has no `==`, `<` or `in` of its own here.
"""

from __future__ import annotations

import os

from . import wire

TYPE_CHECKING = False  # importing typing takes longer than all the rest of this process's start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MUTABLE = (list, dict, set, bytearray)


class LinkBroken(Exception):
    """The other side is gone or talks nonsense."""


class RemoteError(Exception):
    """An exception of the other side that has no builtin type here."""


class Remote:
    """An object that lives on the other side. Equal only to itself."""

    __slots__ = ("_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **named: Any) -> Any:
        value, changes = self._link.ask("call", self, args, named)
        for key, new in changes.items():
            overwrite(args[key] if isinstance(key, int) else named[key], new)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.ask("attr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("set", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._link.ask("item", self, key)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._link.ask("iter", self)))

    def __len__(self) -> int:
        return int(self._link.ask("len", self))

    def __bool__(self) -> bool:
        return bool(self._link.ask("bool", self))

    def __str__(self) -> str:
        return str(self._link.ask("str", self))

    __repr__ = __str__


class Link:
    """One end. `serve` answers the other end's questions; `export` says what may be lent to it."""

    def __init__(self, fd: int, serve: Callable[..., Any], lend: Callable[[Any], bool]) -> None:
        self.fd = fd
        self.serve = serve
        self.lend = lend
        self.lent: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.borrowed: dict[int, Remote] = {}

    def export(self, value: Any) -> tuple[bytes, int]:
        if type(value) is Remote:
            return b"R", value._number
        if not self.lend(value):
            raise wire.Uncarried(f"a {type(value).__name__} can't be carried to the solution")
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.lent)
            self.lent.append(value)
        return b"H", self.numbers[id(value)]

    def imported(self, tag: bytes, number: int) -> Any:
        if tag == b"R":
            return self.lent[number]
        return self.borrowed.setdefault(number, Remote(self, number))

    def send(self, *message: Any) -> None:
        data = wire.encode(message, self.export)
        write_all(self.fd, wire.size(len(data)) + data)

    def receive(self) -> tuple[Any, ...]:
        count = int.from_bytes(read_exactly(self.fd, 4), "big")
        if count > wire.LIMIT + 64:
            raise LinkBroken("a message that is too long")
        try:
            message = wire.decode(read_exactly(self.fd, count), self.imported)
        except wire.WireError as error:
            raise LinkBroken(str(error)) from None
        if not isinstance(message, tuple) or not message or not isinstance(message[0], str):
            raise LinkBroken("a message of no kind")
        return message

    def ask(self, *question: Any) -> Any:
        """The other side's answer; its exceptions are raised here as builtin ones."""
        self.send("ask", *question)
        while True:
            kind, *rest = self.receive()
            if kind == "ask":
                self.answer(rest)
            elif kind == "value" and len(rest) == 1:
                return rest[0]
            elif kind == "raise" and len(rest) == 2:
                raise exception(*rest)
            else:
                raise LinkBroken("an answer to nothing")

    def answer(self, question: list[Any]) -> None:
        """Serve one question of the other side; what goes wrong is told to it."""
        _, error = attempt(lambda: self.send("value", self.serve(*question)))
        if isinstance(error, LinkBroken):
            raise error
        if error is not None:
            text, _ = attempt(lambda: str(error)[:500])
            self.send("raise", [c.__name__ for c in type(error).__mro__], text or "")


def attempt(action: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What running code of others gave, or raised: it may raise anything, SystemExit too."""
    try:
        return action(), None
    except BaseException as error:  # noqa: BLE001
        return None, error


def exception(names: Any, text: Any) -> Exception:
    """The nearest builtin `Exception`; never SystemExit and the like, which would end the judge."""
    builtin = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
    for name in names:
        kind = builtin.get(name)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind not in (Exception, AssertionError):
            try:
                return marked(kind(str(text)))
            except TypeError:
                continue
    return marked(RemoteError(f"{names[0] if names else '?'}: {text}"))


def marked(error: Exception) -> Exception:
    """A missing import of the solution must not look like one of the tests."""
    error.__dict__["remote"] = True
    return error


def overwrite(old: Any, new: Any) -> None:
    """What a call did to an argument happens to the caller's own object too."""
    if type(old) is not type(new) or type(old) not in MUTABLE:
        return
    if isinstance(old, list | bytearray):
        old[:] = new
    else:
        old.clear()
        old.update(new)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        raise LinkBroken("the other side is gone") from None


def read_exactly(fd: int, count: int) -> bytes:
    parts = []
    try:
        while count:
            part = os.read(fd, min(count, 1 << 20))
            if not part:
                raise LinkBroken("the other side is gone")
            parts.append(part)
            count -= len(part)
    except OSError:
        raise LinkBroken("the other side is gone") from None
    return b"".join(parts)
