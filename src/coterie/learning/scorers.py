"""What the router learns online: familiarity, or the paper's two other metrics (a reward, a class) to compare with.

Each is a stack of small networks with a score in [0, 1] per agent and a loss on rewards. Optimises nothing itself.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from coterie.errors import MissingExtra

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    raise MissingExtra("torch", "local") from error

from coterie.routers.heads import (
    Parameters,
    Shape,
    distance,
    expected,
    fresh,
    logits,
    predicted,
    scored,
    targeted,
)
from coterie.routers.headset import HeadSet
from coterie.routers.push_pull import familiarity, push_pull, relative_advantage

Loss = tuple[torch.Tensor, dict[str, float]]


class Scorer(Protocol):
    """Scores of `agents` from normalised features (B, D), and what rewards say about them."""

    def fresh(self, agents: Sequence[str]) -> dict[str, torch.Tensor]:
        """Untrained parameters; each agent's depend on its own name only where it has its own."""
        ...

    def scores(self, parameters: Parameters, x: torch.Tensor) -> torch.Tensor:
        """(B, D) to (B, N), in [0, 1]."""
        ...

    def loss(self, parameters: Parameters, x: torch.Tensor, rewards: np.ndarray) -> Loss | None:
        """The loss of rewards (Q, N), NaN where there is none, with figures; None where they give no direction."""
        ...

    def axis(self, part: str) -> int | None:
        """The dimension of a parameter that runs over agents; None where all share it."""
        ...


class PushPull:
    """Familiarity exp(-scale * d) and Eq. 27: better than the others is pulled to its target, worse is pushed.

    Without a `margin` the push has no end: `A * d` for either sign. As d is at most 2, that has the gradient
    of margin 2.
    """

    def __init__(self, heads: HeadSet, agents: Sequence[str], scale: float, margin: float | None) -> None:
        self.shape, self.scale, self.margin = heads.shape, scale, margin
        self.pair, self.flips = heads.pair, heads.flips(agents)

    def fresh(self, agents: Sequence[str]) -> dict[str, torch.Tensor]:
        return fresh(self.shape, agents)

    def scores(self, parameters: Parameters, x: torch.Tensor) -> torch.Tensor:
        return familiarity(self._distances(parameters, x), self.scale)

    def loss(self, parameters: Parameters, x: torch.Tensor, rewards: np.ndarray) -> Loss | None:
        known = relative_advantage(rewards)
        moving = np.flatnonzero(np.nan_to_num(known).any(axis=0))
        if not len(moving):
            return None
        known = known[:, moving]
        advantage = torch.from_numpy(known).float()
        # Of many agents few were asked: what the others' heads say of these queries costs time and moves nothing.
        gaps = self._distances(parameters, x, None if len(moving) == rewards.shape[1] else torch.from_numpy(moving))
        if self.margin is None:
            total = (torch.nan_to_num(advantage, nan=0.0) * gaps).sum()
        else:
            total = push_pull(gaps, advantage, self.margin)
        pushed, near = known < 0, gaps.detach().numpy() < (2.0 if self.margin is None else self.margin)
        figures = {"pulled": float((known > 0).sum()), "pushed": float((pushed & near).sum())}
        return total, {**figures, "dormant": float((pushed & ~near).sum())}

    def axis(self, part: str) -> int | None:
        return 0

    def _distances(self, parameters: Parameters, x: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Distances of all agents, or of those at `rows`: (B, N)."""
        inputs, units = self.flips
        if rows is not None:
            parameters = {part: tensor[rows] for part, tensor in parameters.items()}
            inputs, units = inputs[rows], units[rows]
        return distance(predicted(parameters, x), targeted(self.pair, (inputs, units), x))


class Regression:
    """One network an agent that says its mean reward, by squared error; scores are clipped to [0, 1] [O]."""

    def __init__(self, shape: Shape) -> None:
        self.shape = Shape(features=shape.features, hidden=shape.hidden, width=1, seed=shape.seed)

    def fresh(self, agents: Sequence[str]) -> dict[str, torch.Tensor]:
        return fresh(self.shape, agents)

    def scores(self, parameters: Parameters, x: torch.Tensor) -> torch.Tensor:
        return scored("regression", parameters, x)

    def loss(self, parameters: Parameters, x: torch.Tensor, rewards: np.ndarray) -> Loss | None:
        seen = torch.from_numpy(~np.isnan(rewards))
        gap = expected(parameters, x) - torch.from_numpy(np.nan_to_num(rewards)).float()
        return torch.where(seen, gap, 0.0).square().sum(), {}

    def axis(self, part: str) -> int | None:
        return 0


class Classifier:
    """One network for all with a softmax over agents; cross-entropy to rewards as shares over those asked [O].

    Queries on which nobody was rewarded have no shares and are left out. Negative rewards count as 0.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def fresh(self, agents: Sequence[str]) -> dict[str, torch.Tensor]:
        shape = Shape(features=self.shape.features, hidden=self.shape.hidden, width=1, seed=self.shape.seed)
        shared = fresh(shape, ["classifier"])
        columns = [fresh(shape, [f"class/{name}"]) for name in agents]
        for part in ("second", "second_bias"):
            shared[part] = torch.stack([column[part][..., 0] for column in columns], dim=-1)
        shared["second_bias"] = shared["second_bias"][
            :, None
        ]  # as wide as `second`, so that one axis is the agents'
        return shared

    def scores(self, parameters: Parameters, x: torch.Tensor) -> torch.Tensor:
        return scored("classifier", parameters, x)

    def loss(self, parameters: Parameters, x: torch.Tensor, rewards: np.ndarray) -> Loss | None:
        gains = np.maximum(np.nan_to_num(rewards), 0.0)
        total = gains.sum(axis=1, keepdims=True)
        if not total.any():
            return None
        shares = torch.from_numpy(gains / np.where(total > 0, total, 1.0)).float()
        return -(shares * F.log_softmax(logits(parameters, x), dim=-1)).sum(), {}

    def axis(self, part: str) -> int | None:
        return 2 if part in ("second", "second_bias") else None
