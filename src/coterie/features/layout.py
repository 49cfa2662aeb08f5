"""The shape of a question: lengths, character rates, markers. Says what kind of item it is, not what it is about.

Needs no model and no extras. Benchmarks and clients word and lay out their questions in their own ways, and which
agent copes best often hangs on that.
"""

import math
import re
from collections.abc import Sequence

import numpy as np

from coterie.features.hashed import asked
from coterie.types import Messages, spec

WORD = re.compile(r"\w+")
OPTION = re.compile(r"^\(?[A-Z][.):] ", re.MULTILINE)
MARKS = ".,?!:;()[]{}$\\'\"=+-*/_<>^%#|&@`~"
OPENERS = (
    *("what", "who", "when", "where", "which", "how", "why", "write", "find", "let", "if", "given"),
    *("a", "the", "in", "there"),
)
WITHIN = ("def ", "assert", "import ", "answer", "explain", "true", "false", "not ", "http", "\\boxed", "\\frac")


@spec
class Layout:
    """About 80 numbers of the last user message: logs of lengths, rates a hundred characters, yes-or-no markers."""

    @property
    def identity(self) -> str:
        """What the features depend on; kept beside weights that were fitted on them."""
        return f"layout:1:{len(NAMES)}"

    def encode(self, prompts: Sequence[Messages]) -> np.ndarray:
        """Shape (len(prompts), D), float32."""
        rows = [[*_sizes(text), *_rates(text), *_markers(text)] for text in map(asked, prompts)]
        return np.array(rows, dtype=np.float32).reshape(len(prompts), len(NAMES))


def _sizes(text: str) -> list[float]:
    """Lengths, by their logarithm; how long and how varied words are."""
    words = WORD.findall(text.lower())
    counts = (len(text), len(words), text.count("\n"), text.count("\n\n"), len(OPTION.findall(text)))
    return [
        *(math.log1p(count) for count in counts),
        sum(map(len, words)) / max(len(words), 1),
        len(set(words)) / max(len(words), 1),
    ]


def _rates(text: str) -> list[float]:
    """Occurrences a hundred characters of each mark, of each digit, and of capitals, digits and other scripts."""
    share = 100 / max(len(text), 1)
    kinds = (
        sum(map(str.isupper, text)),
        sum(map(str.isdigit, text)),
        len(text) - len(text.encode("ascii", "ignore")),
    )
    return [share * n for n in (*(text.count(c) for c in MARKS), *(text.count(c) for c in "0123456789"), *kinds)]


def _markers(text: str) -> list[float]:
    """How it begins and ends, and what occurs in it."""
    lower, bare = text.lower(), text.strip()
    first = WORD.search(lower)
    opener = first.group() if first else ""
    found = (
        bare[:1].isupper(),
        bare.endswith("?"),
        bare.endswith("."),
        *(opener == word for word in OPENERS),
        *(part in lower for part in WITHIN),
    )
    return [float(flag) for flag in found]


NAMES = (
    *("log characters", "log words", "log lines", "log paragraphs", "log options", "word length", "word variety"),
    *(f"rate of {c}" for c in MARKS + "0123456789"),
    *("rate of capitals", "rate of digits", "rate beyond ASCII"),
    *("begins with a capital", "ends with ?", "ends with ."),
    *(f"opens with {word}" for word in OPENERS),
    *(f"has {part.strip()}" for part in WITHIN),
)
"""What each number is, in the order of the columns."""
