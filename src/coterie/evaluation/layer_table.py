"""The wording of what was measured of layers: the same rows for the terminal and the report's page."""

import math
from collections.abc import Sequence

from coterie.evaluation.depth import Depth, Early, Layer, Trend, depths, early, layers, trend
from coterie.evaluation.metrics import Traces
from coterie.evaluation.sheet import Card, plain_table
from coterie.evaluation.table import UNKNOWN, count, percent
from coterie.types import Encoder, Trace, record

LAYER = ("Layer", "Quality", "Texts", "Answers", "Got worse", "Rank corr.", "Mended", "Neutral", "Calls", "Tokens")
HINTS = (
    "",
    "Mean reward of the layer's proposals",
    "Vendi score of the proposals' embeddings: 1 is all alike, the number of proposals all different",
    "Vendi score of their answers under equivalence",
    "Share of queries whose quality fell against the layer before",
    "Spearman's correlation of the reviewer's scores with the rewards",
    "Reviews that had to be read from another form, or asked for again",
    "Proposals without a readable review",
    "Calls a query",
    "Tokens a query",
)
DEPTH = ("Depth", "Accuracy", "95 %", "Judged", "Calls", "Tokens")


@record
class Measured:
    """The layers of one recipe. `degraded` of its `traces` went without something; no `depths` without a sweep."""

    traces: int
    degraded: int
    layers: tuple[Layer, ...]
    depths: tuple[Depth, ...]
    trend: Trend | None
    early: Early | None


def measured(traces: Sequence[Trace], encoder: Encoder | None = None) -> Measured:
    """Everything that is measured of one recipe's layers."""
    swept = depths(traces)
    return Measured(
        traces=len(traces),
        degraded=sum(bool(trace.degraded) for trace in traces),
        layers=tuple(layers(traces, encoder)),
        depths=tuple(swept),
        trend=trend([row.accuracy for row in swept if row.accuracy is not None]),
        early=early(traces),
    )


def layered(traces: Traces) -> Traces:
    """The recipes that have layers."""
    return {name: rows for name, rows in traces.items() if any(turn.layer for row in rows for turn in row.turns)}


def layer_rows(found: Measured) -> list[list[str]]:
    """A row a layer, under the titles LAYER."""
    return [
        [
            str(row.layer),
            percent(row.quality),
            _number(row.texts),
            _number(row.answers),
            percent(row.worse),
            _number(row.rank),
            _of(row.mended, row.reviewed),
            _of(row.neutral, row.reviewed),
            count(row.calls),
            count(row.tokens),
        ]
        for row in found.layers
    ]


def depth_rows(found: Measured) -> list[list[str]]:
    """A row a depth of a sweep, under the titles DEPTH."""
    return [
        [
            str(row.layer),
            percent(row.accuracy),
            _ends(row.ci),
            count(row.judged),
            count(row.calls),
            count(row.tokens),
        ]
        for row in found.depths
    ]


def early_words(found: Early) -> str:
    """What ending early would have meant, in a sentence."""
    return (
        f"Ending early: {found.stopped} of {found.traces} queries would have; saved a"
        f" query {count(found.calls)} calls, {count(found.tokens)} tokens, {found.seconds:.2f} s;"
        f" {found.lost} right answers lost, {found.gained} gained."
    )


def layer_cards(traces: Traces) -> list[Card]:
    """A card for each recipe that has layers: the layers, and the depths where it was swept."""
    return [_card(name, measured(rows)) for name, rows in layered(traces).items()]


def _card(name: str, found: Measured) -> Card:
    notes = [f"{found.degraded} of {found.traces} answers degraded."]
    if found.depths:
        notes.append(
            "Below: what each depth alone would have answered" + (f" ({found.trend})." if found.trend else ".")
        )
    if found.early is not None:
        notes.append(early_words(found.early))
    swept = plain_table(DEPTH, depth_rows(found))
    markup = plain_table(LAYER, layer_rows(found), HINTS) + swept
    return Card(title=f"Layers of {name}", markup=markup, note=" ".join(notes))


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _of(some: int, whole: int) -> str:
    return f"{some} of {whole}" if whole else UNKNOWN


def _ends(ends: tuple[float, float]) -> str:
    return UNKNOWN if math.isnan(ends[0]) else "–".join(f"{100 * end:.0f}" for end in ends)
