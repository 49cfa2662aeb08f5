"""Equality of two answers by exact rules; what these cannot decide goes item by item to a `prove` callable.

One documented equivalence (docstring of `equal`). No symbolic algebra here.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from coterie.errors import CoterieError
from coterie.tasks.math_forms import ELLIPSIS, Form, unjoined
from coterie.tasks.math_numbers import Huge

Prove = Callable[[str, str], bool]
"""(reference, answer), canonical LaTeX of one expression each -> equal? Raises Undecided."""


class Undecided(CoterieError):
    """Nobody can tell whether two answers are equal; the text says why."""


def equal(a: Form, b: Form, prove: Prove) -> bool:
    """Whether reference `a` and answer `b` are the same answer; raises Undecided.

    Numbers are equal when they are the same rational: 0.5 is 1/2, 33.3 is not 100/3, nothing is rounded.
    A unit on one side only is taken as given by the question, two units must agree (1 m is 100 cm); the
    percent sign may be absent (50 is 50%) or worked out (0.5 is 50%). A written base must be the same.
    `x =` and `x \\in` may be absent; different names differ. Lists and sets are unordered, tuples and
    intervals ordered with their brackets; ± stands for both values; a:b is a/b. Words match without case
    and punctuation, `(B)` is B.
    """
    a, b = _only(a), _only(b)
    if (decided := _exact(a, b)) is not None:
        return decided
    if a.kind == "scalar":
        return any(prove(x, y) for x, y in _questions(a, b))
    if a.kind in ("sequence", "matrix"):
        return all(equal(x, y, prove) for x, y in zip(a.items, b.items, strict=True))
    return _matched(a.items, b.items, prove)


def _only(form: Form) -> Form:
    """The one item of a set with one item: {5} is 5."""
    return form.items[0] if form.kind == "set" and len(form.items) == 1 else form


def _exact(a: Form, b: Form) -> bool | None:
    """The exact rules; None where they cannot decide."""
    if "words" in (a.kind, b.kind):
        return _plain(a.whole) == _plain(b.whole) or _same_option(a, b)
    if a.kind != b.kind:
        return _reread(a, b)
    if a.kind == "scalar":
        return _scalars(a, b)
    if a.name and b.name and a.name != b.name:
        return False
    if a.kind == "set" and any(item.text == ELLIPSIS for item in (*a.items, *b.items)):
        return _progressions(a.items, b.items)
    if len(a.items) != len(b.items) or not _same_brackets(a, b):
        return False
    if a.kind in ("sequence", "matrix"):
        return _every([_exact(_only(x), _only(y)) for x, y in zip(a.items, b.items, strict=True)])
    return _unordered(a.items, b.items)


def _same_brackets(a: Form, b: Form) -> bool:
    """Brackets matter where two items may be an interval."""
    return (
        a.kind != "sequence"
        or a.brackets == b.brackets
        or (len(a.items) > 2 and ":" not in (a.brackets, b.brackets))
    )


def _every(found: Sequence[bool | None]) -> bool | None:
    if False in found:
        return False
    return None if None in found else True


def _reread(a: Form, b: Form) -> bool | None:
    """Other structures are other answers, unless digits grouped by commas can be the other side's list."""
    x, y = unjoined(a) if b.kind == "set" else None, unjoined(b) if a.kind == "set" else None
    return _exact(x or a, y or b) if x or y else False


def _unordered(a: Sequence[Form], b: Sequence[Form]) -> bool | None:
    """Equal as multisets, decided only where every pairing is."""
    table = [[_exact(_only(x), _only(y)) for y in b] for x in a]
    free = set(range(len(b)))
    for row in table:
        found = next((i for i in sorted(free) if row[i]), None)
        if found is None:
            return None if any(None in line for line in table) else False
        free.remove(found)
    return True


def _matched(a: Sequence[Form], b: Sequence[Form], prove: Prove) -> bool:
    """Equal as multisets; the exactly equal are paired first, so that proofs are few."""
    rest = list(b)
    open_: list[Form] = []
    for x in a:
        found = next((i for i, y in enumerate(rest) if _exact(_only(x), _only(y))), None)
        if found is None:
            open_.append(x)
        else:
            del rest[found]
    for x in open_:
        found = next((i for i, y in enumerate(rest) if equal(x, y, prove)), None)
        if found is None:
            return False
        del rest[found]
    return True


