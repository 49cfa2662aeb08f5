"""Trains a network of ReLU layers on one number a query, by squared error. Needs torch; asking it does not."""

import numpy as np

from coterie.routers.descent import Course, descend, torch
from coterie.routers.network import drawn, outputs
from coterie.types import draw


def regress(x: np.ndarray, labels: np.ndarray, layers: tuple[int, ...], course: Course) -> dict[str, np.ndarray]:
    """`weight0` (D, K), `bias0` (K,), `weight1` ... for features (Q, D) and labels (Q,)."""
    features, wanted = torch.from_numpy(x), torch.from_numpy(labels).float()
    found = drawn(np.random.default_rng(draw(course.seed, "regressor")), [x.shape[1], *layers, 1])
    names = [f"{kind}{i}" for i in range(len(layers) + 1) for kind in ("weight", "bias")]

    def loss(rows: np.ndarray, learning: bool) -> torch.Tensor:
        return (outputs(found, features[rows])[:, 0] - wanted[rows]).square().mean()

    return descend(dict(zip(names, found, strict=True)), loss, len(x), course)
