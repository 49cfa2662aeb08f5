"""The running side of the HTTP backend in one event loop: one client for all endpoints, their limits, one exchange.

Knows no agents. Every fault of the network or of a reply leaves here as a typed failure.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from coterie.backends.chat_answer import Answer, read_answer
from coterie.backends.chat_stream import ChatStream
from coterie.backends.endpoint import Endpoint, proxy_for, trusted
from coterie.backends.gate import Gate
from coterie.backends.refusals import Reply, discreet, redacted, refusal, without
from coterie.backends.retries import Budget, Clock, Deadlines, Retries, retried
from coterie.backends.samples import Together
from coterie.backends.sse import EventDecoder
from coterie.errors import BackendError, BrokenStream, MalformedAnswer, TimedOut, Unreachable, UserError

T = TypeVar("T")
Sink = Callable[[int, str], None]
KEPT_OPEN = 4.0
"""Seconds that an idle connection is kept: fewer than common servers do (5), so none closes under a request."""
REFUSAL_BYTES = 65536
UNREADABLE = (ValueError, OverflowError, TypeError, RecursionError)
"""What code that reads a foreign answer may trip over; UnicodeError is a ValueError."""
GRACE = 0.25
"""Seconds that the end of a finished stream is waited for, so that its connection can be used again."""


@dataclass
class Loading:
    """An adapter on its way to a server, or there; the budget is what the load takes its time from."""

    task: "asyncio.Task[str]"
    budget: Budget


@dataclass(slots=True)
class Sent:
    """A chat request, whatever tries it takes. `sink` gets the visible pieces of a stream; `told`: it got one."""

    data: bytes
    samples: int
    sink: Sink | None
    told: bool = False

    def tell(self, index: int, text: str) -> None:
        if self.sink is not None:
            self.told = True
            self.sink(index, text)


@dataclass(repr=False)
class Port:
    """One endpoint as it is used in this loop. Holds secrets.

    `chat` is the address of its chat completions, `limit` the bytes of its longest answer, `refused` the schemas
    that it does not take.
    """

    endpoint: Endpoint
    gate: Gate
    headers: Mapping[str, str]
    secrets: tuple[str, ...]
    chat: URL
    limit: int
    proxy: str | None
    policy: Retries
    timeout: aiohttp.ClientTimeout
    loaded: dict[str, Loading] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    together: Together | None = None

    @staticmethod
    def to(endpoint: Endpoint) -> "Port":
        """Raises ConfigError where a key is not in the environment."""
        url = endpoint.url("chat/completions")
        proxy = proxy_for(url)
        password = URL(proxy).password if proxy else None
        secrets = (*endpoint.secrets(), *([password] if password else []))
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **endpoint.request_headers()}
        return Port(
            endpoint=endpoint,
            gate=Gate(endpoint.limit, endpoint.schedule == "serial"),
            headers=headers,
            secrets=secrets,
            chat=url,
            limit=int(endpoint.max_mib * 2**20),
            proxy=proxy,
            policy=endpoint.policy(),
            timeout=aiohttp.ClientTimeout(total=None, connect=endpoint.deadlines.connect),
        )


@dataclass
class Line:
    """The client of one event loop."""

    clock: Clock
    ports: dict[str, Port] = field(default_factory=dict)

    def __post_init__(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_OPEN, ttl_dns_cache=60, ssl=trusted())
        # Not trust_env: it would read .netrc, in a thread, at every request. Ports find their proxies themselves.
        self.session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def aclose(self) -> None:
        """Close all connections; what is still being asked fails."""
        for port in self.ports.values():
            for loading in port.loaded.values():
                loading.task.cancel()
        await self.session.close()

    def budget(self, port: Port) -> Budget:
        """What one call may take, from now on."""
        return Budget(self.clock, port.policy.total)

    async def ask(
        self, port: Port, body: Mapping[str, Any], seed: int, budget: Budget, sink: Sink | None = None
    ) -> tuple[Answer, float]:
        """The reply to a chat body and the seconds that it took, tries and waits included, waiting for a place not.

        `sink` gets the visible pieces of a stream; once it got one, nothing is tried again (B49).
        """
        sent = Sent(json.dumps(body).encode(), int(body.get("n", 1)), sink)
        async with port.gate.place(str(body["model"]), budget.outside()):
            began = time.perf_counter()
            answer = await retried(partial(self._answer, port, sent), port.policy, seed, budget)
            return answer, time.perf_counter() - began

    async def _answer(self, port: Port, sent: Sent, seconds: float) -> Answer:
        try:
            return await self._exchange(port, port.chat, sent.data, seconds, partial(_chat, sent, port.limit))
        except BackendError as error:
            error.again = error.again and not sent.told
            raise redacted(error, port.secrets) from None

    async def call(
        self, port: Port, path: str, asked: Mapping[str, Any] | None = None, budget: Budget | None = None
    ) -> bytes:
        """The body of another path's reply: POST with a body, GET without. Waits and tries as chats do."""
        allowed = budget or self.budget(port)
        group = str((asked or {}).get("model") or (asked or {}).get("lora_name") or "")

        data = None if asked is None else json.dumps(asked).encode()

        async def attempt(seconds: float) -> bytes:
            with discreet(port.secrets):
                url = port.endpoint.url(path)
                return await self._exchange(port, url, data, seconds, lambda body: body.read(port.limit))

        async with port.gate.place(group, allowed.outside()):
            return await retried(attempt, port.policy, 0, allowed)

    async def _refusal(self, body: "Body", secrets: Sequence[str]) -> BackendError:
        said = b""
        while len(said) <= REFUSAL_BYTES and (piece := await body.piece()):
            said += piece
        if len(said) > REFUSAL_BYTES:  # hidden before the cut, which would leave half of one
            said = without(said.decode(errors="replace"), secrets).encode()[: REFUSAL_BYTES // 2]
        reply = Reply(status=body.status, retry_after=body.response.headers.get("Retry-After"), body=said)
        return refusal(reply, self.clock.date())

    async def _exchange(
        self, port: Port, url: URL, data: bytes | None, seconds: float, read: Callable[["Body"], Awaitable[T]]
    ) -> T:
        """What `read` makes of the reply to one request, within the deadlines. A fault closes the connection."""
        body = Body(port.endpoint.deadlines, seconds)
        method = "GET" if data is None else "POST"
        try:
            async with (
                body.timer,
                self.session.request(
                    method,
                    url,
                    data=data,
                    headers=port.headers,
                    proxy=port.proxy,
                    timeout=port.timeout,
                    allow_redirects=False,
                ) as body.response,
            ):
                if body.status != 200:
                    raise await self._refusal(body, port.secrets)
                return await read(body)
        except aiohttp.ConnectionTimeoutError:
            raise TimedOut(f"no connection within {port.timeout.connect:g} s") from None
        except TimeoutError:
            raise TimedOut(body.reason) from None
        except (aiohttp.ClientError, OSError) as error:
            raise network_fault(error, body) from None
        except UNREADABLE as error:
            raise unreadable(error) from None


class Body:
    """One reply as it arrives, and its deadlines: until the first byte, between pieces, and over all. Seconds."""

    response: aiohttp.ClientResponse

    def __init__(self, times: Deadlines, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds
        self._seconds, self._idle = seconds, times.idle
        self.begun = False
        self.timer = asyncio.timeout_at(self._until(times.first_byte, "no answer began"))

    def _until(self, wait: float | None, fault: str) -> float:
        """When to give up: after `wait`, or at the end of the whole attempt if that is sooner."""
        end = self._end if wait is None else min(self._end, self._loop.time() + wait)
        self._fault = (fault, wait) if end < self._end else ("no whole answer", self._seconds)
        return end

    @property
    def reason(self) -> str:
        """What to say when the time is over."""
        fault, seconds = self._fault
        return f"{fault} within {seconds:g} s"

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def streamed(self) -> bool:
        """Whether it is a stream: by what the server says, not by what it was asked for (B45)."""
        return self.response.content_type == "text/event-stream"

    async def piece(self) -> bytes:
        """The next bytes, in their time; none at the end."""
        content = self.response.content
        found = await content.readany()
        if not content.at_eof():
            self.begun = True
            self.timer.reschedule(self._until(self._idle, "silence in the answer, no more of it"))
        return found

    async def read(self, limit: int) -> bytes:
        """The whole body; MalformedAnswer as soon as it is longer than `limit` bytes."""
        body = bytearray()
        while piece := await self.piece():
            body += piece
            if len(body) > limit:
                raise MalformedAnswer(f"the answer is longer than {limit} bytes (max_mib)")
        return bytes(body)


async def _chat(sent: Sent, limit: int, body: Body) -> Answer:
    """The answer in a reply, whole or streamed."""
    if not body.streamed:
        return read_answer(await body.read(limit))
    stream = ChatStream(limit, sent.samples)
    await _gather(stream, body, limit, sent.tell)
    return stream.answer()


async def _gather(stream: ChatStream, body: Body, limit: int, tell: Sink) -> None:
    """Feed a stream to its end. After `[DONE]` only the end of the body is waited for, and not for long."""
    decoder = EventDecoder(limit)
    while not stream.done and (piece := await body.piece()):
        for text in [text for event in decoder.feed(piece) for text in stream.take(event)]:
            tell(*text)
    if stream.done:
        try:
            await asyncio.wait_for(body.piece(), GRACE)
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass


def unreadable(error: Exception) -> BackendError:
    """What reading an answer must not do, as a failure of this call. A setting that is wrong stays one."""
    if isinstance(error, UserError):
        raise error
    return MalformedAnswer(f"the exchange cannot be read: {type(error).__name__}: {error}")


@contextmanager
def legible() -> Iterator[None]:
    """Whatever is made of an answer in here fails as a typed failure."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(error) from None


def network_fault(error: Exception, body: Body) -> BackendError:
    """A fault of the client library. What broke within an answer is a torn answer; the rest is no connection."""
    said = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return Unreachable(f"the server's certificate is not trusted: {said}", again=False)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Unreachable(f"no such host: {said}")
    if isinstance(error, aiohttp.ClientSSLError):
        return Unreachable(f"TLS failed: {said}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return Unreachable(f"no connection: {said}")
    if body.begun or isinstance(error, aiohttp.ClientPayloadError):
        torn = BrokenStream if body.streamed else MalformedAnswer
        return torn(f"the answer broke off: {'the body ended early' if 'payload' in said else said}", again=True)
    if isinstance(error, aiohttp.ClientConnectionError | OSError):
        return Unreachable(f"the connection broke before an answer: {said}")
    return MalformedAnswer(f"the reply is not HTTP that can be read: {said}", again=True)
