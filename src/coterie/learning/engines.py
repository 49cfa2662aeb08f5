"""Opens the engines of a pool in training: one for each base model, here or in workers. Imports torch."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from coterie.errors import ConfigError, MissingExtra

try:
    import torch
except ImportError as error:
    raise MissingExtra("torch", "local") from error

from coterie.backends.base_model import base_model
from coterie.learning.course import Lessons
from coterie.learning.engine import Engine, Verbs
from coterie.learning.remote import Link, ProcessLink, RayLink, RemoteEngine
from coterie.pool import split_model
from coterie.types import Agent, draw


def engines_of(settings: Lessons, agents: Sequence[Agent], seed: int) -> dict[str, Verbs]:
    """The engine of each agent, by name; agents of one base share one. Adapters start fresh or where theirs are.

    One base is loaded here unless `cluster` says otherwise; several get a worker each. What was opened is closed
    again where one cannot be.
    Raises: ConfigError for an agent that is not local.
    """
    models = sorted({agent.model for agent in agents})
    names = {model: _local(model) for model in models}
    opened: dict[str, Verbs] = {}
    with ExitStack() as undo:
        undo.callback(close, opened)
        for model in models:
            opened[model] = _engine(settings, names[model], len(models), agents)
            for agent in (agent for agent in agents if agent.model == model):
                own = Path(agent.adapter) if agent.adapter else None
                opened[model].add(agent.name, draw(seed, "agent", agent.name), own, settings.reference)
        undo.pop_all()
    return {agent.name: opened[agent.model] for agent in agents}


def close(engines: Mapping[str, Verbs]) -> None:
    """Take the agents off their bases, end the workers."""
    for engine in {id(engine): engine for engine in engines.values()}.values():
        engine.close()


def _local(model: str) -> str:
    scheme, name = split_model(model)
    if scheme != "local":
        raise ConfigError(f"model {model}: only local models learn; {scheme} agents can only be routed to")
    return name


def _engine(settings: Lessons, model: str, count: int, agents: Sequence[Agent]) -> Verbs:
    loss = settings.loss.within(max(agent.sampling.max_tokens for agent in agents))
    given = (settings.lora, settings.optimiser, loss, settings.max_batch)
    place = settings.cluster or ("here" if count == 1 else "processes")
    if place == "here":
        return Engine(base_model(model), *given)
    return RemoteEngine(_link(place, count), model, *given)


def _link(place: str, count: int) -> Link:
    # Workers that all take every core slow each other down many times over.
    threads = max(1, torch.get_num_threads() // count)
    return RayLink(threads, count) if place == "ray" else ProcessLink(threads)
