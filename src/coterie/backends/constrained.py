"""Completions held to a JSON schema: which tokens may come next, by grammars compiled once a model and schema.

Computes no logits and draws nothing: `running` lays the masks over logits. Imports llguidance at first use.
"""

import threading
from collections.abc import Collection
from typing import Any

import numpy as np

from coterie.errors import BackendError, BadRequest, MissingExtra

KEPT = 64
"""Compiled grammars that a model keeps; the oldest goes first."""
WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON is written in one line, as prompts show it: free space is what small models never come out of."""


class Held:
    """Where one completion stands in its grammar. Not thread-safe."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, width: int) -> np.ndarray:
        """Which of `width` token ids may come next: (width,) bool, at least one of them.

        Raises: BackendError where the grammar cannot go on: it has grown beyond the library's limits.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        known = np.unpackbits(bits, bitorder="little")[:width].astype(bool)
        if self._matcher.is_error() or not known.any():
            raise BackendError(f"the schema's grammar cannot go on: {_line(self._matcher.get_error())}")
        return np.pad(known, (0, width - len(known)))

    def take(self, token: int) -> bool:
        """Go on by a token that was allowed. True: what is written is complete, and nothing could follow it."""
        if not self._matcher.consume_token(token):
            raise BackendError(f"the schema's grammar cannot go on: {_line(self._matcher.get_error())}")
        return bool(self._matcher.is_stopped() and self._matcher.is_accepting())


class Grammars:
    """The grammars of one model. Thread-safe; the tokenizer is read under `lock`, as by all others who use it."""

    def __init__(self, tokenizer: Any, ends: Collection[int], lock: threading.Lock) -> None:
        self._source, self._ends, self._reading = tokenizer, sorted(ends), lock
        self._tokenizer: Any = None
        self._compiled: dict[str, Any] = {}
        self._compiling = threading.Lock()

    def begin(self, schema: str, prefill: str = "") -> Held:
        """The start of a completion that, behind the prefill, fits the schema.

        Raises: BadRequest for a schema that is wrong or not supported, and for a prefill that begins nothing that
        fits it; MissingExtra.
        """
        with self._compiling:
            matcher = self._compiled.get(schema)
            if matcher is None:
                matcher = self._compile(schema)
                if len(self._compiled) >= KEPT:
                    del self._compiled[next(iter(self._compiled))]
                self._compiled[schema] = matcher
            matcher = matcher.deep_copy()
            said = self._tokenizer.tokenize_str(prefill.lstrip())
        if not matcher.consume_tokens(said):
            raise BadRequest(
                f"the prefill {prefill!r} begins no JSON that fits the schema; JSON is written in one line, with a"
                " space behind each comma and colon"
            )
        return Held(matcher)

    def _compile(self, schema: str) -> Any:
        try:
            from llguidance import LLMatcher
        except ImportError as error:
            raise MissingExtra("llguidance", "local") from error
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=WRITTEN)
        except ValueError as error:
            raise BadRequest(f"the schema is not JSON: {_line(str(error))}") from None
        matcher = LLMatcher(self._read(), grammar, log_level=0)
        if matcher.is_error():
            raise BadRequest(f"the schema is wrong or not supported: {_line(matcher.get_error())}")
        return matcher

    def _read(self) -> Any:
        """The tokenizer as the library has it, made once."""
        from llguidance.hf import from_tokenizer

        if self._tokenizer is None:
            try:
                with self._reading:
                    self._tokenizer = from_tokenizer(self._source, eos_token=self._ends)
            except ValueError as error:
                raise BadRequest(
                    f"this model's tokenizer cannot be held to a schema: {_line(str(error))}"
                ) from None
        return self._tokenizer


def _line(message: str) -> str:
    """A message in one line, at most 200 characters of it."""
    text = " ".join(message.split())
    return text if len(text) <= 200 else f"{text[:199]}…"
