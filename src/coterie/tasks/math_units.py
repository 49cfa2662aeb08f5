"""What follows or precedes a number: unit, currency, degree sign, percent sign, number base.

Units are compared apart from values. A unit that is not in the table is an unknown one, not an error.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

from coterie.types import record


@record
class Unit:
    """Dimensions with their powers, the factor to the dimension's own unit, and whether all of it is known."""

    dimensions: Mapping[str, int]
    factor: Fraction = Fraction(1)
    known: bool = True


def _table() -> dict[str, tuple[str, Fraction]]:
    rows = """
    length m=1 meter=1 metre=1 cm=1/100 centimeter=1/100 centimetre=1/100 mm=1/1000 millimeter=1/1000 km=1000
    length kilometer=1000 kilometre=1000 in=127/5000 inch=127/5000 inches=127/5000 ft=381/1250 foot=381/1250
    length feet=381/1250 yd=1143/1250 yard=1143/1250 mi=201168/125 mile=201168/125
    time s=1 sec=1 second=1 min=60 minute=60 h=3600 hr=3600 hour=3600 day=86400 week=604800
    months month=1 year=12 yr=12
    mass g=1 gram=1 kg=1000 kilogram=1000 mg=1/1000 milligram=1/1000
    weight lb=16 lbs=16 pound=16 oz=1 ounce=1
    volume l=1 liter=1 litre=1 ml=1/1000 milliliter=1/1000
    money dollar=1 usd=1 buck=1 cent=1/100
    euro eur=1 euro=1
    sterling gbp=1
    degree degree=1 deg=1
    radian radian=1 rad=1
    """
    table = {}
    for row in filter(None, map(str.strip, rows.splitlines())):
        dimension, *names = row.split()
        for name, _, factor in (item.partition("=") for item in names):
            table[name] = (dimension, Fraction(factor))
    return table


_UNITS = _table()
_SYMBOLS = {r"\$": "dollar", "€": "euro", "£": "gbp", r"^{\circ}": "degree", "%": "%"}
_SPEEDS = {"mph": "mile per hour", "kph": "km per hour", "kmh": "km per hour"}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_FILLERS = frozenset(("per", "a", "an", "of", "the"))
_NOT_UNITS = """
or and not no if is are was to than more less at least most about when where for all because since but any some
either neither undefined none infinitely many solutions solution mod choose does exist exists
"""
_NEVER = frozenset(_NOT_UNITS.split())
_NUMERALS = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_BASES = {name: str(number) for number, name in enumerate(_NUMERALS.split(), start=2)}
_BASE = re.compile(
    r"(?P<digits>-?[0-9][0-9A-Z]*)(?:_\{(?:\\text\{)?(?P<sub>[0-9]{1,2}|[a-z]+)\}?\}"
    r"|[ (]*(?:\\text\{)?\(?base[ }]*(?P<base>[0-9]{1,2}|[a-z]+)[)}]*)"
)
_PHRASE = re.compile(r"\\text\{([^{}]*)\}|([A-Za-z]+)|(\^\{-?[0-9]\})|([/ .(),-]|\\cdot)")
_PHRASE_WORDS = 8
_SUFFIX = re.compile(
    r"(?P<unit>(?:\\text\{[^{}]*\}|(?<![A-Za-z\\])[A-Za-z]{2,}|[ /.])"
    r"(?:\\text\{[^{}]*\}|(?<![A-Za-z\\])[A-Za-z]+|\^\{-?[23]\}|[ /.()-])*)$"
)


def base(text: str) -> tuple[str, str]:
    """Digits and base of a numeral with a written base, else the text and ""."""
    match = _BASE.fullmatch(text)
    if match is None:
        return text, ""
    number = match["sub"] or match["base"]
    number = _BASES.get(number, number)
    return (match["digits"], number) if number.isdigit() else (text, "")


def separate(text: str) -> tuple[str, Unit | None]:
    """The text without its unit, and the unit. Only what is certainly a unit is taken off."""
    for symbol in (r"\$", "€", "£"):
        for body in (text.removeprefix(symbol), text.replace("-" + symbol, "-", 1)):
            if body != text and body[:1] in tuple("-.0123456789("):
                return separate(body)[0], _symbol(symbol)
    for symbol in ("%", r"^{\circ}", r"\$", "€"):
        if text.endswith(symbol) and len(text) > len(symbol):
            return text.removesuffix(symbol).rstrip(), _symbol(symbol)
    return _worded(text)


def _symbol(symbol: str) -> Unit:
    name = _SYMBOLS[symbol]
    return Unit(dimensions={}, factor=Fraction(1, 100)) if name == "%" else _unit([name])


def _worded(text: str) -> tuple[str, Unit | None]:
    starts = list(re.finditer(r"\\text\{|(?<![A-Za-z\\])[A-Za-z]{2,}", text))
    for match in starts[-_PHRASE_WORDS:]:
        found = _SUFFIX.match(text, match.start())
        body = text[: match.start()]
        if found is None or body[-1:] not in tuple("0123456789 })]"):
            continue
        spaced = body.endswith((" ", "}")) or match[0] == r"\text{"
        words = _words(found["unit"])
        if _NEVER & set(words):
            break
        if body.strip() and words and _is_unit(words, spaced=spaced, marked=match[0] == r"\text{"):
            return body.strip(), _unit(words)
    return text, None


def _words(phrase: str) -> list[str]:
    """The unit's tokens: names, `^2`, `/`."""
    tokens: list[str] = []
    for text, word, power, sign in _PHRASE.findall(phrase):
        if text:
            tokens += _words(re.sub(r"\^ ?\{?([0-9])\}?", r"^{\1}", text))
        elif word:
            tokens += _SPEEDS.get(word.lower(), word.lower()).split()
        elif power:
            tokens.append("^" + power[2:-1])
        elif sign == "/":
            tokens.append("per")
    return tokens


def _is_unit(words: list[str], *, spaced: bool, marked: bool) -> bool:
    names = [w for w in words if w[0] != "^"]
    if not names:
        return False
    unknown = [w for w in names if w not in _FILLERS and _singular(w) not in _UNITS]
    shortest = 1 if marked else 3
    return all(len(w) >= shortest for w in unknown) and (spaced or not unknown)


def _singular(word: str) -> str:
    if word in _UNITS or word.endswith("ss"):
        return word
    return word.removesuffix("s") if len(word) > 3 or word[:-1] in _UNITS else word


def _powers(words: list[str]) -> list[tuple[str, int]]:
    """Each named unit with its power: square, cubic, ^2 and per are worked in."""
    found: list[tuple[str, int]] = []
    sign, power = 1, 1
    for word in words:
        if word[0] == "^" or word in ("squared", "cubed"):
            if found:
                found[-1] = (found[-1][0], found[-1][1] * (int(word[1:]) if word[0] == "^" else _POWERS[word]))
        elif word in _POWERS:
            power = _POWERS[word]
        elif word == "per":
            sign = -1
        elif word not in _FILLERS:
            found.append((_singular(word), sign * power))
            power = 1
    return found


def _unit(words: list[str]) -> Unit:
    dimensions: dict[str, int] = {}
    factor, known = Fraction(1), True
    for name, power in _powers(words):
        dimension, scale = _UNITS.get(name, (name, Fraction(1)))
        known &= name in _UNITS
        dimensions[dimension] = dimensions.get(dimension, 0) + power
        factor *= scale**power
    return Unit(dimensions={k: v for k, v in dimensions.items() if v}, factor=factor, known=known)
