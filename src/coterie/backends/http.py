"""The HTTP backend: agents over OpenAI-compatible servers, all through one client.

The agent's side: which endpoint and model an agent names, one call, its stream. The network is in `line`, the
wire format in `chat_request` and `chat_answer`, what is tried again in `retries` and nowhere else in coterie.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import field, replace
from typing import ClassVar

from coterie.backends import vllm
from coterie.backends.chat_answer import completions
from coterie.backends.chat_request import Request, chat_body
from coterie.backends.endpoint import Endpoint
from coterie.backends.line import Line, Loading, Port, Sink, legible
from coterie.backends.refusals import discreet
from coterie.backends.retries import Budget, Clock
from coterie.backends.samples import Sampled, Together, settled
from coterie.config import nearest
from coterie.errors import AccessDenied, BackendError, BadRequest, ConfigError, TimedOut, UnknownModel, Unreachable
from coterie.types import Agent, Completion, Messages, spec

SCHEME = "http:"
log = logging.getLogger(__name__)


@spec
class Http:
    """Serves every agent whose model is `http:<endpoint>/<model id>`; a model id may hold slashes and colons.

    `endpoints` are the servers by name. One object serves a team, with one client in each event loop that it is
    used from, made at first use; after `aclose` it can be used again.
    """

    serves_many: ClassVar[bool] = True
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock, init=False, repr=False, compare=False)
    _used: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def check(self, agent: Agent) -> None:
        """Raise ConfigError of one line for an agent that cannot be asked as things are set up. Calls nobody.

        The keys of all endpoints that were checked are looked for before the first call of any.
        """
        name, _ = self._place(agent)
        self.endpoints[name].check(agent)
        self._used.add(name)

    def identity_of(self, agent: Agent) -> str:
        """What changes this agent's answers beside the agent: part of every cache key, never a secret."""
        return self.endpoints[self._place(agent)[0]].identity()

    def patience(self, agent: Agent) -> float:
        """Seconds after which a call of this agent has failed at the latest; all its parts share them.

        Not counted: waiting for a place among `concurrency`, which ends no later than the calls before it.
        """
        return self.endpoints[self._place(agent)[0]].deadlines.total

    async def prepare(self, agent: Agent) -> None:
        """See that the server is there and lets us in; load the agent's adapter.

        Raises: ConfigError, Unreachable, TimedOut or AccessDenied; BackendError where the adapter is not served.
        """
        port = self._port(agent)
        with discreet(port.secrets):
            try:
                await self._line.call(port, "models")
            except (Unreachable, TimedOut, AccessDenied):
                raise
            except BackendError:
                pass  # many servers list no models: whether this one is there, the first call says
            await self._model(port, agent, self._line.budget(port))

    async def generate(self, agent: Agent, messages: Messages, *, seed: int) -> Completion:
        """One completion. Cancelling the caller closes the connection.

        Raises: BackendError of a kind that says what went wrong; ConfigError where a key is missing.
        """
        port = self._port(agent)
        with discreet(port.secrets):
            return await self._generated(port, agent, messages, seed)

    async def _generated(self, port: Port, agent: Agent, messages: Messages, seed: int) -> Completion:
        budget = self._line.budget(port)
        model = await self._model(port, agent, budget)
        request = Request(agent=agent, messages=messages, model=model, seeds=(seed,))
        try:
            if port.endpoint.samples == "together":
                return await self._together(port).ask(request, budget)
            [found] = await self._send(port, request, budget)
            return settled(found)
        except UnknownModel:
            port.loaded.pop(_adapter_key(agent), None)  # a server that was started anew has lost its adapters
            raise

    async def stream(self, agent: Agent, messages: Messages, *, seed: int) -> AsyncIterator[str | Completion]:
        """The visible text as it is written, piece by piece, then the whole Completion.

        Leaving the iteration closes the connection. A broken stream raises and is not begun again once a piece was
        given (B49). The pieces are as the server sent them: only the Completion is cut at stop texts.
        """
        port = self._port(agent)
        with discreet(port.secrets):
            async with aclosing(self._streamed(port, agent, messages, seed)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _streamed(
        self, port: Port, agent: Agent, messages: Messages, seed: int
    ) -> AsyncGenerator[str | Completion, None]:
        budget = self._line.budget(port)
        model = await self._model(port, agent, budget)
        request = Request(agent=agent, messages=messages, model=model, seeds=(seed,))
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        sending = self._send(port, request, budget, sink=lambda index, text: pieces.put_nowait(text))
        task = asyncio.ensure_future(sending)
        task.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            [found] = task.result()
            yield settled(found)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def probe(self, agent: Agent, messages: Messages = vllm.PROBE) -> dict[str, float]:
        """Log-probabilities (nats) of the likeliest first tokens of the agent's answer to a fixed prompt.

        What an adapter is known by: compare it with the same from another engine (`vllm.distance`).
        """
        port = self._port(agent)
        budget = self._line.budget(port)
        with discreet(port.secrets):
            return await vllm.probe(self._line, port, await self._model(port, agent, budget), messages, budget)

    async def release(self, agent: Agent) -> None:
        """Take the adapter of an agent that is no longer asked off its server."""
        port = self._port(agent)
        loading = port.loaded.pop(_adapter_key(agent), None)
        if loading is None:
            return
        with discreet(port.secrets):
            name = await loading.task
            others = [other.task for other in port.loaded.values()]
            if all(other.result() != name for other in others if other.done() and not other.cancelled()):
                await vllm.unload(self._line, port, name)

    async def aclose(self) -> None:
        """Close the connections of this event loop. Adapters stay on their servers, named by their content."""
        opened = self._lines.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened.aclose()

    # --- parts ---------------------------------------------------------------------------------------

    def _place(self, agent: Agent) -> tuple[str, str]:
        """Endpoint and model of an agent; ConfigError where there is no such endpoint or no model."""
        name, sign, model = agent.model.removeprefix(SCHEME).partition("/")
        if not sign or not name or not model:
            raise ConfigError(f"agent {agent.name!r}: model {agent.model!r} must be http:<endpoint>/<model id>")
        if name not in self.endpoints:
            known = nearest(name, self.endpoints)
            raise ConfigError(f"agent {agent.name!r}: backends.http.endpoints has no {name!r}{known}")
        return name, model

    @property
    def _lines(self) -> dict[asyncio.AbstractEventLoop, Line]:
        lines: dict[asyncio.AbstractEventLoop, Line] = self.__dict__.setdefault("lines", {})
        return lines

    @property
    def _line(self) -> Line:
        """The client of the running event loop; those of loops that ended without closing it are let go of."""
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            for ended in [other for other in list(self._lines) if other.is_closed()]:
                del self._lines[ended]
            self._lines[loop] = Line(self.clock)
        return self._lines[loop]

    def _port(self, agent: Agent) -> Port:
        """The agent's endpoint in this event loop; ConfigError, before any call, where a key is not there."""
        name, _ = self._place(agent)
        ports = self._line.ports
        if name not in ports:
            for used in sorted({*self._used, name} - ports.keys()):
                ports[used] = self._made(used)
        ports[name].endpoint.check(agent)
        return ports[name]

    def _made(self, name: str) -> Port:
        try:
            return Port.to(self.endpoints[name])
        except ConfigError as error:
            raise ConfigError(f"backends.http.endpoints.{name}: {error}") from None

    async def _model(self, port: Port, agent: Agent, budget: Budget) -> str:
        """The name that the server knows the agent's model by; an adapter is loaded once, whoever asks first.

        A load has a budget of its own, as long as that of a call, and goes on where its first caller leaves. Who
        waits for it spends of `budget`.
        """
        base = self._place(agent)[1]
        if agent.adapter is None:
            return base
        key = _adapter_key(agent)
        if key not in port.loaded:
            own = self._line.budget(port)
            task = asyncio.ensure_future(vllm.load(self._line, port, agent, base, own))
            task.add_done_callback(lambda done: _forget_failed(port, key, done))
            port.loaded[key] = Loading(task, own)
        loading = port.loaded[key]
        with budget.beside(loading.budget):
            return await asyncio.shield(loading.task)

    def _together(self, port: Port) -> Together:
        if port.together is None:
            port.together = Together(lambda asked, within: self._send(port, asked, within))
        return port.together

    async def _send(self, port: Port, request: Request, budget: Budget, sink: Sink | None = None) -> Sampled:
        """The samples of a request. A schema that the server refuses is from then on left to the prompt's words."""
        schema = request.agent.sampling.schema if port.endpoint.schemas else ""
        if not schema:
            return await self._sent(port, request, budget, sink)
        if schema not in port.refused:
            try:
                return await self._sent(port, request, budget, sink)
            except (BadRequest, UnknownModel) as error:  # "not supported by this model" reads like an unknown one
                refusal = error
        rows = await self._sent(port, _without_schema(request), budget, sink)
        if schema not in port.refused:
            port.refused.add(schema)
            log.warning("%s refuses a JSON schema and is asked without it: %s", port.endpoint.base_url, refusal)
        return rows

    async def _sent(self, port: Port, request: Request, budget: Budget, sink: Sink | None) -> Sampled:
        endpoint = port.endpoint
        body = chat_body(endpoint, request, stream=endpoint.stream or sink is not None)
        answer, seconds = await self._line.ask(port, body, request.seeds[0], budget, sink)
        with legible():
            return completions(answer, request, endpoint, seconds)


def _without_schema(request: Request) -> Request:
    agent = request.agent
    return replace(request, agent=replace(agent, sampling=replace(agent.sampling, schema="")))


def _adapter_key(agent: Agent) -> str:
    """An adapter as one revision of an agent has it; another temperature is the same."""
    return f"{agent.name}\n{agent.adapter}\n{agent.revision.partition('+')[0]}"


def _forget_failed(port: Port, key: str, done: "asyncio.Task[str]") -> None:
    """An adapter that was not loaded is tried again by the next call."""
    loading = port.loaded.get(key)
    if (done.cancelled() or done.exception() is not None) and loading is not None and loading.task is done:
        del port.loaded[key]
