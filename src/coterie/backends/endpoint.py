"""One server behind HTTP: where it is, what it understands, how much it takes. Settings and their checks.

Secrets are never settings: a recipe names the environment variable that holds one.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal
from urllib.request import getproxies, proxy_bypass

from yarl import URL

from coterie.backends.endpoint_checks import (
    RESERVED,
    VARIABLE,
    bare,
    check_fields,
    check_header,
    check_key_name,
    check_url,
    checked_proxy,
)
from coterie.backends.retries import Deadlines, Retries
from coterie.errors import ConfigError
from coterie.types import Agent, Count, Positive, Size, spec


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
    it refuses. `logprobs` asks for log-probabilities, `json_schema` for answers that fit a schema, whoever asks;
    `schemas` says that it takes the schema that a call brings (a reviewer's), which is then sent with it; one that
    the server refuses is left to the prompt's words. `extra` is put into each request as it is. `adapters: vllm`
    loads agents' LoRA folders at run time, from a path that the server can read too.
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
    schemas: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    adapters: Literal["none", "vllm"] = "none"

    def __post_init__(self) -> None:
        check_url(self.base_url)
        check_key_name(self.key_env)
        for name, value in self.headers.items():
            check_header(name, value)
        check_fields("extra", self.extra)
        check_fields("json_schema", self.json_schema or {}, private=False)
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
        return [bare(self.key_env), *named] if self.key_env else named

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
            found["Authorization"] = f"Bearer {os.environ[bare(self.key_env)].strip()}"
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
        later = ("schemas",) if self.schemas else ()  # a setting that is off leaves older keys as they were
        return repr((*facts, *body, *later))

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
    """The proxy that the environment names for this host: HTTP_PROXY, HTTPS_PROXY, NO_PROXY.

    Raises: ConfigError, which names the variable, for one that cannot be used.
    """
    if url.host is None or proxy_bypass(url.host):
        return None
    text = getproxies().get(url.scheme)
    lower = f"{url.scheme}_proxy"
    return checked_proxy(lower if os.environ.get(lower) else lower.upper(), text) if text else None


def trusted() -> ssl.SSLContext:
    """The system's certificate authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR."""
    return ssl.create_default_context()


def _filled(value: str) -> str:
    return VARIABLE.sub(lambda found: os.environ[found[1] or found[2]].strip(), value)
