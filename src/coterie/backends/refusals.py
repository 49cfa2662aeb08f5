"""What a server that does not answer says: status, headers and error object become one typed failure.

Messages are short, in one line, and free of secrets. Nothing is tried again here.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from coterie.backends.retries import retry_after
from coterie.errors import (
    AccessDenied,
    BackendError,
    BadRequest,
    ContentFiltered,
    ContextOverflow,
    MalformedAnswer,
    Overloaded,
    ServerFault,
    TimedOut,
    UnknownModel,
)
from coterie.types import record

LONGEST = 300
PATTERNED = 16384
"""Characters of a message in which keys of known kinds are looked for; none after them is told."""
SHORT = 3
"""Characters up to which a secret is hidden only where it stands alone: all text is full of such."""
BUSY = frozenset({409, 425, 429, 503, 529})
LATE = frozenset({408, 504})
DENIED = frozenset({401, 402, 403, 407})

_OVERFLOW = re.compile(
    r"context[ _](?:length|window|size)|maximum (?:context|input|prompt|sequence)"
    r"|(?:prompt|input|request) (?:is )?too (?:long|large)|too many (?:input )?tokens|reduce the length"
    r"|(?:exceeds?|longer than) (?:the )?(?:model'?s? )?(?:context|maximum|max_model_len)",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"model\b.{0,120}(?:not exist|not found|not available|not supported|no such|unknown|decommissioned)"
    r"|(?:unknown|no such|invalid) model|no model named",
    re.IGNORECASE | re.DOTALL,
)
_FILTERED = re.compile(r"content[_ ](?:filter|policy)|responsible_?ai", re.IGNORECASE)
_QUOTA = re.compile(r"insufficient[_ ](?:quota|balance|credit|funds)", re.IGNORECASE)
_BUSY = re.compile(r"rate[_ -]?limit|overloaded|too many requests|capacity", re.IGNORECASE)
_ASCII_ESCAPE = re.compile(r"\\{1,2}u00([2-7][0-9a-fA-F])")
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ud800-\udfff]"
)
_SECRETS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), r"\1 ***"),
    (re.compile(r"\b(?:sk|pk|rk|gsk|xai|hf|r8)[-_][\w*.-]{6,}"), "***"),
    (re.compile(r"\bAIza[\w-]{10,}"), "***"),
    (re.compile(r"(?i)(://)[^\s/@]+@"), r"\1***@"),
    (re.compile(r"(?i)\b(api[-_]?key|token|secret|password|sig|key)=[^\s&\"']+"), r"\1=***"),
)


@record
class Reply:
    """A reply that is no answer: HTTP status, Retry-After header, the beginning of the body, its media type."""

    status: int
    retry_after: str | None
    body: bytes
    kind: str = ""


@record
class Complaint:
    """An error object in the words of its server; empty where it says nothing."""

    message: str
    code: str = ""
    status: int = 0

    @property
    def text(self) -> str:
        return f"{self.code} {self.message}"


def refusal(reply: Reply, today: float) -> BackendError:
    """The failure that an HTTP status other than 200 stands for. `today`: seconds since 1970."""
    said = complaint(reply.body)
    note = f"HTTP {reply.status}: {said.message}".rstrip(": ")
    if 300 <= reply.status < 400:
        return BadRequest(f"{note or 'HTTP'}: the server points elsewhere; correct base_url")
    if reply.status < 400:
        return MalformedAnswer(f"{note}: not an answer")
    wait = retry_after(reply.retry_after, today)
    if reply.status in BUSY and not _QUOTA.search(said.text):
        return Overloaded(note, retry_after=wait)
    if reply.status in LATE:
        return TimedOut(note, retry_after=wait)
    if reply.status >= 500:
        return ServerFault(note, retry_after=wait)
    if reply.status in DENIED or reply.status == 429:
        return AccessDenied(note)
    return _refused(reply.status, said, note)


def _refused(status: int, said: Complaint, note: str) -> BackendError:
    """What 400, 404, 413, 422 and their like mean."""
    if said.code == "context_length_exceeded" or status == 413 or _OVERFLOW.search(said.message):
        return ContextOverflow(note)
    if said.code == "model_not_found" or _NO_MODEL.search(said.message):
        return UnknownModel(note)
    if _FILTERED.search(said.text):
        return ContentFiltered(note)
    if status == 404:
        return BadRequest(f"{note or 'HTTP 404'}: there is nothing at this address; does base_url end in /v1?")
    return BadRequest(note)


def error_within(data: Any) -> BackendError | None:
    """The failure that an error object inside a 200 answer or stream stands for (B48); None where there is none."""
    if not isinstance(data, Mapping):
        return None
    if not (data.get("error") or data.get("object") == "error"):
        return None
    said = told(data)
    note = f"error in the answer: {said.message}".rstrip(": ")
    if 400 <= said.status < 600:
        return refusal(Reply(status=said.status, retry_after=None, body=json.dumps(data).encode()), 0.0)
    if _BUSY.search(said.text) and not _QUOTA.search(said.text):
        return Overloaded(note)
    if _QUOTA.search(said.text):
        return AccessDenied(note)
    found = _refused(0, said, note)
    return ServerFault(note) if type(found) is BadRequest else found


def complaint(body: bytes) -> Complaint:
    """The error object of a body: OpenAI's shape, a bare text, FastAPI's `detail`, or a page of another kind."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return Complaint(message=_page(body))
    return told(data)


