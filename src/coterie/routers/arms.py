"""Bandit arms: for each agent a ridge regression of its reward on the query; one online pass that pulls them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.routers.supervised import unit
from coterie.types import draw, record

POINTS = 100
"""Of a regret curve."""


@record
class Arms:
    """Statistics of A agents over contexts of width d: enough for each agent's ridge regression."""

    inverse: np.ndarray  # (A, d, d): (ridge I + sum of x x')^-1 over the agent's pulls
    response: np.ndarray  # (A, d): sum of reward x

    @staticmethod
    def fresh(agents: int, width: int, ridge: float) -> "Arms":
        """Arms that were never pulled."""
        return Arms(inverse=np.tile(np.eye(width) / ridge, (agents, 1, 1)), response=np.zeros((agents, width)))

    def theta(self) -> np.ndarray:
        """Weights of the regressions (A, d): the expected reward at x is their product."""
        return np.asarray(np.einsum("ade,ae->ad", self.inverse, self.response))

    def spreads(self, x: np.ndarray) -> np.ndarray:
        """Deviations sqrt(x' inverse x) (n, A) at contexts (n, d)."""
        return np.asarray(np.sqrt(np.einsum("nd,ade,ne->na", x, self.inverse, x, optimize=True).clip(0)))

    def learn(self, row: int, x: np.ndarray, reward: float) -> None:
        """Take in one reward of one agent, in place: inverse by Sherman-Morrison (d^2), response by addition."""
        inverse = self.inverse[row]
        step = inverse @ x
        inverse -= np.outer(step, step) / (1.0 + x @ step)
        self.response[row] += reward * x

    def copy(self) -> "Arms":
        return replace(self, inverse=self.inverse.copy(), response=self.response.copy())

    def with_one_more(self, ridge: float) -> "Arms":
        """With an arm that was never pulled, the last."""
        fresh = Arms.fresh(1, self.response.shape[1], ridge)
        return Arms(
            inverse=np.concatenate([self.inverse, fresh.inverse]),
            response=np.concatenate([self.response, fresh.response]),
        )


@record
class Play:
    """Arms are pulled by mean + alpha * spread, or with `sampled` by a draw from N(mean, (alpha * spread)^2)."""

    alpha: float
    ridge: float
    seed: int
    sampled: bool

    def values(self, means: np.ndarray, spreads: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """What each agent (A,) is pulled by. Where theta is normal so is x' theta: it is drawn in theta's place."""
        luck = random.standard_normal(means.shape) if self.sampled else 1.0
        return np.asarray(means + self.alpha * spreads * luck)


@record
class Pass:
    """What one online pass did: the queries in their order, whom it pulled, and what it learnt."""

    arms: Arms
    rows: np.ndarray  # (Q,) of the table
    pulled: np.ndarray  # (Q,) agents


def one_pass(x: np.ndarray, scores: np.ndarray, play: Play) -> Pass:
    """Go once through contexts (Q, d) in a seeded order, seeing the pulled agent's score (Q, A) alone.

    A missing score changes nothing. Equal values are drawn between.
    """
    random = np.random.default_rng(draw(play.seed, "bandit"))
    rows = random.permutation(len(x))
    arms = Arms.fresh(scores.shape[1], x.shape[1], play.ridge)
    weights, pulled = np.zeros_like(arms.response), np.zeros(len(x), dtype=int)
    for step, row in enumerate(rows):
        context = x[row]
        spreads = np.sqrt(np.maximum(arms.inverse @ context @ context, 0))  # (A,)
        values = play.values(weights @ context, spreads, random)
        arm = int(random.choice(np.flatnonzero(values >= values.max() - 1e-12)))
        pulled[step] = arm
        if not np.isnan(scores[row, arm]):
            arms.learn(arm, context, float(scores[row, arm]))
            weights[arm] = arms.inverse[arm] @ arms.response[arm]
    return Pass(arms=arms, rows=rows, pulled=pulled)


def account(done: Pass, scores: np.ndarray) -> dict[str, Any]:
    """Pulls of each agent, how many of them had no outcome, and the regret curves, as plain JSON.

    Cumulative regret against the best single agent in hindsight (highest mean) and against the best agent of
    each query; a step counts where the outcomes that it compares are there.
    """
    seen = scores[done.rows]  # (Q, A)
    got = seen[np.arange(len(seen)), done.pulled]
    best = seen[:, int(np.nanmean(scores, axis=0).argmax())]
    steps = np.unique(np.linspace(1, len(seen), min(POINTS, len(seen))).round().astype(int))
    curves = {"best_single": best - got, "oracle": np.nanmax(seen, axis=1) - got}
    totals = {name: np.nancumsum(lost)[steps - 1].round(9).tolist() for name, lost in curves.items()}
    pulls = np.bincount(done.pulled, minlength=scores.shape[1]).tolist()
    return {"pulls": pulls, "missing": int(np.isnan(got).sum()), "regret": {"steps": steps.tolist(), **totals}}


def frame_of(features: np.ndarray, width: int) -> dict[str, np.ndarray]:
    """`centre` (D,) and `axes` (D, d): the first `width` principal axes of the features' directions (0: all).

    Scaled to contexts of squared norm 1 on average. Signs are fixed, so that equal features give equal axes.
    """
    rows = unit(features.astype(float))
    centre = rows.mean(axis=0)
    spread, axes = np.linalg.eigh((rows - centre).T @ (rows - centre) / len(rows))  # ascending
    kept = slice(None, None, -1) if not width else slice(-1, -1 - width, -1)
    spread, axes = spread[kept], axes[:, kept]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    return {"centre": centre, "axes": axes / np.sqrt(max(float(spread.sum()), 1e-12))}


def contexts(features: np.ndarray, frame: Mapping[str, np.ndarray]) -> np.ndarray:
    """Contexts (n, d + 1): the features in the frame, and a constant 1."""
    inside = (unit(features.astype(float)) - frame["centre"]) @ frame["axes"]
    return np.column_stack([inside, np.ones(len(inside))])
