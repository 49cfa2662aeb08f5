"""What an instruction checker has to know about a text: its words, sentences, paragraphs and language.

Everything is decided offline and the same way every time. Not a parser of prose: the rules are those that
the IFEval definitions need.
"""

import functools
import re
from pathlib import Path
from typing import Any

from coterie.errors import MissingExtra

SHORTEST_JUDGED = 20


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


TITLES = _set("mr mrs ms mx dr prof rev hon gen col capt lt sgt sen rep gov st fig v vs cf e.g i.e mme mlle")
ABBREVIATIONS = TITLES | _set("jr sr inc ltd co corp etc al approx dept est vol pp ed a.m p.m ph.d")
STARTERS = _set(
    "a after all also an and are as at but by do does for from he her his how however i if in is it its many most"
    " my no on our she so some that the their then there these they this to we what when where which who why with"
    " you your"
)
LANGUAGES = _set(
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl no pa pl pt"
    " ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh zh-cn zh-tw"
)

_STOP = re.compile(r"""(?<![.!?…])(?P<latin>[.!?…]+)(?P<close>["'”’»)\]*_]*)(?=\s|$)|[。！？।॥؟۔]+["'”’」』»)]*""")


def words(text: str) -> list[str]:
    """Runs of word characters, so that "don't" is two words: the count that IFEval's thresholds were set with."""
    return re.findall(r"\w+", text)


def paragraphs(text: str) -> list[str]:
    """The non-empty parts between blank lines, stripped."""
    return [part.strip() for part in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")) if part.strip()]


def count_sentences(text: str) -> int:
    """How many sentences the text has; a rest without a full stop is one, a line break alone ends none.

    A full stop ends no sentence after a title, an initial or a list's number, and after any other
    abbreviation only before a word that opens sentences. Stops of Chinese, Japanese, Hindi, Arabic and Urdu
    count too.
    """
    count, start = 0, 0
    for stop in _STOP.finditer(text):
        if _ends_sentence(text, start, stop):
            count += bool(words(text[start : stop.end()]))
            start = stop.end()
    return count + bool(words(text[start:]))


def _ends_sentence(text: str, start: int, stop: re.Match[str]) -> bool:
    following = text[stop.end() : stop.end() + 40].lstrip()
    if stop["latin"] is None:
        return True
    if stop["close"] or len(stop["latin"]) > 1:
        return not following[:1].islower() or stop["latin"] == "."
    if stop["latin"] != ".":
        return True
    # A few words are enough to tell, and long texts without a sentence's end stay linear.
    near = max(start, stop.start() - 80)
    return _full_stop(("\n" if near == start else "x") + text[near : stop.start()], following)


def _full_stop(before: str, following: str) -> bool:
    token = re.split(r"[\s(\[\"'“‘*_]", before)[-1]
    if re.search(r"\n[ \t]*(\d{1,3}|[A-Za-z])$", before) and following:
        return False
    if token.lower() in TITLES:
        return not following
    if token.lower() in ABBREVIATIONS or re.fullmatch(r"(\w\.)+\w|[A-HJ-Z]", token):
        return not following or (following[0].isupper() and words(following)[0].lower() in STARTERS)
    return True


@functools.cache
def _detectors() -> Any:
    # A factory of our own: langdetect's `detect` draws its seed at random, and seeding it is global.
    try:
        from langdetect import detector_factory
    except ImportError:
        raise MissingExtra("langdetect", "tasks") from None
    factory = detector_factory.DetectorFactory()
    factory.load_profile(str(Path(detector_factory.__file__).parent / "profiles"))
    factory.set_seed(0)
    return factory


def language(text: str) -> str | None:
    """The likeliest language of a text (ISO 639-1; Chinese with its script), or None if nothing tells.

    The text is lower-cased first: the detector skips words written in capitals. The same text always gives
    the same answer. Raises MissingExtra without langdetect.
    """
    factory = _detectors()
    from langdetect.lang_detect_exception import LangDetectException

    detector = factory.create()
    detector.append(text.lower())
    try:
        return str(detector.detect())
    except LangDetectException:
        return None


def is_language(text: str, code: str) -> bool:
    """Whether a text is in the language `code`; `zh` is either script. Undetectable is no."""
    found = language(text)
    return found is not None and (found == code or found.split("-")[0] == code)


def is_english(text: str) -> bool:
    """Whether a text is English. Below 20 letters, where detection is chance, only its script is judged."""
    letters = [letter for letter in text if letter.isalpha()]
    if len(letters) < SHORTEST_JUDGED:
        return bool(letters) and all(letter.isascii() for letter in letters)
    return is_language(text, "en")
