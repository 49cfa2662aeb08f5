"""The reviewer of ReM-MoA: one call a layer, whose reply becomes a score and a rationale for every trace.

The call brings the schema of its reply, which a backend may hold the model to. Replies are read by the ladder of
R8: JSON as it is, JSON somewhere in it, numbers beside the word score; then the missing traces are asked for once
more at temperature 0; what is still missing is neutral.
"""

import asyncio
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any, Literal

from coterie.rollout import Rollout
from coterie.strategies import prompts
from coterie.strategies.layers import Panel, aggregators, quote, tried
from coterie.strategies.prompts import BEST, WORST
from coterie.tasks.extract import decoded
from coterie.types import Review, Turn, draw, record

NEUTRAL = 5
_TRIES = 128
_NUMBER = re.compile(r"\s*[\"'“”]?\s*(-?\d+(?:\.\d+)?)\s*(?:/\s*10|out of 10)?\s*[\"'“”]?\s*")
_ID = re.compile(r"(?i)\s*(?:trace|attempt|review|candidate|response|#|no\.?|number)?[\s_#.:-]*(\d+)\s*")
_SCORE = re.compile(r"(?i)[\"'“”*_]*\bscore\b[\"'“”*_]*\s*[:=]\s*[\"'“”*_]*\s*(-?\d+(?:\.\d+)?)(?!\w)")
_TRACE = re.compile(r"(?i)[\"'“”*_]*\b(?:trace|attempt)(?:_?id|number)?\b[\"'“”*_]*\s*[:=#]?\s*[\"'“”*_]*\s*(\d+)")
_RATIONALE = re.compile(r"""(?i)["'“”]?rationale["'“”]?\s*:\s*(?:"((?:[^"\\]|\\.)*)|'((?:[^'\\]|\\.)*)|“([^”]*))""")
IDS = ("trace", "trace_id", "id", "attempt", "index", "number")
REASONS = ("rationale", "reason", "reasoning", "explanation", "comment", "justification")


@record
class Said:
    """One item of a reply: the trace's number (None: it names none), a score from 1 to 10, the rationale."""

    trace: int | None
    score: float
    rationale: str = ""


@record
class Reading:
    """What a reply says, by trace number from 1. `exact`: it had the form that was asked for."""

    said: Mapping[int, Said]
    exact: bool = False


async def review(
    rollout: Rollout, panel: Panel, turns: Sequence[Turn], shuffle: bool, schemas: bool = True
) -> list[Review]:
    """Reviews of a layer's turns, one each, in their order: put on the rollout, and given back.

    With `shuffle` the traces are shown in an order drawn from the seed, and the numbers mapped back (R9). Without
    `schemas` the form of the reply is asked for in words alone.
    """
    shown = list(turns)
    if shuffle:
        Random(draw(rollout.seed, rollout.query.id, rollout.sample, "review", turns[0].layer)).shuffle(shown)
    found: dict[int, Review] = {}
    for again in (False, True):
        missing = [number for number, turn in enumerate(shown, 1) if turn.index not in found]
        left_out = missing if again else ()
        asked = await _asked(rollout, panel, shown, left_out, schemas) if missing else None
        if asked is None:
            if missing:
                rollout.degraded.append(
                    f"the reviewer failed: {len(missing)} of layer {turns[0].layer} are neutral"
                )
            break
        reading = await asyncio.to_thread(read, asked.completion.text, len(shown), left_out)
        for number, said in reading.said.items():
            turn = shown[number - 1]
            found.setdefault(turn.index, _review(turn, said, asked, _mended(again, reading)))
    reviews = [found.get(turn.index) or _neutral(turn) for turn in turns]
    rollout.reviews += reviews
    return reviews


def judge_of(rollout: Rollout, turns: Sequence[Turn]) -> str:
    """Who judges these turns: the pool's reviewer, else who would aggregate them."""
    return (rollout.pool.names("reviewer") or aggregators(rollout, turns))[0]


async def _asked(
    rollout: Rollout, panel: Panel, shown: Sequence[Turn], missing: Sequence[int], schemas: bool
) -> Turn | None:
    name = judge_of(rollout, shown)
    agent = rollout.pool[name]
    room = panel.room(agent)
    messages = prompts.reviewer(rollout.query, [quote(turn) for turn in shown], room, missing)
    ask = panel.ask(name, "reviewer", shown[0].layer, messages, shown)
    if schemas:
        wanted = missing or range(1, len(shown) + 1)
        ask = replace(ask, schema=prompts.review_schema(wanted, agent.sampling.max_tokens))
    [turn] = await tried(rollout, [replace(ask, temperature=0.0) if missing else ask])
    return turn


def _mended(again: bool, reading: Reading) -> Literal["", "form", "again"]:
    return "again" if again else "" if reading.exact else "form"


def _review(turn: Turn, said: Said, by: Turn, mended: Literal["", "form", "again"]) -> Review:
    score = min(max(math.floor(said.score + 0.5), WORST), BEST)
    return Review(
        turn=turn.index, layer=turn.layer, score=score, rationale=said.rationale, by=by.index, mended=mended
    )


def _neutral(turn: Turn) -> Review:
    return Review(turn=turn.index, layer=turn.layer, score=NEUTRAL, mended="neutral")


# --- reading a reply ---------------------------------------------------------------------------------


def read(text: str, count: int, missing: Sequence[int] = ()) -> Reading:
    """What a reply says of `count` traces, or of those that are `missing`; nothing where it says nothing."""
    wanted = list(missing) or list(range(1, count + 1))
    best: dict[int, Said] = {}
    for items in _candidates(text):
        found = _mapped(items, wanted)
        if len(found) > len(best):
            best = found
        if len(best) == len(wanted):
            break
    return Reading(said=best, exact=_exact(decoded(text.strip()), wanted))