def told(data: Any) -> Complaint:
    """The complaint in a JSON value of any shape."""
    inner = data.get("error", data) if isinstance(data, Mapping) else data
    if not isinstance(inner, Mapping):
        return Complaint(message=str(inner) if inner else "")
    message = inner.get("message") or inner.get("detail") or inner.get("error") or ""
    code = inner.get("code") or inner.get("type") or ""
    status = code if isinstance(code, int) else inner.get("status", 0)
    return Complaint(
        message=message if isinstance(message, str) else json.dumps(message),
        code=str(code),
        status=status if isinstance(status, int) else 0,
    )


def _page(body: bytes) -> str:
    """A page's heading, or a text's beginning."""
    text = body.decode(errors="replace")
    heading = re.search(r"(?is)<(title|h1)[^>]*>(.*?)</\1>", text)
    return f"an HTML page: {heading[2]}" if heading else "an HTML page" if "<html" in text.lower() else text


@contextmanager
def discreet(secrets: Sequence[str]) -> Iterator[None]:
    """The door of a call: a BackendError leaves it redacted, wherever in the call it was raised."""
    try:
        yield
    except BackendError as error:
        raise redacted(error, secrets) from None


def redacted(error: BackendError, secrets: Sequence[str] = ()) -> BackendError:
    """The error with its message in one line of at most 300 characters, without keys and credentials.

    Secrets are hidden before anything is cut, so that no half of one is left.
    """
    text = _UNSEEN.sub("", " ".join(_ASCII_ESCAPE.sub(_unescaped, str(error)).split()))
    text = without(text, secrets)[:PATTERNED]
    for pattern, stand_in in _SECRETS:
        text = pattern.sub(stand_in, text)
    error.args = (text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…",)
    return error


def without(text: str, secrets: Sequence[str]) -> str:
    """The text with these secrets hidden, however they are written."""
    for form in sorted({form for secret in secrets for form in _spellings(secret)}, key=len, reverse=True):
        if len(form) > SHORT:
            text = text.replace(form, "***")
        else:
            text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "***", text)
    return text


def _spellings(secret: str) -> Iterator[str]:
    """A secret as it may stand in a message: as it is, or written in JSON, Python, an address or base 64."""
    for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], repr(json.dumps(secret))[2:-2]):
        yield " ".join(form.split())
    if len(secret) > SHORT:
        yield quote(secret, safe="")
        yield base64.b64encode(secret.encode(errors="replace")).decode()


def _unescaped(found: "re.Match[str]") -> str:
    return chr(int(found[1], 16))
