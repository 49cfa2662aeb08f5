"""One engine behind bytes: reads a message, does what its verb says, answers. Runs in a process or a Ray actor.

`python -m coterie.learning.host IN OUT` serves over two inherited file descriptors until the other side is gone.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import TypeAdapter

from coterie import errors
from coterie.config import validate
from coterie.errors import CoterieError
from coterie.learning.adapters import Lora
from coterie.learning.engine import Engine, Group
from coterie.learning.learner import Optimiser
from coterie.learning.losses import Loss
from coterie.learning.sampler import Ask, Sample
from coterie.learning.wire import LENGTH, Message, pack, unpack
from coterie.types import Messages

ASKS, SAMPLES, PROMPT = TypeAdapter(list[Ask]), TypeAdapter(list[Sample]), TypeAdapter(Messages)
FAULTS = (
    *(CoterieError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(MemoryError, OSError, RuntimeError, TypeError, ValueError),
)
"""What goes wrong in one verb. The worker lives on: to die of it would only repeat it."""


class Host:
    """The engine of one base model, opened by its first message."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    def answer(self, buffer: bytes) -> bytes:
        """The answer to one message; what goes wrong is an answer too."""
        try:
            about, arrays = unpack(buffer)
            return pack(*VERBS[about["verb"]](self, about, arrays))
        except FAULTS as error:
            return pack(fault(error))

    @property
    def opened(self) -> Engine:
        """The engine. Raises: ValueError before `open`."""
        if self.engine is None:
            raise ValueError("no engine is open yet")
        return self.engine

    def open(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        """Load the base model; its context and the settings that the run asks for come back."""
        from coterie.backends.base_model import base_model

        self.engine = Engine(
            base_model(about["model"]),
            validate(Lora, about["lora"], "lora"),
            validate(Optimiser, about["optimiser"], "optimiser"),
            validate(Loss, about["loss"], "loss"),
            about["max_batch"],
        )
        return {"context": self.engine.context}, {}

    def add(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        folder = None if about["folder"] is None else Path(about["folder"])
        self.opened.add(about["name"], about["seed"], folder, about["reference"])
        return {}, {}

    def remove(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        self.opened.remove(about["name"])
        return {}, {}

    def prompt_ids(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        return {"ids": self.opened.prompt_ids(PROMPT.validate_python(about["messages"]), about["limit"])}, {}

    def sample(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        found = self.opened.sample(about["name"], ASKS.validate_python(about["asks"]))
        return {"samples": SAMPLES.dump_python(found, mode="json")}, {}

    def log_probs(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        found = self.opened.log_probs(about["name"], groups_of(about, arrays), about["temperature"])
        return {}, {f"{g}/{i}": row for g, rows in enumerate(found) for i, row in enumerate(rows)}

    def forward_backward(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        self.opened.forward_backward(about["name"], groups_of(about, arrays), about["temperature"])
        return {}, {}

    def optim_step(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        return asdict(self.opened.optim_step(about["name"])), {}

    def counts(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        return {"counts": self.opened.counts(about["name"])}, {}

    def state(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        return self.opened.state(about["name"])

    def load(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        self.opened.load(about["name"], about["facts"], arrays)
        return {}, {}

    def write(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Message:
        self.opened.write(about["name"], Path(about["folder"]))
        return {}, {}


VERBS: Mapping[str, Callable[[Host, Mapping[str, Any], Mapping[str, np.ndarray]], Message]] = {
    "open": Host.open,
    "add": Host.add,
    "remove": Host.remove,
    "prompt_ids": Host.prompt_ids,
    "sample": Host.sample,
    "log_probs": Host.log_probs,
    "forward_backward": Host.forward_backward,
    "optim_step": Host.optim_step,
    "counts": Host.counts,
    "state": Host.state,
    "load": Host.load,
    "write": Host.write,
}


# --- faults ------------------------------------------------------------------------------------------


def fault(error: BaseException) -> dict[str, Any]:
    """An error as facts: its class and those it is a kind of, its message, what else it says about itself."""
    told = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
    kinds = [kind.__name__ for kind in type(error).__mro__]
    plain = {key: value for key, value in vars(error).items() if isinstance(value, int | float | str | None)}
    return {"error": kinds, "message": told, "facts": plain}


def raised(about: Mapping[str, Any]) -> CoterieError:
    """The error that `fault` told of: of its own class where that is one of coterie's, else of the nearest."""
    known = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, CoterieError)
    }
    found = next((known[name] for name in about["error"] if name in known), CoterieError)
    # Not by its own __init__: some make their message from other arguments.
    error = found.__new__(found, about["message"])
    vars(error).update(about["facts"])
    return error


# --- groups ------------------------------------------------------------------------------------------


def groups_to(groups: list[Group]) -> Message:
    """Groups as facts and arrays; their numbers go as arrays, so that no bit is lost."""
    facts = [
        {"prompt": group.prompt, "completions": group.completions, "truncated": group.truncated} for group in groups
    ]
    arrays = {f"{g}/advantages": group.advantages for g, group in enumerate(groups)}
    for g, group in enumerate(groups):
        arrays |= {f"{g}/old/{i}": row for i, row in enumerate(group.old or ())}
    return {"groups": facts}, arrays


def groups_of(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[Group]:
    """What `groups_to` gave."""
    return [
        Group(
            prompt=tuple(facts["prompt"]),
            completions=tuple(map(tuple, facts["completions"])),
            advantages=arrays[f"{g}/advantages"],
            truncated=tuple(facts["truncated"]),
            old=tuple(arrays[f"{g}/old/{i}"] for i in range(len(facts["completions"])))
            if f"{g}/old/0" in arrays
            else None,
        )
        for g, facts in enumerate(about["groups"])
    ]


# --- the process -------------------------------------------------------------------------------------


def serve(reading: int, writing: int) -> None:
    """Answer messages, each led by its length, until the other side is gone, in the middle of one if need be."""
    host = Host()
    with suppress(BrokenPipeError), open(reading, "rb") as source, open(writing, "wb") as sink:
        while message := received(source):
            answer = host.answer(message)
            sink.write(len(answer).to_bytes(LENGTH, "little") + answer)
            sink.flush()


def received(source: BinaryIO) -> bytes:
    """The next message, led by its length; nothing where the other side went away before its end."""
    head = source.read(LENGTH)
    size = int.from_bytes(head, "little")
    message = source.read(size) if len(head) == LENGTH else b""
    return message if len(message) == size else b""


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
