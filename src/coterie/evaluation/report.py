"""One HTML file that shows runs: table, plots, who was asked, every turn. It opens from disk and loads nothing.

Figures are drawn here, so that they are there without JavaScript; the drill-down is drawn by the page from
embedded JSON, as text only. Whatever a model wrote is hostile until it has been escaped.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from coterie.evaluation import lineup, metrics, plots
from coterie.evaluation.compare import compare
from coterie.evaluation.drilldown import BUDGET, embedded, script_json
from coterie.evaluation.figures import View, choices, distribution, heat_maps
from coterie.evaluation.forest import comparison_cards
from coterie.evaluation.layer_table import layer_cards
from coterie.evaluation.metrics import Row, Traces
from coterie.evaluation.plots import Mark
from coterie.evaluation.sheet import Sheet, cards, sheet
from coterie.evaluation.svg import Attributes, tag
from coterie.evaluation.table import Column, percent, shown
from coterie.storage.runs import write_atomically
from coterie.types import record

HOLE = re.compile(r"\{\{(\w+)\}\}")
UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")


@record
class RunView:
    """One run as it is shown: scored traces by recipe, in the order of the table; `config` is plain text."""

    name: str
    task: str
    baseline: str | None
    traces: Traces
    config: str = ""


def write_report(path: Path, runs: Sequence[RunView], sheets: Sequence[Sheet] = ()) -> None:
    """Write the page, whole or not at all. A baseline that has no traces (yet) is as good as none."""
    text = page(runs, sheets)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)


def page(runs: Sequence[RunView], sheets: Sequence[Sheet] = ()) -> str:
    """The page's text: a tab for each sheet, then for each run; equal input gives equal text."""
    script = _resource("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    names = [found.name for found in sheets] + [run.name for run in runs]
    sections = [sheet(i, found) for i, found in enumerate(sheets)]
    numbered = list(enumerate(runs, len(sheets)))
    parts = {
        "title": escape(_title(names)),
        "digest": digest,
        "style": _resource("report.css"),
        "script": script,
        "tabs": _tabs(names),
        "runs": "\n".join([*sections, *(_run(i, run) for i, run in numbered)]),
        "data": "\n".join(_data(i, run, BUDGET // len(runs)) for i, run in numbered),
    }
    return fill(_resource("report.html"), parts)


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Put the parts in their {{holes}} in one pass, so that a part with braces stays as it is."""
    return UNWRITABLE.sub("\ufffd", HOLE.sub(lambda hole: parts[hole[1]], template))


def _resource(name: str) -> str:
    return files("coterie.evaluation").joinpath(name).read_text(encoding="utf-8")


def _title(names: Sequence[str]) -> str:
    return "Coterie: " + (", ".join(names[:3]) + (" …" if len(names) > 3 else "") or "no run")


def _tabs(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    links = [tag("a", {"href": f"#run={i}", "data-run": str(i)}, escape(name)) for i, name in enumerate(names)]
    return tag("nav", {"class": "tabs", "aria-label": "Runs"}, *links)


def _data(number: int, run: RunView, budget: int) -> str:
    text = script_json(embedded(run.traces, budget))
    return tag("script", {"type": "application/json", "id": f"data-{number}"}, text)


def _run(number: int, run: RunView) -> str:
    baseline = run.baseline if run.baseline in run.traces else None
    rows = metrics.rows(run.traces, baseline)
    oracle = metrics.oracle(run.traces)
    return fill(
        _resource("run.html"),
        {
            "number": str(number),
            "name": escape(run.name),
            "task": escape(run.task),
            "tiles": _tiles(run, rows, oracle),
            "table": _table(rows, baseline),
            "notes": _notes(rows, baseline),
            "comparison": _comparison(run.traces, baseline),
            "layers": cards(layer_cards(run.traces)),
            "plots": _plots(rows, baseline, oracle),
            "distribution": distribution(run.traces),
            "heat": heat_maps(run.traces, baseline),
            "config": _config(run.config),
        },
    )


def _comparison(traces: Traces, baseline: str | None) -> str:
    """The cards of the run's recipes against its baseline; empty where there is none, or nothing beside it."""
    if baseline is None or len(traces) < 2:
        return ""
    found = lineup.of_traces(traces)
    return cards(comparison_cards(compare(found, lineup.chosen(found, baseline), by="domain")))


def _config(text: str) -> str:
    if not text:
        return ""
    return tag("details", {"class": "config"}, tag("summary", {}, "Configuration"), tag("pre", {}, escape(text)))


# --- the head of a run -------------------------------------------------------------------------------


def _tiles(run: RunView, rows: Sequence[Row], oracle: float | None) -> str:
    queries = {t.query.id for found in run.traces.values() for t in found}
    agents = {name for found in run.traces.values() for t in found for name in metrics.asked(t)}
    judged = [row for row in rows if row.judged]
    tiles = [_tile("Queries", f"{len(queries):,}", f"{len(rows)} recipes, {len(agents)} agents")]
    if judged:
        best = max(judged, key=lambda row: (row.accuracy, -row.tokens))
        tiles.append(_tile("Most accurate", percent(best.accuracy), best.name))
    base = next((row for row in judged if row.name == run.baseline), None)
    if base is not None:
        tiles.append(_tile("Baseline", percent(base.accuracy), base.name))
    if oracle is not None:
        tiles.append(_tile("Some agent right", percent(oracle), "what a perfect choice could reach"))
    return "".join(tiles)


def _tile(title: str, figure: str, note: str) -> str:
    return tag(
        "div",
        {"class": "tile"},
        tag("span", {"class": "tile-title"}, escape(title)),
        tag("strong", {}, escape(figure)),
        tag("span", {"class": "tile-note"}, escape(note)),
    )


def _notes(rows: Sequence[Row], baseline: str | None) -> str:
    notes = [
        "Accuracy counts passed queries only; the interval is the 95 % bootstrap (Wilson where all are equal)."
    ]
    if baseline is not None:
        notes.append(
            f"p: two-sided paired sign-flip test (McNemar's exact test) against {baseline},"
            " on the queries both have a verdict for."
        )
    if any(row.errors for row in rows):
        notes.append("Errors are left out of the accuracy.")
    if any(row.unscored for row in rows):
        notes.append(f"{sum(row.unscored for row in rows)} answers have no verdict and are left out.")
    return escape(" ".join(notes))


# --- the table ---------------------------------------------------------------------------------------


def _table(rows: Sequence[Row], baseline: str | None) -> str:
    columns = shown(rows)
    head = tag("tr", {}, *(_head(column) for column in columns))
    body = [tag("tr", {"data-recipe": row.name}, *(_cell(c, row, baseline) for c in columns)) for row in rows]
    return tag("table", {"class": "headline"}, tag("thead", {}, head), tag("tbody", {}, *body))


def _head(column: Column) -> str:
    button = tag("button", {"type": "button", "title": column.hint}, escape(column.title))
    return tag("th", {"scope": "col"}, button)


def _cell(column: Column, row: Row, baseline: str | None) -> str:
    attributes: Attributes = {"data-value": _exact(column.value(row))}
    text = escape(column.text(row))
    if column.title == "Recipe":
        badge = tag("span", {"class": "badge"}, "baseline") if row.name == baseline else ""
        return tag("th", attributes | {"scope": "row"}, text, badge)
    if column.title == "95 %":
        text = tag("span", {"class": "with-bar"}, plots.interval_bar(row.accuracy, row.ci), tag("span", {}, text))
    alarm = column.title == "Errors" and row.errors
    return tag("td", attributes | ({"class": "alarm"} if alarm else {}), text)


def _exact(value: float | str | None) -> str:
    """The whole number for sorting; empty where unknown or undefined."""
    return "" if value is None or value != value else str(value)


# --- the plots ---------------------------------------------------------------------------------------


def _plots(rows: Sequence[Row], baseline: str | None, oracle: float | None) -> str:
    judged = [row for row in rows if row.judged]
    by_tokens = _marks([(row, row.tokens) for row in judged], baseline)
    views = [View(title="Tokens", markup=plots.cost_quality(by_tokens, "Tokens a query", oracle=oracle))]
    priced = [(row, 1000 * row.cost_usd) for row in judged if row.cost_usd is not None]
    if any(cost for _, cost in priced):
        drawn = plots.cost_quality(_marks(priced, baseline), "Dollars per 1,000 queries", unit="$", oracle=oracle)
        views.append(View(title="Cost", markup=drawn + _left_out(len(judged) - len(priced))))
    return choices("Cost axis", views)


def _marks(rows: Sequence[tuple[Row, float]], baseline: str | None) -> list[Mark]:
    return [
        Mark(name=row.name, x=x, y=row.accuracy, lo=row.ci[0], hi=row.ci[1], baseline=row.name == baseline)
        for row, x in rows
    ]


def _left_out(missing: int) -> str:
    if not missing:
        return ""
    return tag("p", {"class": "note"}, f"{missing} recipes are left out: the price of a call is unknown.")
