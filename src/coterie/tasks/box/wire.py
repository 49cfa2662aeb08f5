"""Plain values as bytes, for talking to a process that may lie. Not pickle: decoding builds builtin values only.

A value is one tag byte and its content; sizes are four bytes, big-endian. What is not plain travels as a
number under which its owner keeps it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing takes longer than all the rest of this process's start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

LIMIT = 4 << 20  # bytes of one message between judge and solution
ITEMS = 200_000  # of one iterator, so that an endless one ends
ATOMS = {b"N": None, b"T": True, b"F": False, b"E": Ellipsis}
SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"S", frozenset: b"Z"}
VIEWS: dict[type, bytes] = {type({}.keys()): b"K", type({}.values()): b"V", type({}.items()): b"M"}
TYPES = (int, float, complex, bool, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, type, object)
FUNCTIONS = (len, abs, min, max, sum, sorted, ord, chr, repr, round)
NAMED: dict[str, Any] = {t.__name__: t for t in (*TYPES, type(None), *FUNCTIONS)}
NAMES = {value: name for name, value in NAMED.items()}
MODULES = [
    *("math", "cmath", "string", "copy", "random", "re", "operator", "itertools", "functools", "collections"),
    *("heapq", "bisect", "datetime", "decimal", "fractions", "statistics", "typing"),
]
VALUES: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("collections", "Counter"): lambda v: (dict(v),),
    ("collections", "OrderedDict"): lambda v: (list(v.items()),),
    ("collections", "deque"): lambda v: (list(v), v.maxlen),
    ("datetime", "date"): lambda v: (v.year, v.month, v.day),
    ("datetime", "datetime"): lambda v: (v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond),
    ("datetime", "time"): lambda v: (v.hour, v.minute, v.second, v.microsecond),
    ("datetime", "timedelta"): lambda v: (v.days, v.seconds, v.microseconds),
    ("decimal", "Decimal"): lambda v: (str(v),),
    ("fractions", "Fraction"): lambda v: (v.numerator, v.denominator),
}


class WireError(Exception):
    """Bytes that are no message, or a value that is too large for one."""


class Uncarried(TypeError):
    """A value that cannot be given to the other side."""


def size(number: int) -> bytes:
    return number.to_bytes(4, "big")


class Encoder:
    """Writes one value. `export` names an object that stays here: (tag, number)."""

    def __init__(self, export: Callable[[Any], tuple[bytes, int]], limit: int) -> None:
        self.export = export
        self.limit = limit
        self.parts: list[bytes] = []
        self.total = 0

    def emit(self, *parts: bytes) -> None:
        self.parts += parts
        self.total += sum(map(len, parts))
        if self.total > self.limit:
            raise WireError(f"a value of more than {self.limit >> 20} MiB")

    def blob(self, tag: bytes, content: bytes) -> None:
        self.emit(tag, size(len(content)), content)

    def write(self, value: Any) -> None:
        """Exact builtin types by value, everything else by `other`."""
        kind = type(value)
        for tag, atom in ATOMS.items():
            if value is atom:
                return self.emit(tag)
        if kind in SEQUENCES:
            return self.items(SEQUENCES[kind], value)
        if kind in (int, float, complex, str, bytes, bytearray):
            return self.scalar(kind, value)
        if kind is dict:
            return self.items(b"d", [x for pair in value.items() for x in pair])
        if kind is range:
            return self.items(b"r", (value.start, value.stop, value.step))
        return self.other(kind, value)

    def scalar(self, kind: type, value: Any) -> None:
        if kind is int:
            self.blob(b"i", int.to_bytes(value, (int.bit_length(value) + 8) // 8, "big", signed=True))
        elif kind is float:
            self.blob(b"f", float.hex(value).encode())
        elif kind is complex:
            self.items(b"c", (value.real, value.imag))
        elif kind is str:
            self.blob(b"s", str.encode(value, "utf-8", "surrogatepass"))
        else:
            self.blob(b"b" if kind is bytes else b"a", bytes(value))

    def items(self, tag: bytes, values: Iterable[Any]) -> None:
        values = list(values)
        self.emit(tag, size(len(values)))
        for value in values:
            self.write(value)

    def other(self, kind: type, value: Any) -> None:
        """Known library types by value, subclasses as their builtin base, iterators as what is left in them."""
        parts = VALUES.get((kind.__module__, kind.__name__))
        if parts is not None and not (kind.__name__ == "datetime" and value.tzinfo is not None):
            return self.items(b"X", (kind.__module__, kind.__name__, *parts(value)))
        if kind in VIEWS:
            return self.items(VIEWS[kind], value)
        if kind in (type, type(len)) and value in NAMES:
            return self.blob(b"B", NAMES[value].encode())
        if kind is type(os) and value.__name__ in MODULES:
            return self.blob(b"P", value.__name__.encode())
        base = next((b for b in (int, float, complex, str, bytes, *SEQUENCES, dict) if isinstance(value, b)), None)
        if base is not None:
            return self.scalar(base, value) if base in (int, float, str) else self.write(base(value))
        if hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools"):
            return self.items(b"I", [x for x, _ in zip(value, range(ITEMS), strict=False)])
        tag, number = self.export(value)
        return self.emit(tag, size(number))


class Decoder:
    """Reads one value, strictly. `imported` turns (tag, number) into the object meant."""

    def __init__(self, data: bytes, imported: Callable[[bytes, int], Any]) -> None:
        self.data = data
        self.imported = imported
        self.at = 0

    def take(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        self.at += count
        if len(part) != count:
            raise WireError("cut short")
        return part

    def read(self) -> Any:
        tag = self.take(1)
        if tag in ATOMS:
            return ATOMS[tag]
        count = int.from_bytes(self.take(4), "big")
        if tag in b"HR":
            return self.imported(tag, count)
        if tag in b"ifsbaBP":
            return self.scalar(tag, self.take(count))
        if count > len(self.data) - self.at:
            raise WireError("more items than bytes")
        return self.group(tag, [self.read() for _ in range(count)])

    def scalar(self, tag: bytes, content: bytes) -> Any:
        if tag == b"i":
            return int.from_bytes(content, "big", signed=True)
        if tag == b"f":
            return float.fromhex(content.decode())
        if tag == b"s":
            return content.decode("utf-8", "surrogatepass")
        if tag == b"B":
            return NAMED[content.decode()]
        if tag == b"P":
            return __import__(MODULES[MODULES.index(content.decode())])
        return content if tag == b"b" else bytearray(content)

    def group(self, tag: bytes, values: list[Any]) -> Any:
        pairs = zip(values[::2], values[1::2], strict=False)
        match tag:
            case b"l":
                return values
            case b"t":
                return tuple(values)
            case b"S":
                return set(values)
            case b"Z":
                return frozenset(values)
            case b"d":
                return dict(pairs)
            case b"r":
                return range(*values)
            case b"c":
                return complex(*values)
            case b"I":
                return iter(values)
            case b"X":
                return known(*values)
            case _:
                return self.view(tag, values)

    def view(self, tag: bytes, values: list[Any]) -> Any:
        if tag == b"K":
            return dict.fromkeys(values).keys()
        if tag == b"V":
            return dict(enumerate(values)).values()
        if tag == b"M":
            return dict(values).items()
        raise WireError(f"unknown tag {tag!r}")


def known(module: str, name: str, *parts: Any) -> Any:
    """A library value by its parts; only the types of VALUES."""
    if (module, name) not in VALUES:
        raise WireError(f"unknown type {module}.{name}")
    return getattr(__import__(module), name)(*parts)


def nothing(*what: object) -> Any:
    """Export and import where no objects are shared."""
    raise Uncarried(f"{what[-1]!r} is not plain data")


def encode(value: Any, export: Callable[[Any], tuple[bytes, int]] = nothing, limit: int = LIMIT) -> bytes:
    """The bytes of `value`. WireError: too large; Uncarried: `export` refuses a part; RecursionError: cyclic."""
    encoder = Encoder(export, limit)
    encoder.write(value)
    return b"".join(encoder.parts)


def decode(data: bytes, imported: Callable[[bytes, int], Any] = nothing) -> Any:
    """The value in `data`; WireError on anything malformed, also where a value can't be built from the parts."""
    decoder = Decoder(data, imported)
    try:
        value = decoder.read()
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise WireError(f"malformed: {error}") from None
    if decoder.at != len(data):
        raise WireError("bytes left over")
    return value
