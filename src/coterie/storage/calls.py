"""What a call is to the cache: its key, whether it may be stored, and its bytes. Knows no file."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

from coterie.types import Agent, Completion, Messages, Sampling, Tokens, record

FORMAT = 1
NEUTRAL = frozenset({"price", "domains", "folder"})


@record
class CallKey:
    """The address of one call. `digest` is all that is looked up; the rest is kept to count entries by."""

    digest: str
    agent: str
    model: str
    revision: str

    def __str__(self) -> str:
        return self.digest


def call_key(agent: Agent, messages: Messages, seed: int, backend: str = "") -> CallKey:
    """SHA-256 of the canonical JSON of everything that goes into a call.

    Every field of the agent and of its sampling counts, also one that is added to the types later; only those
    in `NEUTRAL`, which no backend reads, are left out. `backend` is what the backend says of settings of its own
    that change answers.
    """
    asked = {name: value for name, value in _data(agent).items() if name not in NEUTRAL}
    request = {"format": FORMAT, "agent": asked, "messages": messages, "seed": seed, "backend": backend}
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), default=_data)
    digest = sha256(text.encode()).hexdigest()
    return CallKey(digest=digest, agent=agent.name, model=agent.model, revision=agent.revision)


def complete(completion: Completion) -> bool:
    """Whether a completion may be stored: the model ended it, or it was cut at `max_tokens` with visible text.

    That limit is part of the key, so cut text is a complete outcome; blank cut text (a budget spent on thinking)
    is not, asking again may help. A model that ends at once has answered: with nothing.
    """
    return completion.finish == "stop" or (completion.finish == "length" and bool(completion.text.strip()))


def encode(completion: Completion) -> bytes:
    """The whole record as JSON; floats keep every bit."""
    return json.dumps(completion, separators=(",", ":"), default=_data).encode()


def decode(body: bytes) -> Completion | None:
    """The stored record, or None where another version of the program wrote other fields."""
    data = json.loads(body)
    tokens, logprobs = data.pop("tokens", None), data.pop("logprobs", None)
    try:
        kept = None if tokens is None else Tokens(**{name: tuple(ids) for name, ids in tokens.items()})
        return Completion(**data, tokens=kept, logprobs=None if logprobs is None else tuple(logprobs))
    except TypeError:
        return None


def checksum(key: bytes, body: bytes) -> int:
    """Of a record and the key it stands under, so that neither can be exchanged unnoticed."""
    return zlib.crc32(body, zlib.crc32(key))


def _data(value: Any) -> dict[str, Any]:
    """A record's fields, or a mapping of another kind than dict, as JSON data."""
    if isinstance(value, Sampling):
        return value.facts()
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no part of a call")
