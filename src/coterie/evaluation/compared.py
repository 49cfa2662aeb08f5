"""The comparison table's columns and the wording of its numbers: the same for the terminal and the page."""

from collections.abc import Callable, Sequence
from statistics import fmean

from coterie.evaluation.compare import Comparison, Seeds
from coterie.evaluation.effect import Effect, Part, PassAt
from coterie.evaluation.table import UNKNOWN, dollars, percent, probability
from coterie.types import record


@record
class Column:
    """One column: its title, the wording of a comparison in it, and what it means."""

    title: str
    text: Callable[[Comparison], str]
    hint: str


def points(share: float | None) -> str:
    """0.0451 as +4.5."""
    if share is None:
        return UNKNOWN
    rounded = round(100 * share, 1)
    return f"{rounded:+.1f}".replace("-", "−") if rounded else "0.0"


def ends(ci: tuple[float, float] | None) -> str:
    """An interval of points: −1.2 to +7.9."""
    return UNKNOWN if ci is None else f"{points(ci[0])} to {points(ci[1])}"


def tally(found: Effect) -> str:
    """Wins / losses / ties."""
    return f"{found.wins} / {found.losses} / {found.ties}" if found.n else UNKNOWN


def signed_dollars(value: float | None) -> str:
    """Dollars with their sign: +$0.12."""
    if value is None or value == 0:
        return dollars(value)
    return f"{'−' if value < 0 else '+'}{dollars(abs(value))}"


COLUMNS = (
    Column(title="Recipe", text=lambda r: r.name, hint="What is compared with the baseline"),
    Column(title="Ours", text=lambda r: percent(r.effect.ours), hint="Its mean over the compared queries"),
    Column(title="Baseline", text=lambda r: percent(r.effect.theirs), hint="The baseline's mean over them"),
    Column(title="Points", text=lambda r: points(r.effect.difference), hint="Difference in percentage points"),
    Column(title="95 %", text=lambda r: ends(r.effect.ci), hint="Paired bootstrap interval of the difference"),
    Column(
        title="p",
        text=lambda r: probability(r.effect.p_value),
        hint="Two-sided: McNemar's exact test, the sign-flip test where values are no yes or no",
    ),
    Column(title="p Holm", text=lambda r: probability(r.p_holm), hint="Adjusted for all comparisons of this table"),
    Column(title="W / L / T", text=lambda r: tally(r.effect), hint="Queries won, lost and tied"),
    Column(title="n", text=lambda r: str(r.effect.n), hint="Queries compared"),
    Column(
        title="Dropped",
        text=lambda r: str(r.dropped.total),
        hint="Queries that one side lacks, words otherwise, or has no verdict for",
    ),
    Column(
        title="Errors",
        text=lambda r: f"{r.errors[0]} / {r.errors[1]}",
        hint="Samples that failed, ours and the baseline's; dropped, never counted as wrong",
    ),
    Column(
        title="Δ $ / 1k",
        text=lambda r: signed_dollars(None if r.cost.difference is None else 1000 * r.cost.difference),
        hint="Difference in dollars per 1,000 queries; unknown as soon as one price is",
    ),
    Column(title="Altogether", text=lambda r: r.cost.verdict or UNKNOWN, hint="Which way quality and cost go"),
    Column(
        title="Points per $",
        text=lambda r: UNKNOWN if r.cost.points_per_dollar is None else f"{r.cost.points_per_dollar:,.2f}",
        hint="Points for each dollar per 1,000 queries, where quality and cost go the same way",
    ),
)


def table(rows: Sequence[Comparison]) -> tuple[list[str], list[list[str]]]:
    """Titles and worded cells, a list a row. Columns that say nothing for every row are left out."""
    shown = [c for c in COLUMNS if any(c.text(row) != UNKNOWN for row in rows)]
    return [c.title for c in shown], [[c.text(row) for c in shown] for row in rows]


PART_TITLES = ("Domain", "Ours", "Baseline", "Points", "95 %", "p", "p Holm", "W / L / T", "n")


def part(found: Part) -> list[str]:
    """One domain's cells under PART_TITLES."""
    e = found.effect
    shares = [percent(e.ours), percent(e.theirs), points(e.difference), ends(e.ci)]
    return [found.name, *shares, probability(e.p_value), probability(found.p_holm), tally(e), str(e.n)]


SEED_TITLES = ("Recipe", "Ours", "Baseline", "Seeds", "n", "Points", "95 %", "Test", "p", "p Holm")


def seeds(rows: Sequence[Comparison]) -> list[list[str]]:
    """The cells under SEED_TITLES of each comparison that has several seeds: means ± standard deviations."""
    return [_seeds(row.name, row.seeds) for row in rows if row.seeds is not None]


def _seeds(name: str, found: Seeds) -> list[str]:
    sides = zip((found.ours, found.theirs), found.deviations, strict=True)
    means = [f"{100 * fmean(side):.1f} ± {100 * sd:.1f}" for side, sd in sides]
    test, many = found.test, f"{len(found.ours)}, {len(found.theirs)}"
    p = "no variation" if test.p_value is None else probability(test.p_value)
    cells = [many, str(found.n), points(test.difference), ends(test.ci), test.test, p]
    return [name, *means, *cells, probability(found.p_holm)]


PASS_TITLES = ("Recipe", "pass@", "Ours", "Baseline", "Points", "95 %", "n")


def pass_at(name: str, found: PassAt) -> list[str]:
    """One pass@k's cells under PASS_TITLES."""
    shares = [percent(found.ours), percent(found.theirs), points(found.difference), ends(found.ci)]
    return [name, str(found.k), *shares, str(found.n)]


def notes(rows: Sequence[Comparison]) -> list[str]:
    """What a reader must know about the numbers, in sentences."""
    binary = {row.effect.test for row in rows} <= {"mcnemar", None}
    found = [
        "Points are percentage points over the same queries; the interval is the 95 % paired bootstrap.",
        f"p is {'McNemar’s exact test' if binary else 'the sign-flip test (McNemar’s where all is yes or no)'}"
        f"{f', adjusted by Holm over the {len(rows)} comparisons' if len(rows) > 1 else ''}.",
    ]
    for what, counts in (
        ("that only one side has", [r.dropped.one_side for r in rows]),
        ("with other words or another gold answer under the same id", [r.dropped.other_question for r in rows]),
        ("without a verdict on a side", [r.dropped.no_verdict for r in rows]),
    ):
        if any(counts):
            found.append(f"Dropped: up to {max(counts)} queries {what}.")
    return found
