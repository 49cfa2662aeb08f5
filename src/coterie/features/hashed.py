"""Hashed n-grams: features of a text without a model and without extras."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from coterie.types import Messages, spec

WORD = re.compile(r"\w+|[^\w\s]")


def asked(messages: Messages) -> str:
    """What the human asked: the last user message that is not blank, "" where there is none.

    System texts, tool results and earlier turns never decide what a text encoder sees.
    """
    said = (m.content for m in reversed(messages) if m.role == "user")
    return next((text for text in said if text.strip()), "")


@spec
class Hashed:
    """Words, pairs of words and character n-grams of the question, hashed into `width` signed sums.

    A gram's weight is 1 + log(count), the sign comes from the hash so that collisions cancel in the mean
    (Weinberger et al. 2009). Rows have norm 1; a text without any gram is the zero vector. The hash is
    blake2b, so that vectors are the same in every process. Text beyond `max_characters` is left out at the
    front, like the prompts themselves.
    """

    width: int = 1024
    shortest: int = 3
    longest: int = 5
    max_characters: int = 6000

    @property
    def identity(self) -> str:
        """What the features depend on; kept beside weights that were fitted on them."""
        return f"hashed:{self.width}:{self.shortest}-{self.longest}:{self.max_characters}"

    def encode(self, prompts: Sequence[Messages]) -> np.ndarray:
        """Shape (len(prompts), width), float32."""
        rows = np.zeros((len(prompts), self.width), dtype=np.float32)
        for row, messages in zip(rows, prompts, strict=True):
            self._add(row, asked(messages)[-self.max_characters :].lower())
        return rows

    def _add(self, row: np.ndarray, text: str) -> None:
        for gram, count in sorted(Counter(self._grams(text)).items()):
            place = int.from_bytes(blake2b(gram.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
            sign = 1.0 if place >> 63 else -1.0
            row[place % self.width] += sign * (1.0 + math.log(count))
        norm = float(np.linalg.norm(row))
        if norm > 0:
            row /= norm

    def _grams(self, text: str) -> Iterator[str]:
        words = WORD.findall(text)
        yield from (f"w {word}" for word in words)
        yield from (f"p {first} {second}" for first, second in pairwise(words))
        for word in words:
            padded = f"<{word}>"
            for size in range(self.shortest, self.longest + 1):
                yield from (f"c {padded[i : i + size]}" for i in range(len(padded) - size + 1))
