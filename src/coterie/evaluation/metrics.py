"""What is measured on scored traces: a row a recipe, who was asked, who was right.

It reads traces and nothing else; printing and drawing are elsewhere. An error is never a wrong answer.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from coterie.errors import ConfigError
from coterie.evaluation.samples import pass_at_k
from coterie.evaluation.stats import Paired, accuracy_interval, paired_test
from coterie.types import Trace, record

Traces = Mapping[str, Sequence[Trace]]
"""Traces by the name of the recipe they come from."""

Outcome = Literal["right", "wrong", "error", "unscored"]


@record
class Row:
    """One recipe. Means are over its traces; `accuracy` and `score` over the judged ones only (NaN: none).

    `n` traces, of which `errors` could not be judged or gave no answer because calls failed, and `unscored`
    have no verdict at all. `tokens`, `cost_usd`, `calls` and `agents` are per query; `cost_usd` is None as soon as
    one is unknown. `p_value` is against the baseline over the queries both have a verdict for; `dropped` are the
    others. `abstained` counts judged traces without an answer (they are wrong). Seconds are per query.

    With several `samples` a query (the most that one has), accuracy and score are means over queries of the means
    over their samples, and intervals and tests draw whole queries: the accuracy is `avg_at_k`. `pass_at_k` is over
    the queries with as many judged samples. Both are None where each query was solved once.
    """

    name: str
    n: int
    accuracy: float
    ci: tuple[float, float]
    p_value: float | None
    score: float
    tokens: float
    cost_usd: float | None
    calls: float
    agents: float
    errors: int
    p50_s: float
    p95_s: float
    oracle_gap: float | None
    abstained: int
    unscored: int = 0
    dropped: int = 0
    queries: int = 0
    samples: int = 1
    avg_at_k: float | None = None
    pass_at_k: float | None = None

    @property
    def judged(self) -> int:
        """Traces with a verdict, right or wrong."""
        return self.n - self.errors - self.unscored


@record
class Cell:
    """One domain by one agent: in how many of `queries` it was asked, how many of its `scored` turns were right."""

    domain: str
    agent: str
    queries: int
    asked: int
    scored: int
    right: int


def outcome(trace: Trace) -> Outcome:
    """Right, wrong, error or unscored. Nobody answered because calls failed: an error, whatever the score."""
    if trace.final is None and (trace.stopped == "failed" or (trace.failures and not trace.turns)):
        return "error"
    if trace.score is None:
        return "unscored"
    return {"pass": "right", "fail": "wrong", "error": "error"}[trace.score.verdict]  # type: ignore[return-value]


def asked(trace: Trace) -> set[str]:
    """The agents that were called, whether or not they answered."""
    return {t.agent for t in trace.turns} | {f.agent for f in trace.failures}


def rows(traces: Traces, baseline: str | None) -> list[Row]:
    """One row a recipe, in the order given, each tested against `baseline` (ConfigError where it is no recipe)."""
    if baseline is not None and baseline not in traces:
        raise ConfigError(f"baseline {baseline!r} is not among the recipes: {', '.join(traces)}")
    solvable = _solvable(traces)
    return [_row(name, list(found), solvable, _against(traces, name, baseline)) for name, found in traces.items()]


def _row(name: str, traces: list[Trace], solvable: Mapping[str, bool] | None, test: Paired | None) -> Row:
    outcomes = [outcome(t) for t in traces]
    judged = [t for t, o in zip(traces, outcomes, strict=True) if o in ("right", "wrong")]
    passes = _passes(judged)
    accuracy = _mean(list(passes.values()))
    samples = max(Counter(t.query.id for t in traces).values(), default=1)
    seconds = [t.seconds for t in traces]
    reachable = _mean([float(solvable[q]) for q in passes]) if solvable is not None else math.nan
    return Row(
        name=name,
        n=len(traces),
        accuracy=accuracy,
        ci=accuracy_interval(list(passes.values())),
        p_value=test.p_value if test else None,
        score=_mean_score(judged),
        tokens=_mean([t.tokens for t in traces]),
        cost_usd=_cost(traces),
        calls=_mean([len(t.turns) + len(t.failures) for t in traces]),
        agents=_mean([len(asked(t)) for t in traces]),
        errors=outcomes.count("error"),
        p50_s=_percentile(seconds, 50),
        p95_s=_percentile(seconds, 95),
        oracle_gap=_finite(reachable - accuracy),
        abstained=sum(t.answer is None and outcome(t) == "wrong" for t in judged),
        unscored=outcomes.count("unscored"),
        dropped=test.dropped if test else 0,
        queries=len({t.query.id for t in traces}),
        samples=samples,
        avg_at_k=_finite(accuracy) if samples > 1 else None,
        pass_at_k=_pass_at_k(judged, samples) if samples > 1 else None,
    )


def _passes(judged: Sequence[Trace]) -> dict[str, float]:
    """Share passed by query: samples of one query are no independent evidence, so they are averaged first."""
    return {query: sum(passed) / len(passed) for query, passed in _by_query(judged).items()}


def _by_query(judged: Sequence[Trace]) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for trace in judged:
        found.setdefault(trace.query.id, []).append(outcome(trace) == "right")
    return found


def _mean_score(judged: Sequence[Trace]) -> float:
    found: dict[str, list[float]] = {}
    for trace in judged:
        if trace.score is not None and trace.score.value is not None:
            found.setdefault(trace.query.id, []).append(trace.score.value)
    return _mean([sum(values) / len(values) for values in found.values()])


def _pass_at_k(judged: Sequence[Trace], k: int) -> float | None:
    found = [pass_at_k(len(passed), sum(passed), k) for passed in _by_query(judged).values()]
    return _finite(_mean([p for p in found if p is not None]))


def _against(traces: Traces, name: str, baseline: str | None) -> Paired | None:
    if baseline is None or name == baseline:
        return None
    ids = list(dict.fromkeys(t.query.id for t in (*traces[name], *traces[baseline])))
    ours, theirs = (_passes([t for t in traces[n] if _has_verdict(t)]) for n in (name, baseline))
    return paired_test([ours.get(i) for i in ids], [theirs.get(i) for i in ids])


def _has_verdict(trace: Trace) -> bool:
    return outcome(trace) in ("right", "wrong")


def _solvable(traces: Traces) -> dict[str, bool] | None:
    """By query: was some turn of some recipe, or a final answer, right. None where no turn has a score.

    Answers without a token are left out where others have some: the floors (a constant, a copy) are no agents.
    """
    every = [t for found in traces.values() for t in found]
    every = [t for t in every if t.tokens or not t.turns] or every
    if not any(turn.score is not None for t in every for turn in t.turns):
        return None
    found: dict[str, bool] = {}
    for trace in every:
        right = outcome(trace) == "right" or any(t.score is not None and t.score.correct for t in trace.turns)
        found[trace.query.id] = found.get(trace.query.id, False) or right
    return found


def oracle(traces: Traces) -> float | None:
    """Share of the run's queries that some turn of some recipe got right; None where no turn has a score."""
    solvable = _solvable(traces)
    return None if solvable is None else _finite(_mean([float(v) for v in solvable.values()]))


