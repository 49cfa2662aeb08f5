"""Checkpoints of a training run: all that is needed to go on bit for bit, in one file, whole or not there.

Its header holds the parts' plain facts, its tensors their arrays. The newest is the one with the highest round.
Knows no part of what it keeps.
"""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import ConfigError, DataError
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
    about = {"format": FORMAT, "round": checkpoint.round, "parts": facts, "digest": _digest(facts, arrays)}
    save_tensors(path, arrays, about)
    for _, old in [one for one in rounds(folder) if one[0] <= checkpoint.round][:-keep]:
        old.unlink(missing_ok=True)
    for draft in folder.glob(".round-*"):
        shutil.rmtree(draft, ignore_errors=True)  # what a killed process left behind
    return path


def newest(folder: Path, take: Callable[[Checkpoint], None] = lambda one: None) -> Checkpoint | None:
    """The checkpoint with the highest round that is whole and that `take` takes up; None where there are none.

    `take` raises Damaged for one that it cannot: then comes the one before.
    Raises: Damaged where none can be taken up; ConfigError for a folder that lies where a checkpoint belongs.
    """
    troubles: list[Damaged] = []
    for number, path in rounds(folder)[::-1]:
        if troubles:
            log.warning("%s: going on from the checkpoint before", troubles[-1])
        try:
            take(found := _read(path, number))
            return found
        except Damaged as damage:
            troubles.append(damage)
    if troubles:
        more = f", nor is one of the {len(troubles) - 1} before it" if len(troubles) > 1 else ""
        raise Damaged(f"{troubles[0]}{more}: put a whole one back, or begin again in another folder")
    return None


class Damaged(ConfigError):
    """A checkpoint's file that is not whole, or not one that this run could have written."""


def _read(path: Path, number: int) -> Checkpoint:
    try:
        arrays, about = load_tensors(path)
    except ConfigError as error:
        raise Damaged(str(error)) from None
    if about.get("format") != FORMAT or about.get("round") != number:
        raise Damaged(f"{path}: is no checkpoint of this version, or not of the round in its name")
    try:
        # Files of older versions have no digest.
        if about.get("digest") not in (None, _digest(about["parts"], arrays)):
            raise ValueError("its content was changed")
        parts = {
            str(name): (dict(facts), _below(arrays, f"{n}/")) for n, (name, facts) in enumerate(about["parts"])
        }
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path}: is damaged ({error!r})") from None
    return Checkpoint(round=number, parts=parts)


def rounds(folder: Path) -> list[tuple[int, Path]]:
    """Rounds that there are checkpoints of, oldest first, with their files.

    Raises: ConfigError for what is no file but in the place of one: no checkpoint could be written there.
    """
    files = folder.glob("round-*.safetensors") if folder.is_dir() else ()
    found = sorted((int(n[1]), file) for file in files if (n := PATTERN.fullmatch(file.name)))
    # Not `is_file`: one that the writer removes between the listing and this line is no trouble.
    if (other := next((file for _, file in found if file.is_dir()), None)) is not None:
        raise ConfigError(f"{other}: is no file, but in the place of a checkpoint: move it away")
    return found


def sound(
    arrays: Mapping[str, np.ndarray], name: str, shape: Sequence[int], kind: Any = np.float32, none: bool = False
) -> np.ndarray:
    """The array of that name. Raises: DataError where it is missing or is not what was saved under it.

    That has this shape and type, and numbers that are finite; NaN may be among them where it stands for `none`.
    """
    array = arrays.get(name)
    if array is None or array.shape != tuple(shape) or array.dtype != kind:
        raise DataError(f"array {name!r} is missing, or of another shape or type")
    if not (np.isfinite(array) | (none & np.isnan(array))).all():
        raise DataError(f"array {name!r} has numbers that are none")
    return array


def _digest(facts: Any, arrays: Mapping[str, np.ndarray]) -> str:
    """Of all that a checkpoint says: whatever was changed since is noticed."""
    total = hashlib.sha256(json.dumps(json.loads(json.dumps(facts)), sort_keys=True).encode())
    for name, given in sorted(arrays.items()):
        array = np.ascontiguousarray(given)  # as a file keeps it, which has no array of 0 dimensions
        total.update(f"\0{name}\0{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return total.hexdigest()


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
