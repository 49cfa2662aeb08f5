"""Who may call a server now: so many at a time, in order of arrival or grouped by what the server has loaded.

Knows no HTTP. One gate belongs to one event loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

RUN = 64
"""So many requests of one group go through before another group that waits gets its turn."""


class Gate:
    """A limiter. With `grouped`, a freed place goes to a waiter of the group that has it now, if there is one."""

    def __init__(self, limit: int, grouped: bool = False) -> None:
        self.limit, self.grouped = limit, grouped
        self.inside = 0
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._arrived = 0
        self._group, self._run = "", 0

    @asynccontextmanager
    async def place(self, group: str, waiting: AbstractContextManager[None] | None = None) -> AsyncIterator[None]:
        """A place inside; waits for one, within `waiting`. Leaving, also by cancellation, frees it.

        Who holds a place must not ask for another: with a limit of 1 both would wait for ever.
        """
        with waiting or nullcontext():
            await self._enter(group if self.grouped else "")
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, group: str) -> None:
        if self.inside < self.limit and not self._waiting:
            self._admit(group)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived += 1
        self._waiting.setdefault(group, deque()).append((self._arrived, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn came in the same instant: it goes to the next one
                self._leave()
            raise

    def _admit(self, group: str) -> None:
        self.inside += 1
        self._run = self._run + 1 if group == self._group else 1
        self._group = group

    def _leave(self) -> None:
        self.inside -= 1
        while self.inside < self.limit and self._waiting:
            group = self._next()
            _, turn = self._waiting[group].popleft()
            if not self._waiting[group]:
                del self._waiting[group]
            if not turn.done():
                self._admit(group)
                turn.set_result(None)

    def _next(self) -> str:
        """The group inside, until its run is over; else the one whose first waiter came first."""
        if self._group in self._waiting and self._run < RUN:
            return self._group
        return min(self._waiting, key=lambda group: (group == self._group, self._waiting[group][0][0]))
