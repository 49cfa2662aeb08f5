"""Vectors of an encoder, kept in memory and on the disk: a text is encoded once, however many routers ask."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Lock

import numpy as np

from coterie.errors import ConfigError
from coterie.features.checks import identity_of
from coterie.storage.tensors import load_tensors, save_tensors
from coterie.types import Encoder, Messages

CHUNK = 2048
"""Prompts that are encoded between two writes: what a kill can lose."""


@dataclass(frozen=True)
class Kept:
    """An encoder that remembers. `folder` keeps the vectors for later processes; without it memory alone does."""

    encoder: Encoder
    folder: Path | None = None
    known: dict[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    @property
    def identity(self) -> str:
        """That of the encoder."""
        return identity_of(self.encoder)

    def encode(self, prompts: Sequence[Messages]) -> np.ndarray:
        """Shape (len(prompts), D), float32."""
        keys = [key_of(messages) for messages in prompts]
        with self.lock:
            if not self.known:
                self.known.update(self._read())
            wanted = {key: messages for key, messages in zip(keys, prompts, strict=True) if key not in self.known}
            self._add(wanted)
        if not keys:
            return np.asarray(self.encoder.encode([]), dtype=np.float32)
        return np.stack([self.known[key] for key in keys])

    def _add(self, wanted: Mapping[str, Messages]) -> None:
        keys = list(wanted)
        for start in range(0, len(keys), CHUNK):
            part = keys[start : start + CHUNK]
            rows = np.asarray(self.encoder.encode([wanted[key] for key in part]), dtype=np.float32)
            self.known.update(zip(part, rows, strict=True))
            if self.file is not None:
                self.known.update({**self._read(), **self.known})  # what another process has kept meanwhile stays
                vectors = np.stack(list(self.known.values()))  # (n, D)
                save_tensors(self.file, {"vectors": vectors}, {"keys": list(self.known)})

    @property
    def file(self) -> Path | None:
        """Where the vectors of this encoder are kept."""
        return self.folder and self.folder / f"{sha256(self.identity.encode()).hexdigest()[:16]}.safetensors"

    def _read(self) -> dict[str, np.ndarray]:
        """What earlier processes kept; a damaged file is nothing kept."""
        if self.file is None or not self.file.is_file():
            return {}
        try:
            tensors, notes = load_tensors(self.file)
            return dict(zip(notes["keys"], tensors["vectors"], strict=True))
        except (ConfigError, KeyError, TypeError, ValueError):
            return {}


def key_of(messages: Messages) -> str:
    """A digest of a prompt."""
    text = "\0".join(f"{m.role}\0{m.content}" for m in messages)
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]
