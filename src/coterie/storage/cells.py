"""One recorded outcome as it is read from somebody's rows, and the strict reading of its values."""

import json
import math
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from coterie.errors import DataError
from coterie.storage.rowfiles import sound, suspect
from coterie.types import record

NO_SCORE, FAILED, NOT_RUN = "no score", "failed call", "not run"
LARGEST = 1e12
"""No call uses as many tokens or dollars: such a number is an error of units, and sums of them overflow."""


@record
class Cell:
    """What one agent scored on one query. `score` None is missing, for the reason given; counts and dollars NaN."""

    dataset: str
    question: str
    agent: str
    score: float | None
    reason: str = ""
    id: str = ""
    task: str = ""
    category: str = ""
    choices: tuple[str, ...] = ()
    answer: Any = None
    prompt_tokens: float = math.nan
    completion_tokens: float = math.nan
    cost: float = math.nan


# --- reading one value --------------------------------------------------------------------------------


def needed(row: Mapping[str, Any], where: str, *names: str) -> Any:
    """The value under the first of these names that the row has; DataError where it has none."""
    for name in names:
        if name in row:
            return row[name]
    raise DataError(f"{where}: there is no column {names[0]!r} (it has {', '.join(sorted(map(str, row)))})")


def text(row: Mapping[str, Any], where: str, *names: str) -> str:
    """As `needed`, a text that is not empty."""
    value = needed(row, where, *names)
    if value is None or not str(value).strip():
        raise DataError(f"{where}: {names[0]!r} is empty")
    return str(value)


def amount(value: Any, where: str, name: str) -> float:
    """A count or a sum of money, NaN where there is none."""
    found = number(value, where, name)
    if found is None:
        return math.nan
    if not 0 <= found < LARGEST:
        raise DataError(f"{where}: {name} {_brief(value)} is not a count or an amount below {LARGEST:g}")
    return found


def counts(row: Mapping[str, Any], where: str, names: tuple[str, str, str]) -> tuple[float, float]:
    """Prompt and completion tokens; `names` are those of the two counts and of their total.

    A part that is not stated is what the total leaves. A total alone stands as completion tokens without prompt
    tokens (`Table`), so that a completion count alone cannot stand there: nothing is known of such a call.
    DataError for a total below one of its parts.
    """
    prompt, completion, total = (amount(row.get(name), where, name) for name in names)
    if math.isnan(prompt) and math.isnan(completion):
        return math.nan, total
    if math.isnan(total):
        return prompt, math.nan if math.isnan(prompt) else completion
    if math.isnan(prompt):
        prompt = total - completion
    elif math.isnan(completion):
        completion = total - prompt
    if min(prompt, completion) < 0:
        raise DataError(f"{where}: {total:g} tokens in all are fewer than those of a part")
    return prompt, completion


def share(value: Any, where: str, name: str) -> float | None:
    """A score within 0 and 1, None where there is none."""
    found = number(value, where, name)
    if found is not None and not 0 <= found <= 1:
        raise DataError(f"{where}: {name} {_brief(value)} is not within 0 and 1")
    return found


def options(value: Any, where: str) -> tuple[str, ...]:
    """Options as a list, as JSON text of one, or as LLMRouter's JSON text of `{"text": [...], "labels": [...]}`."""
    try:
        found = json.loads(value) if isinstance(value, str) and value.strip() else value
        found = sound(found) if isinstance(value, str) and suspect(value) else found
    except json.JSONDecodeError:
        raise DataError(f"{where}: choices are not JSON") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: choices are not JSON ({error})") from None
    found = found.get("text") if isinstance(found, Mapping) else plain(found)
    if not isinstance(found or [], list) or len(found or []) > len(ascii_uppercase):
        raise DataError(f"{where}: choices must be a JSON list of at most {len(ascii_uppercase)} texts")
    return tuple(map(str, found or ()))


def number(value: Any, where: str, name: str) -> float | None:
    """A number however it is written, None for what stands for nothing (empty, null, NaN)."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none", "null", "nan")):
        return None
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return float(value.strip().lower() == "true")
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise DataError(f"{where}: {name} {_brief(value)} is not a number") from None
    except OverflowError:
        raise DataError(f"{where}: {name} {_brief(value)} is too large") from None
    return None if math.isnan(found) else found


def _brief(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:50]}… ({len(shown)} characters)"


def plain(value: Any) -> Any:
    """A gold as JSON: arrays of other libraries become lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return None if isinstance(value, float) and math.isnan(value) else value
