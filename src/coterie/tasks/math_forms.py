"""The structure of a written answer: number, list, set, interval, matrix or words. Comparing is elsewhere."""

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from coterie.tasks.math_numbers import Value, rational
from coterie.tasks.math_text import enclosed, joined, split, tidy
from coterie.tasks.math_units import Unit, base, separate
from coterie.types import record

_DEPTH = 12
ELLIPSIS = r"\ldots"


@record
class Form:
    """One answer. `text` is its canonical body, `whole` the same with name and unit still on it.

    The items of a sequence (outer `brackets`) and of a matrix (sequences, one a row) are ordered, those of
    a set and of a union are not. `commas` is the text as a list where digits may be grouped: 100,200.
    """

    kind: Literal["scalar", "words", "sequence", "matrix", "set", "union"]
    text: str
    whole: str = ""
    items: tuple["Form", ...] = ()
    brackets: str = ""
    name: str = ""
    value: Value | None = None
    unit: Unit | None = None
    base: str = ""
    commas: str = ""


def read(text: str) -> Form:
    """The form of any text."""
    return _form(tidy(text), 0)


def unjoined(form: Form) -> Form | None:
    """The list reading of a number whose digits are grouped by commas."""
    return _listed(form.commas, 0) if form.commas else None


# --- readers of one structure each; None: it is another ----------------------------------------------

_LOGIC = re.compile(r"\\(?:forall|exists|implies|iff|land|lor|Rightarrow|Leftrightarrow|mid)(?![A-Za-z])")
_MATRIX = re.compile(r"\\begin\{([pbBv]?matrix|array|smallmatrix)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_SYMBOL = re.compile(r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_\{[^{}]*\}|'|\([a-z](?:,[a-z])*\))* ?")
_LABEL = re.compile(r"\\text\{[^{}]*\}|[A-Za-z]{3,}(?: [A-Za-z]+)*")
_RELATION = r"\\leq(?![A-Za-z])|\\geq(?![A-Za-z])|\\neq(?![A-Za-z])|<|>"
_SEPARATOR = r"[,;]|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
_WORD = re.compile(r"\\text\{|(?<![A-Za-z\\])[A-Za-z]{4,}")
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|log|ln|arc[a-z]+)(?![A-Za-z])")


def _form(text: str, depth: int) -> Form:
    text = text.strip(" ;")
    number = joined(text)
    if depth > _DEPTH or _LOGIC.search(number):
        return _words(number)
    for reader in (_matrix, _enclosed, _listed, _union, _member, _related, _equated, _ratio):
        if (form := reader(number, depth)) is not None:
            return form
    form = _scalar(number, depth)
    return form if number == text else replace(form, commas=text)


def _forms(parts: Sequence[str], depth: int) -> tuple[Form, ...]:
    return tuple(_form(part, depth + 1) for part in parts)


def _set(parts: Sequence[str], text: str, depth: int) -> Form:
    r"""A set; `a \pm b` among the items stands for two of them."""
    items = _forms([part for part in parts if part.strip()], depth)
    spread = tuple(leaf for item in items for leaf in (item.items if item.brackets == "pm" else (item,)))
    return Form(kind="set", text=text, whole=text, items=spread)


def _sequence(parts: Sequence[str], brackets: str, depth: int) -> Form:
    text = ",".join(parts)
    return Form(kind="sequence", text=text, whole=text, brackets=brackets, items=_forms(parts, depth))


def _matrix(text: str, depth: int) -> Form | None:
    if (found := _MATRIX.fullmatch(text)) is None or found[1] == "vmatrix":
        return None
    rows = [_sequence(split(row, "&"), "", depth + 1) for row in split(found[2], r"\\\\") if row.strip()]
    return Form(kind="matrix", text=text, whole=text, items=tuple(rows))


def _enclosed(text: str, depth: int) -> Form | None:
    width = 2 if text.startswith(r"\{") and text.endswith(r"\}") else 1
    round_ = text[:1] in ("(", "[") and text[-1:] in (")", "]")
    if not (round_ or width == 2) or not enclosed(text):
        return None
    inside = text[width:-width]
    parts = split(inside, "[,;]")
    if width == 2:
        return _set(parts, text, depth)
    if len(parts) > 1:
        return _sequence(parts, text[0] + text[-1], depth)
    return _form(inside, depth + 1) if inside.strip() and text[0] + text[-1] == "()" else None


def _listed(text: str, depth: int) -> Form | None:
    """1, 2 and 3 without brackets. A name before the first (n = 1, 2, 3) is the list's."""
    parts = [part for part in split(text, _SEPARATOR) if part.strip()]
    if len(parts) < 2:
        return None
    found = _set(parts, text, depth)
    first, *rest = found.items
    if first.name and not any(item.name for item in rest):
        items = (replace(first, name="", whole=first.text), *rest)
        found = replace(found, items=items, name=first.name)
    return found


