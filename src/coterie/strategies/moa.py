"""Mixtures without a memory: MoA, Self-MoA, and SMoA, which passes on what a moderator picks."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coterie.rollout import Ask, Limits, Rollout
from coterie.strategies import prompts
from coterie.strategies.layers import (
    Agreement,
    Panel,
    agreed,
    answered,
    first_choice,
    merged,
    quote,
    reading,
    tried,
    voted,
)
from coterie.strategies.reviewer import field, judge_of
from coterie.strategies.stopping import DepthRule, check_ends, deep_enough, note_ends
from coterie.types import Amount, Exit, Pool, Size, Turn, spec


@spec
class MoA:
    """Mixture-of-Agents (Wang et al. 2024): each layer reads all answers of the layer before, an aggregator the
    last.

    L*N + 1 calls. The answers stand behind the query in place of a system message, so that prompts begin alike
    [O]. With `vote` answers that can be compared are voted on by the router's scores and not aggregated: over the
    router's prefix and one layer that is CERA-MoA, with an aggregator for open questions. `every_layer`,
    `agreement`, `depth` and `shadow` as in `rem_moa`.
    """

    layers: Size = 3
    panel: Panel = Panel()
    vote: bool = False
    every_layer: bool = False
    agreement: Agreement | None = None
    depth: DepthRule | None = None
    shadow: bool = False

    def check(self, pool: Pool, limits: Limits) -> None:
        """ConfigError for settings that cannot apply."""
        ends = self.layers if self.every_layer else 1
        self.panel.check(pool, limits, steps=self.layers + ends * (1 + self.panel.fallbacks))
        check_ends(self, pool)

    async def solve(self, rollout: Rollout) -> Turn | None:
        shown: list[Turn] = []
        last: Turn | None = None
        for layer in range(1, self.layers + 1):
            turns = await answered(rollout, self.panel, await reading(rollout, self.panel, layer, shown))
            if not turns:
                break
            shown = turns
            early = await agreed(rollout, turns, self.agreement)
            if early is not None and not self.shadow:
                return early
            enough = layer < self.layers and await deep_enough(rollout, layer, self.depth)
            if self.every_layer or enough:
                last = await self._settle(rollout, turns)
                note_ends(rollout, layer, last, self.every_layer, enough)
            if enough and not self.shadow:
                break
        return last or await self._settle(rollout, shown)

    async def _settle(self, rollout: Rollout, turns: Sequence[Turn]) -> Turn:
        if self.vote and not rollout.reader.open_ended:
            return await voted(rollout, turns)
        return await merged(rollout, self.panel, turns[0].layer, turns)


@spec
class SelfMoA:
    """Self-MoA (Li et al. 2025): the router's first choice is sampled `samples` times, an aggregator merges them.

    The aggregator is the pool's, else the same agent. samples + 1 calls. Where the first choice misses the
    quorum, the router's next one is sampled, up to `fallbacks` times.
    """

    samples: Size = 6
    temperature: Amount | None = 0.7
    panel: Panel = Panel()

    def check(self, pool: Pool, limits: Limits) -> None:
        """ConfigError for settings that cannot apply."""
        self.panel.check(pool, limits, steps=2 + 2 * self.panel.fallbacks, seats=self.samples)

    async def solve(self, rollout: Rollout) -> Turn | None:
        turns = await first_choice(rollout, self.panel, self._asks)
        return await merged(rollout, self.panel, 1, turns)

    def _asks(self, name: str) -> list[Ask]:
        return [replace(self.panel.ask(name, "proposer", 1), temperature=self.temperature)] * self.samples


@spec
class SMoA:
    """Sparse MoA (Li et al. 2024): after each layer a moderator picks the `keep` answers that the next one reads,
    and may say that the query is settled. L*(N + 1) + 1 calls.

    The paper's judge and moderator are one call here [O]. A reply that picks nothing readable keeps all answers.
    With `stop: false` what the moderator says of the end is noted and not followed; without `schemas` the form of
    the reply is asked for in words alone.
    """

    layers: Size = 3
    keep: Size = 2
    panel: Panel = Panel()
    stop: bool = True
    schemas: bool = True

    def check(self, pool: Pool, limits: Limits) -> None:
        """ConfigError for settings that cannot apply."""
        self.panel.check(pool, limits, steps=2 * self.layers + 1 + self.panel.fallbacks)

    async def solve(self, rollout: Rollout) -> Turn | None:
        shown: list[Turn] = []
        for layer in range(1, self.layers + 1):
            turns = await answered(rollout, self.panel, await reading(rollout, self.panel, layer, shown))
            if not turns:
                break
            shown, settled = await self._moderated(rollout, turns)
            if settled:
                rollout.exits.append(Exit(layer=layer, turn=shown[0].index, why="said"))
            if settled and self.stop:
                break
        return await merged(rollout, self.panel, shown[0].layer, shown, shown[0])

    async def _moderated(self, rollout: Rollout, turns: Sequence[Turn]) -> tuple[list[Turn], bool]:
        """The picked turns, and whether they settle the query."""
        name = judge_of(rollout, turns)
        room = self.panel.room(rollout.pool[name])
        messages = prompts.moderation(rollout.query, [quote(turn) for turn in turns], self.keep, room)
        ask = self.panel.ask(name, "reviewer", turns[0].layer, messages, turns)
        if self.schemas:
            ask = replace(ask, schema=prompts.moderation_schema(len(turns), self.keep))
        [reply] = await tried(rollout, [ask])
        if reply is None:
            rollout.degraded.append(f"nobody moderated layer {turns[0].layer}: all answers go on")
            return list(turns), False
        text = reply.completion.text
        picked, settled = await asyncio.to_thread(lambda: (field(text, "keep"), field(text, "settled")))
        return _picked(turns, picked, self.keep), settled is True


def _picked(turns: Sequence[Turn], numbers: Any, keep: int) -> list[Turn]:
    """The turns of these numbers, at most `keep`, in the order they were picked; all where none is a number."""
    found = [n for n in numbers if type(n) is int and 1 <= n <= len(turns)] if isinstance(numbers, list) else []
    return [turns[n - 1] for n in dict.fromkeys(found)][:keep] or list(turns)