def field(text: str, name: str) -> Any:
    """The value that the first JSON object with such a field gives it, wherever the object stands; else None."""
    found = (value for value in values(text) if isinstance(value, Mapping) and name in value)
    return next((value[name] for value in found), None)


def values(text: str) -> Iterator[Any]:
    """JSON in a reply: all of it, then whatever begins with a bracket, from the front. Others are None."""
    yield decoded(text.strip())
    for found in islice(re.finditer(r"[{\[]", text), _TRIES):
        yield decoded(text[found.start() :], whole=False)


def _candidates(text: str) -> Iterator[list[Said]]:
    """Lists of items in order of trust: the whole reply, JSON in it from the front, loose objects, numbers."""
    loose: list[Said] = []
    for place, value in enumerate(values(text)):
        if not place:
            yield _items(value)
        elif isinstance(value, Mapping) and (item := _item(value)) is not None:
            loose.append(item)
        else:
            yield _items(value)
    yield loose
    yield _numbers(text)


def _items(value: Any) -> list[Said]:
    """The items of a reply's JSON: a list of objects, an object that has one, or objects or numbers by trace."""
    if isinstance(value, Mapping):
        if (single := _item(value)) is not None:
            return [single]
        lists = [inner for inner in value.values() if isinstance(inner, list)]
        named = value.get("reviews")
        if isinstance(named, Mapping):
            return _by_key(named)
        listed = named if isinstance(named, list) else lists[0] if len(lists) == 1 else None
        if listed is None:
            return _by_key(value)
        value = listed
    if not isinstance(value, list):
        return []
    items = [_item(inner) if isinstance(inner, Mapping) else None for inner in value]
    return [item for item in items if item is not None]


def _item(table: Mapping[Any, Any]) -> Said | None:
    score = _score(table.get("score", table.get("rating")))
    if score is None:
        return None
    trace = next((found for key in IDS if (found := _id(table.get(key))) is not None), None)
    reason = next((table[key] for key in REASONS if isinstance(table.get(key), str)), "")
    return Said(trace=trace, score=score, rationale=reason.strip())


def _by_key(table: Mapping[Any, Any]) -> list[Said]:
    """Items by trace number: {"1": {"score": 7}, "trace 2": 4}."""
    found = []
    for key, inner in table.items():
        trace = _id(key)
        score = _score(inner.get("score") if isinstance(inner, Mapping) else inner)
        if trace is not None and score is not None:
            item = _item(inner) if isinstance(inner, Mapping) else None
            found.append(Said(trace=trace, score=score, rationale=item.rationale if item else ""))
    return found


def _score(value: Any) -> float | None:
    """A score as a number: 7, 7.0, "7", "7/10"; None for what is none, and for what is no finite number."""
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        value = float(found[1]) if found and len(found[1]) < 20 else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Beyond what a float holds it is still a number, and clamped like any other.
    value = min(max(value, -1e6), 1e6) if not isinstance(value, float) or math.isfinite(value) else math.nan
    return None if math.isnan(value) else float(value)


def _id(value: Any) -> int | None:
    if isinstance(value, str):
        found = _ID.fullmatch(value)
        return int(found[1]) if found and len(found[1]) < 6 else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _numbers(text: str) -> list[Said]:
    """Items of what is no JSON: a trace's number, the word score with a number after it, a rationale."""
    marks = list(_SCORE.finditer(text))
    found = []
    for place, mark in enumerate(marks):
        before = text[marks[place - 1].end() if place else 0 : mark.start()]
        after = text[mark.end() : marks[place + 1].start() if place + 1 < len(marks) else len(text)]
        traces = _TRACE.findall(before)
        reason = _RATIONALE.search(after)
        score = _score(mark[1])
        if score is not None:
            trace = int(traces[-1][:6]) if traces else None
            found.append(Said(trace=trace, score=score, rationale=_text(reason)))
    return found


def _text(found: re.Match[str] | None) -> str:
    return next((group.strip() for group in found.groups() if group is not None), "") if found else ""


def _mapped(items: Sequence[Said], wanted: Sequence[int]) -> dict[int, Said]:
    """Items by trace: by the numbers they name, where none names any by their order.

    Numbers from 0 are moved up by one. A trace that is named twice keeps the first item; too many items without
    numbers cannot be told apart and count for nothing.
    """
    named = [item for item in items if item.trace is not None]
    if not named:
        return dict(zip(wanted, items, strict=False)) if len(items) <= len(wanted) else {}
    numbers = [item.trace for item in named]
    shift = 1 if 0 in numbers and max(n for n in numbers if n is not None) < max(wanted) else 0
    found: dict[int, Said] = {}
    for item in named:
        trace = (item.trace or 0) + shift
        if trace in wanted:
            found.setdefault(trace, item)
    return found


def _exact(whole: Any, wanted: Sequence[int]) -> bool:
    """Whether the reply is JSON of the very form that was asked for."""
    reviews = whole.get("reviews") if isinstance(whole, Mapping) else None
    if not isinstance(reviews, list) or len(reviews) != len(wanted):
        return False
    if not all(isinstance(item, Mapping) for item in reviews):
        return False
    return sorted(wanted) == sorted(
        item["trace"]
        for item in reviews
        if type(item.get("trace")) is int
        and type(item.get("score")) is int
        and WORST <= item["score"] <= BEST
        and isinstance(item.get("rationale"), str)
    )
