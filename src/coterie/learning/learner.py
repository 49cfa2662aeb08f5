"""One agent that learns: its adapter, its optimiser and schedule, its counters, the gradient it has gathered.

Nothing of it is shared with another agent. It runs no model: gradients reach it by `engine`. Imports torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from coterie.errors import MissingExtra
from coterie.records import Decay, Rate
from coterie.types import Count, Share, Size, record, spec

try:
    import torch
except ImportError as error:
    raise MissingExtra("torch", "local") from error

from coterie.learning.adapters import Weights
from coterie.learning.checkpoint import sound
from coterie.learning.losses import Measured

Arrays = dict[str, np.ndarray]


@spec
class Optimiser:
    """AdamW and its schedule (CERA-MoA Table 5): linear warm-up, then a cosine to `floor` at `horizon` updates.

    The clock is the agent's own updates (docs/methods.md C21).
    """

    lr: Rate = 3e-5
    floor: Decay = 2e-5
    warmup: Count = 600
    horizon: Size = 6000
    betas: tuple[Share, Share] = (0.9, 0.95)
    weight_decay: Decay = 1e-3
    clip: Annotated[float, Field(gt=0, le=1e9)] = 1.0

    def rate(self, updates: int) -> float:
        """The learning rate of the update that follows `updates` earlier ones."""
        if updates < self.warmup:
            return self.lr * (updates + 1) / self.warmup
        gone = min((updates - self.warmup) / max(1, self.horizon - self.warmup), 1.0)
        low = min(self.floor, self.lr)
        return low + (self.lr - low) * (1 + math.cos(math.pi * gone)) / 2


@record
class Step:
    """What became of an update: `done`, `empty` (nothing had weight) or `skipped` (numbers that are none)."""

    outcome: Literal["done", "empty", "skipped"]
    lr: float
    norm: float
    metrics: Mapping[str, float] = field(default_factory=dict)


class Learner:
    """One agent's adapter with its optimiser, counters and gathered gradient."""

    def __init__(self, weights: Weights, optimiser: Optimiser) -> None:
        self.weights, self.settings = weights, optimiser
        self.optimiser = torch.optim.AdamW(
            list(weights.values()), lr=optimiser.lr, betas=optimiser.betas, weight_decay=optimiser.weight_decay
        )
        self.updates = self.skipped = 0
        self.start()

    def start(self) -> None:
        """Forget the gathered gradient."""
        self.optimiser.zero_grad(set_to_none=True)
        self.weight, self.broken = 0.0, False
        self.measured = Measured()

    def step(self) -> Step:
        """One update by the gathered gradient over the gathered weight; no weight, no update.

        Numbers that are not finite leave the agent as it was; the count of such steps goes up.
        """
        rate = self.settings.rate(self.updates)
        if not self.weight and not self.broken:
            self.start()
            return Step(outcome="empty", lr=rate, norm=0.0)
        grads = [tensor.grad for tensor in self.weights.values() if tensor.grad is not None]
        norm = float("nan") if self.broken else self._scale(grads)
        if not math.isfinite(norm):
            self.skipped += 1
            self.start()
            return Step(outcome="skipped", lr=rate, norm=norm)
        metrics = self.measured.named()
        if grads:
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self.optimiser.step()
            self.updates += 1
        self.start()
        return Step(outcome="done" if grads else "empty", lr=rate, norm=norm, metrics=metrics)

    def _scale(self, grads: Sequence[torch.Tensor]) -> float:
        """Divide by the weight and clip; the norm before clipping."""
        if not grads:
            return 0.0
        for grad in grads:
            grad /= self.weight
        return float(torch.nn.utils.clip_grad_norm_(list(self.weights.values()), self.settings.clip))

    @property
    def finite(self) -> bool:
        """Whether weights and moments are numbers, all of them."""
        kept = [state["exp_avg_sq"] for state in self.optimiser.state.values()]
        return bool(
            torch.stack([tensor.detach().sum() for tensor in (*self.weights.values(), *kept)]).isfinite().all()
        )

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Counters, and adapter and moments by name. Only whole updates are kept: a gathered gradient is not."""
        arrays: Arrays = {}
        steps = {}
        for name, tensor in self.weights.items():
            arrays[f"weights/{name}"] = tensor.detach().cpu().numpy().copy()
            for key, value in self.optimiser.state.get(tensor, {}).items():
                if key == "step":
                    steps[name] = float(value)
                else:
                    arrays[f"{key}/{name}"] = value.detach().cpu().numpy().copy()
        return {"updates": self.updates, "skipped": self.skipped, "steps": steps}, arrays

    def load(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """What `state` gave, also that of an agent that has never stepped.

        Raises: DataError for an array that is not one of this adapter's.
        """
        self.updates, self.skipped = int(facts["updates"]), int(facts["skipped"])
        self.optimiser.state.clear()
        with torch.no_grad():
            for name, tensor in self.weights.items():
                tensor.copy_(torch.from_numpy(sound(arrays, f"weights/{name}", tensor.shape)))
                if name in facts["steps"]:
                    moments = {k: sound(arrays, f"{k}/{name}", tensor.shape) for k in ("exp_avg", "exp_avg_sq")}
                    kept = {k: torch.from_numpy(v.copy()).to(tensor.device) for k, v in moments.items()}
                    self.optimiser.state[tensor] = {"step": torch.tensor(float(facts["steps"][name])), **kept}
        self.start()
