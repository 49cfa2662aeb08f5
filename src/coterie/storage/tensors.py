"""Arrays with JSON metadata in one safetensors file: written whole or not at all, read without running code.

Knows no torch. A file that coterie did not write is refused.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import ConfigError, MissingExtra

ENTRY = "coterie"


def save_tensors(path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write `tensors` and JSON `metadata`; an older file stays whole until the new one is on the disk.

    Raises: ConfigError when the file cannot be written; MissingExtra without safetensors.
    """
    library = _safetensors()
    target = Path(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise ConfigError(f"{target}: is not a regular file")
    note = {ENTRY: json.dumps(metadata, sort_keys=True, allow_nan=False)}
    # The format stores the buffer as it lies in memory: a view or a transposed array must be copied first.
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            draft = Path(scratch) / target.name
            library.numpy.save_file(arrays, draft, metadata=note)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            # The library makes files that only their owner may read; a router's weights are no secret.
            draft.chmod(0o644)
            draft.replace(target)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror or error})") from None
    except library.SafetensorError as error:
        # so the library says that the disk is full
        raise ConfigError(f"{target}: cannot be written ({' '.join(str(error).split())})") from None


def load_tensors(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The tensors and the metadata of a file that `save_tensors` wrote.

    Raises: ConfigError of one line for a missing, damaged or foreign file; MissingExtra without safetensors.
    """
    library = _safetensors()
    if not os.path.isfile(path):
        raise ConfigError(f"{path}: there is no such file")
    try:
        with library.safe_open(path, framework="np") as file:
            metadata = _metadata(file.metadata(), path)
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except library.SafetensorError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: not a whole safetensors file ({reason})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None


def _metadata(notes: Mapping[str, str] | None, path: str | Path) -> dict[str, Any]:
    try:
        found = json.loads((notes or {})[ENTRY])
    except (KeyError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: was not written by coterie")
    return found


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise MissingExtra("safetensors", "local") from error
    return safetensors
