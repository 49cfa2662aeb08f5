"""Answer contracts: what a prompt asks for, paired with the reader of what comes back.

Readers take any text, never raise, and give None where there is no answer. They do not judge.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from textwrap import dedent
from types import MappingProxyType
from typing import Any

from coterie.types import record


@record
class Contract:
    """How an answer is asked for and read.

    `suffix` is appended to the user message, `prefill` is the text of a final assistant message (the
    completion goes on from it and does not repeat it); either may be empty. `stop` ends the completion before
    the first of these texts, where nothing after them is read; `max_tokens` where no answer is longer.
    """

    name: str
    extract: Callable[[str], str | None]
    suffix: str = ""
    prefill: str = ""
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None


def plain(text: str) -> str | None:
    """The whole text without surrounding space."""
    return text.strip() or None


# --- \boxed{} ----------------------------------------------------------------------------------------

_BRACES = re.compile(r"(\\(?:boxed|fbox)\s*\{)|(\\.)|([{}])", re.DOTALL)
_PLACEHOLDER = re.compile(r"[\s.…]*(?:\\[cl]?dots[\s.]*)*")


def boxes(text: str) -> list[str]:
    """Contents of all complete balanced boxes, in order; nested ones, empty ones and placeholders left out."""
    spans: list[tuple[int, int, int]] = []
    open_: list[tuple[int, int] | None] = []
    for match in _BRACES.finditer(text):
        if match[1]:
            open_.append((match.start(), match.end()))
        elif match[3] == "{":
            open_.append(None)
        elif match[3] == "}" and open_ and (box := open_.pop()):
            while spans and spans[-1][0] > box[0]:
                spans.pop()
            spans.append((*box, match.start()))
    found = (text[start:end].strip() for _, start, end in spans)
    return [content for content in found if not _PLACEHOLDER.fullmatch(content)]


def last_box(text: str) -> str | None:
    """Content of the last complete balanced box."""
    return next(reversed(boxes(text)), None)


# --- explicit markers --------------------------------------------------------------------------------

_DECORATION = " \t\r\n*_`"
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "`": "`"}
_MARKER = re.compile(r"(?i)\banswer\b[*_`\"]*(?:[ \t]+is\b[ \t]*:?|[ \t]*[:=：])[ \t]*[*_`]*[ \t]*")
_HASHES = re.compile(r"(?m)^####[ \t]+(?=[-+$\\(]*\.?\d)")
_SENTENCE_END = re.compile(r"[.?](?=\s+[A-Z(\"'“]|\s*$)|[.?]?[*_]{2}(?=\W)")


def bare(text: str) -> str:
    """A short answer without markdown, one pair of quotes and the final full stop."""
    text = text.strip(_DECORATION)
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].strip(_DECORATION)
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1] and text[-1] not in text[1:-1]:
        text = text[1:-1].strip()
        text = text[:-1] if text.endswith(".") and not text.endswith("..") else text
    return text


def _first_line(text: str) -> str:
    return text.lstrip().split("\n", 1)[0]


def _marked(text: str) -> Iterator[str]:
    """What follows each explicit marker, up to the line's end, last marker first."""
    marks = [m.span() for pattern in (_MARKER, _HASHES) for m in pattern.finditer(text)]
    stop = len(text)
    for start, end in sorted(marks, reverse=True):
        if rest := _first_line(text[end:stop]).strip(_DECORATION):
            yield rest
        stop = start


def _first_sentence(line: str) -> str:
    cut = _SENTENCE_END.search(line)
    return line[: cut.start()] if cut else line


def _last_equation(text: str) -> str | None:
    """The right side where the last line ends in `... = X` and X is short."""
    line = text.rstrip().rsplit("\n", 1)[-1]
    head, sign, value = line.rpartition("=")
    found = bare(value.strip(" $"))
    return found if sign and head.strip() and head[-1] not in "<>!:" and 0 < len(found) <= 40 else None


def lenient(text: str) -> str | None:
    """The last box, else the last explicit marker, else one short line as it is."""
    if (box := last_box(text)) is not None:
        return box
    for rest in _marked(text):
        if found := bare(_first_sentence(rest)):
            return found
    if (value := _last_equation(text)) is not None:
        return value
    whole = text.strip()
    return bare(whole) or None if "\n" not in whole and len(whole) <= 120 else None


# --- letters and short answers -----------------------------------------------------------------------

_FOLLOWS = r"(?=\s*(?:$|[).:,;\]}*\"`]|because\b|since\b|as\b|which\b)|\s+[-–—=])"
_OPENING = r"[*_\"'`$]*+(?:(?i:the |correct |option|choice|is)[ :]*+)*+[*_\"'`$]*+"
_LETTER = re.compile(
    rf"^{_OPENING}(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Z]){_FOLLOWS}|([a-z])[).:]*$)", re.MULTILINE
)
_OPTION = re.compile(r"(?i:\b(?:option|choice)\b(?:[ \t]+is\b)?)[ \t:(*]*([A-HJ-Z])\b")
_SEVERAL = re.compile(r"^\W*[A-Z]\W*(?:,|/|&|\band\b|\bor\b)\W*[A-HJ-Z]\b")
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox)\s*\{([^{}]*)\}")


