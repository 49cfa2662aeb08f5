"""Who grades what a reviewer learns from: rules that know the gold answer, or an agent that is told it.

A teacher gives scores on the reviewer's scale and rationales; one that restates the gold answer is no lesson.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from coterie.learning.examples import Example
from coterie.learning.steps import Step, steps
from coterie.strategies import prompts
from coterie.strategies.prompts import BEST, WORST
from coterie.strategies.reviewer import read
from coterie.tasks.catalog import reader_of
from coterie.tasks.golds import gold_texts
from coterie.team import Team
from coterie.types import Agent, record

VERDICTS = {True: "accepted", False: "rejected"}
RESTATED = "a rationale restates the gold answer"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@record
class Label:
    """Scores and rationales in the order shown; or why there are none."""

    scores: tuple[int, ...] = ()
    rationales: tuple[str, ...] = ()
    rejected: str = ""


class Teacher(Protocol):
    """Labels an example. `identity` tells teachers apart that may label otherwise."""

    @property
    def identity(self) -> str: ...

    async def label(self, example: Example) -> Label: ...


def checked(example: Example, label: Label) -> Label:
    """The label, rejected where a rationale restates one of the query's gold answers."""
    golds = gold_texts(example.query)
    if any(restates(text, golds) for text in label.rationales):
        return Label(rejected=RESTATED)
    return label


def restates(text: str, golds: Sequence[str]) -> bool:
    """Whether a text has a gold answer in it, as words of its own or as an equal number.

    A single letter counts in the case in which it is written, since `a` is a word.
    """
    plain = " ".join(text.split())
    numbers = {float(found.replace(",", "")) for found in re.findall(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?", plain)}
    for gold in (" ".join(gold.split()) for gold in golds):
        flags = re.IGNORECASE if len(gold) > 1 else 0
        if gold and re.search(rf"(?<![\w.]){re.escape(gold)}(?!\w|\.\d)", plain, flags):
            return True
        if re.fullmatch(r"-?\d[\d,]*(?:\.\d+)?", gold) and float(gold.replace(",", "")) in numbers:
            return True
    return False


# --- rules ----------------------------------------------------------------------------------------------


@record
class Facts:
    """What is known of an attempt: its reward, its answer, its steps, how many of the others answer alike."""

    value: float
    solved: bool
    answer: str | None
    steps: tuple[Step, ...]
    alike: int

    @property
    def wrong(self) -> list[int]:
        return [place for place, step in enumerate(self.steps) if not step.holds]


class Gold:
    """The programmatic teacher (R15): the verifier's verdict and the steps that can be checked, on the rubric's
    levels.

    Solved: 10 with steps that hold, 9 without any, 8 and 7 with one and more wrong ones. Partly right: 6, or 5 with
    a wrong step. Not solved: 4 where most steps hold, 3 where some do, 2 without a step that holds, 1 without an
    answer.
    """

    identity = "gold"

    async def label(self, example: Example) -> Label:
        golds = gold_texts(example.query)
        found = [_facts(example, place) for place in range(len(example.attempts))]
        return Label(
            scores=tuple(map(level, found)),
            rationales=tuple(rationale(facts, golds) for facts in found),
        )


def _facts(example: Example, place: int) -> Facts:
    attempts = example.attempts
    own, same = attempts[place], reader_of(example.query).same
    answers = [other.quote.answer for n, other in enumerate(attempts) if n != place]
    mine = own.quote.answer
    return Facts(
        value=own.score.value or 0.0,
        solved=bool(own.score.correct),
        answer=mine,
        steps=tuple(steps(own.quote.text)),
        alike=0 if mine is None else sum(one is not None and (one == mine or same(mine, one)) for one in answers),
    )


def level(facts: Facts) -> int:
    """The score of an attempt on the rubric of `prompts.RUBRIC`."""
    wrong, right = len(facts.wrong), len(facts.steps) - len(facts.wrong)
    if facts.solved:
        return 10 - bool(not facts.steps) if not wrong else 9 - min(wrong, 2)
    if facts.answer is None and not facts.value:
        return 1
    if facts.value:
        return 5 if wrong else 6
    return (4 if right > wrong else 3) if right else 2


def rationale(facts: Facts, golds: Sequence[str]) -> str:
    """Why, in words that name the step; the first wording of it that states no gold answer."""
    for naming in (_by_text, _by_place, _by_nothing):
        said = f"{_verdict(facts, naming)}{_others(facts)}"
        if not restates(said, golds):
            return said
    return ""


def _verdict(facts: Facts, naming: Callable[[Facts], str]) -> str:
    if facts.wrong:
        return f"{naming(facts)} is wrong{', the result is not' if facts.solved else ''}."
    if facts.answer is None and not facts.solved:
        return "There is no answer to read."
    if facts.solved:
        return "What can be checked holds." if facts.steps else "It holds, but shows no step."
    if facts.value:
        return "It holds in part only."
    return "Steps hold, the result does not." if facts.steps else "It fails, and shows no step."


def _by_text(facts: Facts) -> str:
    return f"The step {facts.steps[facts.wrong[0]].left}"


def _by_place(facts: Facts) -> str:
    place = facts.wrong[0]
    return f"The {ORDINALS[place]} step" if place < len(ORDINALS) else "A late step"


def _by_nothing(facts: Facts) -> str:
    return "One of its steps"


def _others(facts: Facts) -> str:
    if facts.answer is None:
        return ""
    return " Another agrees." if facts.alike else " No other agrees."


# --- an agent -------------------------------------------------------------------------------------------


class Asked:
    """An agent of a team as the teacher: it sees the gold answers, and what the verifier said of each attempt."""

    def __init__(self, team: Team, agent: Agent, room: int) -> None:
        self.team, self.agent, self.room = team, agent, room

    @property
    def identity(self) -> str:
        return f"{self.agent.name} {self.agent.revision}"

    async def label(self, example: Example) -> Label:
        """Raises: AllAgentsFailed where the agent does not answer; that is no label."""
        shown = [
            replace(one.quote, facts={"verifier": VERDICTS[bool(one.score.correct)]}) for one in example.attempts
        ]
        messages = prompts.teacher(example.query, shown, gold_texts(example.query), self.room)
        rollout = self.team.rollout(example.query)
        turn = await rollout.ask(self.agent.name, messages)
        said = read(turn.completion.text, len(shown)).said
        if len(said) < len(shown):
            return Label(rejected="not every attempt was reviewed")
        found = [said[number] for number in range(1, len(shown) + 1)]
        return Label(
            scores=tuple(min(max(math.floor(one.score + 0.5), WORST), BEST) for one in found),
            rationales=tuple(one.rationale for one in found),
        )
