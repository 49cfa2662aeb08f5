"""Trains the small transformer of the `icl` router. Needs torch; asking it does not (`attention`)."""

import numpy as np

from coterie.routers.attention import HEADS
from coterie.routers.descent import F, Parameters, blank, blurred, cross_entropy, drawn, torch
from coterie.routers.fitting import Best
from coterie.types import draw, record

EVERY = 20
"""Steps between two looks at the validation loss."""
CHECKED = 2048
"""Cells of a look."""
AGENTS = 9
"""Of a step at most, so that a step takes as long with many agents as with few."""


@record
class Plan:
    """The network and its training; the fields of the same names of the `icl` router say what they mean."""

    width: int
    layers: int
    steps: int
    cells: int
    forget: float
    lr: float
    decay: float
    noise: float
    validation: float
    patience: int
    seed: int


def train(x: np.ndarray, scores: np.ndarray, profile: np.ndarray, plan: Plan) -> dict[str, np.ndarray]:
    """The tensors that `attention` reads, for features (Q, D) and scores (Q, A) with NaN where missing.

    `profile` are the rows of the profiles' queries; nothing is predicted or checked on them where there are others.
    Each step takes some queries and agents and forgets a part of each profile.
    """
    random = np.random.default_rng(draw(plan.seed, "icl"))
    features, told = torch.from_numpy(x), torch.from_numpy(scores).float()
    pairs, marks = features[profile], told[profile].T
    check, learn = np.split(random.permutation(len(x)), [round(len(x) * plan.validation)])
    check, learn = (np.setdiff1d(rows, profile, assume_unique=True) for rows in (check, learn))
    check, learn = check[: max(1, CHECKED // len(marks))], learn if len(learn) else profile
    known = start(x.shape[1], plan, random)
    optimiser = torch.optim.AdamW(known.values(), lr=plan.lr, weight_decay=plan.decay, fused=True)
    best = Best(list(known.values()), plan.patience)
    for step in range(plan.steps):
        optimiser.param_groups[0]["lr"] = plan.lr * (1 - step / plan.steps)
        agents = random.permutation(len(marks))[:AGENTS]
        rows = random.choice(learn, min(len(learn), max(1, plan.cells // len(agents))), replace=False)
        optimiser.zero_grad()
        seen = blurred(features[rows], plan.noise, random)
        found = outputs(known, pairs, forgotten(marks[agents], plan.forget, random), seen)
        cross_entropy(found, told[rows][:, agents]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if (step + 1) % EVERY == 0 and best.enough(_loss(known, pairs, marks, features[check], told[check])):
            break
    return {name: tensor.numpy() for name, tensor in zip(known, best.kept, strict=True)}


def forgotten(marks: torch.Tensor, share: float, random: np.random.Generator) -> torch.Tensor:
    """Profile scores (A, K) with up to `share` of each agent's made missing."""
    lost = random.random(marks.shape) < share * random.random((len(marks), 1))
    return marks.masked_fill(torch.from_numpy(lost), torch.nan)


def _loss(
    known: Parameters, pairs: torch.Tensor, marks: torch.Tensor, x: torch.Tensor, told: torch.Tensor
) -> float | None:
    if not len(x):
        return None
    with torch.no_grad():
        return float(cross_entropy(outputs(known, pairs, marks, x), told))


def start(features: int, plan: Plan, random: np.random.Generator) -> dict[str, torch.Tensor]:
    """Parameters before training."""
    width = plan.width
    known = {
        "project": drawn(random, features**-0.5, features, width),
        "shift": blank(width),
        **{name: drawn(random, 0.5, width) for name in ("right", "wrong", "asked")},
        "out": drawn(random, width**-0.5, width),
        "level": blank(1),
    }
    for layer in range(plan.layers):
        known[f"attend{layer}"] = drawn(random, width**-0.5, width, 3 * width)
        known[f"join{layer}"] = drawn(random, width**-0.5, width, width)
        known[f"widen{layer}"] = drawn(random, width**-0.5, width, 2 * width)
        known[f"bend{layer}"] = blank(2 * width)
        known[f"narrow{layer}"] = drawn(random, (2 * width) ** -0.5, 2 * width, width)
    return known


def outputs(known: Parameters, pairs: torch.Tensor, scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Logits (B, A) of queries (B, D) for agents with scores (A, K; NaN: missing) on profile features (K, D)."""
    hidden = torch.where(torch.isnan(scores), -1e9, 0.0)  # (A, K)
    marks = torch.nan_to_num(scores)[..., None]
    inside = pairs @ known["project"] + known["shift"]  # (K, w)
    token = inside + marks * known["right"] + (1 - marks) * known["wrong"]  # (A, K, w)
    query = (x @ known["project"] + known["shift"] + known["asked"])[:, None]  # (B, 1, w): alike for all agents
    layers = sum(name.startswith("attend") for name in known)
    for layer in range(layers):
        asked, keys, values = _attending(known, layer, token)
        mine, key, value = _attending(known, layer, query)
        scale = keys.shape[-1] ** -0.5
        near = torch.einsum("nahd,akhd->nahk", mine.expand(-1, len(keys), -1, -1), keys) + hidden[None, :, None, :]
        share = F.softmax(
            torch.cat([near, (mine * key).sum(-1, keepdim=True).expand(*near.shape[:3], 1)], -1) * scale, -1
        )
        told = torch.einsum("nahk,akhd->nahd", share[..., :-1], values) + share[..., -1:] * value
        query = _grown(known, layer, query, told)
        if layer < layers - 1:
            among = (torch.einsum("aqhd,akhd->ahqk", asked, keys) + hidden[:, None, None, :]) * scale
            token = _grown(known, layer, token, torch.einsum("ahqk,akhd->aqhd", F.softmax(among, -1), values))
    return _normal(query) @ known["out"] + known["level"]


def _attending(known: Parameters, layer: int, token: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What tokens (..., w) ask for, answer to and tell, each (..., H, w/H)."""
    parts = (_normal(token) @ known[f"attend{layer}"]).chunk(3, dim=-1)
    return tuple(part.reshape(*part.shape[:-1], HEADS, -1) for part in parts)


def _grown(known: Parameters, layer: int, token: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
    token = token + told.flatten(-2) @ known[f"join{layer}"]
    return token + F.relu(_normal(token) @ known[f"widen{layer}"] + known[f"bend{layer}"]) @ known[f"narrow{layer}"]


def _normal(token: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(token, token.shape[-1:])
