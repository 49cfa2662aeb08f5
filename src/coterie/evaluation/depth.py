"""What a mixture's layers do, from its traces: quality and diversity layer by layer, what each depth would answer,
what the reviewer's scores are worth, what stopping early saves and loses. It reads scored traces and nothing else.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from coterie.evaluation.stats import accuracy_interval
from coterie.features.hashed import Hashed
from coterie.strategies.layers import aside
from coterie.tasks.catalog import reader_of
from coterie.types import Encoder, Exit, Message, Trace, Turn, record

Trend = Literal["sustained", "saturating", "plateau", "degrading"]
LEAST = 0.002
"""A gain of accuracy that counts: 0.2 points (R18)."""


@record
class Layer:
    """One layer over the traces that have it. Means are over traces; None where nothing is to be measured.

    `quality` is the proposals' mean reward, `texts` and `answers` their Vendi scores: from 1 (all alike) to the
    number of proposals. `worse` is the share of traces whose quality fell against the layer before. `reviewed`
    proposals were reviewed, `mended` of them not in the form that was asked for, `neutral` of them not at all;
    `rank` is Spearman's correlation of their scores with their rewards. `calls` and `tokens` are those of the
    layer.
    """

    layer: int
    traces: int
    quality: float | None
    texts: float | None
    answers: float | None
    worse: float | None
    reviewed: int
    mended: int
    neutral: int
    rank: float | None
    calls: float
    tokens: float


@record
class Depth:
    """What a rollout of this many layers would have answered and used, a query. Extra aggregations do not count."""

    layer: int
    accuracy: float | None
    ci: tuple[float, float]
    judged: int
    calls: float
    tokens: float


@record
class Early:
    """What ending at the first agreement, or at a learned depth, would have saved and lost, over `traces` that went
    on.

    `stopped` traces would have ended. Saved are calls, tokens and seconds a trace, over all traces. `lost`: the
    final answer was right and the early one was not; `gained`: the other way round.
    """

    traces: int
    stopped: int
    calls: float
    tokens: float
    seconds: float
    lost: int
    gained: int


def proposals(trace: Trace, layer: int) -> list[Turn]:
    """A layer's proposals; of an agent that answered again within the layer only the last ones."""
    found = [turn for turn in trace.turns if turn.part == "proposer" and turn.layer == layer]
    replaced = {turn.reads[0] for turn in found if turn.reads}
    return [turn for turn in found if turn.index not in replaced]


def layers(traces: Sequence[Trace], encoder: Encoder | None = None) -> list[Layer]:
    """Every layer of one recipe. Embeddings are those of `encoder`, hashed n-grams without one."""
    deepest = max((turn.layer for trace in traces for turn in trace.turns), default=0)
    return [_layer(traces, number, encoder or Hashed()) for number in range(1, deepest + 1)]


def _layer(traces: Sequence[Trace], number: int, encoder: Encoder) -> Layer:
    having = [trace for trace in traces if proposals(trace, number)]
    turns = [proposals(trace, number) for trace in having]
    quality = [_quality(found) for found in turns]
    before = [_quality(proposals(trace, number - 1)) for trace in having]
    fell = [now < then for now, then in zip(quality, before, strict=True) if now is not None and then is not None]
    reviews = [(review, trace) for trace in traces for review in trace.reviews if review.layer == number]
    graded = [(r.score, score.value) for r, t in reviews if (score := t.turns[r.turn].score) is not None]
    known = [(score, value) for score, value in graded if value is not None]
    used = [[turn for turn in trace.turns if turn.layer == number] for trace in having]
    return Layer(
        layer=number,
        traces=len(having),
        quality=_mean(quality),
        texts=_mean([text_diversity(found, encoder) for found in turns]),
        answers=_mean([answer_diversity(trace, found) for trace, found in zip(having, turns, strict=True)]),
        worse=_mean([float(one) for one in fell]),
        reviewed=len(reviews),
        mended=sum(review.mended in ("form", "again") for review, _ in reviews),
        neutral=sum(review.mended == "neutral" for review, _ in reviews),
        rank=spearman([score for score, _ in known], [value for _, value in known]),
        calls=_mean([float(len(found)) for found in used]) or 0.0,
        tokens=_mean([float(sum(map(_tokens, found))) for found in used]) or 0.0,
    )


# --- diversity and rank correlation --------------------------------------------------------------------


def text_diversity(turns: Sequence[Turn], encoder: Encoder) -> float | None:
    """Vendi score of the texts' embeddings under their cosines."""
    rows = encoder.encode([(Message(role="user", content=turn.completion.text),) for turn in turns])
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    units = (rows / np.where(norms > 0, norms, 1)).astype(float)
    alike = units @ units.T  # (n, n)
    np.fill_diagonal(alike, 1.0)
    return vendi(alike)


def answer_diversity(trace: Trace, turns: Sequence[Turn]) -> float | None:
    """Vendi score of the answers under equivalence: the exponential of the entropy of who says what. None for open
    questions and where nobody gave an answer.
    """
    reader = reader_of(trace.query)
    answers = [turn.answer for turn in turns if turn.answer is not None]
    if reader.open_ended or not answers:
        return None
    return vendi(
        np.array([[one == two or reader.same(one, two) for two in answers] for one in answers], dtype=float)
    )


