"""Fits familiarity heads on recorded scores: minibatches, early stopping. The objective is `push_pull`."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from coterie.errors import MissingExtra
from coterie.types import draw, record

try:
    import torch
except ImportError as error:
    raise MissingExtra("torch", "local") from error

from coterie.routers.heads import Parameters, distance, normalised, predicted
from coterie.routers.push_pull import push_pull, relative_advantage

Targets = Callable[[torch.Tensor], torch.Tensor]


@record
class Schedule:
    """How long and how fast. `validation` is the share of the given queries that only decides when to stop."""

    lr: float
    epochs: int
    batch: int
    validation: float
    patience: int
    margin: float
    noise: float
    seed: int


def fit_heads(
    heads: Parameters, targets: Targets, features: torch.Tensor, scores: np.ndarray, schedule: Schedule
) -> dict[str, torch.Tensor]:
    """Trained copies of the stacked predictors `heads`, at the epoch with the lowest validation loss.

    `features` (Q, D) are normalised, `scores` (Q, A) have NaN where missing, `targets` gives the frozen
    targets' outputs (A, B, W). AdamW with betas (0.9, 0.95), no weight decay, gradient norm clipped at 1
    (docs/methods.md C24). Equal arguments give equal weights.
    """
    advantage = torch.from_numpy(relative_advantage(scores)).float()
    learn, check = split(advantage, schedule)
    trained = {name: tensor.detach().clone().requires_grad_() for name, tensor in heads.items()}
    optimiser = torch.optim.AdamW(trained.values(), lr=schedule.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    noise = np.random.default_rng(draw(schedule.seed, "noise"))
    best = Best(list(trained.values()), schedule.patience)

    def loss_of(rows: np.ndarray, x: torch.Tensor) -> torch.Tensor:
        return push_pull(distance(predicted(trained, x), targets(x)), advantage[rows], schedule.margin)

    for epoch in range(schedule.epochs):
        for rows in batches(learn, epoch, schedule):
            optimiser.zero_grad()
            loss_of(rows, blurred(features[rows], noise, schedule)).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
            optimiser.step()
        with torch.no_grad():
            losses = [float(loss_of(rows, features[rows])) for rows in batches(check, 0, schedule)]
        if best.enough(sum(losses) if losses else None):
            break
    return dict(zip(trained, best.kept, strict=True))


class Best:
    """Copies of parameters at the epoch with the lowest validation loss; without validation, at the last one."""

    def __init__(self, parameters: Sequence[torch.Tensor], patience: int) -> None:
        self.parameters, self.patience = parameters, patience
        self.lowest, self.waited = float("inf"), 0
        self._keep()

    def enough(self, loss: float | None) -> bool:
        """Take note of an epoch; True when `patience` epochs in a row were no better."""
        if loss is not None and not loss < self.lowest:
            self.waited += 1
            return self.waited >= self.patience
        self.lowest, self.waited = float("inf") if loss is None else loss, 0
        self._keep()
        return False

    def _keep(self) -> None:
        self.kept = [tensor.detach().clone() for tensor in self.parameters]


def split(advantage: torch.Tensor, schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from and rows to stop by. Queries whose outcomes are all equal say nothing and are left out."""
    telling = np.flatnonzero((torch.nan_to_num(advantage) != 0).any(dim=1).numpy())
    rows = np.random.default_rng(draw(schedule.seed, "validation")).permutation(telling)
    held = round(len(rows) * schedule.validation)
    return rows[held:], rows[:held]


def blurred(x: torch.Tensor, random: np.random.Generator, schedule: Schedule) -> torch.Tensor:
    """Features (B, D) with Gaussian noise, normalised again.

    Each query stands for its neighbourhood, so that what several near queries say is averaged and not learnt
    by heart one by one [O, not in the paper, whose online training sees every query once or twice].
    """
    if not schedule.noise:
        return x
    return normalised(x + schedule.noise * torch.from_numpy(random.standard_normal(x.shape, dtype=np.float32)))


def batches(rows: np.ndarray, epoch: int, schedule: Schedule) -> Iterator[np.ndarray]:
    """All rows once, in an order that depends on the seed and the epoch."""
    order = np.random.default_rng(draw(schedule.seed, "order", epoch)).permutation(rows)
    for start in range(0, len(order), schedule.batch):
        yield order[start : start + schedule.batch]
