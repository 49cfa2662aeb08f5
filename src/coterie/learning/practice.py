"""One agent practises on a few queries: sample groups, grade them, one or several updates. Routes nothing."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.errors import ConfigError
from coterie.learning.engine import Group, Verbs
from coterie.learning.learner import Step
from coterie.learning.losses import advantages, telling
from coterie.learning.rewards import Graded, Rewards, Said, grade
from coterie.learning.sampler import Ask, Sample
from coterie.rollout import read_by, with_instruction
from coterie.tasks.catalog import reader_of
from coterie.types import Agent, Count, Query, Size, draw, record, spec

MOST = 4096  # completions of one prompt


@spec
class Drill:
    """How an agent practises, whatever it learns by.

    `group` completions of one prompt. `updates` optimiser steps on each batch (mu). `errors`: more than this share
    of verdicts missing in a batch ends the run.
    """

    group: Annotated[int, Field(ge=1, le=MOST)] = 8
    updates: Size = 1
    errors: Annotated[float, Field(ge=0, le=1)] = 0.5


@spec
class Practice(Drill):
    """How an agent practises in CERA-MoA (Algorithm 1 and Table 5): as `Drill` says.

    `group` completions a query. `updates` is 1 in the paper's settings (docs/methods.md C2).
    `filter_groups` drops groups whose verifier scores are all equal before the update (DAPO; the paper does not,
    C4) and samples up to `refill` further queries of the agent's buffer in their place.
    """

    group: Annotated[int, Field(ge=2, le=MOST)] = 8
    filter_groups: bool = False
    refill: Count = 0

    def __post_init__(self) -> None:
        if self.refill and not self.filter_groups:
            raise ConfigError("practice.refill: fills up what practice.filter_groups leaves out, which is off")


@record
class Practised:
    """What came of it. `rewards` is a query's mean reward, NaN where no completion had a verdict.

    `silent` is the share of groups whose scores are all equal, NaN where a group is one completion.
    `cut` prompts were longer than allowed and lost their beginning.
    """

    rewards: tuple[float, ...]
    solved: float
    silent: float
    errors: int
    completions: int
    tokens: int
    prompt_tokens: int
    entropy: float
    truncated: float
    cut: int
    steps: tuple[Step, ...]
    reasons: tuple[str, ...] = ()


class Clock:
    """Seconds by phase: how long sampling, verifying and learning took."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside as `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began


@record
class Rollouts:
    """A group of one query: what the agent was asked, what it said, how that was graded."""

    query: Query
    prompt: tuple[int, ...]
    samples: tuple[Sample, ...]
    graded: Graded
    cut: bool = False


def roll_out(
    engine: Verbs,
    agent: Agent,
    queries: Mapping[int, Query],
    settings: Drill,
    rewards: Rewards,
    clock: Clock,
) -> list[Rollouts]:
    """A group of completions of each query by the agent as it is now, graded.

    `queries` are by seed: sample k of a query draws from its seed and k alone, whoever shares the batch.
    Raises: ConfigError where the agent's completions fill the whole context.
    """
    group = settings.group
    asks: list[Ask] = []
    cut = []
    for seed, query in queries.items():
        asked = read_by(agent, reader_of(query))
        limit = prompt_limit(asked, engine.context)
        prompt = tuple(engine.prompt_ids(with_instruction(agent, query.messages), limit + 1))
        cut.append(len(prompt) > limit)
        asks += [
            Ask(prompt=prompt[-limit:], adapter=None, sampling=asked.sampling, seed=draw(seed, "sample", k))
            for k in range(group)
        ]
    with clock.phase("sample"):
        samples = engine.sample(agent.name, asks)
    parts = [tuple(samples[i : i + group]) for i in range(0, len(samples), group)]
    with clock.phase("verify"):
        items = [
            Said(
                query=query,
                texts=[s.text for s in part],
                lengths=[len(s.ids) for s in part],
                limit=ask.sampling.max_tokens,
            )
            for query, part, ask in zip(queries.values(), parts, asks[::group], strict=True)
        ]
        graded = grade(items, rewards)
    return [
        Rollouts(query=query, prompt=asks[i * group].prompt, samples=part, graded=verdict, cut=cut[i])
        for i, (query, part, verdict) in enumerate(zip(queries.values(), parts, graded, strict=True))
    ]