def vendi(alike: np.ndarray) -> float | None:
    """The Vendi score (Friedman & Dieng 2023) of an (n, n) matrix of likeness with ones on its diagonal: the
    exponential of the entropy of the eigenvalues of alike / n. Between 1 and n; None for n = 0.
    """
    if not len(alike):
        return None
    values = np.linalg.eigvalsh((alike + alike.T) / (2 * len(alike)))
    positive = values[values > 1e-12]
    return float(np.exp(-(positive * np.log(positive)).sum()))


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None where one side is all alike."""
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return None
    return float(np.corrcoef(_ranks(ours), _ranks(theirs))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, place, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place])


# --- depth -------------------------------------------------------------------------------------------


def depths(traces: Sequence[Trace]) -> list[Depth]:
    """What each depth of a swept recipe answers. A trace that ended earlier counts with its last answer, also one
    that an agreement ended; without a sweep there is nothing to say.
    """
    if not any(found.why == "depth" for trace in traces for found in trace.exits):
        return []
    deepest = max(found.layer for trace in traces for found in trace.exits if _answers(trace, found))
    return [_depth([trace for trace in traces if _exit(trace, number)], number) for number in range(1, deepest + 1)]


def _exit(trace: Trace, depth: int) -> Exit | None:
    """The last answer for all that the trace had by this depth."""
    return next((e for e in reversed(trace.exits) if e.layer <= depth and _answers(trace, e)), None)


def _answers(trace: Trace, found: Exit) -> bool:
    """Whether an answer was given there: an agreement that layers followed (in the shadow) is a note."""
    return found.why != "agreement" or found.turn == trace.final


def _depth(traces: Sequence[Trace], number: int) -> Depth:
    ends = [(trace, found) for trace in traces if (found := _exit(trace, number)) is not None]
    right = [score.correct for t, found in ends if (score := t.turns[found.turn].score) is not None]
    values = [float(one) for one in right if one is not None]
    spent = [_until(trace, found) for trace, found in ends]
    return Depth(
        layer=number,
        accuracy=_mean(values),
        ci=accuracy_interval(values),
        judged=len(values),
        calls=_mean([float(len(turns)) for turns in spent]) or 0.0,
        tokens=_mean([float(sum(map(_tokens, turns))) for turns in spent]) or 0.0,
    )


def _until(trace: Trace, end: Exit) -> list[Turn]:
    """The turns that an answer took: those of its layers, without what a sweep adds to layers before its own."""
    return [turn for turn in _unswept(trace, end.layer) if turn.layer <= end.layer]


def _unswept(trace: Trace, answered: int | None) -> list[Turn]:
    """The turns without the aggregations that nothing was made from, but for those of the layer that `answered`."""
    added = aside(trace.turns)
    return [turn for turn in trace.turns if turn.layer == answered or turn.index not in added]


def trend(accuracies: Sequence[float]) -> Trend | None:
    """How accuracy goes with depth (R18), by the gain over the last three steps; None below four depths."""
    if len(accuracies) < 4:
        return None
    gain, peak = accuracies[-1] - accuracies[-4], max(accuracies)
    if peak - accuracies[-1] > LEAST:
        return "degrading"
    if accuracies[-1] < peak or gain <= 0:
        return "plateau"
    return "sustained" if gain > LEAST else "saturating"


# --- stopping early ------------------------------------------------------------------------------------


def early(traces: Sequence[Trace]) -> Early | None:
    """What the first end of each trace would have saved and lost; None where none ended and went on."""
    went_on = [(trace, found) for trace in traces if (found := _first_end(trace)) is not None]
    if not went_on:
        return None
    rest = [_after(trace, found) for trace, found in went_on]
    pairs = [(_right(trace, found.turn), _right(trace, trace.final)) for trace, found in went_on]
    n = len(traces)
    return Early(
        traces=n,
        stopped=len(went_on),
        calls=sum(map(len, rest)) / n,
        tokens=sum(_tokens(turn) for turns in rest for turn in turns) / n,
        seconds=sum(_seconds(turns) for turns in rest) / n,
        lost=sum(final is True and first is False for first, final in pairs),
        gained=sum(first is True and final is False for first, final in pairs),
    )


def _after(trace: Trace, end: Exit) -> list[Turn]:
    """The turns after an end that a run without a sweep would have made as well. A learned end is aggregated
    itself, so that the last aggregation is not saved.
    """
    answered = trace.turns[trace.final].layer if end.why == "agreement" and trace.final is not None else None
    return [turn for turn in _unswept(trace, answered) if turn.index > _last(trace, end)]


def _first_end(trace: Trace) -> Exit | None:
    """Where the layers would have ended, if others followed."""
    found = next((e for e in trace.exits if e.why in ("agreement", "learned")), None)
    return found if found is not None and any(_after(trace, found)) else None


def _last(trace: Trace, end: Exit) -> int:
    if end.why == "learned":
        return end.turn
    return max(turn.index for turn in trace.turns if turn.part == "proposer" and turn.layer == end.layer)


def _seconds(turns: Sequence[Turn]) -> float:
    """The time of steps that follow each other: of the calls of a step the longest counts."""
    steps: dict[tuple[int, str], float] = {}
    for turn in turns:
        key = (turn.layer, turn.part)
        steps[key] = max(steps.get(key, 0.0), turn.completion.seconds)
    return sum(steps.values())


# --- parts -------------------------------------------------------------------------------------------


def _quality(turns: Sequence[Turn]) -> float | None:
    return _mean([None if turn.score is None else turn.score.value for turn in turns])


def _right(trace: Trace, turn: int | None) -> bool | None:
    score = None if turn is None else trace.turns[turn].score
    return None if score is None else score.correct


def _tokens(turn: Turn) -> int:
    return turn.completion.prompt_tokens + turn.completion.completion_tokens


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.mean(known)) if known else None
