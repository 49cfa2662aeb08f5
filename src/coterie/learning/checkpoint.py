"""Checkpoints of a training run: all that is needed to go on bit for bit, in one file, whole or not there.

Its header holds the parts' plain facts, its tensors their arrays. The newest is the one with the highest round.
Knows no part of what it keeps.
"""

import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import ConfigError
from coterie.storage.tensors import load_tensors, save_tensors
from coterie.types import record

log = logging.getLogger(__name__)
FORMAT = 1
PATTERN = re.compile(r"round-(\d{8})\.safetensors")
State = tuple[dict[str, Any], dict[str, np.ndarray]]


@record
class Checkpoint:
    """The state of every part after a round, by the part's name."""

    round: int
    parts: Mapping[str, State]


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint and then let go of all but the newest `keep` up to this round.

    Later ones are damaged: a run goes on from the newest that is whole. They are no reason to let a whole one go.
    Raises: ConfigError where it cannot be written; the earlier ones are then still there.
    """
    parts = sorted(checkpoint.parts.items())
    facts = [[name, about] for name, (about, _) in parts]
    arrays = {f"{n}/{key}": array for n, (_, (_, found)) in enumerate(parts) for key, array in found.items()}
    path = folder / f"round-{checkpoint.round:08d}.safetensors"
    save_tensors(path, arrays, {"format": FORMAT, "round": checkpoint.round, "parts": facts})
    for _, old in [one for one in rounds(folder) if one[0] <= checkpoint.round][:-keep]:
        old.unlink(missing_ok=True)
    for draft in folder.glob(".round-*"):
        shutil.rmtree(draft, ignore_errors=True)  # what a killed process left behind
    return path


def newest(folder: Path) -> Checkpoint | None:
    """The checkpoint with the highest round, or the one before where that is damaged, or None where there is none.

    Raises: ConfigError where all are damaged, or for a file of another version or another round than its name's.
    """
    for number, path in (found := rounds(folder)[::-1]):
        try:
            return _read(path, number)
        except Damaged as damage:
            if number == found[-1][0]:
                raise
            log.warning("%s: going on from the checkpoint before", damage)
    return None


class Damaged(ConfigError):
    """A checkpoint's file that cannot be read whole."""


def _read(path: Path, number: int) -> Checkpoint:
    try:
        arrays, about = load_tensors(path)
    except ConfigError as error:
        raise Damaged(str(error)) from None
    if about.get("format") != FORMAT or about.get("round") != number:
        raise ConfigError(f"{path}: is no checkpoint of this version, or not of the round in its name")
    try:
        parts = {
            str(name): (dict(facts), _below(arrays, f"{n}/")) for n, (name, facts) in enumerate(about["parts"])
        }
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path}: is damaged ({error!r})") from None
    return Checkpoint(round=number, parts=parts)


def rounds(folder: Path) -> list[tuple[int, Path]]:
    """Rounds that there are checkpoints of, oldest first, with their files."""
    files = folder.glob("round-*.safetensors") if folder.is_dir() else ()
    return sorted((int(n[1]), file) for file in files if (n := PATTERN.fullmatch(file.name)) and file.is_file())


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
