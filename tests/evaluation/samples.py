"""Scored traces as an evaluation leaves them: four simulated agents, four domains, eight recipes, sixty queries.

Every number comes from one seed. What an agent says is decided per query and agent, so that recipes that
ask the same agent see the same answer, as they do with a cache.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.types import Completion, Failure, Message, Query, Routing, Score, Trace, Turn, draw

AGENTS = ("careful", "coder", "quick", "reader")
PRICE = {"careful": 0.6, "coder": 0.45, "quick": 0.05, "reader": 0.3}  # dollars per million tokens
LENGTH = {"careful": 210, "coder": 150, "quick": 24, "reader": 90}
SKILL = {
    "arithmetic": {"careful": 0.80, "coder": 0.65, "quick": 0.50, "reader": 0.30},
    "code": {"careful": 0.45, "coder": 0.80, "quick": 0.25, "reader": 0.20},
    "logic": {"careful": 0.70, "coder": 0.45, "quick": 0.35, "reader": 0.50},
    "reading": {"careful": 0.50, "coder": 0.30, "quick": 0.45, "reader": 0.85},
}
ASKS = {
    "arithmetic": "A baker sells {a} loaves before noon and {b} after it. How many loaves is that a day?",
    "code": "What does `sum(range({a}, {b}))` evaluate to in Python? Give the number only.",
    "logic": "Exactly one of {a} boxes holds a coin and {b} of the labels lie. Which box can be ruled out first?",
    "reading": "The passage names {a} ships and {b} harbours. Which harbour is named right after the third ship?",
}
RECIPES = (
    "familiarity-vote",
    "best-single",
    "random",
    "cheapest",
    "majority-of-all",
    "top-2",
    "self-consistency-4",
    "debate",
)


def queries(n: int = 60) -> list[Query]:
    """`n` queries, the domains in turn."""
    return [query(i) for i in range(n)]


def query(i: int) -> Query:
    """One query with its gold answer."""
    domain = sorted(SKILL)[i % len(SKILL)]
    a, b = draw(1, i) % 90 + 10, draw(2, i) % 300 + 100
    text = ASKS[domain].format(a=a, b=b) + "\n\nEnd with the answer in \\boxed{}."
    system = Message(role="system", content="You are one of several agents. Answer as briefly as you can.")
    return Query(
        id=f"{domain}-{i:03d}",
        messages=(system, Message(role="user", content=text)),
        task="math",
        contract="boxed",
        reference={"answer": str(a + b)},
        metadata={"source": "sample", "domain": domain, "split": "test"},
    )


def turn(asked: Query, agent: str, index: int, *, nth: int = 0, reads: tuple[int, ...] = ()) -> Turn:
    """What the agent says, with its verdict; it knows more when it was shown a right answer."""
    rng = np.random.default_rng(draw(3, asked.id, agent, nth))
    hard = draw(8, asked.id) % 8 == 0
    right = not hard and rng.random() < SKILL[asked.domain][agent] + 0.08 * bool(reads)
    gold = int(str((asked.reference or {})["answer"]))
    said = None if rng.random() < 0.03 else str(gold if right else gold + int(rng.integers(1, 4)))
    words = int(LENGTH[agent] * rng.uniform(0.6, 1.6))
    text = "Let me think. " + "First this, then that. " * (words // 8)
    text += f"So the answer is \\boxed{{{said}}}." if said else "I can not say."
    messages = (Message(role="system", content=f"You are the {agent} agent."), asked.messages[1])
    prompt = 70 + 90 * len(reads)
    return Turn(
        index=index,
        agent=agent,
        role="solver",
        revision=f"{draw(4, agent):016x}",
        messages=messages,
        completion=Completion(
            text=text,
            finish="stop" if said else "length",
            prompt_tokens=prompt,
            completion_tokens=words,
            seconds=0.15 + words / 90,
        ),
        answer=said,
        reads=reads,
        cost=(prompt + words) * PRICE[agent] / 1e6,
        score=verdict(said, str(gold)),
    )


def plain(text: str = "text", tokens: tuple[int, int] = (10, 5), **parts: Any) -> Turn:
    """A turn made by hand, of one second: whatever a test does not care for is something."""
    said = Completion(text=text, prompt_tokens=tokens[0], completion_tokens=tokens[1], seconds=1.0)
    fixed = {"index": 0, "agent": "a", "role": "solver", "revision": "r", "messages": (), "completion": said}
    return Turn(**{**fixed, **parts})


def verdict(said: str | None, gold: str) -> Score:
    """Pass where equal."""
    if said == gold:
        return Score(verdict="pass", value=1.0, answer=said, reason="equal after normalisation")
    return Score(
        verdict="fail", value=0.0, answer=said, reason=f"{said} is not {gold}" if said else "no answer found"
    )


def routing(asked: Query, flat: bool = False) -> Routing:
    """A learned router's familiarity, or equal weights."""
    rng = np.random.default_rng(draw(5, asked.id))
    raw = {a: float(np.clip(SKILL[asked.domain][a] * rng.uniform(0.5, 1.05), 0.02, 0.99)) for a in AGENTS}
    if flat:
        return Routing(weights=dict.fromkeys(AGENTS, 1 / len(AGENTS)), seed=draw(6, asked.id))
    total = sum(raw.values())
    return Routing(
        weights={a: f / total for a, f in raw.items()}, scores=raw, seed=draw(6, asked.id), info={"threshold": 0.9}
    )


