"""A re-entrant lock that serves waiting threads in the order of their arrival.

`threading.RLock` is not fair: a thread that takes it again at once, as decoding does at every step, starves
the others.
"""

import threading
from collections import deque
from types import TracebackType

# Owner while the next thread has the lock but has not yet run; no thread has this identity.
HANDED_OVER = -1


class Turns:
    """`with turns:` waits for all who came before; the holder may enter again."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> "Turns":
        me = threading.get_ident()
        with self._guard:
            if self._owner in (None, me):
                self._owner, self._depth = me, self._depth + 1
                return self
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        self._wait(gate)
        self._owner, self._depth = me, 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            self._depth -= 1
            if not self._depth:
                self._pass_on()

    def _wait(self, gate: threading.Lock) -> None:
        """Until the holder opens the gate: the lock is handed over and never free in between."""
        arrived = False
        try:
            arrived = gate.acquire()
        finally:
            if not arrived:  # interrupted: nobody may be handed the lock for us
                self._withdraw(gate)

    def _withdraw(self, gate: threading.Lock) -> None:
        with self._guard:
            if gate in self._waiting:
                self._waiting.remove(gate)
            else:
                self._pass_on()

    def _pass_on(self) -> None:
        self._owner = HANDED_OVER if self._waiting else None
        if self._waiting:
            self._waiting.popleft().release()
