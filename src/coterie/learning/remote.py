"""An engine somewhere else: the verbs of `Engine`, done by a process of this machine or by a Ray actor.

Different base models learn each in a worker of its own. A worker that dies is noticed by the next verb.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coterie.errors import BackendError, ConfigError, CoterieError, MissingExtra, UserError
from coterie.learning.adapters import Lora
from coterie.learning.engine import Group
from coterie.learning.host import ASKS, PROMPT, SAMPLES, groups_to
from coterie.learning.learner import Arrays, Optimiser, Step
from coterie.learning.losses import Loss
from coterie.learning.sampler import Ask, Sample
from coterie.learning.wire import LENGTH, Message, pack, unpack
from coterie.types import Messages

RAISED: Mapping[str, type[CoterieError]] = {
    "ConfigError": ConfigError,
    "UserError": UserError,
    "BackendError": BackendError,
}


class WorkerLost(CoterieError):
    """A worker process ended, or a Ray actor is gone: its run goes on from the last checkpoint."""


class Link(Protocol):
    """Carries messages to one worker, one at a time."""

    def call(self, buffer: bytes) -> bytes:
        """The answer. Raises: WorkerLost where the worker is gone."""
        ...

    def close(self) -> None:
        """End the worker."""


class ProcessLink:
    """A worker process of this machine, which computes with `threads` threads."""

    def __init__(self, threads: int) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coterie.learning.host", str(theirs_in), str(theirs_out)],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._sink, self._source = open(self._out, "wb"), open(self._in, "rb")  # noqa: SIM115 - until `close`

    def call(self, buffer: bytes) -> bytes:
        try:
            self._sink.write(len(buffer).to_bytes(LENGTH, "little") + buffer)
            self._sink.flush()
            head = self._source.read(LENGTH)
            size = int.from_bytes(head, "little")
            answer = self._source.read(size) if len(head) == LENGTH else b""
        except OSError:
            answer, size = b"", 1
        if not answer or len(answer) < size:
            raise WorkerLost(f"the worker process {self.process.pid} has ended (code {self.process.wait()})")
        return answer

    def close(self) -> None:
        for end in (self._sink, self._source):
            try:
                end.close()
            except OSError:
                pass  # what was still to be written has no reader any more
        self.process.terminate()
        self.process.wait()


class RayLink:
    """A Ray actor, on this machine or another of the cluster. `gpus` may be a share of one."""

    def __init__(self, threads: int, gpus: float = 0.0) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "cluster") from None
        from coterie.learning.host import Host

        self._ray = ray
        if not ray.is_initialized():
            ray.init(log_to_driver=False, configure_logging=False)
        self._actor = ray.remote(Host).options(num_cpus=threads, num_gpus=gpus).remote()

    def call(self, buffer: bytes) -> bytes:
        try:
            return bytes(self._ray.get(self._actor.answer.remote(buffer)))
        except self._ray.exceptions.RayError as error:
            raise WorkerLost(f"a Ray actor is gone: {str(error).splitlines()[0]}") from None

    def close(self) -> None:
        self._ray.kill(self._actor)


class RemoteEngine:
    """`Engine`'s verbs over a link."""

    def __init__(
        self, link: Link, model: str, lora: Lora, optimiser: Optimiser, loss: Loss, max_batch: int
    ) -> None:
        self.link, self.loss = link, loss
        settings = {"lora": asdict(lora), "optimiser": asdict(optimiser), "loss": asdict(loss)}
        self._context = int(self._call("open", {"model": model, "max_batch": max_batch, **settings})[0]["context"])

    @property
    def context(self) -> int:
        return self._context

    def add(self, name: str, seed: int, folder: Path | None = None, reference: str = "base") -> None:
        place = None if folder is None else str(folder)
        self._call("add", {"name": name, "seed": seed, "folder": place, "reference": reference})

    def remove(self, name: str) -> None:
        self._call("remove", {"name": name})

    def close(self) -> None:
        self.link.close()

    def prompt_ids(self, messages: Messages, limit: int) -> list[int]:
        asked = {"messages": PROMPT.dump_python(messages, mode="json"), "limit": limit}
        return list(self._call("prompt_ids", asked)[0]["ids"])

    def sample(self, name: str, asks: Sequence[Ask]) -> list[Sample]:
        asked = ASKS.dump_python(list(asks), mode="json")
        return SAMPLES.validate_python(self._call("sample", {"name": name, "asks": asked})[0]["samples"])

    def log_probs(self, name: str, groups: Sequence[Group], temperature: float) -> list[tuple[np.ndarray, ...]]:
        about, arrays = groups_to(list(groups))
        _, found = self._call("log_probs", {"name": name, "temperature": temperature, **about}, arrays)
        return [tuple(found[f"{g}/{i}"] for i in range(len(group.completions))) for g, group in enumerate(groups)]

    def forward_backward(self, name: str, groups: Sequence[Group], temperature: float) -> None:
        about, arrays = groups_to(list(groups))
        self._call("forward_backward", {"name": name, "temperature": temperature, **about}, arrays)

    def optim_step(self, name: str) -> Step:
        return Step(**self._call("optim_step", {"name": name})[0])

    def counts(self, name: str) -> tuple[int, int]:
        done, skipped = self._call("counts", {"name": name})[0]["counts"]
        return int(done), int(skipped)

    def state(self, name: str) -> tuple[dict[str, Any], Arrays]:
        return self._call("state", {"name": name})

    def load(self, name: str, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._call("load", {"name": name, "facts": dict(facts)}, arrays)

    def write(self, name: str, folder: Path) -> None:
        self._call("write", {"name": name, "folder": str(folder.resolve())})

    def _call(self, verb: str, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> Message:
        answer, found = unpack(self.link.call(pack({"verb": verb, **about}, arrays)))
        if "error" in answer:
            raise RAISED.get(answer["error"], CoterieError)(f"{answer['message']}")
        return answer, found
