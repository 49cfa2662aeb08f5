"""What a recorded outcome table means: its queries, its agents, its outcomes, and the task kind `recorded`.

The tables hold scores, not answers: there is nothing in them to vote on, and nothing about a prompt that
differs from the recorded question.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np

from coterie.outcomes import Outcomes
from coterie.storage.tablefile import Item, Recorded, Table, read_table, save_table
from coterie.types import Agent, Message, Query, Score, record

__all__ = [
    "Asked",
    "Item",
    "Recorded",
    "Table",
    "Verdict",
    "agents_of",
    "covered",
    "item_of",
    "queries_of",
    "read_table",
    "save_table",
    "to_outcomes",
    "twin_line",
    "verify_recorded",
    "write_table",
]
KIND = "recorded"
CONTRACT = "raw"
Asked = Callable[[Query], tuple[str, tuple[str, ...]]]
"""What of a query's prompt is its question, and what its options."""


# --- queries and agents ------------------------------------------------------------------------------


def queries_of(table: Table) -> tuple[Query, ...]:
    """The table's items as queries of kind `recorded`, in its order; `replay:` finds them by their prompt."""
    return tuple(
        Query(
            id=item.id,
            messages=(Message(role="user", content=prompt),),
            task=KIND,
            contract=CONTRACT,
            reference={"query_id": item.id} | ({"choices": item.choices} if item.choices else {}),
            metadata={"source": item.dataset, "domain": item.category or item.dataset, "task": item.task},
        )
        for item, prompt in zip(table.items, prompts_of(table), strict=True)
    )


def prompts_of(table: Table) -> tuple[str, ...]:
    """Question and lettered options of each item. Items that share these are told apart by a last line."""
    plain = [prompt_of(item) for item in table.items]
    times = Counter(plain)
    return tuple(
        text if times[text] == 1 else f"{text}\n\n{_twin_line(item.dataset, item.id)}"
        for item, text in zip(table.items, plain, strict=True)
    )


def twin_line(query: Query) -> str:
    """The last line that `queries_of` adds to such an item, which is no part of its question."""
    return _twin_line(str(query.metadata.get("source", "")), query.id)


def _twin_line(dataset: str, name: str) -> str:
    return f"[{dataset}: {name}]"


def prompt_of(item: Item) -> str:
    """Question and lettered options of one item."""
    options = [f"{letter}. {text}" for letter, text in zip(ascii_uppercase, item.choices, strict=False)]
    return "\n\n".join([item.question.strip(), "\n".join(options)]).strip()


def agents_of(table: Table) -> tuple[Agent, ...]:
    """An agent for each column, with its list price (None: unknown), answered by `replay:<folder>`."""
    revisions = revisions_of(table)
    return tuple(
        Agent(name=m.agent, model=f"replay:{table.folder}", price=m.price, revision=revisions[m.agent])
        for m in table.models
    )


def revisions_of(table: Table) -> dict[str, str]:
    """A digest of each agent's column: it changes when one of the agent's recorded scores does."""
    ids = "\n".join(item.id for item in table.items).encode()
    return {
        name: sha256(ids + np.ascontiguousarray(table.scores[:, i]).tobytes()).hexdigest()[:16]
        for i, name in enumerate(table.agents)
    }


# --- outcomes ----------------------------------------------------------------------------------------


def to_outcomes(table: Table, pool: Mapping[str, Agent] | None = None) -> Outcomes:
    """The table as outcomes. A missing cell stays NaN.

    `tokens` is the sum of the counts that are known. The recorded cost is preferred; where there is none it is
    tokens times list price, NaN if either is unknown. A total of tokens has a cost only where both prices are
    equal.
    `pool` gives the revisions that the outcomes are to stand for; without it they are those of `agents_of`.
    """
    known = revisions_of(table) | {name: agent.revision for name, agent in (pool or {}).items()}
    prices = np.array([[_or_nan(m.price.prompt), _or_nan(m.price.completion)] for m in table.models])  # (A, 2)
    prices = prices.reshape(len(table.models), 2)
    priced = _priced(table.prompt_tokens, table.completion_tokens, prices)
    return Outcomes(
        queries=queries_of(table),
        agents=table.agents,
        scores=table.scores.copy(),
        tokens=_known(table.prompt_tokens, table.completion_tokens),
        costs=np.where(np.isnan(table.costs), priced, table.costs),
        revisions={name: known[name] for name in table.agents},
    )


