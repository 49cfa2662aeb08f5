"""Strategies around one agent: ask it once, sample it k times and vote, sample it n times and keep the best."""

import asyncio
from collections.abc import Sequence
from statistics import fmean

from coterie.errors import ConfigError
from coterie.rollout import Rollout
from coterie.strategies.vote import first_answer, weighted_vote
from coterie.types import Amount, Count, Size, Turn, spec


@spec
class Single:
    """The router's first choice answers; where it fails, the router's next one, up to `fallbacks` times."""

    fallbacks: Count = 1

    async def solve(self, rollout: Rollout) -> Turn | None:
        ranked = (await rollout.route()).ranked()
        return await first_answer(rollout, ranked[: self.fallbacks + 1])


@spec
class SelfConsistency:
    """The router's first choice is sampled `samples` times; the answer given most often wins.

    Source: Wang et al. 2022. `temperature` replaces the agent's own, which may be 0; None keeps it.
    """

    samples: Size = 5
    temperature: Amount | None = 0.7

    async def solve(self, rollout: Rollout) -> Turn | None:
        first = (await rollout.route()).ranked()[0]
        turns = await rollout.ask_all([first] * self.samples, temperature=self.temperature)
        return await asyncio.to_thread(weighted_vote, turns, {first: 1.0}, rollout.reader.same)


@spec
class BestOfN:
    """The router's first choice is sampled `samples` times; the sample with the best mean log-probability wins.

    Needs a backend that returns log-probabilities: `return_tokens: true` of `local`, `logprobs: true` of an
    endpoint of `http`.
    """

    samples: Size = 5
    temperature: Amount | None = 0.7

    async def solve(self, rollout: Rollout) -> Turn | None:
        first = (await rollout.route()).ranked()[0]
        turns = await rollout.ask_all([first] * self.samples, temperature=self.temperature)
        return most_likely([t for t in turns if t.answer is not None] or turns)


def most_likely(turns: Sequence[Turn]) -> Turn:
    """The turn with the highest mean log-probability a token; the earlier one on a tie."""
    return max(turns, key=lambda turn: (_mean_logprob(turn), -turn.index))


def _mean_logprob(turn: Turn) -> float:
    said = turn.completion
    logprobs = said.logprobs if said.tokens is None else said.tokens.logprobs
    if logprobs is None:
        raise ConfigError(
            f"best_of_n: agent {turn.agent!r} returns no log-probabilities; set backends.local.return_tokens: true,"
            " or logprobs: true for its endpoint of backends.http"
        )
    return fmean(logprobs) if logprobs else float("-inf")
