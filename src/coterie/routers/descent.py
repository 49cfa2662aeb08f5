"""Minibatch descent with early stopping, for routers that learn by gradients. Needs torch; asking does not."""

from collections.abc import Callable, Mapping

import numpy as np

from coterie.errors import MissingExtra
from coterie.types import draw, record

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    raise MissingExtra("torch", "local") from error

from coterie.routers.fitting import Best

Parameters = Mapping[str, torch.Tensor]
Loss = Callable[[np.ndarray, bool], torch.Tensor]


@record
class Course:
    """How long and how fast. `validation` is the share of the given queries that only decides when to stop."""

    lr: float
    epochs: int
    batch: int
    validation: float
    patience: int
    decay: float
    seed: int


def descend(parameters: Parameters, loss_of: Loss, size: int, course: Course) -> dict[str, np.ndarray]:
    """The parameters at the epoch with the lowest validation loss, by AdamW.

    `loss_of(rows, learning)` is the mean loss of some of the `size` queries. Few queries are taken in smaller
    batches, so that an epoch over them is several steps. Equal arguments give equal weights.
    """
    random = np.random.default_rng(draw(course.seed, "course"))
    check, learn = np.split(random.permutation(size), [round(size * course.validation)])
    optimiser = torch.optim.AdamW(parameters.values(), lr=course.lr, weight_decay=course.decay, fused=True)
    best = Best(list(parameters.values()), course.patience)
    parts = max(1, round(len(learn) / course.batch), min(8, len(learn) // 16))
    for _ in range(course.epochs):
        for rows in np.array_split(random.permutation(learn), parts):
            optimiser.zero_grad()
            loss_of(rows, True).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        with torch.no_grad():
            loss = float(loss_of(check, False)) if len(check) else None
        if best.enough(loss):
            break
    return {name: tensor.numpy() for name, tensor in zip(parameters, best.kept, strict=True)}


def drawn(random: np.random.Generator, scale: float, *shape: int) -> torch.Tensor:
    """A parameter, normal with deviation `scale`."""
    values = scale * random.standard_normal(shape)
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


def blank(*shape: int) -> torch.Tensor:
    """A parameter that starts at 0."""
    return torch.zeros(shape, requires_grad=True)


def blurred(x: torch.Tensor, noise: float, random: np.random.Generator) -> torch.Tensor:
    """Features (B, D) with Gaussian noise: a query stands for its neighbourhood and is not learnt by heart."""
    if not noise:
        return x
    return x + noise * torch.from_numpy(random.standard_normal(x.shape, dtype=np.float32))


def cross_entropy(logits: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Mean binary cross-entropy of logits with graded scores, over the cells that are known (NaN: missing)."""
    known = ~torch.isnan(scores)
    losses = F.binary_cross_entropy_with_logits(logits, torch.nan_to_num(scores), reduction="none")
    return (losses * known).sum() / known.sum().clamp(min=1)
