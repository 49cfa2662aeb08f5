"""The headline table's columns and the wording of its numbers: the same for the terminal and the report."""

import math
from collections.abc import Callable, Sequence

from coterie.evaluation.metrics import Row
from coterie.types import record

UNKNOWN = "–"
IMMENSE, LEAST = 1e15, 1e-12
"""From here on, and below, digits say nothing any more: a word or a bound does."""


@record
class Column:
    """One column: its title, the exact value it sorts by (None: unknown), its wording, what it means."""

    title: str
    value: Callable[[Row], float | str | None]
    text: Callable[[Row], str]
    hint: str


def percent(share: float | None, digits: int = 1) -> str:
    """0.6333 as 63.3 %."""
    return UNKNOWN if _unknown(share) else f"{100 * share:.{digits}f} %"  # type: ignore[operator]


def count(value: float | None) -> str:
    """Three digits at least, thousands separated; whole numbers without a point."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if abs(value) >= IMMENSE:
        return "immense" if value > 0 else "-immense"
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def dollars(value: float | None) -> str:
    """Two digits after the point, more where the first two that count stand further right; no exponent."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if abs(value) >= IMMENSE:
        return "immense" if value > 0 else "-immense"
    if 0 < abs(value) < LEAST:
        return f"<${LEAST:.12f}" if value > 0 else f">-${LEAST:.12f}"
    digits = 2 if value == 0 else max(2, 1 - math.floor(math.log10(abs(value))))
    return f"{'-' * (value < 0)}${abs(value):,.{digits}f}"


def seconds(value: float | None) -> str:
    """Two digits after the point below ten seconds, one from there on."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if abs(value) >= IMMENSE:
        return "immense"
    return f"{value:.2f} s" if value < 10 else f"{value:,.1f} s"


def probability(value: float | None) -> str:
    """A p-value with three digits; below that only the bound."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def interval(row: Row) -> str:
    """The ends in percent: 51–74."""
    lo, hi = row.ci
    return UNKNOWN if math.isnan(lo) else f"{100 * lo:.0f}–{100 * hi:.0f}"


def at_k(share: float | None, row: Row) -> str:
    """A share and the number of samples it is of: 63.3 % @4."""
    return UNKNOWN if _unknown(share) else f"{percent(share)} @{row.samples}"


def _unknown(value: float | None) -> bool:
    return value is None or math.isnan(value)


COLUMNS = (
    Column(title="Recipe", value=lambda r: r.name, text=lambda r: r.name, hint="What was run"),
    Column(
        title="Accuracy",
        value=lambda r: r.accuracy,
        text=lambda r: percent(r.accuracy),
        hint="Share of the judged queries that passed",
    ),
    Column(title="95 %", value=lambda r: r.ci[0], text=interval, hint="95 % bootstrap interval of the accuracy"),
    Column(
        title="p",
        value=lambda r: r.p_value,
        text=lambda r: probability(r.p_value),
        hint="Two-sided paired test against the baseline on the same queries",
    ),
    Column(
        title="Tokens",
        value=lambda r: r.tokens,
        text=lambda r: count(r.tokens),
        hint="Prompt and completion tokens a query",
    ),
    Column(
        title="$ / 1k",
        value=lambda r: r.cost_usd,
        text=lambda r: dollars(None if r.cost_usd is None else 1000 * r.cost_usd),
        hint="Dollars per 1,000 queries; unknown as soon as one price is",
    ),
    Column(title="Calls", value=lambda r: r.calls, text=lambda r: count(r.calls), hint="Model calls a query"),
    Column(
        title="Agents", value=lambda r: r.agents, text=lambda r: count(r.agents), hint="Distinct agents a query"
    ),
    Column(
        title="Errors",
        value=lambda r: r.errors,
        text=lambda r: str(r.errors),
        hint="Queries without a verdict because something failed; never counted as wrong",
    ),
    Column(
        title="Abstained",
        value=lambda r: r.abstained,
        text=lambda r: str(r.abstained),
        hint="Judged queries without an answer; counted as wrong",
    ),
    Column(title="p50", value=lambda r: r.p50_s, text=lambda r: seconds(r.p50_s), hint="Median seconds a query"),
    Column(
        title="p95",
        value=lambda r: r.p95_s,
        text=lambda r: seconds(r.p95_s),
        hint="Seconds a query that 95 % stay under",
    ),
    Column(
        title="Oracle gap",
        value=lambda r: r.oracle_gap,
        text=lambda r: percent(r.oracle_gap),
        hint="Share of the queries that some turn of some recipe got right, minus the accuracy",
    ),
    Column(
        title="Score",
        value=lambda r: r.score,
        text=lambda r: UNKNOWN if math.isnan(r.score) else f"{r.score:.3f}",
        hint="Mean reward of the judged queries; partial marks count",
    ),
)

SAMPLED = (
    Column(
        title="avg@k",
        value=lambda r: r.avg_at_k,
        text=lambda r: at_k(r.avg_at_k, r),
        hint="Mean accuracy of k samples a query",
    ),
    Column(
        title="pass@k",
        value=lambda r: r.pass_at_k,
        text=lambda r: at_k(r.pass_at_k, r),
        hint="Share of the queries that one of k samples passes",
    ),
)
"""What several samples a query add."""


def shown(rows: Sequence[Row]) -> list[Column]:
    """The columns that say something about some row, those of several samples after the accuracy."""
    every = [*COLUMNS[:2], *SAMPLED, *COLUMNS[2:]]
    return [c for c in every if any(c.text(row) != UNKNOWN for row in rows)]


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Titles and worded cells, a list a row. Columns that say nothing for every row are left out."""
    columns = shown(rows)
    return [c.title for c in columns], [[c.text(row) for c in columns] for row in rows]
