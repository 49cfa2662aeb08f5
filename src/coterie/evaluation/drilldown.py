"""The report's embedded data: every turn of every query as compact JSON, each distinct text once.

It decides what is embedded and how much of it, and makes it safe inside HTML. What it looks like is the
page's matter.
"""

import heapq
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.evaluation.metrics import Traces, outcome
from coterie.types import Failure, Messages, Query, Review, Routing, Score, Trace, Turn

CAPS = (40_000, 16_000, 8_000, 4_000, 2_000, 1_000, 500)
BUDGET = 24_000_000  # characters of text in one file; browsers open that without a pause
SHOWN_WEIGHTS = 16
UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")

Cut = list[str | int]
"""A text that was too long: its beginning, how many characters are missing, its end."""


class Texts:
    """Distinct texts in order of appearance; a text is referred to by its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add(self, text: str | None) -> int | None:
        """The text's number; None for None."""
        return None if text is None else self._numbers.setdefault(text, len(self._numbers))

    def fitting(self, budget: int) -> int:
        """The largest cap on a text's length that keeps all within `budget` characters, or the smallest cap."""
        lengths = [len(text) for text in self._numbers]
        return next((cap for cap in CAPS if sum(min(cap, n) for n in lengths) <= budget), CAPS[-1])

    def cut(self, cap: int) -> list[str | Cut]:
        """All texts by number; longer ones keep two thirds of `cap` from the beginning, the rest from the end."""
        return [text if len(text) <= cap else _cut(text, cap) for text in self._numbers]


def _cut(text: str, cap: int) -> Cut:
    head, tail = 2 * cap // 3, cap - 2 * cap // 3
    return [text[:head], len(text) - cap, text[-tail:]]


def script_json(data: object) -> str:
    """JSON that can stand inside a <script> element: no character that HTML or JavaScript could take for an end."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def embedded(traces: Traces, budget: int = BUDGET) -> dict[str, Any]:
    """All of a run's queries and traces; `texts` holds what the numbers in the rest refer to."""
    texts = Texts()
    queries = {t.query.id: t.query for found in traces.values() for t in found}
    numbers = {query: i for i, query in enumerate(queries)}
    data: dict[str, Any] = {
        "recipes": list(traces),
        "queries": [_query(query, texts) for query in queries.values()],
        "traces": [[_trace(t, numbers[t.query.id], texts) for t in found] for found in traces.values()],
    }
    cap = texts.fitting(budget)
    return data | {"cap": cap, "texts": texts.cut(cap)}


def _query(query: Query, texts: Texts) -> dict[str, Any]:
    return {
        "id": query.id,
        "domain": query.domain,
        "task": query.task,
        "contract": query.contract,
        "ask": texts.add(query.text),
        "prompt": _messages(query.messages, texts),
        "gold": texts.add(_plain(query.reference)),
        "meta": texts.add(_plain(query.metadata)),
    }


def _trace(trace: Trace, query: int, texts: Texts) -> dict[str, Any]:
    return {
        "q": query,
        "sample": trace.sample,
        "outcome": outcome(trace),
        "answer": texts.add(trace.answer),
        "score": _score(trace.score, texts),
        "final": trace.final,
        "stopped": trace.stopped,
        "seconds": _number(trace.seconds),
        "tokens": trace.tokens,
        "cost": _number(trace.cost),
        "turns": [_turn(turn, texts) for turn in trace.turns],
        "degraded": texts.add(trace.degraded or None),
        "reviews": [_review(review, texts) for review in trace.reviews],
        "exits": [[found.layer, found.turn, found.why] for found in trace.exits],
        "routings": [_routing(routing, texts) for routing in trace.routings],
        "failures": [_failure(failure, texts) for failure in trace.failures],
    }


def _turn(turn: Turn, texts: Texts) -> dict[str, Any]:
    said = turn.completion
    return {
        "agent": texts.add(turn.agent),
        "role": turn.role,
        "rev": texts.add(turn.revision),
        "sent": _messages(turn.messages, texts),
        "text": texts.add(said.text),
        "answer": texts.add(turn.answer),
        "score": _score(turn.score, texts),
        "reads": list(turn.reads),
        "part": turn.part,
        "layer": turn.layer,
        "finish": said.finish,
        "in": said.prompt_tokens,
        "out": said.completion_tokens,
        "estimated": said.estimated,
        "seconds": _number(said.seconds),
        "cost": _number(turn.cost),
    }


def _routing(routing: Routing, texts: Texts) -> dict[str, Any]:
    # A pool may hold a thousand agents: the heaviest are shown, the number of the others is told.
    top = heapq.nlargest(SHOWN_WEIGHTS, routing.weights, key=lambda name: (routing.weights[name], name))
    return {
        "after": routing.after,
        "stop": routing.stop,
        "weights": [
            [
                texts.add(n),
                _number(routing.weights[n]),
                _number(routing.scores.get(n)),
                list(routing.reads.get(n, ())),
            ]
            for n in top
        ],
        "more": len(routing.weights) - len(top),
        "info": texts.add(_plain(routing.info)),
    }


def _review(review: Review, texts: Texts) -> list[Any]:
    """The turn that was reviewed, its score, the rationale, how the score came about."""
    return [review.turn, _number(review.score), texts.add(review.rationale or None), review.mended]


def _failure(failure: Failure, texts: Texts) -> list[int | None]:
    return [texts.add(failure.agent), texts.add(failure.kind), texts.add(failure.message)]


def _messages(messages: Messages, texts: Texts) -> list[list[str | int | None]]:
    return [[m.role, texts.add(m.content)] for m in messages]


def _score(score: Score | None, texts: Texts) -> list[Any] | None:
    """Verdict, value, the answer that was judged, the reason."""
    if score is None:
        return None
    return [score.verdict, _number(score.value), texts.add(score.answer), texts.add(score.reason or None)]


def _plain(facts: Mapping[str, Any] | Sequence[Any] | None) -> str | None:
    return json.dumps(facts, ensure_ascii=False, indent=1, default=str) if facts else None


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
