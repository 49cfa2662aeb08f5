"""What all layered mixtures share: who proposes, how a layer is asked, who writes the final answer.

Everything is asked through the rollout; what is said in which prompt is in `prompts`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Literal

from pydantic import Field

from coterie.errors import AllAgentsFailed, ConfigError
from coterie.rollout import Ask, Limits, Rollout
from coterie.strategies import prompts
from coterie.strategies.quoting import Quote
from coterie.strategies.vote import prefix_reaching, weighted_vote
from coterie.types import Agent, Count, Exit, Messages, Part, Pool, Positive, Routing, Size, Turn, spec

Agreement = Annotated[float, Field(gt=0, le=1)]
LIMIT = 256
"""Tokens that a prompt is allowed whatever an agent's `max_prompt_tokens` says: less holds no reference."""


@spec
class Panel:
    """Who proposes in a layer, how many of them have to answer, and how long each step may take.

    `choose: pool` seats all solvers by name, again from the first where `width` is more than there are (R7);
    `choose: router` asks the router before every layer and seats its first `width`, or the shortest prefix whose
    scores reach `threshold`. A layer below its `quorum` of usable answers ends the layers: with what earlier ones
    left, or as a failure. `deadline` is seconds for each step: a layer, a review, an aggregation; whoever is late
    is cancelled and has failed. `fallbacks` other agents may aggregate where an aggregator fails. `context` is
    about how many tokens a prompt may have; an agent's own `max_prompt_tokens` holds as well.
    """

    width: Size | None = None
    choose: Literal["pool", "router"] = "pool"
    threshold: Positive | None = None
    quorum: Size = 1
    deadline: Positive | None = None
    fallbacks: Count = 1
    context: Size = 24_000

    def most(self, pool: Pool) -> int:
        """The most seats that a layer can have."""
        solvers = len(pool.names())
        return min(self.width or solvers, solvers) if self.choose == "router" else self.width or solvers

    def check(self, pool: Pool, limits: Limits, steps: int, seats: int | None = None) -> None:
        """ConfigError for settings that cannot apply: to this pool, or with `steps` deadlines within the limits.

        `steps` is the most that can follow each other. `seats` are those of a layer where not the pool fills them.
        """
        if seats is not None and (self.width, self.choose, self.threshold) != (None, "pool", None):
            raise ConfigError(
                "strategy.panel: width, choose and threshold mean nothing where the first choice answers"
            )
        seats = self.most(pool) if seats is None else seats
        if self.threshold is not None and self.choose != "router":
            raise ConfigError("strategy.panel: threshold is read with choose: router only")
        if self.quorum > seats:
            raise ConfigError(f"strategy.panel: quorum {self.quorum} is more than the {seats} seats")
        total = steps * (self.deadline or 0)
        if limits.seconds is not None and total > limits.seconds:
            raise ConfigError(
                f"strategy.panel: {steps} steps of {self.deadline:g} s may take {total:g} s, and limits.seconds is"
                f" {limits.seconds:g}; lower the deadline or raise the limit"
            )

    def ask(self, name: str, part: Part, layer: int, messages: Messages = (), reads: Sequence[Turn] = ()) -> Ask:
        """A call of a layer, which has failed after the deadline."""
        indices = tuple(turn.index for turn in reads)
        return Ask(agent=name, messages=messages, reads=indices, part=part, layer=layer, seconds=self.deadline)

    def room(self, agent: Agent) -> int:
        """About how many tokens a prompt for the agent may have."""
        own = agent.sampling.max_prompt_tokens
        return min(self.context, max(own, LIMIT)) if own else self.context


async def seats(rollout: Rollout, panel: Panel, shown: Sequence[Turn] = ()) -> list[str]:
    """The agents of the next layer, one a seat; `shown` is what it reads, as far as that hangs on no seat.

    A router sees the turns that are there without a sweep too, so that a sweep seats as each depth alone would.
    """
    if panel.choose == "pool":
        names = rollout.pool.names()
        return [names[seat % len(names)] for seat in range(panel.width or len(names))]
    routing = await rollout.route(without=aside(rollout.turns, [turn.index for turn in shown]))
    names = routing.ranked()
    if panel.threshold is not None:
        names = prefix_reaching(routing, names, panel.threshold)
    return names[: panel.width]


async def reading(rollout: Rollout, panel: Panel, layer: int, shown: Sequence[Turn], remark: str = "") -> list[Ask]:
    """A layer's calls where every seat reads the same: the query, and answers of an earlier layer if there are
    any.
    """
    quotes = [quote(turn) for turn in shown]
    rooms = [(name, panel.room(rollout.pool[name])) for name in await seats(rollout, panel, shown)]
    written: dict[int, Messages] = {}
    for room in {room for _, room in rooms} if quotes else ():
        written[room] = prompts.synthesis(rollout.query, quotes, room, remark)
    return [panel.ask(name, "proposer", layer, written.get(room, ()), shown) for name, room in rooms]


async def merged(
    rollout: Rollout, panel: Panel, layer: int, turns: Sequence[Turn], best: Turn | None = None, remark: str = ""
) -> Turn:
    """An aggregator's answer from these turns, as `aggregate` finds one; else `best`, else what they vote for."""
    quotes = [quote(turn) for turn in turns]
    found = await aggregate(
        rollout, panel, layer, lambda room: prompts.synthesis(rollout.query, quotes, room, remark), turns
    )
    return found or best or await voted(rollout, turns)


