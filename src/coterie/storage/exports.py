"""Finished runs as recorded outcome tables, and runs or tables as RouterArena's prediction files."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.errors import DataError
from coterie.outcomes import Outcomes
from coterie.storage.cells import FAILED, NO_SCORE, NOT_RUN
from coterie.storage.tablefile import Recorded, Table
from coterie.storage.tables import Asked, item_of, prompts_of
from coterie.types import Trace, Turn, record


@record
class Exported:
    """A run's outcomes as a table, and its empty cells by (agent, reason).

    `NOT_RUN` is a query that was not put to the agent, as a router chose. An agent that never answered has no
    column.
    """

    table: Table
    missing: Mapping[tuple[str, str], int]


def table_of(traces: Iterable[Trace], models: Mapping[str, Recorded] | None = None, *, asked: Asked) -> Exported:
    """What each agent scored on each query of these traces, prompt and completion tokens apart.

    Samples of one agent are averaged (`Outcomes.from_traces`). `models` says what is known of agents by name,
    `asked` takes question and options out of a prompt. DataError where nothing was graded.
    """
    traces = list(traces)
    outcomes = Outcomes.from_traces(traces)
    if not outcomes.agents or np.isnan(outcomes.scores).all():
        raise DataError("no answer of this run has a verdict, so that there are no outcomes")
    table = Table(
        folder="",
        items=tuple(item_of(query, asked) for query in outcomes.queries),
        models=tuple((models or {}).get(name, Recorded(agent=name)) for name in outcomes.agents),
        scores=outcomes.scores,
        prompt_tokens=_tokens(traces, lambda turn: (turn.completion.prompt_tokens, 0)),
        completion_tokens=_tokens(traces, lambda turn: (0, turn.completion.completion_tokens)),
        costs=outcomes.costs,
    )
    return Exported(table=table, missing=_missing(traces, outcomes))


def _missing(traces: Iterable[Trace], outcomes: Outcomes) -> Counter[tuple[str, str]]:
    """Queries without an outcome of an agent, by (agent, reason): a failed call leaves no turn, only a failure."""
    traces = list(traces)
    reasons = {(t.query.id, turn.agent): NO_SCORE for t in traces for turn in t.turns}
    reasons |= {(t.query.id, failure.agent): FAILED for t in traces for failure in t.failures}
    rows, columns = np.nonzero(~np.isnan(outcomes.scores))
    there = {(outcomes.queries[i].id, outcomes.agents[j]) for i, j in zip(rows, columns, strict=True)}
    queries = dict.fromkeys(trace.query.id for trace in traces)
    agents = {*outcomes.agents, *(failure.agent for trace in traces for failure in trace.failures)}
    empty = [(query, agent) for agent in sorted(agents) for query in queries if (query, agent) not in there]
    return Counter((agent, reasons.get((query, agent), NOT_RUN)) for query, agent in empty)


def _tokens(traces: Iterable[Trace], part: Callable[[Turn], tuple[int, int]]) -> np.ndarray:
    """The outcomes' token counts when each turn counts with one part of its tokens only: (Q, A)."""

    def cut(turn: Turn) -> Turn:
        prompt, completion = part(turn)
        counts = replace(turn.completion, prompt_tokens=prompt, completion_tokens=completion)
        return replace(turn, completion=counts)

    return Outcomes.from_traces(replace(t, turns=tuple(map(cut, t.turns))) for t in traces).tokens


# --- RouterArena --------------------------------------------------------------------------------------


def arena_of_traces(traces: Iterable[Trace]) -> list[dict[str, Any]]:
    """One entry a query: the agent whose answer settled it. The query's id is the global index.

    RouterArena knows one model a query; where several were asked, cost is that of all of them.
    """
    return [_settled(trace) for trace in traces]


def _settled(trace: Trace) -> dict[str, Any]:
    if trace.final is None:
        return _entry(trace.query.id, trace.query.text, "", None, (None, None))
    turn = trace.turns[trace.final]
    used = {"input_tokens": turn.completion.prompt_tokens, "output_tokens": turn.completion.completion_tokens}
    score = None if trace.score is None else trace.score.value
    result = {"generated_answer": trace.text, "success": bool(trace.text.strip()), "token_usage": used}
    return _entry(trace.query.id, trace.query.text, turn.agent, result, (trace.cost, score))


def arena_of_table(table: Table, agent: str) -> list[dict[str, Any]]:
    """Entries of a table: `agent` is what the router chose, the others' outcomes are there `for_optimality`."""
    if agent not in table.agents:
        raise DataError(f"{table.folder}: has no agent {agent!r}; there are {', '.join(table.agents)}")
    chosen = table.agents.index(agent)
    rows: list[dict[str, Any]] = []
    for i, (item, prompt) in enumerate(zip(table.items, prompts_of(table), strict=True)):
        for j in sorted(range(len(table.agents)), key=lambda j: j != chosen):
            if j == chosen or not np.isnan(table.scores[i, j]):
                other = {} if j == chosen else {"for_optimality": True}
                rows.append(_cell(table, i, j, (item.id, prompt)) | other)
    return rows


def _cell(table: Table, i: int, j: int, asked: tuple[str, str]) -> dict[str, Any]:
    parts = (table.prompt_tokens, table.completion_tokens, table.costs, table.scores)
    prompt, completion, cost, score = (None if np.isnan(part[i, j]) else float(part[i, j]) for part in parts)
    used = {"input_tokens": prompt, "output_tokens": completion}
    if prompt is None and completion is not None:
        used = {"input_tokens": None, "output_tokens": None, "total_tokens": completion}
    result = None if score is None else {"generated_answer": "", "success": True, "token_usage": used}
    return _entry(*asked, table.agents[j], result, (cost, score))


def _entry(
    index: str, prompt: str, agent: str, result: Mapping[str, Any] | None, known: tuple[float | None, float | None]
) -> dict[str, Any]:
    """An entry under RouterArena's keys; `known` is cost in dollars and accuracy."""
    return {
        "global index": index,
        "prompt": prompt,
        "prediction": agent,
        "generated_result": result,
        "cost": known[0],
        "accuracy": known[1],
    }
