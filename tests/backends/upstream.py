"""A server that speaks the chat wire format over raw sockets, well or badly, as each test wants it.

How it answers is chosen by the model's name, a dotted list of faults (`x.f500`), or by replies that a test scripts
for a model. It notes every request, with a mark where the client left before it was answered.
"""

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from queue import Queue
from socket import SO_LINGER, SOL_SOCKET
from threading import Thread
from typing import Any

STREAM = "text/event-stream"
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}
ERRORS = {
    "f400": (400, "context_length_exceeded", "maximum context length is 8 tokens"),
    "f401": (401, "invalid_api_key", "incorrect API key"),
    "f429": (429, "rate_limit_exceeded", "rate limit reached"),
    "f500": (500, None, "the server had an error"),
    "f503": (503, "overloaded", "overloaded"),
}


@dataclass
class Seen:
    """One request; `end` is `pending`, `sent`, `broken` or `client left`."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    began: float
    end: str = "pending"
    ended: float = 0.0

    @property
    def model(self) -> str:
        return str(self.body.get("model"))


@dataclass
class Reply:
    """What goes back. `pieces` are written one by one, a number among them is a pause in seconds.

    `end`: `whole`, `close` (FIN before the announced end), `reset` (RST), `hang`. `length` is Content-Length.
    """

    body: Any = b""
    status: int = 200
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes | float] | None = None
    delay: float = 0.0
    end: str = "whole"
    length: int | None = None


Script = Reply | Callable[[Seen], Reply]


def answer(text: str | None = "four", *, usage: Any = (7, 3), finish: str | None = "stop", **message: Any) -> Reply:
    """A whole plain answer with one choice."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return Reply(body=reply_body([choice], usage))


def reply_body(choices: list[Any], usage: Any = (7, 3)) -> dict[str, Any]:
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    return body | ({} if usage is None else {"usage": counted(usage)})


def counted(usage: Any) -> Any:
    if not isinstance(usage, tuple):
        return usage
    return {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}


def chunk(text: Any = None, *, index: int = 0, finish: str | None = None, usage: Any = None, **delta: Any) -> bytes:
    """One event of a stream; without text, finish and delta it has no choices."""
    inner = delta if text is None else {"content": text, **delta}
    choices = [{"index": index, "delta": inner, "finish_reason": finish}] if inner or finish else []
    body = {"id": "c", "object": "chat.completion.chunk", "choices": choices}
    return event(body | ({} if usage is None else {"usage": counted(usage)}))


def event(body: Any) -> bytes:
    return b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"


DONE = event(b"[DONE]")


def stream(*pieces: bytes | float, end: str = "whole", **parts: Any) -> Reply:
    return Reply(pieces=list(pieces), kind=STREAM, end=end, **parts)


class Connection(asyncio.StreamReaderProtocol):
    """A connection that says when the client has left, also while nothing is read from it."""

    def __init__(self, reader: asyncio.StreamReader, served: Any) -> None:
        super().__init__(reader, served)
        self.gone = asyncio.Event()

    def eof_received(self) -> bool:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()
        super().connection_lost(error)