def _progressions(a: Sequence[Form], b: Sequence[Form]) -> bool:
    """Lists with an ellipsis: equal when written alike, different when their beginnings or ends are."""
    if [x.text for x in a] == [y.text for y in b]:
        return True
    for x, y in [*zip(a, b, strict=False), (a[-1], b[-1])]:
        if ELLIPSIS in (x.text, y.text):
            break
        if _exact(_only(x), _only(y)) is False:
            return False
    raise Undecided("lists with an ellipsis, written differently")


# --- words and options -------------------------------------------------------------------------------


def _plain(text: str) -> str:
    lowered = text.lower().replace(r"\text", "")
    return re.sub(r"[\W_]+", "", lowered) or lowered.strip()


def _same_option(a: Form, b: Form) -> bool:
    """B against `(B) 42`."""
    for one, other in ((a, b), (b, a)):
        if re.fullmatch(r"[A-Z]", one.text) and (found := re.match(r"\(([A-Z])\)", other.whole)):
            return found[1] == one.text
    return False


# --- scalars -----------------------------------------------------------------------------------------


def _scalars(a: Form, b: Form) -> bool | None:
    if a.base != b.base:
        return False
    if a.name and b.name and a.name != b.name:
        return False if a.value is not None and b.value is not None else None
    found = [_bodies(a, b, x, y) for x, y in _factors(a, b)]
    if found and found != [False] * len(found) and _unrelated(a, b):
        raise Undecided("units that are not known to be the same")
    return True if True in found else None if None in found else False


def _unrelated(a: Form, b: Form) -> bool:
    return bool(a.unit and b.unit and a.unit.dimensions != b.unit.dimensions)


def _factors(a: Form, b: Form) -> list[tuple[Fraction, Fraction]]:
    """What to multiply both sides with: none where the units are known to differ."""
    one = Fraction(1)
    if a.unit and b.unit:
        if not _unrelated(a, b):
            return [(a.unit.factor, b.unit.factor)]
        return [] if a.unit.known and b.unit.known else [(one, one)]
    percent = [(x, y) for x, y in ((_percent(a), _percent(b)),) if (x, y) != (one, one)]
    return [(one, one), *percent]


def _percent(form: Form) -> Fraction:
    return form.unit.factor if form.unit and not form.unit.dimensions else Fraction(1)


_RELATION = re.compile(r"[=<>]|\\[lgn]eq(?![A-Za-z])")


def _bodies(a: Form, b: Form, x: Fraction, y: Fraction) -> bool | None:
    if a.value is not None and b.value is not None:
        return _values(a, b, x, y)
    if a.text == b.text:
        return x == y
    if a.base or any(re.fullmatch(r"-?\\infty ?|\\emptyset ?|\\ldots ?", form.text) for form in (a, b)):
        return False
    if bool(_RELATION.search(a.text)) != bool(_RELATION.search(b.text)):
        return False
    letters = [re.fullmatch(r"[A-Za-z]", form.text) for form in (a, b)]
    if any(letters):
        return _same_option(a, b) or (False if all(letters) else None)
    return None


def _values(a: Form, b: Form, x: Fraction, y: Fraction) -> bool:
    if isinstance(a.value, Fraction) and isinstance(b.value, Fraction):
        return a.value * x == b.value * y
    if isinstance(a.value, Huge) and isinstance(b.value, Huge) and a.text != b.text:
        raise Undecided("numbers too large to compare")
    return a.text == b.text and x == y


def _questions(a: Form, b: Form) -> list[tuple[str, str]]:
    """What is left to prove, as pairs of expressions."""
    if a.name and b.name and a.name != b.name:
        return [(a.whole, b.whole)]
    return [(_scaled(a.text, x), _scaled(b.text, y)) for x, y in _factors(a, b)]


def _scaled(text: str, factor: Fraction) -> str:
    return text if factor == 1 else rf"\frac{{{factor.numerator}}}{{{factor.denominator}}}\cdot ({text})"
