"""Text of models inside prompts: delimited so that it cannot end its own quotation, and clipped to a budget.

What is quoted is never parsed and never decides anything.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import count

from coterie.types import record

HEAD = 0.25
"""Share of a clipped text's room that goes to its beginning; the rest goes to its end (R11)."""
CUT = "\n[...]\n"
LEAST = 24
"""Tokens that a quotation keeps however little room there is."""
_PIECE = re.compile(r"[A-Za-z]{1,4}|\d|[^\sA-Za-z\d]|\n")


@record
class Quote:
    """A text of a model. `facts` are shown as attributes; `note` is a remark on it, a model's text as well."""

    text: str
    answer: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def tokens(text: str) -> int:
    """About how many tokens a text has, rather too many: digits and signs one each, words by four letters."""
    return len(_PIECE.findall(text))


def tag_for(word: str, texts: Iterable[str]) -> str:
    """`word`, or `word-1`, `word-2`, ...: the first that none of the texts opens or closes as a tag."""
    lowered = [text.casefold() for text in texts]
    names = (word if n == 0 else f"{word}-{n}" for n in count())
    return next(name for name in names if not any(f"<{name}" in t or f"</{name}" in t for t in lowered))


def quoted(quotes: Sequence[Quote], room: int, word: str = "attempt") -> str:
    """All quotations, numbered from 1, in at most about `room` tokens: the longest are clipped first."""
    texts = [text for quote in quotes for text in (quote.text, quote.note)]
    tag, review = tag_for(word, texts), tag_for("review", texts)
    # A token has a character at least: where all characters fit, nothing has to be counted to be shown whole.
    whole = sum(map(len, texts)) <= room
    cap = 0 if whole else fair([tokens(quote.text) + tokens(quote.note) for quote in quotes], room)
    blocks = []
    for number, quote in enumerate(quotes, 1):
        note, body = (quote.note.strip(), quote.text.strip()) if whole else _shortened(quote, cap)
        facts = "".join(f' {name}="{value}"' for name, value in quote.facts.items())
        remark = f"\n<{review}>{note}</{review}>" if note else ""
        blocks.append(f'<{tag} number="{number}"{facts}>\n{body}{remark}\n</{tag}>')
    return "\n\n".join(blocks)


def _shortened(quote: Quote, cap: int) -> tuple[str, str]:
    """Note and text in at most about `cap` tokens together."""
    note = clipped(quote.note, None, max(cap // 4, cap - tokens(quote.text), LEAST))
    return note, clipped(quote.text, quote.answer, max(cap - tokens(note), LEAST))


def fair(sizes: Sequence[int], room: int) -> int:
    """The largest cap under which all sizes together fit the room: short ones leave theirs to the long ones."""
    left = room
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            return max(share, LEAST)
        left -= size
    return max([*sizes, LEAST])


def clipped(text: str, answer: str | None, limit: int) -> str:
    """The text in at most about `limit` tokens: a quarter from its beginning, the rest from its end.

    The line that holds the answer is kept whole; where it alone is too long, the answer is.
    """
    text = text.strip()
    size = tokens(text)
    if size <= limit:
        return text
    characters = len(text) * limit // size
    line = _answer_span(text, answer, max(characters * 3 // 4, 1))
    found = _clip(text, line, characters)
    while tokens(found) > limit and characters:
        characters = characters * 3 // 4
        found = _clip(text, line, characters)
    return found


def _clip(text: str, line: tuple[int, int], characters: int) -> str:
    """Head and tail of so many characters, and the line between them where neither holds it."""
    start, end = line
    head = int(HEAD * characters)
    tail = characters - head
    if end <= head or start >= len(text) - tail:
        return text[:head] + CUT + text[len(text) - tail :]
    tail = min(max(tail - (end - start), 0), len(text) - end)
    rest = CUT + text[len(text) - tail :] if tail else ""
    return text[:head] + CUT + text[start:end] + rest


def _answer_span(text: str, answer: str | None, most: int) -> tuple[int, int]:
    """Where the answer's line is, or its answer alone where the line has more than `most` characters.

    Without an answer, or one of several lines, it is the last line.
    """
    known = answer if answer and "\n" not in answer and answer in text else text.rsplit("\n", 1)[-1]
    place = text.rfind(known)
    start = text.rfind("\n", 0, place) + 1
    newline = text.find("\n", place)
    end = len(text) if newline < 0 else newline
    if end - start <= most:
        return start, end
    return (place, place + min(len(known), most)) if known == answer else (end - most, end)
