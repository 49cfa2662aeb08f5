"""Made agents for the mechanism of a ranked memory: they read real prompts and answer by stated chances.

All that they know of a mixture is the prompt: which attempts it quotes, with what score, with a review or without.
They know nothing of layers, routes or memories. What they show follows from the assumptions of `World`; it is no
evidence about language models.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

from coterie.backends.recorded import Scripted
from coterie.config import build
from coterie.pool import pool_of, revise
from coterie.strategies.prompts import NOTHING_NEW
from coterie.strategies.reviewer import BEST, NEUTRAL, WORST
from coterie.tasks.catalog import query_of
from coterie.team import Backends, Team
from coterie.types import Agent, Messages, Query, draw, record

ANSWERS = "ABCDE"
MISTAKES = (8, 4, 2, 1)
"""How often a wrong answer is each of the four that a question has: one mistake is common, the others rarer."""
LOW = 4
"""At or under this score the reviewer's rubric calls an answer wrong."""
_QUESTION = re.compile(r"Question (\d+)\.")
_ATTEMPT = re.compile(
    r'<attempt number="\d+"(?: score="(\d+)/10")?>\n(.*?)(<review>.*?</review>)?\n</attempt>', re.DOTALL
)
_BOX = re.compile(r"\\boxed\{(\w)\}")
_NOTE = re.compile(r"Attempt (\d+) is no attempt but a note")
_EARLIER = re.compile(r"Attempts 1 to (\d+) at this task came first")


@record
class World:
    """The assumptions, with the values that were chosen before anything was run, and why.

    1. Skill. All agents are equally able; a question's chance to be answered right alone runs evenly from `hardest`
       to `easiest` over the questions (half of all answers are right: nothing is near a floor or a ceiling).
    2. Likeness. Answers to one and the same prompt are correlated by `likeness`, question by question; with the
       spread of difficulty that makes 0.45 between two agents, of different prompts 0.21.
    3. Eye. A right attempt weighs `eye` times a wrong one in the reader's own eyes (3 in 5 of a pair: telling is
       easier than finding, and far from sure).
    4. Own. A reader makes an attempt of its own, which weighs as much as `own` of those that it reads, and settles
       on one in proportion to weight: with nothing to warn it, it is misled by the share of wrong ones.
    5. Heed. A shown score multiplies a reference's weight: by `heed` for the best, by 1 / `heed` for the worst,
       evenly between in the logarithm.
    6. Warning. A score of 4 or less keeps a reader from making that attempt's answer its own by chance `warned`: if
       its own attempt would come to that answer, it looks for another, whether or not the answer was wrong.
    7. Rationale. With a rationale beside it a score counts `rationale` times over in 5 and 6.
    8. Reviewer. `oracle` gives right attempts 9 and wrong ones 2. `noisy` gives 5.5 + 2.5 x, where x has mean
       `skill` for right and -`skill` for wrong ones and in all a variance of 1: its correlation with the truth is
       `skill` before rounding. `stubborn` is the share of its noise that all attempts with one answer have in
       common. `blank` gives always 5. All write rationales.
    9. Slip. Who takes over another's right answer loses it with chance `slip` on the way.
    """

    hardest: float = 0.1
    easiest: float = 0.9
    likeness: float = 0.3
    eye: float = 1.5
    own: float = 1.0
    heed: float = 3.0
    warned: float = 0.5
    rationale: float = 2.0
    skill: float = 0.5
    stubborn: float = 0.0
    slip: float = 0.0


@record
class Question:
    """One question as the world knows it: agents are told its number alone. `mistakes`: the commonest first."""

    query: Query
    chance: float
    right: str
    mistakes: tuple[str, ...]


@record
class Seen:
    """A quoted attempt as a reader sees it. `score` None: none is shown; `argued`: a review stands beside it."""

    answer: str
    score: float | None = None
    argued: bool = False


def questions(world: World, count: int) -> list[Question]:
    """Questions from the hardest to the easiest; right answers and mistakes are drawn by number."""
    found = []
    for number in range(count):
        right, *mistakes = Random(draw(0, "question", number)).sample(ANSWERS, len(ANSWERS))
        share = (number + 0.5) / count
        text = f"Question {number}. Which of {', '.join(ANSWERS)}?"
        found.append(
            Question(
                query=query_of(text, "qa", contract="boxed", gold=right, id=f"q{number}"),
                chance=world.hardest + share * (world.easiest - world.hardest),
                right=right,
                mistakes=tuple(mistakes),
            )
        )
    return found


def attempts(prompt: str) -> list[Seen]:
    """What a prompt quotes, in order. A note on the others stands for every answer that it names."""
    note = _NOTE.search(prompt)
    found: list[Seen] = []
    for place, (score, body, review) in enumerate(_ATTEMPT.findall(prompt), 1):
        boxes = _BOX.findall(body)
        named = boxes if note and place == int(note[1]) else boxes[-1:]
        found += [Seen(answer=box, score=float(score) if score else None, argued=bool(review)) for box in named]
    return found


