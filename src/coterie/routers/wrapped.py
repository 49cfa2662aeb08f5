"""What routers around another router share: what may be wrapped, whom it knows, and how both are kept in files."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from coterie.errors import ConfigError
from coterie.routers.artefact import Artefact, read
from coterie.types import Agent, Pool, Predictor


def _predictor(value: Any) -> Any:
    if isinstance(value, str | bytes) or not callable(getattr(value, "predict", None)):
        raise ValueError(f"expected a router that predicts scores, not {type(value).__name__}")
    return value


if TYPE_CHECKING:
    AnyPredictor = Predictor
else:
    # A protocol has no schema of its own; any router that predicts is taken as it is.
    AnyPredictor = Annotated[Any, AfterValidator(_predictor)]


def known_agents(router: Any) -> Pool:
    """The agents that a fitted router has scores for, as a pool. Raises: ConfigError where it is not fitted."""
    if hasattr(type(router), "_parts"):
        outer, inner = router._parts
        return Pool({**known_agents(inner), **_named(outer)})
    known = getattr(router, "_trained" if hasattr(type(router), "_trained") else "_known", None)
    if known is None:
        raise ConfigError(f"router {type(router).__name__}: is not fitted: it knows no agent")
    return Pool(_named(known))


def _named(known: Any) -> dict[str, Agent]:
    agents = zip(known.names, known.keys, strict=True)
    return {name: Agent(name=name, model="known:weights", revision=key) for name, key in agents}


def inner_file(path: str | Path) -> Path:
    """Where the wrapped router's weights lie beside the wrapper's."""
    return Path(path).with_suffix(".inner.safetensors")


def save_both(inner: Any, outer: Artefact, path: str | Path) -> None:
    """Write the wrapped router's weights, then the wrapper's, which say whose they are."""
    inner.save(inner_file(path))
    notes = {**outer.notes, "inner": digest_of(inner_file(path))}
    replace(outer, notes=notes).save(path)


def read_both(router: str, inner: Any, path: str | None) -> tuple[Artefact, Any]:
    """The wrapper's artefact and the wrapped router with its weights.

    Raises: ConfigError where one of the two files is absent, damaged, or not the other's partner.
    """
    outer = read(router, path)
    file = inner_file(path or "")
    if not file.is_file():
        raise ConfigError(f"{path}: its partner {file.name} is not beside it")
    if digest_of(file) != outer.notes.get("inner"):
        raise ConfigError(f"{path}: {file.name} is not the file that it was written with")
    return outer, replace(inner, weights=str(file))


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
