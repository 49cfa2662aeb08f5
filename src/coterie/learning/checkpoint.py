"""Checkpoints of a training run: all that is needed to go on bit for bit, in one file, whole or not there.

Its header holds the parts' plain facts, its tensors their arrays. The newest is the one with the highest round.
Knows no part of what it keeps.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import ConfigError
from coterie.storage.tensors import load_tensors, save_tensors
from coterie.types import record

FORMAT = 1
PATTERN = re.compile(r"round-(\d{8})\.safetensors")
State = tuple[dict[str, Any], dict[str, np.ndarray]]


@record
class Checkpoint:
    """The state of every part after a round, by the part's name."""

    round: int
    parts: Mapping[str, State]


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint and then let go of all but the newest `keep`.

    Raises: ConfigError where it cannot be written; the earlier ones are then still there.
    """
    parts = sorted(checkpoint.parts.items())
    facts = [[name, about] for name, (about, _) in parts]
    arrays = {f"{n}/{key}": array for n, (_, (_, found)) in enumerate(parts) for key, array in found.items()}
    path = folder / f"round-{checkpoint.round:08d}.safetensors"
    save_tensors(path, arrays, {"format": FORMAT, "round": checkpoint.round, "parts": facts})
    for _, old in rounds(folder)[:-keep]:
        old.unlink(missing_ok=True)
    for draft in folder.glob(".round-*"):
        shutil.rmtree(draft, ignore_errors=True)  # what a killed process left behind
    return path


def newest(folder: Path) -> Checkpoint | None:
    """The checkpoint with the highest round, or None.

    Raises: ConfigError for a damaged or foreign file; the message says which earlier one there is.
    """
    found = rounds(folder)
    if not found:
        return None
    number, path = found[-1]
    earlier = f"; remove it to go on from round {found[-2][0]}" if len(found) > 1 else ""
    try:
        arrays, about = load_tensors(path)
        if about.get("format") != FORMAT or about.get("round") != number:
            raise ConfigError(f"{path}: is no checkpoint of this version, or not of the round in its name")
        parts = {
            str(name): (dict(facts), _below(arrays, f"{n}/")) for n, (name, facts) in enumerate(about["parts"])
        }
    except ConfigError as error:
        raise ConfigError(f"{error}{earlier}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is damaged ({error!r}){earlier}") from None
    return Checkpoint(round=number, parts=parts)


def rounds(folder: Path) -> list[tuple[int, Path]]:
    """Rounds that there are checkpoints of, oldest first, with their files."""
    files = folder.glob("round-*.safetensors") if folder.is_dir() else ()
    return sorted((int(n[1]), file) for file in files if (n := PATTERN.fullmatch(file.name)) and file.is_file())


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
