"""RMoA: diverse answers of a layer, and what is new in them, go on to the next."""

import asyncio
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from coterie.features.checks import AnyEncoder
from coterie.features.hashed import Hashed
from coterie.rollout import Limits, Rollout
from coterie.strategies import prompts
from coterie.strategies.layers import Panel, aggregators, answered, merged, quote, reading, tried
from coterie.types import Count, Exit, Message, Pool, Size, Turn, spec


@spec
class RMoA:
    """RMoA (Xie et al. 2025): of each layer the `keep` most diverse answers are kept; an agent extracts what is
    new in them against those of the layer before; the next layer reads the kept ones of the layer before and that
    residual, and so does the aggregator at the end. L*N + L calls.

    Deviations: embeddings are those of `encoder`, BGE-m3 in the paper. It ends after `stop_after` residuals in a
    row without news (0: never, as in a depth sweep, R17). Where a residual fails, the layer's own kept answers go
    on.
    """

    layers: Size = 6
    keep: Size = 3
    stop_after: Count = 2
    encoder: AnyEncoder = field(default_factory=Hashed)
    panel: Panel = Panel()
    every_layer: bool = False

    def check(self, pool: Pool, limits: Limits) -> None:
        """ConfigError for settings that cannot apply."""
        ends = self.layers if self.every_layer else 1
        self.panel.check(pool, limits, steps=2 * self.layers - 1 + ends * (1 + self.panel.fallbacks))

    async def solve(self, rollout: Rollout) -> Turn | None:
        before: list[Turn] = []
        shown: list[Turn] = []
        remark, quiet, last = "", 0, None
        for layer in range(1, self.layers + 1):
            asks = await reading(rollout, self.panel, layer, shown, remark)
            turns = await answered(rollout, self.panel, asks)
            if not turns:
                break
            kept = await self._diverse(turns)
            residual = await self._residual(rollout, before, kept) if before else None
            shown, remark = (before, residual) if residual is not None else (kept, "")
            before, quiet = kept, quiet + 1 if residual == "" else 0
            ends = bool(self.stop_after) and quiet >= self.stop_after
            if self.every_layer or ends:
                last = await self._settle(rollout, layer, shown, remark)
                rollout.exits.append(Exit(layer=layer, turn=last.index, why="said" if ends else "depth"))
            if ends:
                return last
        return last or await self._settle(rollout, before[0].layer, shown, remark)

    async def _settle(self, rollout: Rollout, layer: int, shown: Sequence[Turn], remark: str) -> Turn:
        return await merged(rollout, self.panel, layer, shown, remark=remark)

    async def _residual(self, rollout: Rollout, before: Sequence[Turn], kept: Sequence[Turn]) -> str | None:
        """What is new; "" where nothing is, None where the call failed."""
        name = aggregators(rollout, kept)[0]
        room = self.panel.room(rollout.pool[name])
        earlier, now = ([quote(turn) for turn in turns] for turns in (before, kept))
        messages = prompts.residual(rollout.query, earlier, now, room)
        ask = self.panel.ask(name, "residual", kept[0].layer, messages, (*before, *kept))
        [turn] = await tried(rollout, [ask])
        if turn is None:
            rollout.degraded.append(f"the residual of layer {kept[0].layer} is missing: its own answers go on")
            return None
        return "" if prompts.nothing_new(turn.completion.text) else turn.completion.text

    async def _diverse(self, turns: Sequence[Turn]) -> list[Turn]:
        if len(turns) <= self.keep:
            return list(turns)
        texts = [(Message(role="user", content=turn.completion.text),) for turn in turns]
        rows = await asyncio.to_thread(self.encoder.encode, texts)
        return [turns[place] for place in sorted(diverse(rows, self.keep))]


def diverse(rows: np.ndarray, keep: int) -> list[int]:
    """`keep` rows of (n, D), greedily: first the one least like the others on average, then each time the one whose
    likeness (cosine) with the nearest chosen one is lowest; ties go to the earlier row.
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    units = rows / np.where(norms > 0, norms, 1)
    alike = (units @ units.T).round(6)  # (n, n); last digits hang on how rows are batched
    chosen = [int(np.argmin(alike.mean(axis=1)))]
    while len(chosen) < min(keep, len(rows)):
        nearest = alike[:, chosen].max(axis=1)
        nearest[chosen] = np.inf
        chosen.append(int(np.argmin(nearest)))
    return chosen
