"""A replay as a sheet of the report: the table, the frontier, regret of the online routers, calibration."""

from collections.abc import Sequence

import numpy as np

from coterie.evaluation.curves import At, Series, frontier, learning_curve, regret_curve, reliability
from coterie.evaluation.plots import Mark
from coterie.evaluation.replay.decide import Decision
from coterie.evaluation.replay.judge import BASELINE, Row
from coterie.evaluation.replay.labels import Learnt
from coterie.evaluation.replay.newcomers import Swap
from coterie.evaluation.replay.run import Replayed
from coterie.evaluation.sheet import Card, Sheet, plain_table, scrolling
from coterie.evaluation.table import UNKNOWN, dollars, percent, probability

TITLES = (
    *("Router", "Score", "95 %", "Points", "95 % (points)", "p", "Holm"),
    *("$ / 1k", "Calls", "Valid.", "ECE", "Time"),
)
NOTE = (
    "Points and p are against the best single agent of the training part, on the same test queries; Holm's p is"
    " adjusted for all routers of the table. Answers were not recorded: majority means that more than half of the"
    " agents score one half or more. The oracle knows the outcomes."
)
UNMET = (
    "Unmet: no trade met the target on validation; the row is the nearest there is, the cheapest choice for a limit"
    " of cost and the choice by score alone for a limit of points."
)


def replay_sheet(done: Replayed) -> Sheet:
    """The sheet of one replay."""
    sizes = ", ".join(f"{n} {part}" for part, n in done.splits.items())
    about = f"{sizes} queries; {len(done.rows[0].seeds)} seeds; {done.missing} missing outcomes"
    cards = (
        Card(
            title="Routers",
            markup=scrolling(plain_table(TITLES, [cells(row) for row in done.rows])),
            note=" ".join(filter(None, (NOTE, unmet_note(done.rows)))),
        ),
        Card(
            title="Cost and quality",
            markup=scrolling(_frontier(done), "plot"),
            note=_front_note(done),
        ),
        Card(
            title="Calibration",
            markup=scrolling(_calibration(done.rows), "plot"),
            note="Scores that the selected router predicted for the agents it chose, against what came of them.",
        ),
        Card(
            title="Regret of the online routers",
            markup=scrolling(regret_curve(_regret(done.decisions)), "plot"),
            note="Score lost against the best single agent in hindsight, summed over the training queries.",
        ),
    )
    return Sheet(
        name=done.table if done.test == done.table else f"{done.table} to {done.test}", about=about, cards=cards
    )


def cells(row: Row) -> list[str]:
    """A row in words, under TITLES. A target that validation could not meet in some seeds is marked."""
    single = row.name == BASELINE
    return [
        marked(row),
        percent(row.score),
        f"{100 * row.ci[0]:.1f}–{100 * row.ci[1]:.1f}",
        UNKNOWN if single else f"{row.gain:+.1f}",
        UNKNOWN if single else f"{row.gain_ci[0]:+.1f} to {row.gain_ci[1]:+.1f}",
        probability(row.p_value),
        probability(row.p_holm),
        dollars(row.cost_usd_per_1k),
        f"{row.calls:g}",
        percent(row.validation),
        UNKNOWN if row.ece is None else f"{row.ece:.3f}",
        UNKNOWN if not row.seconds else f"{row.seconds:.1f} s",
    ]


def marked(row: Row) -> str:
    """The row's name, and in how many seeds its target was not met."""
    return row.name + (f" (unmet in {row.unmet} of {len(row.seeds)} seeds)" if row.unmet else "")


def unmet_note(rows: Sequence[Row]) -> str:
    """What was done where a target was not met; empty where all were."""
    return UNMET if any(row.unmet for row in rows) else ""


def _frontier(done: Replayed) -> str:
    marks = [
        Mark(
            name=marked(row),
            x=row.cost_usd_per_1k,
            y=row.score,
            lo=row.ci[0],
            hi=row.ci[1],
            baseline=row.name == BASELINE,
            oracle=row.name == "oracle",
        )
        for row in done.rows
        if row.cost_usd_per_1k is not None
    ]
    return frontier(marks, done.frontier.points if done.frontier else ())


