"""Server-sent events from bytes that arrive in any pieces. Knows nothing of what the events say.

Source: WHATWG HTML, "Server-sent events", parsing. Deviation: data stays bytes, so that no character can be torn;
`id` and `retry` are ignored, since nothing reconnects.
"""

from coterie.errors import MalformedAnswer
from coterie.types import record

BOM = b"\xef\xbb\xbf"


@record
class Event:
    """One event: its name (`message` where it has none) and its data lines, joined by line feeds."""

    name: str
    data: bytes


class EventDecoder:
    """Bytes in, whole events out. Lines may end in LF, CR LF or CR; `limit` bounds one event in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun = False
        self._after_cr = False
        self._line = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completes. Raises MalformedAnswer for one above the limit."""
        if not piece:
            return []
        torn, self._after_cr = self._after_cr, piece.endswith(b"\r")
        if torn and piece.startswith(b"\n"):
            piece = piece[1:]
        events = []
        self._line += piece
        if b"\n" in piece or b"\r" in piece:
            *lines, rest = bytes(self._line).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            self._line = bytearray(rest)
            events = [event for line in lines if (event := self._take(line)) is not None]
        if len(self._line) + self._size > self._limit:
            raise MalformedAnswer(f"an event of the stream is longer than {self._limit} bytes")
        return events

    def _take(self, line: bytes) -> Event | None:
        if not self._begun:
            self._begun, line = True, line.removeprefix(BOM)
        if not line:
            return self._event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value.decode(errors="replace")
        return None

    def _event(self) -> Event | None:
        name, data = self._name or "message", self._data
        self._name, self._data, self._size = "", [], 0
        return Event(name=name, data=b"\n".join(data)) if data else None