def letter(text: str) -> str | None:
    """The option letter that `text` opens with: A, (A), A., **A**, A because …; not the article in `A train`."""
    text = _WRAPPED.sub(r"\1", text).strip()
    if _SEVERAL.match(text):
        return None
    found = _LETTER.match(text)
    return next(g for g in found.groups() if g).upper() if found else None


def _letter(text: str) -> str | None:
    """The letter after the last marker, else what stands there; else a letter that opens or ends the text."""
    for rest in _marked(text):
        rest = last_box(rest) or rest
        return letter(rest) or bare(_first_sentence(rest)) or None
    if (box := last_box(text)) is not None:
        return letter(box) or box
    lines = text.strip().splitlines() or [""]
    for line in (lines[-1], lines[0]):
        if found := letter(line):
            return found
    if options := _OPTION.findall(text):
        return str(options[-1])
    return bare(lines[0]) or None if len(lines) == 1 and len(lines[0]) <= 120 else None


_PREFIX = re.compile(r"(?i)(?:\s*(?:the\s+)?(?:final\s+)?answer\s*[:：])+\s*")


def _short(text: str) -> str | None:
    """The first non-empty line after the prefill, also where the text says `Answer:` again."""
    repeated = _PREFIX.match(text)
    line = _first_line(text[repeated.end() :] if repeated else text)
    marks = list(_MARKER.finditer(line))
    return bare(line[marks[-1].end() :] if marks else line) or None


# --- JSON --------------------------------------------------------------------------------------------

_FIELD = re.compile(r'"answer"\s*:\s*(?:"((?:[^"\\]|\\.){0,10000})"|(-?[0-9][0-9.eE+-]*|true|false))')
_TRIES = 64


def decoded(text: str, *, whole: bool = True) -> Any:
    """The JSON value that `text` is, or begins with; None where there is none."""
    try:
        decoder = json.JSONDecoder(strict=False)
        return decoder.decode(text) if whole else decoder.raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def _objects(text: str) -> Iterator[Any]:
    """Candidates in order of trust: the whole text, fences from the last on, objects from the last on."""
    yield decoded(text.strip())
    for _, block in reversed(list(fences(text))):
        yield decoded(block.strip())
    start = len(text)
    for _ in range(_TRIES):
        start = text.rfind("{", 0, start)
        if start < 0:
            return
        yield decoded(text[start:], whole=False)


def _json(text: str) -> str | None:
    """The `answer` field as text, other values in Python's notation; an empty one is no answer."""
    for value in _objects(text):
        if isinstance(value, dict) and "answer" in value:
            answer = value["answer"]
            return None if answer is None else plain(answer if isinstance(answer, str) else str(answer))
    fields = _FIELD.findall(text)
    return plain(_unescaped(fields[-1][0]) or fields[-1][1]) if fields else None


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text


# --- fences ------------------------------------------------------------------------------------------

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^`\n]*")
_PYTHON = {"python", "py", "python3", "python2", "py3"}


def fences(text: str) -> Iterator[tuple[str, str]]:
    """(language, content) of every block fenced at line starts; a last one that is not closed counts."""
    mark, language, block = "", "", list[str]()
    for line in text.splitlines():
        found = _FENCE.fullmatch(line)
        if mark and line.strip().startswith(mark) and not line.strip().strip(mark[0]):
            yield language, dedent("\n".join(block))
            mark = ""
        elif not mark and found:
            mark, language, block = found[1], found[2].lower(), []
        elif mark:
            block.append(line)
    if mark:
        yield language, dedent("\n".join(block))


def _code(text: str) -> str | None:
    """The last fenced Python block, else the last one without a language, else the whole text."""
    blocks = [(language, block) for language, block in fences(text) if block.strip()]
    for wanted in (_PYTHON, {""}):
        if found := [block for language, block in blocks if language in wanted]:
            return found[-1]
    return text if text.strip() else None


_ALL = (
    Contract(
        name="boxed",
        suffix="\n\nReason step by step. Then end with one line in exactly this form:\nAnswer: \\boxed{...}",
        extract=last_box,
    ),
    Contract(
        name="letter",
        suffix="\n\nReason step by step. Then end with one line that names the letter of one option:\nANSWER: X",
        extract=_letter,
    ),
    Contract(
        name="json",
        suffix='\n\nReply with one line of JSON and nothing else: {"answer": "..."}\n'
        "Give the shortest exact answer; leave it empty if you are unsure.",
        extract=_json,
    ),
    Contract(
        name="fence",
        suffix="\n\nReply with the complete Python code in one block that starts with ```python and ends with ```.",
        extract=_code,
    ),
    Contract(name="answer", prefill="Answer:", stop=("\n",), max_tokens=48, extract=_short),
    Contract(name="text", extract=lenient),
    Contract(name="raw", extract=plain),
)

CONTRACTS: Mapping[str, Contract] = MappingProxyType({contract.name: contract for contract in _ALL})
"""Every built-in contract by name.

boxed: the last complete balanced box. letter: an option letter after `ANSWER:`. json: the `answer` field.
fence: Python code. answer: a short answer on a prefilled turn, for small models. text: a lenient reading
of free text. raw: the whole text.
"""
