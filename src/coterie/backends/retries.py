"""One budget of tries and time for one call: what is tried again, when, and until when.

Nothing else in coterie tries again. Knows no HTTP but the two spellings of Retry-After.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from coterie.errors import BackendError, ConfigError, TimedOut
from coterie.types import Count, Positive, draw, record, spec

T = TypeVar("T")
LONGEST_BACKOFF = 16.0
SECONDS = re.compile(r"[0-9]+(?:\.[0-9]*)?")


@spec
class Deadlines:
    """Seconds. No clock runs while the endpoint's limit holds a request back.

    `connect`: name, TCP and TLS. `first_byte`: until the body begins, which without streaming is when the answer
    is complete. `idle`: silence within an answer. `attempt`: one try from beginning to end; None: as long as one
    hung try and one whole other one fit. `total`: all that one call needs: tries and the waits between them,
    samples that are asked for apart, the loading of its adapter; not the waits for the endpoint's limit.
    """

    connect: Positive = 10.0
    first_byte: Positive | None = None
    idle: Positive = 60.0
    attempt: Positive | None = None
    total: Positive = 270.0


@spec
class Retries:
    """How often (`retries`) and until when (`total` seconds) a request is tried again.

    The n-th wait is drawn between 0 and `backoff` * 2^n seconds, at most 16 (full jitter; Brooker, "Exponential
    Backoff And Jitter", 2015), from the request's seed. Where the server names a time it is waited for, plus such a
    draw of at most `backoff`; a time that does not fit into `total` ends the request at once.
    """

    retries: Count
    backoff: Positive
    attempt: Positive
    total: Positive

    @staticmethod
    def of(deadlines: Deadlines, retries: int, backoff: float) -> "Retries":
        """Checked: one hung try plus one whole other one fit (unless there is no other). Raises ConfigError."""
        room = (deadlines.total - backoff) / 2 if retries else deadlines.total
        attempt = room if deadlines.attempt is None else deadlines.attempt
        if room <= 0 or attempt > room:
            raise ConfigError(
                f"deadlines: total ({deadlines.total:g} s) has no room for a try that hangs ({attempt:g} s), a wait"
                f" ({backoff:g} s) and a second try: set attempt to at most {max(room, 0):g} or total higher"
            )
        return Retries(retries=retries, backoff=backoff, attempt=attempt, total=deadlines.total)

    def wait(self, error: BackendError, nth: int, seed: int) -> float | None:
        """Seconds until try nth + 1, counted from 0; None where there is none."""
        if not error.again or nth >= self.retries:
            return None
        share = draw(seed, "retry", nth) / 2**63
        if error.retry_after is not None:
            return error.retry_after + share * self.backoff
        return share * min(self.backoff * 2.0**nth, LONGEST_BACKOFF)


@record
class Clock:
    """Time as the retries see it; tests give another one. `now` in seconds, `date` in seconds since 1970."""

    now: Callable[[], float] = time.monotonic
    date: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass
class Budget:
    """The time and the tries of one call, whatever requests it is made of. Runs from its making on.

    `total` in seconds, without those spent `outside`. `again` counts the tries after first ones.
    """

    clock: Clock
    total: float
    again: int = 0
    _began: float = field(default=0.0, init=False)
    _waited: float = 0.0
    _outside: float | None = None

    def __post_init__(self) -> None:
        self._began = self.clock.now()

    @property
    def waited(self) -> float:
        """Seconds outside so far."""
        return self._waited + (0.0 if self._outside is None else self.clock.now() - self._outside)

    @property
    def left(self) -> float:
        """Seconds until nothing more is sent; below 0 afterwards."""
        return self.total + self.waited - (self.clock.now() - self._began)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Time in here is not counted."""
        self._outside = self.clock.now()
        try:
            yield
        finally:
            self._waited, self._outside = self.waited, None

    @contextmanager
    def beside(self, other: "Budget") -> Iterator[None]:
        """Time in here is counted as `other`, whose work is waited for, counts it."""
        before = other.waited
        try:
            yield
        finally:
            self._waited += other.waited - before

    def branch(self) -> "Budget":
        """A budget of what is left, for one of several that go on alone."""
        return replace(self, total=self.left, _waited=0.0, _outside=None)


async def retried(attempt: Callable[[float], Awaitable[T]], policy: Retries, seed: int, budget: Budget) -> T:
    """What the first successful try gives; the last try's error where none succeeds within the budget.

    `attempt` gets the seconds it may take.
    """
    while (left := budget.left) > 0:
        try:
            return await attempt(min(policy.attempt, left))
        except BackendError as error:
            wait = policy.wait(error, budget.again, seed)
            if wait is None or wait >= budget.left:
                raise
        budget.again += 1
        await budget.clock.sleep(wait)
    raise TimedOut(f"no answer within {policy.total:g} s")


def retry_after(value: str | None, today: float) -> float | None:
    """Seconds from a Retry-After header, a number or an HTTP date (RFC 9110, 10.2.3); None for neither.

    `today` is the date now in seconds since 1970. A date gone by is 0.
    """
    if value is None:
        return None
    if not SECONDS.fullmatch(value.strip()):
        return _until(value, today)
    seconds = float(value)
    return seconds if seconds < float("inf") else None


def _until(value: str, today: float) -> float | None:
    try:
        date = parsedate_to_datetime(value)
        if date.tzinfo is None:  # the date says -0000: UTC, of no zone known
            date = date.replace(tzinfo=UTC)
        return max(0.0, (date - datetime.fromtimestamp(today, UTC)).total_seconds())
    except (ValueError, OverflowError, TypeError):  # no date, or one of a year that no calendar has
        return None