def voted(asked: Query, turns: Sequence[Turn], decision: Routing) -> Trace:
    """The trace of a vote by weight."""
    weight: dict[str, float] = {}
    for t in turns:
        if t.answer is not None:
            weight[t.answer] = weight.get(t.answer, 0.0) + decision.weights[t.agent]
    best = max(weight, key=lambda answer: weight[answer]) if weight else None
    settled = next(t for t in turns if t.answer == best)
    return Trace(
        query=asked,
        revisions={t.agent: t.revision for t in turns},
        turns=tuple(turns),
        routings=(decision,),
        final=settled.index,
        score=settled.score,
        seconds=max(t.completion.seconds for t in turns) + 0.02,
    )


def trace(recipe: str, asked: Query) -> Trace:
    """What one recipe does with one query."""
    decision = routing(asked, flat=recipe != "familiarity-vote" and recipe != "top-2")
    if recipe == "debate":
        return debate(asked, decision)
    if recipe == "self-consistency-4":
        return voted(asked, [turn(asked, "careful", i, nth=i) for i in range(4)], decision)
    return voted(asked, [turn(asked, name, i) for i, name in enumerate(chosen(recipe, asked, decision))], decision)


def chosen(recipe: str, asked: Query, decision: Routing) -> list[str]:
    """Whom a recipe asks."""
    ranked = sorted(AGENTS, key=lambda a: -decision.weights[a])
    if recipe == "familiarity-vote":
        reached = np.cumsum([decision.scores[a] for a in ranked])
        return ranked[: int(np.searchsorted(reached, 0.9)) + 1]
    fixed = {
        "best-single": ["careful"],
        "cheapest": ["quick"],
        "majority-of-all": list(AGENTS),
        "top-2": ranked[:2],
    }
    return fixed.get(recipe) or [AGENTS[draw(7, asked.id) % len(AGENTS)]]


def debate(asked: Query, decision: Routing) -> Trace:
    """Two open, then each reads the other."""
    first = [turn(asked, "careful", 0), turn(asked, "coder", 1)]
    second = [turn(asked, "careful", 2, nth=1, reads=(1,)), turn(asked, "coder", 3, nth=1, reads=(0,))]
    told = voted(asked, second, decision)
    again = replace(decision, after=2, reads={"careful": (1,), "coder": (0,)})
    return replace(told, turns=(*first, *second), routings=(decision, again), seconds=told.seconds * 2)


def outage(asked: Query) -> Trace:
    """Nobody answered."""
    why = (Failure(agent="quick", kind="Overloaded", message="503 after 4 tries"),)
    score = Score(verdict="error", value=None, reason="no answer (failed): quick: Overloaded: 503 after 4 tries")
    return Trace(
        query=asked, failures=why, stopped="failed", score=score, seconds=8.2, routings=(routing(asked, True),)
    )


def sample_run(n: int = 60) -> dict[str, list[Trace]]:
    """Eight recipes over the same queries; `cheapest` had two outages."""
    asked = queries(n)
    found = {recipe: [trace(recipe, q) for q in asked] for recipe in RECIPES}
    for i in (7, 31):
        if i < n:
            found["cheapest"][i] = outage(asked[i])
    return found
