"""What a reviewer learns from: graded proposals of one layer of a recorded mixture, as a reviewer sees them.

It asks nobody. The gold side of a query stays with the example, for teachers; `prompt` is built without it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from coterie.errors import DataError
from coterie.rollout import with_instruction
from coterie.storage.runs import text_key
from coterie.strategies import prompts
from coterie.strategies.layers import quote
from coterie.strategies.quoting import Quote, tokens
from coterie.types import (
    Agent,
    Amount,
    Count,
    Messages,
    Positive,
    Query,
    Score,
    Share,
    Size,
    Trace,
    Turn,
    draw,
    record,
    spec,
)

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@spec
class Distill:
    """How a reviewer is distilled (ReM-MoA §4.2). The rank, rate and batch that the paper lost are R14's.

    A proposal counts if it has `least` to `most` tokens; a layer if it keeps two. Those of a layer are shown in an
    order drawn from the seed, so that a place says nothing (`shuffle`). `limit` takes so many layers, drawn.
    `batch` layers make an update, `micro_batch` of them go through the model at once; the loss is the mean over a
    batch's tokens of reviews, no other token has any. The rate falls by a cosine from `lr` to 0. A checkpoint is
    written after `checkpoint_every` updates; `keep` are kept. `recompute` spends time to save memory.
    """

    rank: Size = 16
    alpha: Positive = 32.0
    dropout: Share = 0.05
    targets: tuple[str, ...] = ATTENTION
    lr: Positive = 2e-4
    warmup: Count = 0
    weight_decay: Amount = 0.0
    clip: Positive = 1.0
    epochs: Size = 3
    batch: Size = 16
    micro_batch: Size = 4
    least: Count = 50
    most: Size = 2000
    shuffle: bool = True
    limit: Size | None = None
    checkpoint_every: Size = 10
    keep: Size = 2
    recompute: bool = False


@record
class Attempt:
    """A proposal as it is shown, and what its verifier said of it."""

    quote: Quote
    score: Score


@record
class Example:
    """One layer of one query: its proposals in the order in which they are shown. `id` hangs on what they say."""

    id: str
    query: Query
    layer: int
    attempts: tuple[Attempt, ...]

    @property
    def quotes(self) -> list[Quote]:
        return [attempt.quote for attempt in self.attempts]


@record
class Gathered:
    """Examples, and how many layers and proposals were left out, by reason."""

    examples: tuple[Example, ...]
    left_out: dict[str, int]


def gathered(traces: Iterable[Trace], settings: Distill, seed: int, leave_out: Sequence[str] = ()) -> Gathered:
    """One example for each reviewed layer of the traces, in an order that depends on the seed and on them alone.

    Layers of a domain in `leave_out`, with fewer than two proposals of a fitting length, or with one that has no
    verdict are left out; so is a layer that says just what another one says.
    """
    found: dict[str, Example] = {}
    lost: Counter[str] = Counter()
    for trace in traces:
        for layer in sorted({review.layer for review in trace.reviews}):
            example, reason = _example(trace, layer, settings, seed, lost)
            if trace.query.domain in leave_out:
                reason = "of a domain left out"
            elif example is not None and example.id in found:
                reason = "the same as another"
            if example is None or reason:
                lost[f"layers {reason}"] += 1
            else:
                found[example.id] = example
    drawn = sorted(found.values(), key=lambda example: draw(seed, "order", example.id))
    if settings.limit is not None and len(drawn) > settings.limit:
        lost["layers over the limit"] += len(drawn) - settings.limit
    return Gathered(examples=tuple(drawn[: settings.limit]), left_out=dict(sorted(lost.items())))


def _example(
    trace: Trace, layer: int, settings: Distill, seed: int, lost: Counter[str]
) -> tuple[Example | None, str]:
    """The example of a layer, or the reason why there is none."""
    turns = [trace.turns[review.turn] for review in trace.reviews if review.layer == layer]
    kept = [turn for turn in turns if settings.least <= length(turn) <= settings.most]
    lost["proposals too short or too long"] += len(turns) - len(kept)
    if len(kept) < 2:
        return None, "with fewer than two proposals"
    attempts = [
        Attempt(quote=quote(t), score=t.score) for t in kept if t.score is not None and t.score.value is not None
    ]
    if len(attempts) < len(kept):
        return None, "without a verdict"
    facts = [text_key(trace.query, ""), layer, [attempt.quote.text for attempt in attempts]]
    name = hashlib.sha256(json.dumps(facts).encode(errors="surrogatepass")).hexdigest()[:16]
    if settings.shuffle:
        Random(draw(seed, "shown", name)).shuffle(attempts)
    return Example(id=name, query=trace.query, layer=layer, attempts=tuple(attempts)), ""


def length(turn: Turn) -> int:
    """Tokens of a proposal, as its model counted them; about, where it did not."""
    return turn.completion.completion_tokens or tokens(turn.completion.text)


def digest(examples: Sequence[Example]) -> str:
    """What was learned from: questions, gold sides, texts in their order, verdicts."""
    facts = [[e.id, [[a.quote.text, a.score.verdict, a.score.value] for a in e.attempts]] for e in examples]
    return hashlib.sha256(json.dumps(facts).encode(errors="surrogatepass")).hexdigest()[:16]


# --- what the student sees and says -----------------------------------------------------------------------


def prompt(example: Example, agent: Agent, room: int) -> Messages:
    """The review of these proposals as the agent is asked for it when it serves, without any gold side.

    Raises: DataError where the gold side of the query would change one character of it.
    """
    blind = replace(example.query, reference=None, metadata={}, id="")
    made = with_instruction(agent, prompts.reviewer(blind, example.quotes, room))
    if made != with_instruction(agent, prompts.reviewer(example.query, example.quotes, room)):
        raise DataError(
            f"query {example.query.id}: its gold side reaches the prompt of the reviewer that shall learn"
        )
    return made


def completion(scores: Sequence[int], rationales: Sequence[str]) -> str:
    """The review that is to be learned, as `prompts.SHAPE` asks for it."""
    items: list[dict[str, Any]] = [
        {"trace": number, "score": score, "rationale": rationale}
        for number, (score, rationale) in enumerate(zip(scores, rationales, strict=True), 1)
    ]
    return json.dumps({"reviews": items}, ensure_ascii=False)
