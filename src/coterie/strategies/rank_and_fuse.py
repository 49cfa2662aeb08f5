"""Rank and fuse: answers are compared in pairs by a judge, the best of them fused (LLM-Blender)."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from coterie.rollout import Limits, Rollout
from coterie.strategies import prompts
from coterie.strategies.layers import Panel, merged, propose, quote, reading, tried
from coterie.strategies.memory import ranked
from coterie.strategies.reviewer import field, judge_of
from coterie.types import Pool, Review, Size, Turn, spec


@spec
class RankAndFuse:
    """LLM-Blender (Jiang et al. 2023): N answers, each pair compared in both orders, the `keep` best fused.
    N + N*(N - 1) + 1 calls.

    Ranker and fuser are asked, not trained [O]: the pool's reviewer compares, its aggregator fuses. A pair whose
    winner hangs on the order is a tie (G19); a comparison that cannot be read counts for nobody. An answer's
    score is the share of its comparisons that it won, and its review says how many changed with the order. Without
    `schemas` the form of a verdict is asked for in words alone.
    """

    keep: Size = 3
    panel: Panel = Panel()
    schemas: bool = True

    def check(self, pool: Pool, limits: Limits) -> None:
        """ConfigError for settings that cannot apply."""
        self.panel.check(pool, limits, steps=3 + self.panel.fallbacks)

    async def solve(self, rollout: Rollout) -> Turn | None:
        turns = await propose(rollout, self.panel, await reading(rollout, self.panel, 1, ()))
        rollout.reviews += await self._compared(rollout, turns)
        best = [rollout.turns[entry.turn] for entry in ranked(rollout.reviews)]
        return await merged(rollout, self.panel, 1, best[: self.keep], best[0])

    async def _compared(self, rollout: Rollout, turns: Sequence[Turn]) -> list[Review]:
        name = judge_of(rollout, turns)
        room = self.panel.room(rollout.pool[name])
        pairs = list(permutations(turns, 2))
        schema = prompts.comparison_schema() if self.schemas else ""
        asks = []
        for one, two in pairs:
            messages = prompts.comparison(rollout.query, quote(one), quote(two), room)
            ask = self.panel.ask(name, "reviewer", 1, messages, (one, two))
            asks.append(replace(ask, schema=schema))
        replies = await tried(rollout, asks)
        if lost := replies.count(None):
            rollout.degraded.append(f"{lost} of {len(asks)} comparisons failed")
        verdicts = await asyncio.to_thread(lambda: [_verdict(reply) for reply in replies])
        wins = {
            (one.index, two.index): None if verdict is None else (None, one, two)[verdict]
            for (one, two), verdict in zip(pairs, verdicts, strict=True)
            if verdict is not None
        }
        return [self._review(turn, wins) for turn in turns]

    def _review(self, turn: Turn, wins: dict[tuple[int, int], Turn | None]) -> Review:
        mine = {pair: winner for pair, winner in wins.items() if turn.index in pair}
        won = Counter(winner is turn for winner in mine.values())[True]
        flips = sum(mine[pair] is not mine.get(pair[::-1], mine[pair]) for pair in mine) // 2
        if not mine:
            return Review(turn=turn.index, layer=turn.layer, score=0.5, mended="neutral")
        note = f"won {won} of {len(mine)} comparisons, {flips} changed with the order"
        return Review(turn=turn.index, layer=turn.layer, score=won / len(mine), rationale=note)


def _verdict(reply: Turn | None) -> int | None:
    """1 or 2 for the first or second attempt, 0 for neither; None where the reply says none of them."""
    said = None if reply is None else field(reply.completion.text, "better")
    said = int(said) if isinstance(said, str) and said in ("0", "1", "2") else said
    return said if type(said) is int and said in (0, 1, 2) else None
