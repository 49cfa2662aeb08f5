"""Familiarity heads: per agent a trainable predictor and a frozen random target, all agents' stacked.

Distances in, distances out: what is done with them is the router's and the objective's business.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import shake_256

import numpy as np

from coterie.errors import MissingExtra
from coterie.types import draw, record

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    raise MissingExtra("torch", "local") from error

NORM_EPS = 1e-5

Parameters = Mapping[str, torch.Tensor]


@record
class Shape:
    """Sizes of a head: LayerNorm(features) -> Linear(hidden) -> SiLU -> Linear(width). `seed` draws the rest."""

    features: int
    hidden: int
    width: int
    seed: int = 0


# --- predictors --------------------------------------------------------------------------------------


def fresh(shape: Shape, keys: Sequence[str]) -> dict[str, torch.Tensor]:
    """Untrained predictors of the agents filed under `keys`, stacked; each depends on its own key only.

    Matrices are stored input first, (A, D, K) and (A, K, W), so that their gradients come in the same layout.

    Drawn apart from the targets, never a copy of them: a copy has distance 0 and would look familiar with
    everything (docs/methods.md C9). Uniform in +-1/sqrt(fan in).
    """
    d, k, w = shape.features, shape.hidden, shape.width
    sizes = {"first": (d, k), "first_bias": (k,), "second": (k, w), "second_bias": (w,)}
    heads = {part: np.empty((len(keys), *size), dtype=np.float32) for part, size in sizes.items()}
    for i, key in enumerate(keys):
        random = np.random.default_rng(draw(shape.seed, "predictor", key))
        for part, array in heads.items():
            bound = 1 / math.sqrt(d if part.startswith("first") else k)
            random.random(dtype=np.float32, out=array[i])
            array[i] = (array[i] * 2 - 1) * np.float32(bound)
    ones = torch.ones(len(keys), d)
    return {part: torch.from_numpy(array) for part, array in heads.items()} | {
        "gain": ones,
        "shift": torch.zeros_like(ones),
    }


def predicted(heads: Parameters, features: torch.Tensor) -> torch.Tensor:
    """Outputs c of all predictors for normalised features (B, D), with gradient: (A, B, W).

    Gain and shift are put on the features, or on the matrices where these are smaller (K < B): equal but for the
    last digits.
    """
    first, bias = heads["first"], heads["first_bias"][:, None]
    agents, inputs, units = first.shape
    if units < len(features):
        x = features.expand(agents, len(features), inputs)
        bias = bias + heads["shift"][:, None] @ first  # (A, 1, K)
        first = first * heads["gain"][..., None]
    else:
        x = features * heads["gain"][:, None] + heads["shift"][:, None]  # (A, B, D)
    z = torch.baddbmm(bias, x, first)  # (A, B, K)
    return torch.baddbmm(heads["second_bias"][:, None], F.silu(z), heads["second"])


# --- scores without a target (CERA-MoA's ablations) ----------------------------------------------------


def expected(heads: Parameters, features: torch.Tensor) -> torch.Tensor:
    """The reward that each agent's network of width 1 expects on normalised features (B, D): (B, A)."""
    return predicted(heads, features)[..., 0].T


def logits(heads: Parameters, features: torch.Tensor) -> torch.Tensor:
    """Logits over agents of the one network whose outputs are the agents: (B, A)."""
    return predicted({**heads, "second_bias": heads["second_bias"][:, 0]}, features)[0]


def scored(metric: str, heads: Parameters, features: torch.Tensor) -> torch.Tensor:
    """Scores in [0, 1] by `regression` or `classifier`: (B, A). Raises: KeyError for another metric."""
    if metric == "regression":
        return expected(heads, features).clamp(0.0, 1.0)
    if metric == "classifier":
        return logits(heads, features).softmax(dim=-1)
    raise KeyError(f"metric {metric}")


# --- targets -----------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def basis(shape: Shape) -> Parameters:
    """The orthogonal pair of matrices that all targets of a router are made from: (K, D) and (W, K).

    Remembered, because a router without trained heads asks for it with every query.
    """
    random = np.random.default_rng(draw(shape.seed, "target", shape.features, shape.hidden, shape.width))
    first = _orthogonal(random, shape.hidden, shape.features)
    second = _orthogonal(random, shape.width, shape.hidden)
    return {"target_first": torch.from_numpy(first), "target_second": torch.from_numpy(second)}


def _orthogonal(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A random matrix with orthonormal rows, or columns where it has more rows; signs fixed to be unique."""
    tall = random.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q = q * np.sign(np.diag(r))
    return np.ascontiguousarray(q if rows >= columns else q.T, dtype=np.float32)


def signs(shape: Shape, keys: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """+-1 for each agent's inputs (A, D) and hidden units (A, K), from a hash of its key: nothing to store."""
    size = shape.features + shape.hidden
    rows = [
        np.unpackbits(np.frombuffer(shake_256(f"target/{key}".encode()).digest(size // 8 + 1), np.uint8))[:size]
        for key in keys
    ]
    both = torch.from_numpy(np.stack(rows).astype(np.float32)) * 2 - 1
    return both[:, : shape.features].contiguous(), both[:, shape.features :].contiguous()


def targeted(pair: Parameters, flips: tuple[torch.Tensor, torch.Tensor], features: torch.Tensor) -> torch.Tensor:
    """Outputs of the frozen targets for normalised features (B, D): (A, B, W), without gradient.

    Every target is an MLP with orthogonal layers and no biases (docs/methods.md C10a); agent i's matrices are the
    shared pair with columns multiplied by its own signs, which keeps them orthogonal and makes different
    agents' targets uncorrelated [O: C10b's disjoint row blocks exist only for few agents]. So all targets
    are two products with matrices that fit the processor's cache.
    """
    inputs, units = flips
    with torch.no_grad():
        first = pair["target_first"].T  # (D, K)
        if first.shape[1] < len(features):
            signed = first * inputs[..., None]  # (A, D, K), smaller than the features with signs
            z = torch.bmm(features.expand(len(inputs), *features.shape), signed)
        else:
            z = (features * inputs[:, None]) @ first  # (A, B, K)
        z = F.silu(z) * units[:, None]
        return z @ pair["target_second"].T


# --- distances ---------------------------------------------------------------------------------------


def normalised(features: torch.Tensor) -> torch.Tensor:
    """LayerNorm without its gain and shift, which each predictor has its own of and targets have none."""
    return F.layer_norm(features, features.shape[-1:], eps=NORM_EPS)


def distance(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Norm of the difference of the two unit vectors, (A, B, W) each: (B, A) in [0, 2].

    1e-12 under the root keeps the gradient finite at 0 (docs/methods.md C12).
    """
    gap = F.normalize(outputs, dim=-1) - F.normalize(targets, dim=-1)
    return torch.sqrt(gap.square().sum(dim=-1) + 1e-12).T
