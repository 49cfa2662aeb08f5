"""Trains a projection of the query and an embedding of each agent, by cross-entropy and by RouterDC's contrasts.

Serves `matrix_factorisation`, `router_dc` and `route_moa`. Needs torch; asking what was trained does not.
"""

import numpy as np

from coterie.routers.clusters import k_means
from coterie.routers.columns import Columns, ranks
from coterie.routers.contrast import agent_contrast, companions_of, query_contrast
from coterie.routers.descent import Course, F, Parameters, blank, blurred, cross_entropy, descend, drawn, torch
from coterie.types import draw, record


@record
class Plan:
    """What is minimised: `correctness` * cross-entropy + `agents` * agent contrast + `queries` * query contrast.

    Logits are `cosine` / temperature or products plus a level for each agent. The other fields are those of the
    same names of `router_dc`.
    """

    width: int
    noise: float
    cosine: bool = False
    correctness: float = 0.0
    agents: float = 0.0
    queries: float = 0.0
    best: int = 3
    worst: int = 3
    ceiling: float = 0.5
    temperature: float = 1.0
    clusters: int = 0


def train(x: np.ndarray, table: Columns, plan: Plan, course: Course) -> dict[str, np.ndarray]:
    """`project` (D, d), `shift` (d,), `agents` (A, d) and, without cosines, `levels` (A,) for features (Q, D)."""
    features, scores = torch.from_numpy(x), torch.from_numpy(table.scores).float()
    known = _start(x.shape[1], table, plan, course.seed)
    random = np.random.default_rng(draw(course.seed, "noise"))
    rank = torch.from_numpy(ranks(table.scores, table.keys, course.seed))
    labels = k_means(x, plan.clusters, course.seed) if plan.queries else np.zeros(len(x), dtype=int)
    groups = torch.from_numpy(labels)

    def loss(rows: np.ndarray, learning: bool) -> torch.Tensor:
        inside = projected(known, blurred(features[rows], plan.noise if learning else 0.0, random))
        found = logits(known, inside, plan)
        total = plan.correctness * cross_entropy(found, scores[rows]) if plan.correctness else found.new_zeros(())
        if plan.agents:
            total = total + plan.agents * agent_contrast(
                found, scores[rows], rank[rows], plan.best, plan.worst, plan.ceiling
            )
        if plan.queries and learning:
            friends = companions_of(rows, labels, random)
            same = groups[rows][:, None] == groups[friends]
            total = total + plan.queries * query_contrast(inside, projected(known, features[friends]), same)
        return total

    return descend(known, loss, len(x), course)


def _start(features: int, table: Columns, plan: Plan, seed: int) -> dict[str, torch.Tensor]:
    """Random directions; each agent's level begins at the log-odds of its mean score."""
    random = np.random.default_rng(draw(seed, "embeddings"))
    known = {
        "project": drawn(random, features**-0.5, features, plan.width),
        "shift": blank(plan.width),
        "agents": drawn(random, plan.width**-0.5, len(table.keys), plan.width),
    }
    if plan.cosine:
        return known
    means = np.nanmean(table.scores, axis=0).clip(0.01, 0.99)
    levels = torch.tensor(np.log(means / (1 - means)), dtype=torch.float32, requires_grad=True)
    return known | {"levels": levels}


def projected(known: Parameters, x: torch.Tensor) -> torch.Tensor:
    """Features (..., D) in the space of the agents (..., d)."""
    return x @ known["project"] + known["shift"]


def logits(known: Parameters, inside: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Logits (B, A) of projected queries (B, d)."""
    if plan.cosine:
        return F.normalize(inside, dim=-1) @ F.normalize(known["agents"], dim=-1).T / plan.temperature
    return inside @ known["agents"].T + known["levels"]
