"""Recorded outcomes: what each agent scored on each query. The one input that routers are fitted from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from coterie.types import Pool, Query, Trace, record


@record
class Outcomes:
    """Q queries by A agents. A missing outcome is NaN and stays missing: an outage is no incompetence."""

    queries: tuple[Query, ...]
    agents: tuple[str, ...]
    scores: np.ndarray  # (Q, A) reward in [0, 1] or NaN
    tokens: np.ndarray  # (Q, A) prompt + completion tokens or NaN
    costs: np.ndarray  # (Q, A) dollars or NaN
    revisions: Mapping[str, str]

    def means(self) -> dict[str, float]:
        """Mean score of each agent over the queries that it has an outcome for (NaN: none)."""
        seen = ~np.isnan(self.scores)
        totals = np.where(seen, self.scores, 0.0).sum(axis=0)
        return {
            name: float(totals[i] / n) if (n := seen[:, i].sum()) else float("nan")
            for i, name in enumerate(self.agents)
        }

    def take(self, rows: Sequence[int]) -> "Outcomes":
        """The same table for some of the queries."""
        index = np.asarray(rows, dtype=int)
        return replace(
            self,
            queries=tuple(self.queries[i] for i in rows),
            scores=self.scores[index],
            tokens=self.tokens[index],
            costs=self.costs[index],
        )

    @staticmethod
    def from_traces(traces: Iterable[Trace], pool: Pool | None = None) -> "Outcomes":
        """One row a query, from scored turns; an agent's several samples of a query are averaged.

        Only turns of an agent as its pool had it count, not those at another temperature, and only answers to the
        query alone, not to one with others' answers beside it; with `pool`, only those of its very revisions.
        """
        rows = [_own_turns(trace, pool) for trace in traces]
        rows = [trace for trace in rows if trace.turns]
        queries = {t.query.id: t.query for t in rows}
        revisions = {turn.agent: turn.revision for t in rows for turn in t.turns}
        rows = [replace(t, turns=tuple(u for u in t.turns if u.revision == revisions[u.agent])) for t in rows]
        agents = sorted(revisions)
        cells: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
        for trace in rows:
            for turn in trace.turns:
                if turn.score is not None and turn.score.value is not None:
                    used = turn.completion.prompt_tokens + turn.completion.completion_tokens
                    cost = float("nan") if turn.cost is None else turn.cost
                    cells.setdefault((trace.query.id, turn.agent), []).append((turn.score.value, used, cost))
        table = np.full((len(queries), len(agents), 3), np.nan)
        for i, query in enumerate(queries):
            for j, agent in enumerate(agents):
                if found := cells.get((query, agent)):
                    table[i, j] = np.mean(found, axis=0)
        return Outcomes(
            queries=tuple(queries.values()),
            agents=tuple(agents),
            scores=table[..., 0],
            tokens=table[..., 1],
            costs=table[..., 2],
            revisions=revisions,
        )


def _own_turns(trace: Trace, pool: Pool | None) -> Trace:
    turns = tuple(turn for turn in trace.turns if turn.answers and not turn.reads)
    if pool is None and not trace.revisions:
        return replace(trace, turns=turns)
    wanted = trace.revisions if pool is None else {agent.name: agent.revision for agent in pool.values()}
    return replace(trace, turns=tuple(t for t in turns if t.revision == wanted.get(t.agent)))
