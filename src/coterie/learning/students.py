"""A world to try settings in before any model is trained: queries of several domains, agents that practise.

Nothing here is fitted to results; what it leaves out of real training is said in `World`.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.types import Amount, Share, Size, draw, record, spec

Chance = Annotated[float, Field(gt=0, lt=1)]


@spec
class World:
    """What queries and agents are like.

    A query has one of `domains`; its features are the domain's random direction (deviation 1 a coordinate, `width`
    of them) plus noise of deviation `noise`; its difficulty is normal with deviation `difficulty` in log-odds.
    An agent's skill in a domain is its chance on a query of middling difficulty. All begin at `base` (adapters
    begin as their base model), give or take `spread`.

    A group of `group` rollouts is that many draws of the agent's chance. It teaches in proportion to the variance
    of its rewards, 4 r (1 - r): groups that all fail or all succeed teach nothing, as in GRPO. One micro-batch
    moves skill by `gain` of the way to `ceiling` at most, less where the adapter's `capacity` (skill points
    above `base` over all domains) fills; and takes `forgetting` of what other domains have above half of `base`.
    Token entropy falls from `entropy` nats as the practised skill rises.

    Left out: transfer between domains, kinds of query within a domain, lengths and truncation, drift of the
    policy's style, verifier errors.
    """

    domains: Size = 4
    width: Size = 32
    noise: Amount = 0.75
    difficulty: Amount = 1.0
    base: Chance = 0.25
    spread: Amount = 0.01
    ceiling: Chance = 0.85
    gain: Share = 0.02
    forgetting: Share = 0.005
    capacity: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.2
    group: Size = 8
    entropy: Amount = 0.4
    answers: Size = 8


@record
class Items:
    """Queries: features (Q, D) float32, domains (Q,), difficulties (Q,) in log-odds."""

    features: np.ndarray
    domain: np.ndarray
    difficulty: np.ndarray


def items(world: World, count: int, seed: int, part: str) -> Items:
    """`count` queries. Directions of domains hang on the seed, queries also on `part` ("train", "test")."""
    centres = np.random.default_rng(draw(seed, "domains")).standard_normal((world.domains, world.width))
    random = np.random.default_rng(draw(seed, "queries", part))
    domain = random.integers(0, world.domains, count)
    blur = world.noise * random.standard_normal((count, world.width))
    hard = world.difficulty * random.standard_normal(count)
    return Items(features=(centres[domain] + blur).astype(np.float32), domain=domain, difficulty=hard)


class Students:
    """Agents as a table of skills (N, domains)."""

    def __init__(self, world: World, agents: int, seed: int) -> None:
        random = np.random.default_rng(draw(seed, "skills"))
        start = world.base + world.spread * random.standard_normal((agents, world.domains))
        self.world, self.seed = world, seed
        self.skill = np.clip(start, 0.01, world.ceiling)
        self.updates = np.zeros(agents, dtype=np.int64)

    def chances(self, found: Items, agent: int | slice = slice(None)) -> np.ndarray:
        """Chance of each agent on each query: (Q, N), or (Q,) for one agent."""
        skill = self.skill[agent]
        odds = np.log(skill / (1 - skill)).T[found.domain]
        hard = found.difficulty if odds.ndim == 1 else found.difficulty[:, None]
        return np.asarray(1 / (1 + np.exp(hard - odds)))

    def practise(self, agent: int, found: Items) -> tuple[np.ndarray, float]:
        """Roll out one micro-batch and learn from it; mean rewards (Q,) and mean token entropy."""
        world = self.world
        chance = self.chances(found, agent)
        random = np.random.default_rng(draw(self.seed, "rollouts", agent, int(self.updates[agent])))
        rewards = random.binomial(world.group, chance) / world.group
        told = np.bincount(found.domain, weights=4 * rewards * (1 - rewards), minlength=world.domains)
        self._learn(agent, told / len(chance))
        self.updates[agent] += 1
        return rewards, world.entropy * float(1 - chance.mean())

    def _learn(self, agent: int, told: np.ndarray) -> None:
        """Move skills by what each domain's groups told, in [0, 1] together."""
        world, skill = self.world, self.skill[agent]
        room = max(0.0, 1 - np.maximum(skill - world.base, 0).sum() / world.capacity)
        gained = world.gain * told * room * (world.ceiling - skill)
        lost = world.forgetting * (told.sum() - told) * np.maximum(skill - world.base / 2, 0)
        self.skill[agent] = skill + gained - lost


def voted(world: World, chances: np.ndarray, weights: np.ndarray, seed: int) -> np.ndarray:
    """Whether a weighted vote of one answer an agent is right: (Q,) of True and False.

    `chances` (Q, N), `weights` (Q, N) with 0 for agents that are not asked. Wrong answers are one of `answers`,
    lower ones more often (1/1, 1/2, ...), so that agents can be wrong together. Answers hang on the seed only:
    the same agent says the same whoever else is asked. Ties go to the answer with the highest single weight.
    """
    random = np.random.default_rng(draw(seed, "answers"))
    right = random.random(chances.shape) < chances
    popular = 1 / np.arange(1, world.answers + 1)
    wrong = 1 + np.searchsorted(np.cumsum(popular / popular.sum()), random.random(chances.shape), side="right")
    answer = np.where(right, 0, np.minimum(wrong, world.answers))
    votes = np.zeros((len(chances), world.answers + 1))
    np.add.at(votes, (np.arange(len(chances))[:, None], answer), weights)
    best = weights.argmax(axis=1)
    votes[np.arange(len(chances)), answer[np.arange(len(chances)), best]] += 1e-9
    return np.asarray(votes.argmax(axis=1) == 0)