def crossing(traces: Sequence[Trace]) -> list[Cell]:
    """Domain by agent, both sorted, a cell for every pair. A query counts once an agent, its turns one by one."""
    queries = Counter(trace.query.domain for trace in traces)
    called: Counter[tuple[str, str]] = Counter()
    verdicts: dict[tuple[str, str], list[bool]] = {}
    for trace in traces:
        domain = trace.query.domain
        called.update((domain, agent) for agent in asked(trace))
        for turn in trace.turns:
            if turn.score is not None and turn.score.correct is not None:
                verdicts.setdefault((domain, turn.agent), []).append(turn.score.correct)
    agents = sorted({agent for _, agent in called})
    return [
        Cell(
            domain=domain,
            agent=agent,
            queries=queries[domain],
            asked=called[domain, agent],
            scored=len(verdicts.get((domain, agent), ())),
            right=sum(verdicts.get((domain, agent), ())),
        )
        for domain in sorted(queries)
        for agent in agents
    ]


def to_json(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The machine-readable table: {"task", "n", "rows"}. What is unknown or undefined is null, never NaN.

    `n` is the number of queries, a row's `n` that of its traces. Rows have `queries`, `samples`, `avg_at_k` and
    `pass_at_k` where a query was solved several times.
    """
    n = max((row.queries for row in rows), default=0)
    return {"task": task, "n": n, "rows": [_row_json(row) for row in rows]}


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "accuracy": _finite(row.accuracy),
        "ci": [_finite(end) for end in row.ci],
        "p_value": _finite(row.p_value),
        "tokens": _finite(row.tokens),
        "cost_usd": _finite(row.cost_usd),
        "calls": _finite(row.calls),
        "agents": _finite(row.agents),
        "errors": row.errors,
        "p50_s": _finite(row.p50_s),
        "p95_s": _finite(row.p95_s),
        "n": row.n,
        "score": _finite(row.score),
        "oracle_gap": _finite(row.oracle_gap),
        "abstained": row.abstained,
        "unscored": row.unscored,
        "dropped": row.dropped,
    } | _samples_json(row)


def _samples_json(row: Row) -> dict[str, Any]:
    if row.samples == 1:
        return {}
    return {
        "queries": row.queries,
        "samples": row.samples,
        "avg_at_k": _finite(row.avg_at_k),
        "pass_at_k": _finite(row.pass_at_k),
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _percentile(values: Sequence[float], share: float) -> float:
    return float(np.percentile(values, share)) if len(values) else math.nan


def _cost(traces: Sequence[Trace]) -> float | None:
    costs = [c for t in traces if (c := t.cost) is not None]
    return _mean(costs) if traces and len(costs) == len(traces) else None