def aside(turns: Sequence[Turn], shown: Collection[int] = ()) -> set[int]:
    """Indices of the aggregations that only a sweep makes: all those of a layer, tries and answer, none of which a
    later layer read or is `shown` now. The last layer's, which answer, count among them while layers follow.
    """
    read = {index for turn in turns for index in turn.reads if turns[index].layer < turn.layer}
    passed_on = {turns[index].layer for index in (*read, *shown) if turns[index].part == "aggregator"}
    return {turn.index for turn in turns if turn.part == "aggregator" and turn.layer not in passed_on}


async def propose(rollout: Rollout, panel: Panel, asks: Sequence[Ask]) -> list[Turn]:
    """The usable turns of a layer's calls, in order of seats; a lost one leaves nothing behind (B4, B5, B18).

    Raises: AllAgentsFailed below the quorum, before anybody else is asked.
    """
    turns = [turn for turn in await rollout.ask_each(asks) if turn is not None and usable(turn)]
    if len(turns) < panel.quorum or not turns:
        raise AllAgentsFailed(f"{len(turns)} of {len(asks)} gave a usable answer; the quorum is {panel.quorum}")
    return turns


async def answered(rollout: Rollout, panel: Panel, asks: Sequence[Ask]) -> list[Turn]:
    """As `propose`, but a layer after the first that misses its quorum gives no turns: the layers end with it."""
    try:
        return await propose(rollout, panel, asks)
    except AllAgentsFailed as error:
        if asks[0].layer == 1:
            raise
        rollout.degraded.append(f"layer {asks[0].layer} is missing: {error}")
        return []


def usable(turn: Turn) -> bool:
    """Whether there is anything in the turn to read."""
    return bool(turn.completion.text.strip())


async def first_choice(rollout: Rollout, panel: Panel, asks: Callable[[str], Sequence[Ask]]) -> list[Turn]:
    """The turns of the router's first choice; where it fails of its next ones, as many as there are `fallbacks`."""
    names = (await rollout.route()).ranked()[: 1 + panel.fallbacks]
    for name in names[:-1]:
        try:
            return await propose(rollout, panel, asks(name))
        except AllAgentsFailed as error:
            rollout.degraded.append(f"{name} gave way: {error}")
    return await propose(rollout, panel, asks(names[-1]))


async def tried(rollout: Rollout, asks: Sequence[Ask]) -> list[Turn | None]:
    """A usable turn for each call, or None; that nobody answers is no error here."""
    try:
        turns = await rollout.ask_each(asks) if asks else []
    except AllAgentsFailed:
        return [None] * len(asks)
    return [turn if turn is not None and usable(turn) else None for turn in turns]


def aggregators(rollout: Rollout, turns: Sequence[Turn]) -> list[str]:
    """Who may aggregate, in order: the pool's aggregators, then those who just answered, never one that failed
    (B9).
    """
    return list(dict.fromkeys([*rollout.pool.names("aggregator"), *(turn.agent for turn in turns)]))


async def aggregate(
    rollout: Rollout,
    panel: Panel,
    layer: int,
    prompt: Callable[[int], Messages],
    reads: Sequence[Turn],
) -> Turn | None:
    """The answer after `layer` from the turns that it `reads`: an aggregator's, else another agent's; else None,
    and the best of them is to stand.

    `prompt` gives the messages for so much room. Anything but the first aggregator's answer is degraded.
    """
    names = aggregators(rollout, [t for t in rollout.turns if t.part == "proposer" and t.layer == layer])
    for place, name in enumerate(names[: 1 + panel.fallbacks]):
        messages = prompt(panel.room(rollout.pool[name]))
        [turn] = await tried(rollout, [panel.ask(name, "aggregator", layer, messages, reads)])
        if turn is not None:
            if place:
                rollout.degraded.append(f"{name} aggregated in place of {names[0]}")
            return turn
    rollout.degraded.append("nobody aggregated: the best-ranked proposal stands")
    return None


def quote(turn: Turn) -> Quote:
    """A turn as it is shown to others: without a name (W24)."""
    return Quote(text=turn.completion.text, answer=turn.answer)


async def voted(rollout: Rollout, turns: Sequence[Turn]) -> Turn:
    """The turn with the answer that most of a layer gave, by the router's scores where it was asked; the first one
    where nothing can be compared.
    """
    if rollout.reader.open_ended:
        return turns[0]
    routing = rollout.routings[-1] if rollout.routings else Routing(weights={})
    scores = routing.scores or routing.weights
    return await asyncio.to_thread(weighted_vote, turns, scores, rollout.reader.same) or turns[0]


async def agreed(rollout: Rollout, turns: Sequence[Turn], share: float | None) -> Turn | None:
    """The turn that speaks for a layer of which at least `share` gave one answer; noted as an exit.

    None where they do not agree, and for open answers, a single answer, or without a `share`.
    """
    if share is None or rollout.reader.open_ended or len(turns) < 2:
        return None
    winner = await voted(rollout, turns)
    answer = winner.answer
    if answer is None:
        return None
    same = rollout.reader.same
    alike = await asyncio.to_thread(lambda: [same(answer, t.answer) for t in turns if t.answer is not None])
    if Counter(alike)[True] < share * len(turns):
        return None
    rollout.exits.append(Exit(layer=winner.layer, turn=winner.index, why="agreement"))
    return winner
