"""The nouns of coterie and the contracts of its parts. Read this file first.

A Query is solved by a Team. The team's router gives a Routing, its strategy asks Agents, each answer
is a Turn, and the whole history of one query is a Trace. Evaluation and learning read traces and nothing
else. Every record here is immutable.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import Field

from coterie.errors import ConfigError
from coterie.layered import ANSWERING, Exit, Part, Review
from coterie.records import STRICT, Amount, Count, Finite, Positive, Share, Size, is_table, record, spec  # noqa: F401

# --- what is asked -----------------------------------------------------------------------------------


@record
class Message:
    """One chat message. An assistant message at the end of a prompt is a prefill: the answer goes on from it."""

    role: Literal["system", "user", "assistant"]
    content: str


Messages = tuple[Message, ...]


@record
class Query:
    """One item to solve.

    `task` is the kind of item (math, choice, code_function, code_stdio, instruction, qa, reasoning_gym,
    chat) and picks the verifier; `contract` names the answer contract that the prompt was written for and
    picks the reader. `reference` is the gold side of the item and is None when it cannot be scored; no
    part of it ever enters `messages`. `metadata` holds plain JSON: `source` and `domain` at least.
    """

    id: str
    messages: Messages
    task: str = "chat"
    contract: str = "text"
    reference: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What the human asked: the last user message."""
        return next((m.content for m in reversed(self.messages) if m.role == "user"), "")

    @property
    def domain(self) -> str:
        """The label by which results are grouped: metadata's `domain`, else its `source`, else the task."""
        return str(self.metadata.get("domain") or self.metadata.get("source") or self.task)


# --- who is asked ------------------------------------------------------------------------------------


@record
class Sampling:
    """How an agent samples. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 are off.

    `max_tokens` bounds the completion; `max_prompt_tokens` the prompt, cut at the left (0: what the
    model's context leaves). `stop` ends a completion before the first of these texts. `schema`, JSON as text, is
    what the completion (behind a prefill) has to fit; a backend that cannot see to it leaves it to the prompt.
    """

    __pydantic_config__ = STRICT
    temperature: Amount = 0.7
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Count = 0
    max_tokens: Size = 512
    max_prompt_tokens: Count = 0
    stop: tuple[str, ...] = ()
    schema: str = ""

    def __post_init__(self) -> None:
        if self.schema and not is_table(self.schema):
            raise ConfigError("schema: is no JSON schema; write a JSON object as text, or nothing")

    def facts(self) -> dict[str, Any]:
        """All settings as plain data, for digests; `schema` only where there is one, as older digests know none."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if name != "schema" or value}


@record
class Price:
    """Dollars per million tokens. None is unknown, which is never cheapest; 0 is a price."""

    __pydantic_config__ = STRICT
    prompt: Amount | None = None
    completion: Amount | None = None

    def of(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Dollars for one call, or None where a needed price is unknown."""
        if self.prompt is None or self.completion is None:
            return None
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


@record
class Agent:
    """Who may be asked. An agent is data; its backend does the work.

    `model` is `<backend>:<model>`. `revision` is a digest of everything that changes its answers (model,
    adapter, instruction, sampling); it is part of every cache key and of every trace.
    """

    __pydantic_config__ = STRICT
    name: str
    model: str
    role: Literal["solver", "aggregator", "reviewer"] = "solver"
    instruction: str = ""
    adapter: str | None = None
    sampling: Sampling = Sampling()
    price: Price = Price()
    domains: tuple[str, ...] = ()
    folder: str | None = None
    revision: str = ""


@dataclass(frozen=True, slots=True)
class Pool(Mapping[str, Agent]):
    """An immutable snapshot of the agents. Swapping an agent makes a new pool."""

    agents: Mapping[str, Agent]
    version: int = 0

    def __getitem__(self, name: str) -> Agent:
        return self.agents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.agents)

    def __len__(self) -> int:
        return len(self.agents)

    def names(self, role: str = "solver") -> list[str]:
        """Names of the agents that play `role`, sorted, so that no decision depends on file order."""
        return sorted(a.name for a in self.agents.values() if a.role == role)

    def with_agents(self, *agents: Agent, without: Sequence[str] = ()) -> "Pool":
        """The next version: `without` removed, `agents` added or replaced."""
        kept = {n: a for n, a in self.agents.items() if n not in without}
        return Pool(kept | {a.name: a for a in agents}, self.version + 1)


# --- what happened -----------------------------------------------------------------------------------


