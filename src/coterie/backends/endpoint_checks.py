"""Checks of an endpoint's settings: addresses, headers, request fields, proxies. None repeats a suspicious value.

What cannot be sent, and what may be a secret, is found where a recipe is read, not in the middle of a run.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from yarl import URL

from coterie.config import like_key, shown
from coterie.errors import ConfigError

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)", re.ASCII)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header's name (RFC 9110, 5.6.2)."""
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection"})
"""Headers that say how a request is sent; the client sets them."""
SCHEMES = frozenset({"", "bearer", "basic", "token", "key", "apikey", "api-key"})
RESERVED = frozenset({"model", "messages", "stream", "stream_options", "n"})
DEEPEST = 100

_PRIVATE_HEADER = re.compile(r"(?i).*(?:auth|key|token|secret|cookie|password)", re.DOTALL)
_PRIVATE_QUERY = re.compile(
    r".*(?:key|token|secret|sig|signature|password|passwd|pwd|auth|credential)|code|sas|jwt"
)
_PRIVATE_FIELD = re.compile(
    r".*(?:apikey|accesskey|secretkey|privatekey|secret|password|passwd|credentials?|authorization)"
    r"|.*(?:access|auth|api|bearer|session|refresh)token|key|token|auth|pwd|jwt"
)
_KEY_NAME = re.compile(r"(?:sk|pk|rk|gsk|xai|hf|r8)[-_](?=.*[0-9A-Z])\w{12,}|AIza\w{10,}")
_USER = re.compile(r"[^/?#]*(?://)?[^/?#]*@")
_NUMBER = re.compile(r"(?i)(?<=/accounts/)[0-9a-f]{32}(?=/|$)|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The number of an account or a deployment in an address, which is no secret."""


def check_url(text: str) -> None:
    """Raise ConfigError for an address that nothing can be sent to, or that holds a secret."""
    try:
        url = URL(text)
        private = bool(_USER.match(text)) or any(_private_query(*pair) for pair in url.query.items())
        parts = [*_NUMBER.sub("", url.path).split("/"), url.fragment]
        private = private or any(like_key(part) for part in parts)
    except ValueError as error:
        raise ConfigError(f"base_url: {shown(error)}") from None
    if private:
        raise ConfigError("base_url: holds a secret; name the environment variable that holds it as key_env")
    if url.scheme not in ("http", "https") or not _sendable(url):
        raise ConfigError(f"base_url: {shown(text)} is no address such as https://host/v1")
    if CONTROL.search(text) or url.fragment:
        raise ConfigError("base_url: holds a control character or a #fragment, which is never sent")
    if url.path.rstrip("/").endswith("/completions"):
        raise ConfigError(f"base_url: {shown(text)} must end before /chat/completions")


def check_key_name(text: str) -> None:
    """Raise ConfigError for a key in the place of the name of its variable."""
    name = bare(text)
    if text and (not NAME.fullmatch(name) or _KEY_NAME.fullmatch(name) or _mixed_name(name)):
        raise ConfigError(
            "key_env: looks like a key; put the key into an environment variable and write its name here"
        )


def check_header(name: str, value: str) -> None:
    """Raise ConfigError for a header that cannot be sent, that is the client's, or that holds a secret."""
    where = f"headers.{shown(name).strip(chr(39))}"
    if CONTROL.search(name + value):
        raise ConfigError(f"{where}: holds a control character")
    if not TOKEN.fullmatch(name):
        raise ConfigError(f"{where}: is no name of a header (letters, digits and dashes)")
    if name.lower() in FRAMING:
        raise ConfigError(f"{where}: is set by coterie, it cannot be given")
    plain = VARIABLE.sub(" ", value)
    if like_key(name) or like_key(plain) or (_PRIVATE_HEADER.match(name) and not _filled_in(name, value, plain)):
        raise ConfigError(f"{where}: write ${{NAME}}, of the environment variable that holds it")
    if not _encodable(value, "utf-8"):
        raise ConfigError(f"{where}: holds half a character")


def check_fields(where: str, fields: Mapping[str, Any], private: bool = True) -> None:
    """Raise ConfigError for what JSON cannot say and, with `private`, for secrets, at any depth."""
    for path, name, value in _leaves(where, fields):
        if not isinstance(value, Mapping | list | tuple) and not _sayable(value):
            kind = type(value).__name__
            raise ConfigError(
                f"{path}: JSON has no {kind} such as this; write a text (in quotes) or a finite number"
            )
        secret = isinstance(value, str) and (like_key(value) or _PRIVATE_FIELD.fullmatch(_plain(name)))
        if private and value and (secret or like_key(name)):
            raise ConfigError(
                f"{path}: looks like a key; name the environment variable that holds it as key_env or in headers"
            )


def checked_proxy(name: str, text: str) -> str:
    """The proxy that a variable names. ConfigError, which does not repeat it, where it cannot be used."""
    try:
        url = URL(text)
        fits = url.scheme in ("http", "https") and _sendable(url) and not CONTROL.search(text)
        user, password = url.user or "", url.password or ""
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(f"the environment variable {name} is no proxy such as http://host:3128")
    if ":" in user or not _encodable(user + password, "latin-1"):
        raise ConfigError(f"the environment variable {name} holds a user or a password that cannot be sent")
    return text


def bare(name: str) -> str:
    """`NAME` from `NAME`, `$NAME` or `${NAME}`."""
    found = VARIABLE.fullmatch(name)
    return (found[1] or found[2]) if found else name


def _private_query(name: str, value: str) -> bool:
    return bool(_PRIVATE_QUERY.fullmatch(_plain(name))) or like_key(value) or like_key(name)


def _plain(name: str) -> str:
    return re.sub(r"[-_ .]", "", name).lower()


def _sendable(url: URL) -> bool:
    """Whether the host can be looked up: the resolver takes labels of 1 to 63 characters."""
    host = url.raw_host or ""
    if ":" in host:
        return True
    return bool(host) and len(host) <= 253 and _encodable(host, "idna")


def _encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeError:
        return False
    return True


def _mixed_name(name: str) -> bool:
    """Whether a legal name is rather a key: hexadecimal or base-64, letters among digits."""
    for run in re.findall("[A-Za-z0-9]{20,}", name):
        if re.search("[0-9]", run) and re.search("[a-z]", run):
            return True
    return like_key(name) and len(re.findall("[A-Za-z](?=[0-9])", name)) > 3


def _filled_in(name: str, value: str, plain: str) -> bool:
    """Whether a private header takes its secret from the environment: beside it only the scheme's word."""
    if not VARIABLE.search(value):
        return False
    if "cookie" in name.lower():
        plain = re.sub(r"[\w-]{1,24}=(?=[\s;]|$)", " ", plain)
    return all(word.lower() in SCHEMES for word in re.split(r"[\s:;,=]+", plain))


def _leaves(where: str, fields: Mapping[Any, Any]) -> Iterator[tuple[str, str, Any]]:
    """(path, name, value) of all that a table holds, tables and lists too. ConfigError for names JSON has not."""
    waiting: list[tuple[str, str, Any, int]] = [(where, "", fields, 0)]
    while waiting:
        path, name, value, depth = waiting.pop()
        yield path, name, value
        if depth > DEEPEST:
            raise ConfigError(f"{where}: nested too deep")
        if isinstance(value, Mapping):
            if wrong := [key for key in value if type(key) not in (str, int)]:
                raise ConfigError(f"{path}: JSON has no name that is a {type(wrong[0]).__name__}")
            rows = [(f"{path}.{shown(key).strip(chr(39))}", str(key), inner) for key, inner in value.items()]
            waiting += [(*row, depth + 1) for row in reversed(rows)]
        elif isinstance(value, list | tuple):
            waiting += [(path, name, inner, depth + 1) for inner in reversed(value)]


def _sayable(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)
