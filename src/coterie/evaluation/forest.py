"""The comparison as a page shows it: a forest plot of the differences, effects by domain, pass@k, the numbers."""

from collections.abc import Sequence
from html import escape

from coterie.evaluation import compared
from coterie.evaluation.compare import Comparison
from coterie.evaluation.effect import Effect, Part
from coterie.evaluation.figures import View, choices
from coterie.evaluation.lineup import Entrant
from coterie.evaluation.sheet import Card, Sheet, plain_table, scrolling
from coterie.evaluation.svg import Axis, drawing, line, shorten, spanning, tag, text
from coterie.evaluation.table import probability
from coterie.types import record

LEFT, RIGHT, WIDTH = 220.0, 570.0, 860.0
ROW, TOP, FOOT = 26.0, 12.0, 46.0
MOST_PARTS = 40
ALPHA = 0.05


@record
class Stripe:
    """One row of a forest plot: a difference and its interval in points, and what is written beside it."""

    name: str
    at: float
    lo: float
    hi: float
    note: str
    clear: bool = False


def forest(stripes: Sequence[Stripe], label: str) -> str:
    """Differences with their intervals, one below the other, around a line at 0. Clear ones are filled.

    `label` names the axis. Empty text where there is nothing to draw.
    """
    if not stripes:
        return ""
    axis = spanning([0.0, *(v for s in stripes for v in (s.lo, s.hi, s.at))])
    if axis.lo == 0:
        axis = Axis(lo=-0.08 * axis.hi, hi=axis.hi)
    bottom = TOP + ROW * len(stripes)
    parts = [*_scale(axis, bottom, label), *(_stripe(axis, i, stripe) for i, stripe in enumerate(stripes))]
    return drawing(f"{label}, with 95 % intervals", *parts, size=(WIDTH, bottom + FOOT))


def _x(axis: Axis, value: float) -> float:
    return LEFT + (RIGHT - LEFT) * axis.share(value)


def _scale(axis: Axis, bottom: float, label: str) -> list[str]:
    parts = []
    for value in axis.ticks():
        x = _x(axis, value)
        parts += [line(x, TOP, x, bottom, "grid"), text(x, bottom + 18, _signed(value), "tick", "middle")]
    middle = (LEFT + RIGHT) / 2
    zero = line(_x(axis, 0.0), TOP - 6, _x(axis, 0.0), bottom, "zero")
    return [*parts, zero, text(middle, bottom + 38, label, "axis-title", "middle")]


def _signed(value: float) -> str:
    return f"{value:+g}".replace("-", "−") if value else "0"


def _stripe(axis: Axis, place: int, stripe: Stripe) -> str:
    y = TOP + ROW * (place + 0.5)
    lo, hi, at = (_x(axis, value) for value in (stripe.lo, stripe.hi, stripe.at))
    words = f"{stripe.name}: {_signed(round(stripe.at, 2))} points, {stripe.note}"
    way = "even" if stripe.at == 0 else "better" if stripe.at > 0 else "worse"
    css = f"effect {way}{' clear' if stripe.clear else ''}"
    return tag(
        "g",
        {"data-recipe": stripe.name, "class": css},
        tag("title", {}, escape(words)),
        text(LEFT - 12, y + 4, shorten(stripe.name, 30), "label", "end"),
        line(lo, y, hi, y, "reach"),
        line(lo, y - 4, lo, y + 4, "reach"),
        line(hi, y - 4, hi, y + 4, "reach"),
        tag("circle", {"cx": at, "cy": y, "r": 5, "class": "middle"}),
        text(RIGHT + 12, y + 4, stripe.note, "tick"),
    )


# --- from a comparison to cards ----------------------------------------------------------------------


def comparison_cards(rows: Sequence[Comparison]) -> list[Card]:
    """What a comparison shows: differences, effects by domain, pass@k. Empty without a comparable recipe."""
    rows = [row for row in rows if row.effect.n]
    if not rows:
        return []
    against = f"Compared with {rows[0].baseline}."
    drawn = forest(_drawable([(r.name, r.effect, r.p_holm) for r in rows]), "Difference in percentage points")
    table = plain_table(*compared.table(rows), [c.hint for c in compared.COLUMNS if c.title in _titles(rows)])
    passes = [compared.pass_at(row.name, found) for row in rows for found in row.pass_at]
    return [
        Card(
            title="Differences from the baseline",
            markup=scrolling(drawn, "plot") + table,
            note=" ".join([against, "Filled: significant at 5 % after Holm.", *compared.notes(rows)]),
        ),
        Card(
            title="Effects by domain",
            markup=choices("Recipe", [_by_domain(row) for row in rows if row.parts]) if _several(rows) else "",
            note=f"{against} Within each domain; p-values are adjusted by Holm over the domains of a recipe.",
        ),
        Card(title="Over seeds", markup=plain_table(compared.SEED_TITLES, compared.seeds(rows)), note=_SEEDS_NOTE),
        Card(title="Several samples", markup=plain_table(compared.PASS_TITLES, passes), note=_PASS_NOTE),
    ]


_SEEDS_NOTE = "t-tests of the seeds’ means, on the queries that every seed has a verdict for."
_PASS_NOTE = "pass@k: the chance that one of k samples passes (unbiased), over queries with k judged samples."


def comparison_sheet(rows: Sequence[Comparison], found: Sequence[Entrant]) -> Sheet:
    """A comparison of runs as a sheet of its own."""
    baseline = rows[0].baseline if rows else "nothing"
    runs = {run for entrant in found for run in entrant.runs}
    who = [[e.name, ", ".join(e.runs), ", ".join(e.replicates), f"{len(e.answers):,}"] for e in found]
    table = plain_table(("Recipe", "Runs", "Seeds", "Queries"), who)
    about = f"{len(found)} recipes of {len(runs)} runs, query by query, against {baseline}"
    return Sheet(
        name="Comparison", about=about, cards=(*comparison_cards(rows), Card(title="Who is compared", markup=table))
    )


def _titles(rows: Sequence[Comparison]) -> list[str]:
    return compared.table(rows)[0]


def _several(rows: Sequence[Comparison]) -> bool:
    return any(len(row.parts) > 1 for row in rows)


def _by_domain(row: Comparison) -> View:
    shown = sorted(sorted(row.parts, key=lambda p: (-p.effect.n, p.name))[:MOST_PARTS], key=lambda p: p.name)
    drawn = forest(_drawable([_named(part) for part in shown]), "Difference in percentage points")
    hidden = len(row.parts) - len(shown)
    note = tag("p", {"class": "note"}, f"{hidden} smaller domains are not shown.") if hidden else ""
    table = plain_table(compared.PART_TITLES, [compared.part(part) for part in shown])
    return View(title=row.name, markup=scrolling(drawn, "plot") + table + note)


def _named(part: Part) -> tuple[str, Effect, float | None]:
    return part.name, part.effect, part.p_holm


def _drawable(rows: Sequence[tuple[str, Effect, float | None]]) -> list[Stripe]:
    found = []
    for name, effect, p_holm in rows:
        if effect.difference is not None and effect.ci is not None:
            lo, hi = (100 * end for end in effect.ci)
            words = f"{compared.points(effect.difference)} ({compared.ends(effect.ci)}), n {effect.n}"
            words += f", p {probability(p_holm)}"
            clear = p_holm is not None and p_holm < ALPHA
            found.append(Stripe(name=name, at=100 * effect.difference, lo=lo, hi=hi, note=words, clear=clear))
    return found