@record
class Tokens:
    """Ids and log-probabilities (nats, under the sampling distribution's untempered logits) of one sample."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]


@record
class Completion:
    """What a model said. `seconds` is how long the model took, also when the text came from the cache.

    `estimated`: at least one of the token counts was worked out, not stated. `logprobs` are the log-probabilities
    (nats) of the completion's tokens where a server gives them without token ids; `tokens` has both.
    """

    text: str
    finish: Literal["stop", "length", "tool_calls", "content_filter"] = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    seconds: float = 0.0
    tokens: Tokens | None = None
    logprobs: tuple[float, ...] | None = None


@record
class Score:
    """A verdict. `error` means the verifier could not judge: `value` is then None, never 0.

    `value` is the reward in [0, 1] and may be partial; `pass` is given exactly when the item counts as solved.
    """

    verdict: Literal["pass", "fail", "error"]
    value: float | None
    answer: str | None = None
    reason: str = ""

    @property
    def correct(self) -> bool | None:
        """True, False, or None where there is no verdict."""
        return None if self.verdict == "error" else self.verdict == "pass"


@record
class Turn:
    """One agent's contribution. `reads` are the indices of the earlier turns it was shown.

    `cost` is dollars, None where a price is unknown. In a mixture `part` is what the turn was for, `layer` counts
    from 1; `answer` is None where the turn does not answer the query.
    """

    index: int
    agent: str
    role: str
    revision: str
    messages: Messages
    completion: Completion
    answer: str | None = None
    reads: tuple[int, ...] = ()
    cost: float | None = None
    score: Score | None = None
    part: Part = ""
    layer: int = 0

    @property
    def answers(self) -> bool:
        """Whether the turn answers the query; a review or a critique is no answer, and never graded as one."""
        return self.part in ANSWERING


@record
class Failure:
    """One call that gave no turn. A missing outcome is missing; it is never a wrong answer.

    `kind` is the name of the error's class. `retry_after` is how many seconds the server asked to wait, if it did.
    The call may have used tokens all the same; `cost` is their dollars, None where a price is unknown.
    """

    agent: str
    kind: str
    message: str
    retry_after: float | None = None
    tokens: int = 0
    cost: float | None = 0.0


@record
class Routing:
    """A router's decision after `after` turns.

    `weights` sum to 1 over the pool's solvers. `scores` are the router's own raw numbers per agent
    (familiarity in (0, 1] for `familiarity`); routers that have none give their weights.
    """

    weights: Mapping[str, float]
    scores: Mapping[str, float] = field(default_factory=dict)
    after: int = 0
    seed: int = 0
    stop: bool = False
    reads: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    def ranked(self) -> list[str]:
        """Agents by weight, best first. Ties are broken by a draw from `seed`, never by position."""
        return sorted(self.weights, key=lambda name: (-self.weights[name], draw(self.seed, name)))

    def score(self, name: str) -> float:
        """The raw score of one agent, its weight where the router gave no scores."""
        return self.scores[name] if self.scores else self.weights[name]


@dataclass(frozen=True, slots=True)
class State:
    """What a router decides on."""

    query: Query
    pool: Pool
    turns: Sequence[Turn] = ()
    seed: int = 0


@record
class Trace:
    """The whole history of one query: the only thing evaluation and learning read.

    `seconds` is the time the query takes when no call comes from the cache: the critical path of its
    calls plus the measured rest. `reviews` and `exits` are those of a mixture; `degraded` says what an answer went
    without, if anything: an aggregator, a layer.
    """

    query: Query
    sample: int = 0
    revisions: Mapping[str, str] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    routings: tuple[Routing, ...] = ()
    final: int | None = None
    score: Score | None = None
    failures: tuple[Failure, ...] = ()
    stopped: Literal["done", "budget", "failed"] = "done"
    seconds: float = 0.0
    reviews: tuple[Review, ...] = ()
    exits: tuple[Exit, ...] = ()
    degraded: str = ""

    def decisions(self, pool: Pool) -> Iterator[tuple[State, Routing]]:
        """Every routing with the state it was made in, for learning from it."""
        for routing in self.routings:
            yield State(self.query, pool, self.turns[: routing.after], routing.seed), routing

    @property
    def answer(self) -> str | None:
        return None if self.final is None else self.turns[self.final].answer

    @property
    def text(self) -> str:
        return "" if self.final is None else self.turns[self.final].completion.text

    @property
    def cost(self) -> float | None:
        """Dollars of all turns, and of failed calls that used tokens; None as soon as one of them is unknown."""
        costs = [*(t.cost for t in self.turns), *(f.cost for f in self.failures)]
        return None if any(c is None for c in costs) else float(sum(c for c in costs if c is not None))

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens of all turns, and those that failed calls are known to have used."""
        used = sum(t.completion.prompt_tokens + t.completion.completion_tokens for t in self.turns)
        return used + sum(f.tokens for f in self.failures)


# --- contracts ---------------------------------------------------------------------------------------


@record
class Reader:
    """How a text is read: take the answer out (None: there is none), tell when two answers are the same.

    An open-ended reader has no answers to compare: such queries are not voted on. `stop` and
    `max_tokens` end a completion early where nothing more would be read.
    """

    extract: Callable[[str], str | None]
    same: Callable[[str, str], bool]
    open_ended: bool = False
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None


class Backend(Protocol):
    """Generates for every agent whose model it holds. Constructed with the model's name, loads on `prepare`."""

    async def prepare(self, agent: Agent) -> None:
        """Load what the agent needs; raise BackendError or UserError if it cannot be served."""

    async def generate(self, agent: Agent, messages: Messages, *, seed: int) -> Completion:
        """One completion. Equal arguments give equal completions."""
        ...

    async def aclose(self) -> None:
        """Release everything."""


class Encoder(Protocol):
    """Turns prompts into vectors."""

    def encode(self, prompts: Sequence[Messages]) -> np.ndarray:
        """Shape (len(prompts), D), float32. Blocking; call it off the event loop."""
        ...


class Router(Protocol):
    """Weighs the agents of a pool for a query, given the turns so far.

    A router never holds a pool: it gets the snapshot with every call, so that a swapped agent is simply
    there at the next call. One that takes no longer than a thread takes to begin (0.1 ms) says `instant = True`.
    """

    def route(self, state: State) -> Routing:
        """The decision. Blocking and thread-safe; called off the event loop, unless the router is `instant`."""
        ...


class Predictor(Router, Protocol):
    """A router whose scores depend on the query alone, so that it can say them for many at once.

    Cost-aware choice, calibration and replay build on it. `route` gives the same numbers, a query at a time.
    """

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Scores >= 0 of every solver on every query: (len(queries), A), agents in the order of `pool.names()`.

        Blocking and thread-safe. What a score means is the router's own: an expected reward, a familiarity.
        """
        ...


def draw(seed: int, *parts: object) -> int:
    """A 63-bit number that depends on `seed` and `parts` only: the one source of derived seeds."""
    text = "/".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8]) >> 1
