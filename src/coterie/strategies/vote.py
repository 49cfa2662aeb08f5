"""Strategies that ask several agents once and vote, and the vote itself."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from pydantic import Field

from coterie.errors import AllAgentsFailed
from coterie.rollout import Rollout
from coterie.types import Amount, Routing, Size, Turn, spec

ROUNDING = 1e-9  # .6 + .3 is to reach .9


@spec
class Vote:
    """CERA-MoA's inference rule: the shortest prefix of agents whose familiarity reaches `threshold` is asked,
    their answers are voted on by familiarity (Eqs. 3 and 13).

    All agents are asked where even all together fall short. Where an asked agent fails, the next in order
    stand in until the answered familiarity reaches the threshold. An open-ended query, whose answers cannot
    be compared, goes to the first agent alone unless `all_on_open` (which pays for answers nobody reads).
    `temperature` replaces the agents' own; None keeps theirs.
    """

    threshold: Annotated[float, Field(ge=0)] = 0.7
    all_on_open: bool = False
    temperature: Amount | None = None

    def plan(self, routing: Routing, open_ended: bool = False) -> list[str]:
        """Who is asked first."""
        if open_ended and not self.all_on_open:
            return routing.ranked()[:1]
        return prefix_reaching(routing, routing.ranked(), self.threshold)

    async def solve(self, rollout: Rollout) -> Turn | None:
        routing = await rollout.route()
        queue = routing.ranked()
        if rollout.reader.open_ended and not self.all_on_open:
            return await first_answer(rollout, queue, self.temperature)
        turns: list[Turn] = []
        while queue and (not turns or _reached(turns, routing) < self.threshold - ROUNDING):
            names = prefix_reaching(routing, queue, self.threshold - _reached(turns, routing))
            queue = queue[len(names) :]
            turns += await ask_some(rollout, names, self.temperature, last=not queue and not turns)
        if rollout.reader.open_ended:
            return turns[0]
        return await asyncio.to_thread(weighted_vote, turns, routing.scores or routing.weights, rollout.reader.same)


@spec
class TopK:
    """The router's first `k` agents are asked (None: all) and vote, by weight or one vote each.

    `temperature` replaces the agents' own; None keeps theirs.
    """

    k: Size | None = None
    weighted: bool = True
    temperature: Amount | None = None

    def plan(self, routing: Routing, open_ended: bool = False) -> list[str]:
        """Who is asked."""
        return routing.ranked()[: self.k]

    async def solve(self, rollout: Rollout) -> Turn | None:
        routing = await rollout.route()
        turns = await rollout.ask_all(self.plan(routing), temperature=self.temperature)
        if rollout.reader.open_ended:
            return turns[0]
        scores = (routing.scores or routing.weights) if self.weighted else {}
        return await asyncio.to_thread(weighted_vote, turns, scores, rollout.reader.same)


def prefix_reaching(routing: Routing, names: Sequence[str], threshold: float) -> list[str]:
    """The shortest prefix of `names` whose scores sum to `threshold`; all of them if even those fall short."""
    total, prefix = 0.0, []
    for name in names:
        prefix.append(name)
        total += routing.score(name)
        if total >= threshold - ROUNDING:
            break
    return prefix


def _reached(turns: Sequence[Turn], routing: Routing) -> float:
    return sum(routing.score(turn.agent) for turn in turns)


async def ask_some(
    rollout: Rollout, names: Sequence[str], temperature: float | None = None, *, last: bool
) -> list[Turn]:
    """Ask all of `names`; none answering is an error only where nobody else is left to ask."""
    try:
        return await rollout.ask_all(names, temperature=temperature)
    except AllAgentsFailed:
        if last:
            raise
        return []


async def first_answer(rollout: Rollout, names: Sequence[str], temperature: float | None = None) -> Turn:
    """The first agent's turn, or the next one's where it fails."""
    for name in names[:-1]:
        if turns := await ask_some(rollout, [name], temperature, last=False):
            return turns[0]
    return (await ask_some(rollout, names[-1:], temperature, last=True))[0]


def weighted_vote(
    turns: Sequence[Turn], scores: Mapping[str, float], same: Callable[[str, str], bool]
) -> Turn | None:
    """The turn that speaks for the answer with the most weight (Eq. 13; ties and abstentions: C25).

    Answers are grouped by `same`. A group weighs the sum of its agents' scores (1 each where `scores` is
    empty); a tie goes to the group with the highest single score, then to the earlier one. Turns without
    an answer abstain; if all abstain the turn with the highest score stands. None for no turns.
    """
    weight = {turn.index: scores.get(turn.agent, 0.0) if scores else 1.0 for turn in turns}

    def best(group: Sequence[Turn]) -> Turn:
        return max(group, key=lambda turn: (weight[turn.index], -turn.index))

    groups: list[list[Turn]] = []
    for turn in turns:
        answer = turn.answer
        if answer is None:
            continue
        home = next((g for g in groups if same(str(g[0].answer), answer)), None)
        if home is None:
            groups.append([turn])
        else:
            home.append(turn)
    if not groups:
        return best(turns) if turns else None
    winner = max(groups, key=lambda g: (sum(weight[t.index] for t in g), weight[best(g).index], -g[0].index))
    return best(winner)