def prompt_limit(agent: Agent, context: int) -> int:
    """How many tokens a prompt may have, so that a whole completion fits behind it.

    Raises: ConfigError where completions leave no room for one.
    """
    left = context - agent.sampling.max_tokens
    if left < 1:
        raise ConfigError(
            f"agent {agent.name}: sampling.max_tokens {agent.sampling.max_tokens} fills the context of {context}"
        )
    return min(agent.sampling.max_prompt_tokens or left, left)


def learn(
    engine: Verbs,
    agent: Agent,
    found: Sequence[Rollouts],
    updates: int,
    clock: Clock,
    gains: np.ndarray | None = None,
) -> tuple[Step, ...]:
    """`updates` optimiser steps of the agent on its rollouts.

    `gains` (n, G) are their advantages where those are not the ones within each group (Eq. 20).
    """
    heat = agent.sampling.temperature
    groups = groups_of(found, within(_shaped(found), engine.loss.scale_by_std) if gains is None else gains)
    steps = []
    with clock.phase("learn"):
        if updates > 1:
            # From the second update on the policy is no longer the one that sampled.
            old = engine.log_probs(agent.name, groups, heat)
            groups = [replace(group, old=values) for group, values in zip(groups, old, strict=True)]
        for _ in range(updates):
            engine.forward_backward(agent.name, groups, heat)
            steps.append(engine.optim_step(agent.name))
    return tuple(steps)


def within(rewards: np.ndarray, scale_by_std: bool) -> np.ndarray:
    """Advantages within each group of rewards (n, G) (Eq. 20)."""
    import torch

    return advantages(torch.from_numpy(rewards), scale_by_std).numpy()


def groups_of(found: Sequence[Rollouts], gains: np.ndarray) -> list[Group]:
    """Rollouts with their advantages (n, G)."""
    return [
        Group(
            prompt=one.prompt,
            completions=tuple(s.ids for s in one.samples),
            advantages=gain,
            truncated=tuple(s.finish == "length" for s in one.samples),
        )
        for one, gain in zip(found, gains, strict=True)
    ]


def _shaped(found: Sequence[Rollouts]) -> np.ndarray:
    return np.stack([one.graded.shaped for one in found])


def telling_ones(found: Sequence[Rollouts]) -> list[Rollouts]:
    """Those whose verifier scores differ: the only ones that a filtered batch learns from."""
    import torch

    kept = telling(torch.from_numpy(np.stack([one.graded.raw for one in found])))
    return [one for one, keep in zip(found, kept.tolist(), strict=True) if keep]


def practised(found: Sequence[Rollouts], steps: tuple[Step, ...]) -> Practised:
    """The figures of one practice."""
    samples = [s for one in found for s in one.samples]
    verdicts = [float(np.nanmean(one.graded.solved)) for one in found if one.graded.errors < len(one.samples)]
    return Practised(
        rewards=tuple(one.graded.mean for one in found),
        solved=float(np.mean(verdicts)) if verdicts else float("nan"),
        silent=1 - len(telling_ones(found)) / len(found) if len(found[0].samples) > 1 else float("nan"),
        errors=sum(one.graded.errors for one in found),
        completions=len(samples),
        tokens=sum(len(s.ids) for s in samples),
        prompt_tokens=sum(len(one.prompt) for one in found),
        entropy=float(np.mean([s.entropy for s in samples])),
        truncated=float(np.mean([s.finish == "length" for s in samples])),
        cut=sum(one.cut for one in found),
        steps=steps,
        reasons=tuple(reason for one in found for reason in one.graded.reasons)[:3],
    )


def figures(done: Practised) -> Mapping[str, float]:
    """A practice as one flat row of numbers."""
    last = done.steps[-1] if done.steps else None
    row = {
        "reward": float(np.nanmean(done.rewards)) if not np.isnan(done.rewards).all() else float("nan"),
        "solved": done.solved,
        "zero_variance": done.silent,
        "errors": done.errors,
        "tokens": done.tokens,
        "entropy": done.entropy,
        "truncated": done.truncated,
        "cut": done.cut,
    }
    if last is not None:
        row |= {"lr": last.lr, "norm": last.norm, **last.metrics}
    return row