def _union(text: str, depth: int) -> Form | None:
    parts = split(text, r"\\cup(?![A-Za-z])")
    return None if len(parts) < 2 else Form(kind="union", text=text, whole=text, items=_forms(parts, depth))


def _member(text: str, depth: int) -> Form | None:
    name, *rest = split(text, r"\\in(?![A-Za-z])")
    if len(rest) != 1 or not _SYMBOL.fullmatch(name):
        return None
    return replace(_form(rest[0], depth + 1), name=name.strip(), whole=text)


def _related(text: str, depth: int) -> Form | None:
    """x > 3, a < x <= b and x != a as intervals; other relations stay expressions."""
    parts = [part.strip() for part in split(text, _RELATION)]
    signs = re.findall(_RELATION, text)
    if len(parts) not in (2, 3) or len(signs) != len(parts) - 1:
        return None
    if signs[0] in (">", r"\geq") and set(signs) <= {">", r"\geq"}:
        parts, signs = parts[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
    place = next((i for i, part in enumerate(parts) if _SYMBOL.fullmatch(part) and part[-1:] != ")"), -1)
    if len(parts) == 2 and place >= 0:
        form = _half_line(parts, signs[0], place, depth)
    elif len(parts) == 3 and place == 1 and set(signs) <= {"<", r"\leq"}:
        form = _sequence([parts[0], parts[2]], "(["[signs[0] != "<"] + ")]"[signs[1] != "<"], depth)
    else:
        return None
    return replace(form, name=parts[place], whole=text)


_FLIPPED = {">": "<", r"\geq": r"\leq"}


def _half_line(parts: list[str], sign: str, place: int, depth: int) -> Form:
    bound = parts[1 - place]
    below, above = [r"-\infty", bound], [bound, r"\infty"]
    if sign == r"\neq":
        sides = (_sequence(below, "()", depth), _sequence(above, "()", depth))
        return Form(kind="union", text=bound, items=sides)
    closed = sign != "<"
    if place == 0:
        return _sequence(below, "(]" if closed else "()", depth)
    return _sequence(above, "[)" if closed else "()", depth)


def _equated(text: str, depth: int) -> Form | None:
    """The value of `x = value`, with its name; a label such as `Total cost` is dropped."""
    first, *rest = (part.strip() for part in split(text, "="))
    if not rest or not all((first, *rest)):
        return None
    values = [rational(part) for part in (first, *rest)]
    if None not in values:
        return _form(rest[-1], depth + 1) if all(value == values[0] for value in values) else None
    if _LABEL.fullmatch(first) and not _SYMBOL.fullmatch(first):
        return _form("=".join(rest), depth + 1)
    if len(rest) == 1 and _SYMBOL.fullmatch(rest[0]) and not _SYMBOL.fullmatch(first):
        first, rest = rest[0], [first]
    if not _SYMBOL.fullmatch(first):
        return None
    return replace(_form(rest[-1], depth + 1), name=first if len(rest) == 1 else "", whole=text)


def _ratio(text: str, depth: int) -> Form | None:
    """a:b as the number a/b, a:b:c by its proportions; 12:05 is a time, that is, words."""
    parts = split(text, ":")
    values = [rational(part) for part in parts]
    if len(parts) < 2 or not all(isinstance(value, Fraction) for value in values):
        return None
    numbers = [value for value in values if isinstance(value, Fraction)]
    if numbers[-1] == 0 or re.fullmatch(r"[0-9]{1,2}(?::[0-9]{2})*:0[0-9]", text):
        return _words(text.lstrip("0"))
    scaled = [number / numbers[-1] for number in numbers[:-1]]
    if len(scaled) == 1:
        return Form(kind="scalar", text=text, whole=text, value=scaled[0])
    return _sequence([f"{number}" for number in scaled], ":", depth)


def _scalar(text: str, depth: int) -> Form:
    if re.search(r"\\[mp][mp](?![A-Za-z])", text) and depth <= _DEPTH:
        plus = re.sub(r"\\pm(?![A-Za-z]) ?", "+", re.sub(r"\\mp(?![A-Za-z]) ?", "-", text))
        minus = re.sub(r"\\pm(?![A-Za-z]) ?", "-", re.sub(r"\\mp(?![A-Za-z]) ?", "+", text))
        return replace(_set([plus, minus], text, depth), brackets="pm")
    body, unit = separate(text)
    if _FUNCTION.search(body):
        body, unit = text, None
    body, based = base(body)
    body = body.removeprefix("+").strip()
    value = None if based else rational(body)
    if value is None and not based and _WORD.search(body):
        return _words(text)
    return Form(kind="scalar", text=body, whole=text, value=value, unit=unit, base=based)


def _words(text: str) -> Form:
    return Form(kind="words", text=text, whole=text)
