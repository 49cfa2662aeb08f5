"""What a task is: named queries, and per kind of item the rules that grade and compare its answers."""

from collections.abc import Callable, Mapping
from typing import Any

from coterie.types import Query, Score, record

Verify = Callable[[str | None, str, Mapping[str, Any]], Score]
"""(extracted answer or None, whole text, reference) -> verdict. Blocks; thread-safe; never raises for bad text."""


@record
class Kind:
    """How one kind of item is treated: its usual answer contract, its verifier, its equality of answers."""

    contract: str
    verify: Verify
    same: Callable[[str, str], bool]
    open_ended: bool = False


@record
class Task:
    """Named queries. Everything needed to grade one is in the query itself (`task`, `contract`, `reference`)."""

    name: str
    queries: tuple[Query, ...]
