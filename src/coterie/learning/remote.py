"""An engine somewhere else: the verbs of `Engine`, done by a process of this machine or by a Ray actor.

Different base models learn each in a worker of its own. A worker that dies is noticed by the next verb. Who begins
again after that is the run's business (`training`).
"""

import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coterie.errors import CoterieError, MissingExtra
from coterie.learning.adapters import Lora
from coterie.learning.engine import Group
from coterie.learning.host import ASKS, PROMPT, SAMPLES, groups_to, raised, received
from coterie.learning.learner import Arrays, Optimiser, Step
from coterie.learning.losses import Loss
from coterie.learning.sampler import Ask, Sample
from coterie.learning.wire import LENGTH, Message, pack, unpack
from coterie.types import Messages

PATIENCE = 10.0
"""Seconds that a worker which has closed its side may take to end."""


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
            start_new_session=True,  # Ctrl-C asks the run to finish its round, which needs its workers
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._sink, self._source = open(self._out, "wb"), open(self._in, "rb")  # noqa: SIM115 - until `close`

    def call(self, buffer: bytes) -> bytes:
        try:
            self._sink.write(len(buffer).to_bytes(LENGTH, "little") + buffer)
            self._sink.flush()
            answer = received(self._source)
        except (OSError, ValueError):  # ValueError: it was closed here
            answer = b""
        if not answer:
            raise WorkerLost(f"the worker process {self.process.pid} has ended (code {self._code()})")
        return answer

    def close(self) -> None:
        for end in (self._sink, self._source):
            with suppress(OSError):  # what was still to be written has no reader any more
                end.close()
        self.process.kill()  # a worker that was stopped would not hear a milder signal
        self.process.wait()

    def _code(self) -> int:
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(PATIENCE)
        self.process.kill()
        return self.process.wait()


def shares(nodes: Sequence[tuple[float, float]], workers: int, threads: int) -> tuple[int, float]:
    """Cores and GPUs (a share of one, where there are fewer than workers) of each of `workers` actors.

    `nodes` have (cores, GPUs) each. As many cores as possible, `threads` at most, so that all actors find a place
    at once; 0 where there are more actors than cores. Where there are GPUs, nobody goes without.
    """
    found = sum(gpus for _, gpus in nodes)
    each = math.ceil(workers / found) if found else 0  # actors on one GPU
    places = [(cores, gpus * each if found else workers) for cores, gpus in nodes]
    for cores in range(threads, 0, -1):
        if sum(min(had // cores, most) for had, most in places) >= workers:
            break
    else:
        cores = 0
    return cores, math.floor(1e4 / each) / 1e4 if each else 0.0  # Ray counts in steps of 1e-4


class RayLink:
    """A Ray actor, one of `workers`, on this machine or another of the cluster; `threads` at most.

    It has its share of the cluster's cores and GPUs. Models and adapters are read, and adapters written, where it
    runs: by paths that mean the same there, on a disk that both see.
    """

    def __init__(self, threads: int, workers: int = 1) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "cluster") from None
        from coterie.learning.host import Host

        self._ray = ray
        if not ray.is_initialized():
            ray.init(log_to_driver=False, configure_logging=False)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores, gpus = shares([(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes], workers, threads)
        environment = {"env_vars": {"OMP_NUM_THREADS": str(max(1, cores))}}
        options = {"num_cpus": cores, "num_gpus": gpus, "runtime_env": environment}
        self._actor = ray.remote(Host).options(**options).remote()

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
        with ExitStack() as undo:
            undo.callback(link.close)  # a worker that cannot open its model would stay
            opened, _ = self._call("open", {"model": model, "max_batch": max_batch, **settings})
            undo.pop_all()
        self._context = int(opened["context"])

    @property
    def context(self) -> int:
        return self._context

    def add(self, name: str, seed: int, folder: Path | None = None, reference: str = "base") -> None:
        place = None if folder is None else str(folder.resolve())
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
            raise raised(answer)
        return answer, found
