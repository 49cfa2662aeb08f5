"""Capability by domain before and after training: what each agent, and the team, answered to the same questions.

Reads the scored traces of two evaluations; who is asked more often after training is no change of capability.
"""

from collections.abc import Mapping
from statistics import fmean

from coterie.evaluation import compared
from coterie.evaluation.effect import Part, effect
from coterie.evaluation.figures import View, choices
from coterie.evaluation.forest import Stripe, forest
from coterie.evaluation.lineup import question_digest
from coterie.evaluation.metrics import Traces, outcome
from coterie.evaluation.sheet import Card, plain_table, scrolling
from coterie.evaluation.stats import holm
from coterie.evaluation.svg import tag
from coterie.types import Trace, record

TEAM = "The team's answer"
JUDGED = ("right", "wrong")
MOST_DOMAINS = 40
ALPHA = 0.05
TITLES = ("Domain", "After", "Before", *compared.PART_TITLES[3:])
Key = tuple[str, str]
"""A question: its id, and a digest of what was asked."""


@record
class Skills:
    """What one who answers gained, by domain and over all; `dropped` questions have a verdict on one side only."""

    name: str
    whole: Part
    parts: tuple[Part, ...]
    dropped: int


def skills(before: Traces, after: Traces) -> list[Skills]:
    """Every agent that was asked in both evaluations, and first the answers of their first recipes.

    An agent's turn counts once a question and sample, whichever recipe asked it. Samples of a question are
    averaged; only questions with a verdict on both sides are compared.
    """
    domains = {_key(t): t.query.domain for side in (before, after) for found in side.values() for t in found}
    sides = [_verdicts(before), _verdicts(after)]
    names = [name for name in sides[0] if name in sides[1]]
    return [found for name in names if (found := _skills(name, sides[0][name], sides[1][name], domains))]


def skill_card(before: Traces, after: Traces) -> Card:
    """The changes as a card: a forest plot and a table for the team and for each agent."""
    found = skills(before, after)
    dropped = sum(one.dropped for one in found if one.name != TEAM)
    note = "The same questions before and after; filled: significant at 5 % after Holm over the domains."
    if dropped:
        note += (
            f" {dropped:,} answers have no counterpart and are left out: `coterie eval --alone` asks every agent"
            " everything."
        )
    markup = choices("Who", [_view(one) for one in found]) if found else ""
    return Card(title="Capability by domain, before and after", markup=markup, note=note)


def _view(one: Skills) -> View:
    shown = sorted(sorted(one.parts, key=lambda p: (-p.effect.n, p.name))[:MOST_DOMAINS], key=lambda p: p.name)
    rows = [*shown, one.whole] if len(one.parts) > 1 else shown
    drawn = forest([_stripe(part) for part in rows], f"{one.name}: change in percentage points")
    hidden = len(one.parts) - len(shown)
    note = tag("p", {"class": "note"}, f"{hidden} smaller domains are not shown.") if hidden else ""
    table = plain_table(TITLES, [compared.part(part) for part in rows])
    return View(title=one.name, markup=scrolling(drawn, "plot") + table + note)


def _stripe(part: Part) -> Stripe:
    lo, hi = (100 * end for end in part.effect.ci or (0.0, 0.0))
    told = f"{100 * (part.effect.theirs or 0):.1f} → {100 * (part.effect.ours or 0):.1f} %, n {part.effect.n}"
    clear = part.p_holm is not None and part.p_holm < ALPHA
    return Stripe(name=part.name, at=100 * (part.effect.difference or 0), lo=lo, hi=hi, note=told, clear=clear)


# --- verdicts -----------------------------------------------------------------------------------------


def _key(trace: Trace) -> Key:
    return trace.query.id, question_digest(trace.query)


def _verdicts(traces: Traces) -> dict[str, dict[Key, float]]:
    """Share of right samples by who answered and question."""
    found: dict[str, dict[Key, dict[int, float]]] = {}
    every = [(place == 0, trace) for place, rows in enumerate(traces.values()) for trace in rows]
    for first, trace in every:
        for name, right in _said(trace, first).items():
            found.setdefault(name, {}).setdefault(_key(trace), {}).setdefault(trace.sample, right)
    names = sorted(found, key=lambda name: (name != TEAM, name))
    return {name: {key: fmean(values.values()) for key, values in found[name].items()} for name in names}


def _said(trace: Trace, whole: bool) -> dict[str, float]:
    """Who was right in a trace, the last turn of an agent that had several; with `whole` the answer as well."""
    known = [(t.agent, t.score.correct) for t in trace.turns if t.score is not None]
    said = {agent: float(right) for agent, right in known if right is not None}
    return {TEAM: float(outcome(trace) == "right"), **said} if whole and outcome(trace) in JUDGED else said


def _skills(
    name: str, before: Mapping[Key, float], after: Mapping[Key, float], domains: Mapping[Key, str]
) -> Skills | None:
    both = [key for key in before if key in after]
    if not both:
        return None
    by_domain: dict[str, list[Key]] = {}
    for key in both:
        by_domain.setdefault(domains[key], []).append(key)
    effects = {
        domain: effect([(after[key], before[key]) for key in keys]) for domain, keys in sorted(by_domain.items())
    }
    adjusted = holm([one.p_value for one in effects.values()])
    whole = effect([(after[key], before[key]) for key in both])
    return Skills(
        name=name,
        whole=Part(name="all domains", effect=whole, p_holm=whole.p_value),
        parts=tuple(
            Part(name=domain, effect=one, p_holm=p)
            for (domain, one), p in zip(effects.items(), adjusted, strict=True)
        ),
        dropped=len(before) + len(after) - 2 * len(both),
    )