def _known(prompt: np.ndarray, completion: np.ndarray) -> np.ndarray:
    """The sum of what is known, NaN only where nothing is: (Q, A)."""
    nothing = np.isnan(prompt) & np.isnan(completion)
    return np.where(nothing, np.nan, np.nan_to_num(prompt) + np.nan_to_num(completion))


def _priced(prompt: np.ndarray, completion: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """Dollars by list prices of shape (A, 2): (Q, A)."""
    total = np.isnan(prompt) & (prices[:, 0] == prices[:, 1])
    dollars: np.ndarray = (np.where(total, 0.0, prompt) * prices[:, 0] + completion * prices[:, 1]) / 1e6
    return dollars


def covered(outcomes: Outcomes, share: float = 0.98) -> Outcomes:
    """The agents that answered at least `share` of the queries, on the queries that all of them answered.

    Means of agents that answered different queries cannot be compared; this makes a table without holes.
    """
    seen = ~np.isnan(outcomes.scores)
    kept = np.flatnonzero(seen.mean(axis=0) >= share)
    rows = np.flatnonzero(seen[:, kept].all(axis=1))
    names = tuple(outcomes.agents[i] for i in kept)
    cut = np.ix_(rows, kept)
    return Outcomes(
        queries=tuple(outcomes.queries[i] for i in rows),
        agents=names,
        scores=outcomes.scores[cut],
        tokens=outcomes.tokens[cut],
        costs=outcomes.costs[cut],
        revisions={name: outcomes.revisions[name] for name in names},
    )


def write_table(
    folder: Path | str, outcomes: Outcomes, pool: Mapping[str, Agent] | None = None, *, asked: Asked
) -> None:
    """Write outcomes as a table that `read_table` reads back; `pool` gives models and prices.

    `asked` takes question and options out of a prompt (`tasks.contamination.question_and_options`). Outcomes have
    one token count a call: it is written as a total. Cells without a score are left out.
    """
    totals = np.asarray(outcomes.tokens, dtype=float)
    table = Table(
        folder=str(folder),
        items=tuple(item_of(query, asked) for query in outcomes.queries),
        models=tuple(_recorded(name, (pool or {}).get(name)) for name in outcomes.agents),
        scores=outcomes.scores,
        prompt_tokens=np.full_like(totals, np.nan),
        completion_tokens=totals,
        costs=outcomes.costs,
    )
    save_table(folder, table)


def item_of(query: Query, asked: Asked) -> Item:
    """A query as a row of a table: question and options apart, nothing of the contract that it was asked under."""
    source, reference = str(query.metadata.get("source", "")), query.reference or {}
    question, choices = asked(query)
    return Item(
        id=query.id,
        dataset=source,
        task=str(query.metadata.get("task", query.task)),
        category="" if query.domain == source else query.domain,
        question=question,
        choices=choices,
        answer=reference.get("answer", reference.get("answers")),
    )


def _recorded(name: str, agent: Agent | None) -> Recorded:
    if agent is None:
        return Recorded(agent=name)
    return Recorded(agent=name, base_model=agent.model, workflow="direct", price=agent.price, price_source="pool")


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


# --- the kind `recorded` -----------------------------------------------------------------------------


@record
class Verdict:
    """What a replayed agent says in place of the answer that was not recorded: which query, and how well it did."""

    query: str
    agent: str
    score: float

    def text(self) -> str:
        return json.dumps(
            {KIND: {"query": self.query, "agent": self.agent, "score": self.score}}, ensure_ascii=False
        )

    @staticmethod
    def read(text: str) -> "Verdict | None":
        """The verdict that a text states, None where it is something else."""
        try:
            data = json.loads(text)
            query, agent, score = (data[KIND][name] for name in ("query", "agent", "score"))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        sound = isinstance(score, int | float) and 0 <= score <= 1
        return Verdict(query=str(query), agent=str(agent), score=float(score)) if sound else None


def verify_recorded(answer: str | None, text: str, reference: Mapping[str, Any]) -> Score:
    """Read the recorded score back: `pass` at 1 only, partial scores fail with their value.

    A text that no `replay:` agent gave, or that belongs to another query, cannot be judged: error, never 0.
    """
    found = Verdict.read(text)
    if found is None:
        return Score(verdict="error", value=None, reason="no recorded outcome in the text")
    if found.query != reference.get("query_id"):
        return Score(verdict="error", value=None, reason=f"the outcome is of query {found.query!r}")
    return Score(
        verdict="pass" if found.score >= 1 else "fail", value=found.score, reason=f"recorded: {found.score:g}"
    )
