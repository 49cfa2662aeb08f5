"""Where a training run's rows also go when asked: TensorBoard, trackio, Weights & Biases.

metrics.jsonl is the record and is written before any of these hears of a round. One step counts for all of them,
the round; an agent's figures are `agent/<name>/<key>`, so that no curve is a mean over agents. A sink that fails
is let go with a warning and stops nothing.
"""

import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from coterie.errors import DataError, MissingExtra
from coterie.storage.runs import write_atomically
from coterie.types import record

PROJECT, IDENTITY = "coterie", "logging.json"
Warn = Callable[[str], None]


class Sink(Protocol):
    """One dashboard. Both may raise whatever its library raises."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """The figures of a round."""

    def close(self) -> None:
        """Send what is left."""


@record
class About:
    """What a dashboard is told of a run: its folder, an id that stays over resumes, its configuration.

    `rounds` are done already; what was sent of later ones by a process that died is made again.
    """

    folder: Path
    id: str
    config: Mapping[str, Any]
    rounds: int


class TensorBoard:
    """Event files in `tensorboard/` of the run folder."""

    def __init__(self, about: About) -> None:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        later = {"purge_step": about.rounds + 1} if about.rounds else {}
        self.writer = writer(str(about.folder / "tensorboard"), **later)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)

    def close(self) -> None:
        self.writer.close()


class Trackio:
    """A local trackio dashboard (`trackio show --project coterie`)."""

    def __init__(self, about: About) -> None:
        self.module = importlib.import_module("trackio")
        name = f"{about.folder.name}-{about.id[:6]}"
        self.module.init(project=PROJECT, name=name, config=dict(about.config), resume="allow")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.module.log(dict(values), step=step)

    def close(self) -> None:
        self.module.finish()


class WandB:
    """A run of Weights & Biases in project `coterie`; its own environment variables choose place and mode."""

    def __init__(self, about: About) -> None:
        wandb = importlib.import_module("wandb")
        self.run = wandb.init(
            project=PROJECT,
            id=about.id,
            name=about.folder.name,
            dir=str(about.folder),
            config=dict(about.config),
            resume="allow",
        )
        # Its own step drops whatever comes a second time, as rounds do that are made again after a resume.
        self.run.define_metric("*", step_metric="round")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({"round": step, **values})

    def close(self) -> None:
        self.run.finish()


SINKS: Mapping[str, tuple[tuple[str, ...], Callable[[About], Sink]]] = {
    "tensorboard": (("tensorboard", "torch.utils.tensorboard"), TensorBoard),
    "trackio": (("trackio",), Trackio),
    "wandb": (("wandb",), WandB),
}
"""By name: the modules that it needs, and what opens it."""


def check(names: Sequence[str]) -> None:
    """Raises: MissingExtra for a sink whose package is absent."""
    for name in names:
        for module in SINKS[name][0]:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise MissingExtra(name, "logging") from error


class Log:
    """The sinks of a run, those that still work."""

    def __init__(self, warn: Warn) -> None:
        self.sinks: dict[str, Sink] = {}
        self.warn = warn

    def add(self, name: str, about: About) -> None:
        """Open a sink."""
        self._try(name, lambda: self.sinks.update({name: SINKS[name][1](about)}))

    def write(self, row: Mapping[str, Any]) -> None:
        """A round's row, at the round's own number."""
        values = flat(row)
        for name, sink in list(self.sinks.items()):
            self._try(name, lambda sink=sink: sink.write(int(row["round"]), values))  # type: ignore[misc]

    def close(self) -> None:
        """Let all of them send what is left."""
        for name, sink in list(self.sinks.items()):
            self._try(name, sink.close)

    def _try(self, name: str, work: Callable[[], None]) -> None:
        try:
            with redirect_stdout(sys.stderr):  # they greet; results alone go to standard output
                work()
        except Exception as error:  # noqa: BLE001 - whatever a dashboard's library raises
            self.sinks.pop(name, None)
            what = " ".join(f"{type(error).__name__}: {error}".split())
            self.warn(f"{name} failed and is left out from here on ({what}); metrics.jsonl has everything")


@contextmanager
def opened(names: Sequence[str], about: About, warn: Warn) -> Iterator[Log]:
    """The log of a run with the sinks that were asked for; closed at the end, whatever ends it."""
    log = Log(warn)
    try:
        for name in dict.fromkeys(names):
            log.add(name, about)
        yield log
    finally:
        log.close()


def identity(folder: Path) -> str:
    """The id by which dashboards know the run in a folder: made once and kept there.

    Raises: DataError for a damaged file.
    """
    file = folder / IDENTITY
    if not file.exists():
        write_atomically(file, json.dumps({"id": uuid4().hex[:16]}))
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{file}: is damaged; without it the dashboards begin a new run") from None


def flat(row: Mapping[str, Any]) -> dict[str, float]:
    """A row's numbers by name: `reward`, `router/loss`, `agent/<name>/reward`. What is null is left out."""
    found: dict[str, float] = {}
    for key, value in row.items():
        if key == "agents":
            for name, own in value.items():
                found |= _numbers(own, f"agent/{name}/")
        elif isinstance(value, Mapping):
            found |= _numbers(value, f"{key}/")
        elif key != "round":
            found |= _numbers({key: value}, "")
    return found


def _numbers(table: Mapping[str, Any], before: str) -> dict[str, float]:
    return {
        f"{before}{key}": float(value)
        for key, value in table.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
