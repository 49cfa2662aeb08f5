"""Messages between a training run and an engine in another process: plain facts and arrays, as bytes.

A message is a safetensors buffer whose metadata hold JSON: nothing that is read can run. Knows no verb.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

ENTRY = "coterie"
LENGTH = 8
Message = tuple[dict[str, Any], dict[str, np.ndarray]]


def pack(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> bytes:
    """Facts (JSON; floats keep every bit, NaN included) and arrays as one buffer."""
    named = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    return bytes(save(named, metadata={ENTRY: json.dumps(about)}))


def unpack(buffer: bytes) -> Message:
    """What `pack` put in. Raises: ValueError for anything else."""
    size = int.from_bytes(buffer[:LENGTH], "little")
    try:
        about = json.loads(json.loads(buffer[LENGTH : LENGTH + size])["__metadata__"][ENTRY])
        return dict(about), load(buffer)
    except (KeyError, TypeError, ValueError, SafetensorError):
        raise ValueError("is no message of coterie") from None
