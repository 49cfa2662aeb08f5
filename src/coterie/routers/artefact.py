"""What a fitted router knows, in memory and in a file: tensors, and for which agents and features they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import field, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from coterie.errors import ConfigError, DataError
from coterie.outcomes import Outcomes
from coterie.storage.tensors import load_tensors, save_tensors
from coterie.types import Agent, Encoder, Messages, Pool, Predictor, Routing, State, record

FORMAT = 1
MISSING_ALLOWED = ("scores", "lines")  # outcomes and costs that a router remembers may be missing
T = TypeVar("T")


@record
class Artefact:
    """Tensors of a router with the agents, by name and by key, that their rows stand for.

    An agent's key is its revision, or its name where the outcomes recorded no revision: weights fitted on
    one revision say nothing about another. `encoder` and `width` say which features the tensors read.
    """

    router: str
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    encoder: str = ""
    width: int = 0
    notes: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the file that `read` reads, whole or not at all."""
        metadata = {
            "format": FORMAT,
            "router": self.router,
            "agents": self.names,
            "keys": self.keys,
            "encoder": self.encoder,
            "width": self.width,
            "notes": self.notes,
        }
        save_tensors(path, self.tensors, metadata)

    def rows_of(self, pool: Pool) -> dict[str, int]:
        """Row of each solver that the tensors know. Raises ConfigError where they know none of them."""
        return rows_of(self.router, self.names, self.keys, pool)


def rows_of(router: str, names: Sequence[str], keys: Sequence[str], pool: Pool) -> dict[str, int]:
    """Row of each solver of the pool that is filed under one of `keys`.

    Raises: ConfigError where there is none: these weights were fitted for other agents.
    """
    row = {key: i for i, key in enumerate(keys)}
    agents = [pool[name] for name in pool.names()]
    found = {agent.name: row[key] for agent in agents for key in (agent.name, agent.revision) if key in row}
    if not found:
        mine = ", ".join(f"{agent.name} ({agent.revision[:12] or 'no revision'})" for agent in agents)
        raise ConfigError(
            f"router {router}: its weights are for other agents or revisions ({', '.join(names)}) than the "
            f"pool's: {mine}; train it on outcomes of these"
        )
    return found


def read(router: str, path: str | None, encoder: str = "") -> Artefact:
    """The artefact in a file of `weights`.

    Raises: ConfigError of one line without a path, for a file that is not one of this router's, or for one
        that was fitted on other features than those of `encoder` (its identity).
    """
    if path is None:
        raise ConfigError(f"router {router}: is not fitted: give `weights`, a file written by `coterie train`")
    if not Path(path).is_file():
        raise ConfigError(f"{path}: there is no such file; `coterie train` writes it")
    tensors, metadata = load_tensors(path)
    if metadata.get("format") != FORMAT or metadata.get("router") != router:
        found = f"{metadata.get('router', 'something else')} (format {metadata.get('format')})"
        raise ConfigError(f"{path}: holds weights of {found}, not of the router {router} (format {FORMAT})")
    try:
        about = TypeAdapter(Notes).validate_python({key: metadata.get(key) for key in NOTED})
    except ValidationError:
        raise ConfigError(f"{path}: is damaged, its description is not one of router weights") from None
    if about.encoder != encoder:
        raise ConfigError(f"{path}: was fitted on features of {about.encoder}, not of {encoder}")
    if len(about.agents) != len(about.keys) or not all(
        np.isfinite(t).all() for name, t in tensors.items() if name not in MISSING_ALLOWED
    ):
        raise ConfigError(f"{path}: is damaged, its weights are no numbers or not for the agents it names")
    return Artefact(
        router=router,
        names=about.agents,
        keys=about.keys,
        tensors=tensors,
        encoder=encoder,
        width=about.width,
        notes=about.notes,
    )


@record
class Notes:
    """The description in a file of weights."""

    agents: tuple[str, ...]
    keys: tuple[str, ...]
    encoder: str
    width: int
    notes: Mapping[str, Any]


NOTED = ("agents", "keys", "encoder", "width", "notes")


def fitted(router: T, attribute: str, knowledge: object) -> T:
    """A copy of a router that knows `knowledge`; the router itself stays as it was."""
    assert is_dataclass(router)
    copy = replace(router, weights=None)  # type: ignore[type-var]
    vars(copy)[attribute] = knowledge
    return copy  # type: ignore[return-value]


def key_of(agent: Agent) -> str:
    """What an agent's tensors are filed under."""
    return agent.revision or agent.name


def table_of(
    outcomes: Outcomes, values: np.ndarray | None = None
) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """Names and keys of the agents that have outcomes, and their scores (Q, A) with NaN where missing.

    Other `values` (Q, A), such as costs, can be laid out in place of the scores.

    Agents of one revision are one agent under several names: their scores are averaged.
    Raises: DataError where there is not a single outcome.
    """
    columns: dict[str, list[int]] = {}
    for i, name in enumerate(outcomes.agents):
        if not np.isnan(outcomes.scores[:, i]).all():
            columns.setdefault(outcomes.revisions.get(name) or name, []).append(i)
    if not columns:
        raise DataError("there are no outcomes to fit a router on")
    names = tuple("+".join(outcomes.agents[i] for i in found) for found in columns.values())
    wanted = outcomes.scores if values is None else values
    merged = [_mean(wanted[:, found]) for found in columns.values()]
    return names, tuple(columns), np.stack(merged, axis=1)


def _mean(scores: np.ndarray) -> np.ndarray:
    """Mean of each row's numbers, NaN for a row of NaN."""
    count = (~np.isnan(scores)).sum(axis=1)
    return np.where(count > 0, np.nansum(scores, axis=1) / np.maximum(count, 1), np.nan)


def features_of(encoder: Encoder, prompts: Sequence[Messages], router: str, width: int = 0) -> np.ndarray:
    """Features of the prompts (n, D), float32. Raises ConfigError where D is not the `width` of the weights."""
    found = np.asarray(encoder.encode(prompts), dtype=np.float32)
    if width and found.shape[1] != width:
        raise ConfigError(f"router {router}: its weights read {width} features, the encoder gives {found.shape[1]}")
    return found


def decision(state: State, scores: Mapping[str, float], info: Mapping[str, Any] | None = None) -> Routing:
    """The routing whose weights are in proportion to `scores` (>= 0)."""
    return Routing(
        weights=shares(scores), scores=scores, after=len(state.turns), seed=state.seed, info=dict(info or {})
    )


def routed(router: Predictor, state: State, info: Mapping[str, Any] | None = None) -> Routing:
    """The decision of a router that predicts, for one query."""
    row = router.predict([state.query], state.pool)[0]
    return decision(state, dict(zip(state.pool.names(), map(float, row), strict=True)), info)


def in_pool(known: Artefact, table: np.ndarray, pool: Pool) -> np.ndarray:
    """Rows (n, K) over an artefact's agents as rows (n, A) over the pool's solvers, in the order of their names.

    An agent that the artefact does not know gets 0, the lowest score.
    """
    found, names = known.rows_of(pool), pool.names()
    result = np.zeros((len(table), len(names)))
    for i, name in enumerate(names):
        if name in found:
            result[:, i] = np.maximum(table[:, found[name]], 0.0)
    return result


def shares(scores: Mapping[str, float]) -> dict[str, float]:
    """Weights that sum to 1 in proportion to `scores` (>= 0); equal ones where all are 0."""
    total = sum(scores.values())
    if not total > 0:
        return {name: 1.0 / len(scores) for name in scores}
    return {name: score / total for name, score in scores.items()}
