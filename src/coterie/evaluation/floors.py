"""The two cheap strategies that stand beside every gain: the best constant answer of each domain, and the last
number of the question copied. They ask no model, cost nothing, and go through the one flow like any team.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence

from coterie.backends.recorded import Scripted
from coterie.config import build
from coterie.pool import pool_of, revise
from coterie.strategies.single import Single
from coterie.tasks.catalog import reader_of
from coterie.tasks.golds import gold_texts
from coterie.team import Backends, Team
from coterie.types import Agent, Completion, Messages, Price, Query

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
FORMS = ("{}", "\\boxed{{{}}}", "ANSWER: {}", '{{"answer": "{}"}}')


def constant_team(train: Sequence[Query], test: Sequence[Query], name: str = "best constant") -> Team:
    """Gives for each domain the gold answer that is most frequent in `train`."""
    counts: dict[str, Counter[str]] = {}
    for query in train:
        if (gold := gold_of(query)) is not None:
            counts.setdefault(query.domain, Counter())[gold] += 1
    constants = {domain: count.most_common(1)[0][0] for domain, count in counts.items()}
    return floor(name, test, lambda query: constants.get(query.domain))


def echo_team(test: Sequence[Query], name: str = "last number copied") -> Team:
    """Gives the last number that the question itself contains."""
    return floor(name, test, last_number)


def last_number(query: Query) -> str | None:
    """The last number in what the human asked, without separators."""
    found = NUMBER.findall(query.text)
    return found[-1].replace(",", "") if found else None


def gold_of(query: Query) -> str | None:
    """The one gold answer of a query that has one as text."""
    return next(iter(gold_texts(query)), None)


def floor(name: str, queries: Sequence[Query], answer: Callable[[Query], str | None]) -> Team:
    """A team of one agent that answers each of `queries` by a function of the query."""
    texts = {query.messages: written(query, answer(query)) for query in queries}

    def reply(agent: Agent, messages: Messages, seed: int) -> Completion:
        return Completion(text=texts[messages])

    agent = revise(Agent(name=name, model=f"scripted:{name}", price=Price(prompt=0.0, completion=0.0)))
    backends = Backends(opened={agent.model: Scripted(model=name, answer=reply)})
    return Team(
        pool=pool_of([agent]), router=build("router", "uniform"), strategy=Single(), name=name, backends=backends
    )


def written(query: Query, answer: str | None) -> str:
    """The answer in the form that the query's reader takes it from; empty where it has none."""
    if answer is None:
        return ""
    extract = reader_of(query).extract
    texts = [form.format(answer) for form in FORMS]
    return next((text for text in texts if extract(text) == answer), texts[0])