@dataclass
class Upstream:
    """A running server. `scripts` maps a model to its replies, in order; the last one stays."""

    base_url: str = ""
    scripts: dict[str, list[Script]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    adapters: dict[str, str] = field(default_factory=dict)
    inside: int = 0
    most_inside: int = 0
    connections: int = 0

    def chats(self, model: str | None = None) -> list[Seen]:
        return [s for s in self.seen if s.path.endswith("/chat/completions") and model in (None, s.model)]

    def total(self, model: str | None = None) -> int:
        return len(self.chats(model))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (seen := await read_request(reader)) is not None:
                self.seen.append(seen)
                if not await self._respond(seen, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _respond(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        """Answer one request while watching whether the client is still there."""
        connection = writer.transport.get_protocol()
        assert isinstance(connection, Connection)
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        sending = asyncio.ensure_future(self._send(seen, writer))
        leaving = asyncio.ensure_future(connection.gone.wait())
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() or sending.exception() is not None:
                seen.end = "client left"
                return False
            whole = sending.result()
            seen.end = "sent" if whole else "broken"
            return whole
        finally:
            self.inside -= 1
            seen.ended = time.monotonic()
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        """Whether the reply went out whole and the connection stays."""
        reply = self.reply(seen)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.end == "hang" and reply.pieces is None and not reply.body:
            await asyncio.Event().wait()
        if reply.pieces is None:
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            length = len(body) if reply.length is None else reply.length
            writer.write(head(reply, f"Content-Length: {length}") + body)
        else:
            await self._stream(reply, writer)
        await writer.drain()
        return await self._end(reply, writer)

    async def _stream(self, reply: Reply, writer: asyncio.StreamWriter) -> None:
        writer.write(head(reply, "Transfer-Encoding: chunked"))
        for piece in reply.pieces or ():
            if isinstance(piece, bytes):
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
            else:
                await asyncio.sleep(piece)
        if reply.end == "whole":
            writer.write(b"0\r\n\r\n")

    async def _end(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        if reply.end == "whole":
            return True
        if reply.end == "hang":
            await asyncio.Event().wait()
        await asyncio.sleep(0.02)  # the client reads what there is before the end comes
        if reply.end == "reset":
            plug = writer.get_extra_info("socket")
            plug.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return False

    # --- what to say ---------------------------------------------------------------------------------

    def reply(self, seen: Seen) -> Reply:
        if seen.path.endswith("/models"):
            return Reply(body={"object": "list", "data": [{"id": "m", "object": "model"}]})
        if seen.path.endswith("_lora_adapter"):
            return self._adapter(seen)
        if not seen.path.endswith("/chat/completions"):
            return Reply(status=404, body={"detail": "Not Found"})
        scripts = self.scripts.get(seen.model)
        if not scripts:
            return named_reply(seen)
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        return script if isinstance(script, Reply) else script(seen)

    def _adapter(self, seen: Seen) -> Reply:
        name = seen.body["lora_name"]
        if "unload" in seen.path:
            known = self.adapters.pop(name, None)
            return (
                refusal(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
                if not known
                else Reply()
            )
        if name in self.adapters:
            return refusal(400, "BadRequestError", f"The lora adapter '{name}' has already been loaded.")
        self.adapters[name] = seen.body["lora_path"]
        return Reply(body=b"Success", kind="text/plain")


def refusal(status: int, code: str | None, message: str, **headers: str) -> Reply:
    """An error body as OpenAI words it; header names have `_` for `-`."""
    error = {"message": message, "type": "error", "param": None, "code": code}
    return Reply(status=status, body={"error": error}, headers={k.replace("_", "-"): v for k, v in headers.items()})


def head(reply: Reply, framing: str) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Status')}",
        f"Content-Type: {reply.kind}",
        framing,
    ]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = raw.decode("latin-1").strip().split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(first.split(" ")[1], headers, json.loads(body) if body else {}, time.monotonic())


# --- answers and faults by the model's name -----------------------------------------------------------


def words_of(seen: Seen, sample: int) -> str:
    """A short text that depends on all that was asked, and on which sample it is."""
    asked = json.dumps([seen.model, seen.body.get("messages"), seen.body.get("seed"), sample])
    return f"Answer: {sum(map(ord, asked)) % 1000} apples"


def named_reply(seen: Seen) -> Reply:
    faults = seen.model.split(".")[1:]
    for name in faults:
        if name in ERRORS:
            status, code, message = ERRORS[name]
            return refusal(status, code, message, **({"Retry_After": "1"} if status == 429 else {}))
    if "hang" in faults:
        return Reply(end="hang")
    if "badjson" in faults:
        return Reply(body=b'{"id": "c", "choices": [{"index": 0, "mess')
    if "html" in faults:
        return Reply(body=b"<html><body><h1>502 Bad Gateway</h1></body></html>", kind="text/html")
    texts = [words_of(seen, i) for i in range(seen.body.get("n", 1))]
    if "huge8" in faults:
        texts = ["lorem ipsum " * (8 * 2**20 // 12)]
    return (streamed if seen.body.get("stream") else plain)(texts, faults, seen)


def plain(texts: list[str], faults: list[str], seen: Seen) -> Reply:
    usage = None if "nousage" in faults else (9, 4 * len(texts))
    found: list[Any] = ["" if "emptystr" in faults else None if "nullcontent" in faults else text for text in texts]
    choices = [
        {"index": i, "message": {"role": "assistant", "content": t}, "finish_reason": "stop"}
        for i, t in enumerate(found)
    ]
    if seen.body.get("logprobs"):
        for choice in choices:
            choice["logprobs"] = logprobs_of(seen)
    whole = json.dumps(reply_body([] if "nochoices" in faults else choices, usage)).encode()
    if {"reset", "eof", "trunc"} & set(faults):
        end = "reset" if "reset" in faults else "close"
        return Reply(body=whole[: len(whole) // 2], length=len(whole), end=end)
    if "slowfb" in faults:
        return Reply(pieces=[3.0, whole])
    return Reply(body=whole)


def logprobs_of(seen: Seen) -> Any:
    """First-token log-probabilities that tell the models of one server apart."""
    shift = sum(map(ord, seen.model)) % 97 / 100
    rows = [{"token": token, "logprob": -value - shift} for token, value in (("A", 0.5), ("B", 1.5), ("C", 2.5))]
    return {"content": [{**rows[0], "top_logprobs": rows}]}


def streamed(texts: list[str], faults: list[str], seen: Seen) -> Reply:
    pieces: list[bytes | float] = [3.0] if "slowfb" in faults else []
    if "nochoices" in faults:
        return stream(chunk(), DONE)
    for index, text in enumerate(texts):
        pieces.append(chunk("", index=index, role="assistant"))
        parts = [] if {"nullcontent", "emptystr"} & set(faults) else cut_up(text)
        half, broken = len(parts) // 2, {"reset", "eof", "trunc", "sserr"} & set(faults)
        pieces += [chunk(part, index=index) for part in (parts[:half] if broken else parts)]
        if broken == {"sserr"}:
            return stream(*pieces, event({"error": {"message": "error in mid-stream", "type": "server_error"}}))
        if broken:
            return stream(*pieces, end={"reset": "reset", "eof": "close", "trunc": "whole"}[broken.pop()])
        pieces.append(chunk(index=index, finish="stop"))
    if "nousage" not in faults and (seen.body.get("stream_options") or {}).get("include_usage"):
        pieces.append(chunk(usage=(9, 4 * len(texts))))
    return stream(*pieces, DONE)


def cut_up(text: str) -> list[str]:
    size = 4 if len(text) < 1000 else 65536
    return [text[i : i + size] for i in range(0, len(text), size)]


@contextmanager
def in_thread() -> Iterator[Upstream]:
    """An upstream in a thread of its own, for tests without an event loop or with several."""
    ready: Queue[tuple[Upstream, asyncio.AbstractEventLoop, asyncio.Event]] = Queue()

    async def serve() -> None:
        async with running() as made:
            ended = asyncio.Event()
            ready.put((made, asyncio.get_running_loop(), ended))
            await ended.wait()

    thread = Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    made, loop, ended = ready.get(timeout=10)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)


@asynccontextmanager
async def running(scripts: dict[str, list[Script]] | None = None) -> AsyncIterator[Upstream]:
    """An upstream on a free port of the loopback."""
    made = Upstream(scripts=scripts or {})
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(asyncio.StreamReader(), made.serve), "127.0.0.1", 0)
    made.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield made
    finally:
        server.close()
