"""The report's figures that are HTML tables: agents a query, and who was asked and who was right by domain."""

from collections import Counter
from collections.abc import Sequence
from html import escape

from coterie.evaluation.metrics import Cell, Traces, asked, crossing, outcome
from coterie.evaluation.plots import bins
from coterie.evaluation.svg import Attributes, tag
from coterie.evaluation.table import count, percent
from coterie.types import Trace, record

RAMP = 7  # the page has colours ramp-0 to ramp-7
MOST_AGENTS, MOST_DOMAINS = 24, 40


@record
class View:
    """One of several drawings of which the page shows one at a time (all of them without JavaScript)."""

    title: str
    markup: str
    first: bool = False


def choices(label: str, views: Sequence[View]) -> str:
    """Drawings with a switch between them; a single one stands alone."""
    if len(views) == 1:
        return views[0].markup
    panels = [
        tag(
            "div",
            {"class": "view", "data-title": v.title, "data-first": "1" if v.first else ""},
            tag("p", {"class": "view-title"}, escape(v.title)),
            v.markup,
        )
        for v in views
    ]
    return tag("div", {"class": "choice", "data-label": label}, *panels)


# --- agents a query ----------------------------------------------------------------------------------


def distribution(traces: Traces) -> str:
    """A bar a recipe: the share of queries by how many distinct agents were asked, and the mean."""
    counts = {name: [len(asked(t)) for t in found] for name, found in traces.items()}
    ranges = bins([n for found in counts.values() for n in found])
    legend = [
        tag("li", {}, tag("i", {"class": _ramp(i, len(ranges))}), _range_name(ends))
        for i, ends in enumerate(ranges)
    ]
    rows = [_distribution_row(name, found, ranges) for name, found in counts.items() if found]
    head = tag(
        "tr", {}, *(tag("th", {"scope": "col"}, t) for t in ("Recipe", "Share of queries by agents asked", "Mean"))
    )
    table = tag("table", {"class": "spread"}, tag("thead", {}, head), tag("tbody", {}, *rows))
    return tag("ul", {"class": "legend", "aria-label": "Agents asked"}, *legend) + table


def _distribution_row(name: str, counts: Sequence[int], ranges: Sequence[tuple[int, int]]) -> str:
    tally = Counter(counts)
    segments = []
    for i, (low, high) in enumerate(ranges):
        share = sum(tally[n] for n in range(low, high + 1)) / len(counts)
        if share:
            segments.append(_segment(share, _range_name((low, high)), _ramp(i, len(ranges))))
    mean = sum(counts) / len(counts)
    return tag(
        "tr",
        {"data-recipe": name},
        tag("th", {"scope": "row"}, escape(name)),
        tag("td", {}, tag("div", {"class": "stack"}, *segments)),
        tag("td", {"class": "figure"}, f"{mean:.2f}"),
    )


def _segment(share: float, agents: str, css: str) -> str:
    words = f"{agents} {'agent' if agents == '1' else 'agents'}: {percent(share)} of the queries"
    label = percent(share, 0) if share >= 0.08 else ""
    return tag(
        "span", {"class": css, "style": f"width:{100 * share:.3f}%", "title": words, "aria-label": words}, label
    )


def _range_name(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


def _ramp(i: int, of: int) -> str:
    return f"ramp-{RAMP // 2 if of == 1 else round(i * RAMP / (of - 1))}"


# --- who was asked, who was right --------------------------------------------------------------------


def heat_maps(traces: Traces, baseline: str | None) -> str:
    """Domain by agent: a map a recipe and one of all. The first recipe that is not the baseline is shown first."""
    found = {name: list(rows) for name, rows in traces.items() if rows}
    if not found:
        return ""
    first = next((name for name in found if name != baseline), None)
    views = [View(title=name, markup=heat_map(rows), first=name == first) for name, rows in found.items()]
    if len(views) > 1:
        views.append(View(title="All recipes", markup=heat_map([t for rows in found.values() for t in rows])))
    return choices("Recipe", views)


def heat_map(traces: Sequence[Trace]) -> str:
    """One map. A cell's tint is how often the agent was asked in the domain, its figure how often it was right."""
    cells = {(c.domain, c.agent): c for c in crossing(traces)}
    domains = _largest({c.domain: c.queries for c in cells.values()}, MOST_DOMAINS)
    totals: Counter[str] = Counter()
    for cell in cells.values():
        totals[cell.agent] += cell.asked
    agents = _largest(totals, MOST_AGENTS)
    heads = ["Domain", *agents, "Answer"]
    head = tag("tr", {}, *(tag("th", {"scope": "col"}, escape(t)) for t in heads))
    body = [_heat_row(domain, [cells[domain, a] for a in agents], traces) for domain in domains]
    table = tag("table", {"class": "heat"}, tag("thead", {}, head), tag("tbody", {}, *body))
    hidden = len(totals) - len(agents), len({d for d, _ in cells}) - len(domains)
    return tag("div", {"class": "scroll", "tabindex": "0"}, table) + _hidden(*hidden)


def _largest(sizes: dict[str, int] | Counter[str], most: int) -> list[str]:
    """The names of the largest, in alphabetical order."""
    return sorted(sorted(sizes, key=lambda name: (-sizes[name], name))[:most])


def _hidden(agents: int, domains: int) -> str:
    if not agents and not domains:
        return ""
    return tag(
        "p", {"class": "note"}, f"{agents} agents asked less often and {domains} smaller domains are not shown."
    )


def _heat_row(domain: str, cells: Sequence[Cell], traces: Sequence[Trace]) -> str:
    outcomes = Counter(outcome(t) for t in traces if t.query.domain == domain)
    judged = outcomes["right"] + outcomes["wrong"]
    size = tag("small", {}, f"n {sum(outcomes.values())}")
    answer = tag(
        "td",
        {"class": "answer", "title": f"right in {outcomes['right']} of {judged} judged queries"},
        tag("b", {}, percent(outcomes["right"] / judged, 0) if judged else "–"),
        tag("small", {}, f"of {judged}"),
    )
    return tag("tr", {}, tag("th", {"scope": "row"}, escape(domain), size), *(_heat_cell(c) for c in cells), answer)


def _heat_cell(cell: Cell) -> str:
    if not cell.asked:
        return tag(
            "td",
            {"class": "never", "title": f"{cell.agent} was never asked on {cell.domain}"},
            tag("small", {}, "not asked"),
        )
    share = cell.asked / cell.queries
    right = cell.right / cell.scored if cell.scored else None
    words = f"{cell.agent} on {cell.domain}: asked in {cell.asked} of {cell.queries} queries ({percent(share, 0)})"
    if right is not None:
        words += f", right in {cell.right} of {cell.scored} turns ({percent(right, 0)})"
    attributes: Attributes = {"style": f"--asked:{share:.3f};--right:{right or 0:.3f}", "title": words}
    return tag(
        "td",
        attributes,
        tag("b", {}, percent(right, 0)),
        tag("i", {"class": "meter", "aria-hidden": "true"}) if right is not None else "",
        tag("small", {}, f"asked {percent(share, 0)} · n {count(cell.asked)}"),
    )