@record
class Agents:
    """What all agents of one simulation say: `reviewer` is oracle, noisy or blank."""

    world: World
    questions: Sequence[Question]
    reviewer: str = "oracle"
    seed: int = 0

    def team(self, strategy: Mapping[str, Any], width: int) -> Team:
        """A team of `width` proposers, a reviewer and an aggregator that all speak by these assumptions."""
        roles = [*(("solver", f"p{n}") for n in range(width)), ("reviewer", "r"), ("aggregator", "z")]
        pool = pool_of([revise(Agent(name=name, model="scripted:made", role=role)) for role, name in roles])
        return Team(
            pool=pool,
            router=build("router", "uniform"),
            strategy=build("strategy", strategy),
            backends=Backends(opened={"scripted:made": Scripted(model="made", answer=self.said)}),
            seed=self.seed,
        )

    def said(self, agent: Agent, messages: Messages, seed: int) -> str:
        """The reply to a prompt."""
        prompt = messages[-1].content
        question = self.questions[int(_QUESTION.search(prompt)[1])]
        seen = attempts(prompt)
        if agent.role == "reviewer":
            return self.reviewed(question, seen, seed)
        if earlier := _EARLIER.search(prompt):
            return news(seen, int(earlier[1]))
        luck = Random(seed)
        alike = luck.random() < math.sqrt(self.world.likeness)
        answer = settled(self.world, question, seen, Random(draw(self.seed, prompt)) if alike else luck)
        return f"Step {luck.randrange(10**6)} leads there.\nAnswer: \\boxed{{{answer}}}"

    def reviewed(self, question: Question, seen: Sequence[Seen], seed: int) -> str:
        """JSON with a score and a rationale for each attempt."""
        scores = [self.score(question, one.answer, Random(draw(seed, n))) for n, one in enumerate(seen)]
        items = [
            {
                "trace": n,
                "score": score,
                "rationale": f"Its step to the result {'holds' if score > LOW else 'fails'}.",
            }
            for n, score in enumerate(scores, 1)
        ]
        return json.dumps({"reviews": items})

    def score(self, question: Question, answer: str, rng: Random) -> int:
        """From 1 to 10, by the kind of reviewer."""
        right = answer == question.right
        if self.reviewer != "noisy":
            return NEUTRAL if self.reviewer == "blank" else 9 if right else 2
        world = self.world
        common = Random(draw(self.seed, "stubborn", question.query.id, answer)).gauss(0, 1)
        noise = math.sqrt(world.stubborn) * common + math.sqrt(1 - world.stubborn) * rng.gauss(0, 1)
        x = world.skill * (1 if right else -1) + math.sqrt(1 - world.skill**2) * noise
        return min(max(round(5.5 + 2.5 * x), WORST), BEST)


def news(seen: Sequence[Seen], earlier: int) -> str:
    """What the later attempts have that the earlier ones had not: answers."""
    known = {one.answer for one in seen[:earlier]}
    fresh = dict.fromkeys(one.answer for one in seen[earlier:] if one.answer not in known)
    return "New: " + " ".join(f"\\boxed{{{answer}}}" for answer in fresh) if fresh else NOTHING_NEW


def settled(world: World, question: Question, seen: Sequence[Seen], rng: Random) -> str:
    """The answer of an agent that has seen these attempts (2 to 7 and 9 of the assumptions)."""
    avoided = {one.answer for one in seen if rng.random() < warning(world, one)}
    own = picked(alone(question, avoided), rng)
    weights = [world.own * eye(world, question, own), *(weight(world, question, one) for one in seen)]
    chosen = rng.choices(range(len(weights)), weights)[0]
    if chosen == 0:
        return own
    answer = seen[chosen - 1].answer
    slipped = answer == question.right and rng.random() < world.slip
    return picked(alone(question, {question.right}), rng) if slipped else answer


def chance(world: World, question: Question, seen: Sequence[Seen]) -> float:
    """The chance that `settled` gives the right answer, exactly: what an aggregation is worth without its luck."""
    heard = {answer: math.prod(1 - warning(world, o) for o in seen if o.answer == answer) for answer in ANSWERS}
    doubtful = [answer for answer, unheard in heard.items() if unheard < 1]
    weights = [weight(world, question, one) for one in seen]
    right = sum(w for w, one in zip(weights, seen, strict=True) if one.answer == question.right) * (1 - world.slip)
    total = 0.0
    for picks in product((False, True), repeat=len(doubtful)):
        avoided = {answer for answer, pick in zip(doubtful, picks, strict=True) if pick}
        likely = math.prod(1 - heard[answer] if answer in avoided else heard[answer] for answer in doubtful)
        chances = alone(question, avoided)
        for own, share in chances.items():
            mine = world.own * eye(world, question, own)
            good = right + (mine if own == question.right else 0.0)
            total += likely * share / sum(chances.values()) * good / (mine + sum(weights))
    return total


def alone(question: Question, avoided: Collection[str] = ()) -> dict[str, float]:
    """What an attempt of one's own comes to, by answer: to none of those to avoid, as far as there are others."""
    share = (1 - question.chance) / sum(MISTAKES)
    chances = {question.right: question.chance}
    chances |= {answer: share * part for answer, part in zip(question.mistakes, MISTAKES, strict=True)}
    return {answer: chance for answer, chance in chances.items() if answer not in avoided} or chances


def picked(chances: Mapping[str, float], rng: Random) -> str:
    """An answer by its chance."""
    return rng.choices(list(chances), list(chances.values()))[0]


def eye(world: World, question: Question, answer: str) -> float:
    """What an answer weighs by the reader's own judgement."""
    return world.eye if answer == question.right else 1.0


def weight(world: World, question: Question, one: Seen) -> float:
    """What a reference weighs for a reader."""
    if one.score is None:
        return eye(world, question, one.answer)
    middle, reach = (BEST + WORST) / 2, (BEST - WORST) / 2
    times = (world.rationale if one.argued else 1.0) * (one.score - middle) / reach
    return eye(world, question, one.answer) * world.heed**times


def warning(world: World, one: Seen) -> float:
    """The chance that a reference keeps its reader from its answer."""
    if one.score is None or one.score > LOW:
        return 0.0
    return 1 - (1 - world.warned) ** (world.rationale if one.argued else 1.0)
