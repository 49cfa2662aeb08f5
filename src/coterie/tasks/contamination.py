"""A test item never enters training: digests of what is asked, whatever the contract, spelling or order of options.

Finds equal questions, not paraphrases. Decides nothing about scores.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from hashlib import sha256
from string import ascii_uppercase

from coterie.storage.tables import KIND as RECORDED
from coterie.storage.tables import twin_line
from coterie.tasks.extract import CONTRACTS
from coterie.types import Query, record

LENGTH = 16
TEST_SHARE = 5
"""Of a task that came in one piece, one question in this many is test."""
OPTION = re.compile(r"([A-Z])\. (.*)")
PUNCTUATION = re.compile(r"""[;:!?"'`´‘’“”„«»…¿¡]|(?<!\d)[.,]|[.,](?!\d)""")


def digest(query: Query) -> str:
    """16 hexadecimal digits of the question with its context, and of its options.

    Case, space, the punctuation of sentences and the order of options do not count, nor does the contract's suffix:
    the same item asked under two contracts, or found in two tasks, has one digest.
    """
    question, options = _parts(bare(query), (query.reference or {}).get("choices"))
    facts = json.dumps([_plain(question), sorted(map(_plain, options))], ensure_ascii=False)
    return sha256(facts.encode(errors="surrogatepass")).hexdigest()[:LENGTH]


def is_test(query: Query) -> bool:
    """Whether a question is for the test where a task came without a split: a fifth of all, by the digest.

    Equal questions are on one side, and what is added later moves none of them.
    """
    return int(digest(query), 16) % TEST_SHARE == 0


@record
class Overlap:
    """Pairs of equal questions: places in the training and in the test queries."""

    pairs: tuple[tuple[int, int], ...]


def overlap(train: Sequence[Query], test: Sequence[Query]) -> Overlap:
    """Which training queries are asked in the test as well, each with the first such test query."""
    seen: dict[str, int] = {}
    for place, query in enumerate(test):
        seen.setdefault(digest(query), place)
    found = [(i, seen.get(digest(query))) for i, query in enumerate(train)]
    return Overlap(pairs=tuple((i, place) for i, place in found if place is not None))


def without_seen(train: Iterable[Query], test: Iterable[Query]) -> tuple[tuple[Query, ...], tuple[Query, ...]]:
    """The training queries that are not in the test, and those that are and were dropped."""
    held_out = {digest(query) for query in test}
    kept: list[Query] = []
    dropped: list[Query] = []
    for query in train:
        (dropped if digest(query) in held_out else kept).append(query)
    return tuple(kept), tuple(dropped)


def bare(query: Query) -> str:
    """What is asked with its options, without the contract's suffix or the line that tells recorded twins apart."""
    contract = CONTRACTS.get(query.contract)
    suffix = contract.suffix.strip() if contract else ""
    text = query.text.removesuffix(suffix).rstrip()
    return text.removesuffix(twin_line(query)).rstrip() if query.task == RECORDED else text


def question_and_options(query: Query) -> tuple[str, tuple[str, ...]]:
    """What is asked without its options, and the options of the reference; () where that has none.

    A table holds both apart (`storage.tables`). Options that it has no letters for stay in the question.
    """
    text, choices = bare(query), tuple(map(str, (query.reference or {}).get("choices") or ()))
    question = _parts(text, choices)[0].strip() if 0 < len(choices) <= len(ascii_uppercase) else ""
    return (question, choices) if question else (text, ())


def _parts(text: str, choices: Sequence[str] | None) -> tuple[str, list[str]]:
    """Question and options: those of the reference, else the lettered lines that the text ends with."""
    if choices:
        listed = "\n".join(f"{letter}. {option}" for letter, option in zip(ascii_uppercase, choices, strict=False))
        return text.removesuffix(listed.rstrip()), list(choices)
    lines = text.split("\n")
    found: list[str] = []
    while lines and (option := OPTION.fullmatch(lines[-1])):
        found.insert(0, option[2])
        lines.pop()
        if option[1] == "A" and len(found) > 1:
            return "\n".join(lines), found
    return text, []


def _plain(text: str) -> str:
    """Small letters, one space between words, no punctuation of sentences; brackets, signs and decimals stay."""
    text = PUNCTUATION.sub(" ", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(text.split())
