"""The queue of a local model and the thread that serves it: requests in, running batches, completions out.

The arithmetic is in `running`; the asyncio side is in `local`. Imports torch.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path

from coterie.backends import chat
from coterie.backends.base_model import Base, base_model
from coterie.backends.constrained import Held
from coterie.backends.decode import Decoder
from coterie.backends.running import FAULTS, Row, Running
from coterie.errors import BackendError, ContextOverflow, CoterieError, UserError
from coterie.types import Agent, Completion, Messages

# Requests that are made together arrive within this time; an idle worker waits for them before its first prefill.
GATHER_SECONDS = 0.002
Name = tuple[str | None, str]


@dataclass(eq=False, kw_only=True)
class Request:
    """One awaited completion."""

    agent: Agent
    messages: Messages
    seed: int
    started: float
    future: "Future[Completion]" = field(default_factory=Future)
    adapter: str | None = None
    row: Row | None = None

    def resolve(self, completion: Completion) -> None:
        """Hand over the result; a caller that has gone away does not matter."""
        try:
            self.future.set_result(completion)
        except InvalidStateError:
            pass

    def fail(self, error: Exception) -> None:
        """Hand over the failure, as one of ours."""
        ours = error if isinstance(error, CoterieError) else BackendError(f"{self.agent.name}: {error!r}")
        try:
            self.future.set_exception(ours)
        except InvalidStateError:
            pass


class Worker:
    """One thread that turns a queue of requests into batches; it starts with the first and ends with `close`."""

    def __init__(self, model: str, start: Callable[[Base], Running]) -> None:
        self.model, self.start = model, start
        self._changed = threading.Condition()
        self._queue: deque[Request] = deque()
        self._running: list[Request] = []
        self._thread: threading.Thread | None = None
        self._opening = threading.Lock()
        self._base: Base | None = None
        self._adapters: dict[Name, str | None] = {}
        self._unused: list[str] = []

    # --- agents --------------------------------------------------------------------------------------

    def knows(self, agent: Agent) -> bool:
        """Whether the agent is prepared."""
        return _name(agent) in self._adapters

    def prepare(self, agent: Agent) -> None:
        """Blocking: load what the agent needs. An adapter that was replaced in its folder is loaded anew."""
        with self._opening:
            base = self._base or base_model(self.model)
            Decoder(base.model)  # refuses a model that cannot be decoded
            self._base = base
            old = self._adapters.get(_name(agent))
            with base.lock:
                new = base.adapters.load(_folder(agent)) if agent.adapter is not None else None
            self._adapters[_name(agent)] = new
            if old is not None:
                self._retire(old)

    def release(self, agent: Agent) -> None:
        """Blocking: forget the agent."""
        with self._opening:
            key = self._adapters.pop(_name(agent), None)
            if key is not None:
                self._retire(key)

    def _retire(self, key: str) -> None:
        """Undo one load of an adapter as soon as no waiting request needs it."""
        with self._changed:
            self._unused.append(key)
            alone = self._thread is None
            self._changed.notify()
        if alone:
            self._drop_unused()

    def _drop_unused(self) -> None:
        with self._changed:
            needed = {r.adapter for r in (*self._queue, *self._running)}
            ready = [key for key in self._unused if key not in needed]
            self._unused = [key for key in self._unused if key in needed]
        if ready and self._base is not None:
            with self._base.lock:
                for key in ready:
                    self._base.adapters.drop(key)

    # --- requests ------------------------------------------------------------------------------------

    def ask(self, agent: Agent, messages: Messages, seed: int) -> "Future[Completion]":
        """Put a request of a prepared agent in the queue. Cancelling the future takes it out again.

        Raises: BackendError when the agent is not prepared (any more).
        """
        request = Request(agent=agent, messages=messages, seed=seed, started=time.perf_counter())
        with self._changed:
            if not self.knows(agent):
                raise BackendError(f"{agent.name}: released while it was asked")
            request.adapter = self._adapters[_name(agent)]
            self._queue.append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="coterie-local", daemon=True)
                self._thread.start()
            self._changed.notify()
        return request.future

    def compile(self, schema: str) -> None:
        """Blocking: have the schema's grammar ready. Raises: BadRequest for one that is wrong or not supported."""
        base = self._base
        if base is not None:
            base.grammars.begin(schema)

    def close(self) -> None:
        """Blocking: end the thread; whatever waits fails."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()
        with self._opening:
            with self._changed:
                self._unused += [key for key in self._adapters.values() if key is not None]
                self._adapters.clear()
            self._drop_unused()
            self._base = None

    def _serve(self) -> None:
        assert self._base is not None
        try:
            running = self.start(self._base)
            while self._wait():
                self._advance(running)
        finally:
            self._abandon(sys.exception())

    def _wait(self) -> bool:
        """Sleep until there is work. False: closed."""
        with self._changed:
            idle = not self._running and not self._queue
            self._changed.wait_for(lambda: self._closed or self._queue or self._running or self._unused)
        if idle:
            time.sleep(GATHER_SECONDS)
        return not self._closed

    @property
    def _closed(self) -> bool:
        return self._thread is not threading.current_thread()

    def _abandon(self, error: BaseException | None) -> None:
        reason = "the local backend was closed" if error is None else f"the local backend failed: {error!r}"
        with self._changed:
            left = [*self._queue, *self._running]
            self._queue.clear()
            self._running.clear()
            if not self._closed:
                self._thread = None
        for request in left:
            request.fail(BackendError(f"{request.agent.name}: {reason}"))

    def _advance(self, running: Running) -> None:
        """One round: the cancelled leave, the waiting join, everybody gets a token, the finished are answered."""
        try:
            self._leave(running)
            self._join(running)
            if running.active:
                running.step()
        except FAULTS as error:
            for request in self._running:
                if request.row is not None and not request.row.done:
                    request.row.error = error
            running.clear()
        self._answer(running)
        self._drop_unused()

    def _leave(self, running: Running) -> None:
        gone = {r for r in self._running if r.future.cancelled()}
        running.remove([r.row for r in gone if r.row is not None])
        with self._changed:
            self._running = [r for r in self._running if r not in gone]

    def _join(self, running: Running) -> None:
        rows: list[Row] = []
        while self._queue:
            request = self._queue[0]
            row = self._row(request)
            if row is not None and not running.fits(row, rows):
                break
            with self._changed:
                self._queue.popleft()
                if row is not None:
                    self._running.append(request)
                    rows.append(row)
        running.admit(rows)

    def _row(self, request: Request) -> Row | None:
        """The request as a row of a batch; None when it needs no more work."""
        assert self._base is not None
        if request.row is None and not request.future.cancelled():
            try:
                ids = self._base.prompt_ids(request.messages, _limit(request.agent, self._base.context))
                held = self._held(request)
                request.row = Row(ids, request.adapter, request.agent.sampling, request.seed, held)
            except (*FAULTS, CoterieError) as error:
                request.fail(error)
        return None if request.future.done() else request.row

    def _held(self, request: Request) -> Held | None:
        assert self._base is not None
        schema = request.agent.sampling.schema
        return self._base.grammars.begin(schema, chat.split(request.messages)[1]) if schema else None

    def _answer(self, running: Running) -> None:
        now = time.perf_counter()
        for request in [r for r in self._running if r.row is not None and r.row.done]:
            self._running.remove(request)
            assert request.row is not None
            try:
                if request.row.error is not None:
                    raise request.row.error
                request.resolve(running.completion(request.row, now - request.started))
            except (*FAULTS, CoterieError) as error:
                request.fail(error)


def _name(agent: Agent) -> Name:
    """What is prepared for an agent; it serves the agent at another temperature, or held to a schema, too."""
    return agent.adapter, agent.revision.partition("+")[0]


def _folder(agent: Agent) -> Path:
    """The adapter's folder; a relative one may lie in the agent's own."""
    path = Path(str(agent.adapter)).expanduser()
    inside = Path(agent.folder) / path if agent.folder else path
    found = next((p for p in (path, inside) if p.is_dir()), None)
    if found is None:
        raise UserError(f"agent {agent.name}: no adapter folder {agent.adapter}")
    return found


def _limit(agent: Agent, context: int) -> int:
    """How many tokens the prompt may have."""
    sampling = agent.sampling
    if sampling.max_tokens < 1:
        raise BackendError(f"{agent.name}: max_tokens must be at least 1, not {sampling.max_tokens}")
    left = context - sampling.max_tokens
    if left < 1:
        raise ContextOverflow(f"{agent.name}: max_tokens {sampling.max_tokens} fills the context of {context}")
    return min(sampling.max_prompt_tokens or left, left)
