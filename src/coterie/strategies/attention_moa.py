"""AttentionMoA: the agents of a layer criticise each other and revise; one fused answer goes on."""

from collections.abc import Sequence
from dataclasses import replace

from coterie.rollout import Limits, Rollout
from coterie.strategies import prompts
from coterie.strategies.layers import (
    Panel,
    aggregators,
    answered,
    merged,
    quote,
    reading,
    tried,
)
from coterie.strategies.revision import revisions
from coterie.types import Exit, Pool, Size, Turn, spec


@spec
class AttentionMoA:
    """AttentionMoA (arXiv 2601.16596) by its published graph. In each layer N answers, N*N remarks (each agent's
    on each answer, its own too), N revisions and one fusion; from layer 2 one more call merges the outputs of all
    layers so far or says that nothing is left to do. L*(N*N + 2N + 1) + L - 1 calls (R16).

    The phrase that ends it is asked for and looked for by one constant, and is the whole reply,
    which then is a remark and no answer. With `stop:
    false` it is noted and not followed, as in a depth sweep (R17).
    """

    layers: Size = 3
    panel: Panel = Panel()
    stop: bool = True

    def check(self, pool: Pool, limits: Limits) -> None:
        """ConfigError for settings that cannot apply."""
        self.panel.check(pool, limits, steps=self.layers * (5 + self.panel.fallbacks) - 1)

    async def solve(self, rollout: Rollout) -> Turn | None:
        outputs: list[Turn] = []
        for layer in range(1, self.layers + 1):
            turns = await answered(rollout, self.panel, await reading(rollout, self.panel, layer, outputs[-1:]))
            if not turns:
                break
            revised = await self._revised(rollout, turns)
            fused = await merged(rollout, self.panel, layer, revised)
            whole, settled = await self._whole(rollout, layer, [*outputs, fused])
            outputs.append(whole)
            rollout.exits.append(Exit(layer=layer, turn=whole.index, why="said" if settled else "depth"))
            if settled and self.stop:
                break
        return outputs[-1]

    async def _revised(self, rollout: Rollout, turns: Sequence[Turn]) -> list[Turn]:
        """Each answer after its agent has read all remarks on it."""
        asks = []
        for critic in turns:
            room = self.panel.room(rollout.pool[critic.agent])
            for turn in turns:
                messages = prompts.critique(rollout.query, quote(turn), turn is critic, room)
                asks.append(self.panel.ask(critic.agent, "critic", turn.layer, messages, [turn]))
        said = await tried(rollout, asks)
        remarks = [[r for r in said[place :: len(turns)] if r is not None] for place in range(len(turns))]
        asks = revisions(rollout, self.panel, turns[0].layer, turns, remarks, prompts.revision)
        again = await tried(rollout, asks)
        for lost, kind, of in ((said.count(None), "remarks", said), (again.count(None), "revisions", again)):
            if lost:
                rollout.degraded.append(f"{lost} of {len(of)} {kind} of layer {turns[0].layer} failed")
        return [new or turn for new, turn in zip(again, turns, strict=True)]

    async def _whole(self, rollout: Rollout, layer: int, outputs: Sequence[Turn]) -> tuple[Turn, bool]:
        """One answer from the outputs of all layers; the last one where nothing is new in it or the call failed."""
        if len(outputs) == 1:
            return outputs[0], False
        name = aggregators(rollout, outputs)[0]
        room = self.panel.room(rollout.pool[name])
        messages = prompts.history(rollout.query, [quote(turn) for turn in outputs], room)
        [turn] = await tried(rollout, [self.panel.ask(name, "aggregator", layer, messages, outputs)])
        if turn is None:
            rollout.degraded.append(f"the outputs up to layer {layer} were not merged")
            return outputs[-1], False
        if not prompts.nothing_new(turn.completion.text):
            return turn, False
        # The reply is a remark on the answer and none itself: nothing to grade, to count as wrong or to learn from.
        rollout.turns[turn.index] = replace(turn, part="critic", answer=None)
        return outputs[-1], True
