"""Made questions about two small numbers, split by the unordered pair: what a tiny model can learn in minutes.

Domains differ by a word or a sign, so that what is right in one is wrong in another. A colour says nothing of its
rule: what a red pair asks for can only be learned. For other procedural questions there is reasoning-gym
(`generated`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from coterie.config import nearest
from coterie.errors import UserError
from coterie.tasks.items import Item
from coterie.types import draw, record

PREFIX = "operands:"
LOW, HIGH = 1, 30


@record
class Domain:
    """One rule: what is asked about a and b, in this order, and what is right."""

    ask: str
    answer: Callable[[int, int], int]


DOMAINS: Mapping[str, Domain] = {
    "sum": Domain(ask="What is {a} + {b}?", answer=lambda a, b: a + b),
    "difference": Domain(ask="How far apart are {a} and {b}?", answer=lambda a, b: abs(a - b)),
    "product": Domain(ask="What is {a} * {b}?", answer=lambda a, b: a * b),
    "larger": Domain(ask="Which is larger: {a} or {b}?", answer=max),
    "smaller": Domain(ask="Which is smaller: {a} or {b}?", answer=min),
    "first": Domain(ask="Which is named first: {a} or {b}?", answer=lambda a, b: a),
    "last": Domain(ask="Which is named last: {a} or {b}?", answer=lambda a, b: b),
    "red": Domain(ask="Red rule: {a}, {b}", answer=lambda a, b: a),
    "blue": Domain(ask="Blue rule: {a}, {b}", answer=lambda a, b: b),
    "green": Domain(ask="Green rule: {a}, {b}", answer=max),
    "yellow": Domain(ask="Yellow rule: {a}, {b}", answer=min),
}


def items(domain: str, split: str, seed: int, low: int = LOW, high: int = HIGH) -> Iterator[Item]:
    """Every unordered pair of different numbers in [low, high] once, in the order and with the sides of `seed`.

    A third of all pairs is `test`, whatever the domain: a pair that one domain tests is trained on in none.
    Raises: UserError for an unknown domain or numbers that leave no pair.
    """
    if domain not in DOMAINS:
        raise UserError(f"unknown domain {PREFIX}{domain}{nearest(domain, DOMAINS)}")
    if not (type(low) is int and type(high) is int and 0 <= low < high <= 1000):
        raise UserError(f"{PREFIX}{domain}: low and high must be whole numbers with 0 <= low < high <= 1000")
    pairs = [(a, b) for a in range(low, high + 1) for b in range(a + 1, high + 1)]
    random = np.random.default_rng(draw(seed, "operands", domain, low, high))
    for place in random.permutation(len(pairs)).tolist():
        a, b = pairs[place]
        turned = bool(random.integers(2))
        if (draw(0, "operands", a, b) % 3 == 0) == (split == "test"):
            yield _item(domain, *((b, a) if turned else (a, b)))


def _item(name: str, a: int, b: int) -> Item:
    domain = DOMAINS[name]
    facts: dict[str, Any] = {"task": "math", "source": "operands", "meta": {"subtask": name}}
    question = domain.ask.format(a=a, b=b)
    return Item(id=f"{name}-{a}-{b}", question=question, answer=str(domain.answer(a, b)), **facts)
