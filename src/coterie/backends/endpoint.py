"""One server behind HTTP: where it is, what it understands, how much it takes. Settings and their checks.

Secrets are never settings: a recipe names the environment variable that holds one.
"""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal
from urllib.request import getproxies, proxy_bypass

from yarl import URL

from coterie.backends.retries import Deadlines, Retries
from coterie.errors import ConfigError
from coterie.types import Agent, Count, Positive, Size, spec

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)", re.ASCII)
KNOWN_KEYS = re.compile(r"(?:sk|pk|rk|gsk|xai|hf|r8|AIza|Bearer)[-_ A-Za-z0-9]")
PRIVATE_HEADERS = re.compile(r"(?i).*(?:auth|key|token|secret|cookie|password).*")
PRIVATE_QUERY = re.compile(r"(?i)(?:.*[-_])?(?:key|token|secret|sig|signature|password)")
RESERVED = frozenset({"model", "messages", "stream", "stream_options", "n"})


@spec
class Endpoint:
    """An OpenAI-compatible server.

    Where: `base_url` ends before `/chat/completions` (usually in `/v1`; a query, `?api-version=...`, is kept).
    `key_env` names the environment variable of the bearer key; values in `headers` may hold `${VARIABLE}`.

    How much: `concurrency` requests at a time; `schedule: serial` is for a server that holds one model: one
    request at a time, those for one model or adapter together. `deadlines`, in seconds: see `Deadlines`; `retries`
    and `backoff`, in seconds: see `Retries`. `max_mib` bounds an answer.

    What it understands: `stream` reads answers as they are written, so that `first_byte` and `idle` deadlines bite.
    `samples: together` asks for several samples of one prompt in one request (`n`); what the server leaves out is
    asked for apart. A sample then depends on those beside it, not only on its seed. `prefill` is how an assistant
    message at the end is sent: as it is (`message`), to be gone on with (`continue`; vLLM, SGLang), or not at all,
    asked for in words instead (`drop`). `top_k` and `seed` say that it takes these fields; `omit` names others that
    it refuses. `logprobs` asks for log-probabilities, `json_schema` for answers that fit a schema; `extra` is put
    into each request as it is. `adapters: vllm` loads agents' LoRA folders at run time, from a path that the server
    can read too.
    """

    base_url: str
    key_env: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    concurrency: Size = 8
    schedule: Literal["parallel", "serial"] = "parallel"
    deadlines: Deadlines = field(default_factory=Deadlines)
    retries: Count = 2
    backoff: Positive = 0.5
    max_mib: Positive = 4.0
    stream: bool = False
    samples: Literal["apart", "together"] = "apart"
    prefill: Literal["message", "continue", "drop"] = "message"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    seed: bool = True
    top_k: bool = False
    omit: tuple[Literal["temperature", "top_p", "stop", "stream_options"], ...] = ()
    logprobs: bool = False
    json_schema: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    adapters: Literal["none", "vllm"] = "none"

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        _check_key_name(self.key_env)
        for name, value in self.headers.items():
            _check_header(name, value)
        if taken := sorted(RESERVED & self.extra.keys()):
            raise ConfigError(f"extra: {taken[0]!r} is set by coterie, it cannot be given")
        self.policy()

    def policy(self) -> Retries:
        """The retries of one request."""
        return Retries.of(self.deadlines, self.retries, self.backoff)

    @property
    def limit(self) -> int:
        """Requests at a time."""
        return 1 if self.schedule == "serial" else self.concurrency

    def url(self, path: str) -> URL:
        """The address of a path below `base_url`, whose query is kept."""
        base = URL(self.base_url)
        return (base / path).with_query(base.query)

    def variables(self) -> list[str]:
        """The environment variables that have to be set."""
        named = [found[1] or found[2] for value in self.headers.values() for found in VARIABLE.finditer(value)]
        return [_bare(self.key_env), *named] if self.key_env else named

    def secrets(self) -> list[str]:
        """The values of those variables. Raises ConfigError for one that is not set."""
        for name in self.variables():
            value = os.environ.get(name, "").strip()
            if not value.isprintable():
                raise ConfigError(f"the environment variable {name} holds a control character: it is no key")
            if not value:
                raise ConfigError(f"the environment variable {name} is not set; it holds the endpoint's key")
        return [os.environ[name].strip() for name in self.variables()]

    def request_headers(self) -> dict[str, str]:
        """Headers of every request, secrets put in."""
        found = {name: _filled(value) for name, value in self.headers.items()}
        if self.key_env:
            found["Authorization"] = f"Bearer {os.environ[_bare(self.key_env)].strip()}"
        return found

    def identity(self) -> str:
        """What changes answers: part of every cache key. Holds no secret."""
        headers = {name: value for name, value in self.headers.items() if not VARIABLE.search(value)}
        facts = (self.base_url, sorted(headers.items()), self.samples, self.prefill, self.max_tokens_field)
        body = (
            self.seed,
            self.top_k,
            sorted(self.omit),
            self.logprobs,
            self.json_schema,
            sorted(self.extra.items()),
        )
        return repr((*facts, *body))

    def check(self, agent: Agent) -> None:
        """Raise ConfigError for an agent that this server cannot serve as it is set up."""
        if agent.adapter and self.adapters == "none":
            raise ConfigError(
                f"agent {agent.name!r} has an adapter, which its endpoint does not load (adapters: vllm does)"
            )
        if agent.sampling.top_k and not self.top_k:
            raise ConfigError(
                f"agent {agent.name!r} samples with top_k, which its endpoint is not said to take (top_k: true)"
            )


def proxy_for(url: URL) -> str | None:
    """The proxy that the environment names for this host: HTTP_PROXY, HTTPS_PROXY, NO_PROXY."""
    if url.host is None or proxy_bypass(url.host):
        return None
    return getproxies().get(url.scheme)


def trusted() -> ssl.SSLContext:
    """The system's certificate authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR."""
    return ssl.create_default_context()


def _check_url(text: str) -> None:
    try:
        url = URL(text)
    except ValueError as error:
        raise ConfigError(f"base_url: {error}") from None
    if url.user or url.password or any(PRIVATE_QUERY.fullmatch(name) for name in url.query):
        raise ConfigError("base_url: holds a secret; name the environment variable that holds it as key_env")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"base_url: {text!r} is no address such as https://host/v1")
    if url.path.rstrip("/").endswith("/completions"):
        raise ConfigError(f"base_url: {text!r} must end before /chat/completions")


def _check_key_name(text: str) -> None:
    name = _bare(text)
    mixed = len(name) >= 20 and re.search("[a-z]", name) and re.search("[A-Z]", name) and re.search("[0-9]", name)
    if text and (not NAME.fullmatch(name) or KNOWN_KEYS.match(name) or mixed):
        raise ConfigError(
            "key_env: looks like a key; put the key into an environment variable and write its name here"
        )


def _check_header(name: str, value: str) -> None:
    if PRIVATE_HEADERS.fullmatch(name) and not VARIABLE.search(value):
        raise ConfigError(f"headers.{name}: write ${{NAME}}, of the environment variable that holds it")
    if any(ord(mark) < 32 for mark in name + value):
        raise ConfigError(f"headers.{name}: holds a control character")


def _bare(name: str) -> str:
    """`NAME` from `NAME`, `$NAME` or `${NAME}`."""
    found = VARIABLE.fullmatch(name)
    return (found[1] or found[2]) if found else name


def _filled(value: str) -> str:
    return VARIABLE.sub(lambda found: os.environ[found[1] or found[2]].strip(), value)
