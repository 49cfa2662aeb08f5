"""Trains the small network of the `mlp` router. Needs torch; asking the network does not."""

from itertools import pairwise

import numpy as np

from coterie.errors import MissingExtra
from coterie.routers.fitting import Best
from coterie.types import draw, record

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    raise MissingExtra("torch", "local") from error


@record
class Plan:
    """The network and how it is trained; the fields of the same names of the `mlp` router say what they mean."""

    layers: tuple[int, ...]
    objective: str
    lr: float
    epochs: int
    batch: int
    validation: float
    patience: int
    decay: float
    seed: int


def train(features: np.ndarray, scores: np.ndarray, plan: Plan) -> dict[str, np.ndarray]:
    """`weight0` (D, K), `bias0` (K,), `weight1` ... at the epoch with the lowest validation loss.

    `features` (Q, D) are standardised, `scores` (Q, A) have NaN where missing.
    """
    x, y = torch.from_numpy(features).float(), torch.from_numpy(scores).float()
    random = np.random.default_rng(draw(plan.seed, "mlp"))
    rows = random.permutation(len(x))
    check, learn = np.split(rows, [round(len(rows) * plan.validation)])
    layers = drawn(random, [x.shape[1], *plan.layers, y.shape[1]])
    optimiser = torch.optim.AdamW(layers, lr=plan.lr, weight_decay=plan.decay)
    best = Best(layers, plan.patience)
    for _ in range(plan.epochs):
        for part in np.array_split(random.permutation(learn), max(1, len(learn) // plan.batch)):
            optimiser.zero_grad()
            loss_of(outputs(layers, x[part]), y[part], plan.objective).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        with torch.no_grad():
            loss = float(loss_of(outputs(layers, x[check]), y[check], plan.objective)) if len(check) else None
        if best.enough(loss):
            break
    names = [f"{kind}{i}" for i in range(len(layers) // 2) for kind in ("weight", "bias")]
    return {name: layer.numpy() for name, layer in zip(names, best.kept, strict=True)}


def drawn(random: np.random.Generator, sizes: list[int]) -> list[torch.Tensor]:
    """Weights and biases in turn, uniform in +-1/sqrt(fan in)."""
    layers = []
    for inputs, units in pairwise(sizes):
        for shape in ((inputs, units), (units,)):
            values = random.uniform(-1, 1, shape) / np.sqrt(inputs)
            layers.append(torch.tensor(values, dtype=torch.float32, requires_grad=True))
    return layers


def outputs(layers: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Rows (B, D) to logits or scores (B, A)."""
    for i in range(0, len(layers), 2):
        x = x @ layers[i] + layers[i + 1]
        x = F.relu(x) if i < len(layers) - 2 else x
    return x


def loss_of(found: torch.Tensor, scores: torch.Tensor, objective: str) -> torch.Tensor:
    """Mean loss of outputs (B, A) against scores (B, A) with NaN where missing.

    `best`: -log p of the best agent, shared by equal ones. `share`: cross-entropy with scores / sum of scores.
    `reward`: squared error over the known cells. An agent without an outcome takes no part in a query's softmax.
    Queries that everybody failed have no best and no shares: they are left out of the first two.
    """
    known = ~torch.isnan(scores)
    filled = torch.nan_to_num(scores)
    if objective == "reward":
        return ((found - filled).square() * known).sum() / known.sum().clamp(min=1)
    top = filled.max(dim=1, keepdim=True).values
    wanted = ((filled == top) & (top > 0)).float() if objective == "best" else filled.clamp(min=0)
    total = wanted.sum(dim=1, keepdim=True)
    target = wanted / total.clamp(min=1e-9)
    logits = torch.where(known, found, torch.finfo(found.dtype).min)
    losses = -(target * F.log_softmax(logits, dim=1)).sum(dim=1)
    return losses.sum() / (total[:, 0] > 0).sum().clamp(min=1)
