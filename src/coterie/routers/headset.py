"""The heads that a familiarity router knows: trained ones by agent revision, fresh ones for everybody else.

Lays them out for asking (Stack) and for a file (Artefact); does not train them.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from coterie.errors import ConfigError, MissingExtra
from coterie.routers.artefact import Artefact
from coterie.types import record

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    raise MissingExtra("torch", "local") from error

from coterie.routers.heads import Parameters, Shape, basis, distance, fresh, normalised, signs, targeted

HALF_ABOVE = 64
"""From this many heads on one query waits for memory: the first layers' weights are then read as float16,
which moves a familiarity by about 1e-3 of itself and halves the wait."""
CHUNK = 64
STACKS = 2
"""Pools whose stacked heads are kept: the one in use and the one that running rollouts began with."""
PARTS = ("gain", "shift", "first", "first_bias", "second", "second_bias")


@record
class HeadSet:
    """Trained predictors, stacked in the order of `keys`, with what all heads share.

    `pair` makes the targets; `centre` and `spread` (D,) standardise features before the heads. `lineage` is what
    each head's target is filed under where that is not its key: an agent that goes on learning gets a new
    revision with every update and keeps its target.
    """

    shape: Shape
    pair: Parameters
    centre: torch.Tensor
    spread: torch.Tensor
    trained: Parameters
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    lineage: tuple[str, ...] = ()

    @staticmethod
    def untrained(shape: Shape) -> "HeadSet":
        """No trained head yet; features go to the heads as they are."""
        zeros = torch.zeros(shape.features)
        return HeadSet(shape=shape, pair=basis(shape), centre=zeros, spread=zeros + 1, trained={})

    def standardised(self, features: np.ndarray) -> "HeadSet":
        """Bring each feature to mean 0 and deviation 1 over `features` (Q, D); constant ones only to mean 0."""
        x = torch.from_numpy(features)
        spread = x.std(dim=0, correction=0)
        return replace(self, centre=x.mean(dim=0), spread=torch.where(spread > 1e-6, spread, 1.0))

    def prepared(self, features: np.ndarray) -> torch.Tensor:
        """Features (B, D) as the heads read them."""
        return normalised((torch.from_numpy(features) - self.centre) / self.spread)

    def predictors(self, keys: Sequence[str]) -> Parameters:
        """Stacked predictors in the order of `keys`: trained where there are any, else fresh."""
        if tuple(keys) == self.keys:
            return self.trained
        row = {key: i for i, key in enumerate(self.keys)}
        new = [key for key in keys if key not in row]
        made = fresh(self.shape, new) if new else {}
        if list(keys) == new:
            return made
        place = [row[key] if key in row else len(row) + new.index(key) for key in keys]
        pools = {part: [t[part] for t in (self.trained, made) if t] for part in PARTS}
        return {part: torch.cat(found)[place] for part, found in pools.items()}

    def targets(self, keys: Sequence[str]) -> Callable[[torch.Tensor], torch.Tensor]:
        """Normalised features (B, D) to the frozen targets' outputs (A, B, W), in the order of `keys`."""
        return partial(targeted, self.pair, self.flips(keys))

    def flips(self, keys: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """The signs that make the targets of the agents filed under `keys` from the shared pair."""
        kept = dict(zip(self.keys, self.lineage or self.keys, strict=True))
        return signs(self.shape, [kept.get(key, key) for key in keys])

    def with_trained(self, names: Sequence[str], keys: Sequence[str], heads: Parameters) -> "HeadSet":
        """These heads, replaced and extended by newly trained ones."""
        kept = [i for i, key in enumerate(self.keys) if key not in keys]
        old = {part: self.trained[part][kept] for part in PARTS} if kept else heads
        filed = dict(zip(self.keys, self.lineage, strict=True)) if self.lineage else {}
        return replace(
            self,
            lineage=tuple(filed.get(key, key) for key in (*(self.keys[i] for i in kept), *keys)) if filed else (),
            names=(*(self.names[i] for i in kept), *names),
            keys=(*(self.keys[i] for i in kept), *keys),
            trained={part: torch.cat([old[part], heads[part]]) if kept else heads[part] for part in PARTS},
        )

    def artefact(self, router: str, encoder: str, notes: Mapping[str, Any]) -> Artefact:
        """Everything needed to go on elsewhere."""
        tensors = {**self.trained, **self.pair, "centre": self.centre, "spread": self.spread}
        return Artefact(
            router=router,
            names=self.names,
            keys=self.keys,
            tensors={name: np.asarray(tensor.detach().numpy()) for name, tensor in tensors.items()},
            encoder=encoder,
            width=self.shape.features,
            notes={**notes, "target_seed": self.shape.seed} | ({"lineage": self.lineage} if self.lineage else {}),
        )

    @staticmethod
    def of(artefact: Artefact) -> "HeadSet":
        """The heads of an artefact. Raises ConfigError where it does not hold heads of one shape."""
        tensors = {name: torch.from_numpy(array) for name, array in artefact.tensors.items()}
        try:
            _, features, hidden = tensors["first"].shape
            shape = Shape(
                features=features,
                hidden=hidden,
                width=tensors["second"].shape[2],
                seed=artefact.notes["target_seed"],
            )
            lineage = tuple(artefact.notes.get("lineage", ()))
            if len(lineage) not in (0, len(artefact.keys)):
                raise ValueError("a lineage for each agent")
            return HeadSet(
                lineage=lineage,
                shape=shape,
                pair={part: tensors[part] for part in ("target_first", "target_second")},
                centre=tensors["centre"],
                spread=tensors["spread"],
                names=artefact.names,
                keys=artefact.keys,
                trained={part: tensors[part] for part in PARTS},
            )
        except (KeyError, ValueError, IndexError) as error:
            raise ConfigError(f"router {artefact.router}: its weights lack {error}") from None


class Stack:
    """The heads of one pool, laid out for asking: all agents' first layers are one matrix product.

    Memory is the limit with many agents, not arithmetic: one query reads every predictor once.
    """

    def __init__(self, heads: Parameters, pair: Parameters, flips: tuple[torch.Tensor, torch.Tensor]) -> None:
        agents, features, hidden = heads["first"].shape
        self.pair, self.flips = pair, flips
        kind = torch.float16 if agents >= HALF_ABOVE else torch.float32
        self.first = torch.empty(agents, hidden, features, dtype=kind)
        self.first_bias = torch.empty(agents, hidden)
        for i in range(agents):
            # LayerNorm's gain and shift are folded in, so that one input serves all agents.
            self.first[i] = heads["first"][i].T * heads["gain"][i]
            self.first_bias[i] = heads["first_bias"][i] + heads["shift"][i] @ heads["first"][i]
        self.second, self.second_bias = heads["second"], heads["second_bias"]

    def distances(self, features: torch.Tensor) -> torch.Tensor:
        """Distances of normalised features (B, D) to all agents' targets: (B, A)."""
        with torch.inference_mode():
            parts = [self._part(features, start) for start in range(0, len(self.first), CHUNK)]
            return torch.cat(parts, dim=1)

    def _part(self, features: torch.Tensor, start: int) -> torch.Tensor:
        rows = slice(start, start + CHUNK)
        z = self._units(features, rows) + self.first_bias[rows, None]  # (a, B, K)
        outputs = torch.baddbmm(self.second_bias[rows, None], F.silu(z), self.second[rows])
        inputs, units = self.flips
        return distance(outputs, targeted(self.pair, (inputs[rows], units[rows]), features))

    def _units(self, features: torch.Tensor, rows: slice) -> torch.Tensor:
        """First layers of some agents, before the bias: (a, B, K)."""
        first = self.first[rows]
        flat = first.flatten(0, 1)  # (a K, D)
        if len(features) == 1 and flat.dtype == torch.float16:
            found = F.linear(features.half(), flat).float()
        else:
            found = F.linear(features, flat.float())
        return found.view(len(features), *first.shape[:2]).transpose(0, 1)


class Stacks:
    """The stacks of the last pools asked for, each built once however many threads ask."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.known: OrderedDict[tuple[str, ...], Stack] = OrderedDict()

    def of(self, heads: HeadSet, keys: tuple[str, ...]) -> Stack:
        """The stack of the agents filed under `keys`, in that order."""
        with self.lock:
            if keys not in self.known:
                self.known[keys] = Stack(heads.predictors(keys), heads.pair, heads.flips(keys))
            self.known.move_to_end(keys)
            while len(self.known) > STACKS:
                self.known.popitem(last=False)
            return self.known[keys]