def _calibration(rows: Sequence[Row]) -> str:
    chosen = next((row for row in reversed(rows) if row.name.startswith("selected")), None)
    return (
        reliability(chosen.bins, chosen.name.removeprefix("selected on validation: "))
        if chosen and chosen.bins
        else ""
    )


def _front_note(done: Replayed) -> str:
    if done.frontier is None:
        return ""
    area = UNKNOWN if done.frontier.area is None else f"{done.frontier.area:.4f}"
    return (
        f"The line is the front of {done.frontier.router} over its trades of score for dollars; its area is {area}."
    )


def _regret(decisions: Sequence[Decision]) -> list[Series]:
    """Mean regret against the best single agent, with the range over the seeds as band."""
    found: dict[str, list[Decision]] = {}
    for decision in decisions:
        if "regret" in decision.notes:
            found.setdefault(decision.contender, []).append(decision)
    series = []
    for name, rows in found.items():
        steps = min((d.notes["regret"]["steps"] for d in rows), key=len)
        lines = np.array([d.notes["regret"]["best_single"][: len(steps)] for d in rows])  # (S, T)
        points = zip(steps, lines.mean(axis=0), lines.min(axis=0), lines.max(axis=0), strict=True)
        series.append(
            Series(
                name=name,
                points=tuple(At(x=float(x), y=float(y), lo=float(a), hi=float(b)) for x, y, a, b in points),
            )
        )
    return series


# --- labels and swaps ---------------------------------------------------------------------------------


def labels_table(found: Sequence[Learnt]) -> tuple[list[str], list[list[str]]]:
    """Titles and cells: a line a router, a column a number of labels."""
    sizes = sorted({one.labels for one in found})
    names = list(dict.fromkeys(one.name for one in found))
    score = {(one.name, one.labels): percent(one.score) for one in found}
    return ["Router", *map(str, sizes)], [[n, *(score.get((n, size), UNKNOWN) for size in sizes)] for n in names]


def labels_sheet(table: str, found: Sequence[Learnt]) -> Sheet:
    """The learning curve with its table."""
    names = list(dict.fromkeys(one.name for one in found))
    series = [
        Series(
            name=name,
            points=tuple(
                At(x=one.labels, y=one.score, lo=min(one.seeds), hi=max(one.seeds))
                for one in found
                if one.name == name
            ),
        )
        for name in names
    ]
    cards = (
        Card(title="Score by number of labels", markup=scrolling(learning_curve(series), "plot")),
        Card(title="Figures", markup=scrolling(plain_table(*labels_table(found)))),
    )
    return Sheet(
        name=f"{table}, labels", about="Mean test score; the band is the range over the seeds", cards=cards
    )


def swap_table(found: Sequence[Swap]) -> tuple[list[str], list[list[str]]]:
    """Titles and cells: a line a swap, and their mean."""
    titles = ["Left", "Came", "Retrained", "Extended", "Ignored", "Points lost"]
    rows = [
        [
            ", ".join(one.left),
            ", ".join(one.came),
            *map(percent, (one.retrained, one.extended, one.ignored)),
            f"{one.loss:+.2f}",
        ]
        for one in found
    ]
    means = [float(np.mean([getattr(one, key) for one in found])) for key in ("retrained", "extended", "ignored")]
    rows.append(["mean", "", *map(percent, means), f"{np.mean([one.loss for one in found]):+.2f}"])
    return titles, rows


def swap_sheet(table: str, found: Sequence[Swap]) -> Sheet:
    """The swaps' table."""
    note = "Points lost: a full retrain's score minus that of the extended router."
    card = Card(title="Swaps", markup=scrolling(plain_table(*swap_table(found))), note=note)
    return Sheet(name=f"{table}, swaps", about=f"{found[0].labels} labelled queries a newcomer", cards=(card,))
