"""Agents that answer again after remarks: self-refine with one's own, debate with the answers of the others."""

from collections.abc import Callable, Sequence

from coterie.errors import ConfigError
from coterie.rollout import Ask, Limits, Rollout
from coterie.strategies import prompts
from coterie.strategies.layers import (
    Agreement,
    Panel,
    agreed,
    answered,
    first_choice,
    quote,
    reading,
    tried,
    voted,
)
from coterie.strategies.quoting import Quote
from coterie.types import Count, Exit, Messages, Pool, Query, Size, Turn, spec

Again = Callable[[Query, Quote, Sequence[Quote], int], Messages]
"""A prompt to answer again: the query, one's own answer, what else is shown, the room."""


@spec
class SelfRefine:
    """Self-Refine (Madaan et al. 2023): the router's first choice answers, remarks on its answer, and answers
    again, `rounds` times. 1 + 2 * rounds calls.

    It ends where its remark is that nothing is to be mended; with `stop: false` that is noted and not followed. A
    remark or an answer that fails ends it with the last answer. Where the first choice gives no answer, the
    router's next one does.
    """

    rounds: Count = 2
    panel: Panel = Panel()
    stop: bool = True

    def check(self, pool: Pool, limits: Limits) -> None:
        """ConfigError for settings that cannot apply."""
        self.panel.check(pool, limits, steps=1 + self.panel.fallbacks + 2 * self.rounds, seats=1)

    async def solve(self, rollout: Rollout) -> Turn | None:
        [turn] = await first_choice(rollout, self.panel, lambda name: [self.panel.ask(name, "proposer", 1)])
        for layer in range(1, self.rounds + 1):
            room = self.panel.room(rollout.pool[turn.agent])
            messages = prompts.critique(rollout.query, quote(turn), own=True, room=room)
            [remark] = await tried(rollout, [self.panel.ask(turn.agent, "critic", layer, messages, [turn])])
            settled = remark is not None and prompts.nothing_new(remark.completion.text)
            if settled:
                rollout.exits.append(Exit(layer=layer, turn=turn.index, why="said"))
            if remark is None:
                rollout.degraded.append(f"round {layer} gave no remark: the answer before it stands")
            if remark is None or (settled and self.stop):
                break
            [again] = await tried(
                rollout, revisions(rollout, self.panel, layer + 1, [turn], [[remark]], prompts.revision)
            )
            if again is None:
                rollout.degraded.append(f"round {layer} gave no answer: the one before it stands")
                break
            turn = again
        return turn


@spec
class Debate:
    """Multiagent debate (Du et al. 2023): in each round every agent reads the others' last answers beside its own
    and answers again; the vote over the last round decides. N * rounds calls.

    Who fails once is out of the debate. `agreement` and `shadow` as in `rem_moa`.
    """

    rounds: Size = 2
    panel: Panel = Panel()
    agreement: Agreement | None = None
    shadow: bool = False

    def check(self, pool: Pool, limits: Limits) -> None:
        """ConfigError for settings that cannot apply."""
        self.panel.check(pool, limits, steps=self.rounds)
        if self.shadow and self.agreement is None:
            raise ConfigError("strategy: shadow notes what `agreement` would have stopped; set agreement as well")

    async def solve(self, rollout: Rollout) -> Turn | None:
        turns = await answered(rollout, self.panel, await reading(rollout, self.panel, 1, ()))
        for layer in range(2, self.rounds + 2):
            early = await agreed(rollout, turns, self.agreement)
            if layer > self.rounds or (early is not None and not self.shadow):
                break
            others = [[other for other in turns if other is not turn] for turn in turns]
            asks = revisions(rollout, self.panel, layer, turns, others, prompts.peers)
            again = await answered(rollout, self.panel, asks)
            if not again:
                break
            turns = again
        return await voted(rollout, turns)


def revisions(
    rollout: Rollout,
    panel: Panel,
    layer: int,
    turns: Sequence[Turn],
    shown: Sequence[Sequence[Turn]],
    again: Again,
) -> list[Ask]:
    """The calls in which each turn's agent answers again, after its own answer and what is `shown` to it."""
    asks = []
    for turn, others in zip(turns, shown, strict=True):
        room = panel.room(rollout.pool[turn.agent])
        messages = again(rollout.query, quote(turn), [quote(other) for other in others], room)
        asks.append(panel.ask(turn.agent, "proposer", layer, messages, (turn, *others)))
    return asks
