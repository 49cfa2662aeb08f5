"""One query being solved: the handle that a strategy works with, and the contract of a strategy.

Everything that is asked goes through a Rollout and ends on its trace, in request order, so that a rerun
under other latencies gives the same trace. It knows no backend: it is given one `generate`.
"""

import asyncio
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from coterie.errors import AllAgentsFailed, BackendError, BudgetExceeded, TimedOut
from coterie.layered import ANSWERING
from coterie.types import (
    Agent,
    Amount,
    Completion,
    Count,
    Exit,
    Failure,
    Message,
    Messages,
    Part,
    Pool,
    Query,
    Reader,
    Review,
    Router,
    Routing,
    State,
    Trace,
    Turn,
    draw,
    record,
    spec,
)

Generate = Callable[[Agent, Messages, int], Awaitable[Completion]]
Watch = Callable[[Turn | Routing], None]


@spec
class Limits:
    """What one query may use; None is no limit. Seconds are wall time, tokens count prompt and completion."""

    calls: Count = 64
    tokens: Count | None = None
    cost_usd: Amount | None = None
    seconds: Amount | None = 600.0


@record
class Ask:
    """One call that a strategy wants made. Without `messages` the agent is asked the query itself.

    `schema`, JSON as text, is what the reply has to fit, where the backend can see to it. `seconds` is how long the
    answer is waited for; then the call is cancelled and has failed.
    """

    agent: str
    messages: Messages = ()
    reads: tuple[int, ...] = ()
    temperature: float | None = None
    schema: str = ""
    part: Part = ""
    layer: int = 0
    seconds: float | None = None


@dataclass(slots=True)
class Ledger:
    """What a rollout has spent. The worst case of a call is held back before it and settled after it."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0

    def reserve(self, agent: Agent, messages: Messages, limits: Limits) -> tuple[int, float]:
        """Hold back the worst case of one call; raise BudgetExceeded where it does not fit the limits."""
        prompt = sum(len(m.content.encode(errors="replace")) + 16 for m in messages)  # a token has a byte at least
        tokens = prompt + agent.sampling.max_tokens
        cost = agent.price.of(prompt, agent.sampling.max_tokens) or 0.0
        if self.calls + 1 > limits.calls:
            raise BudgetExceeded(f"calls: {limits.calls} allowed")
        if limits.tokens is not None and self.tokens + tokens > limits.tokens:
            raise BudgetExceeded(
                f"tokens: {self.tokens} used or held of {limits.tokens}, the next call may take {tokens}"
            )
        if limits.cost_usd is not None and self.cost + cost > limits.cost_usd:
            raise BudgetExceeded(f"cost: ${self.cost:.6f} used or held of ${limits.cost_usd}")
        self.calls += 1
        self.tokens += tokens
        self.cost += cost
        return tokens, cost

    def settle(self, held: tuple[int, float], used: tuple[int, float | None]) -> None:
        """Replace what was held (tokens, dollars) by what was used, as far as that is known."""
        self.tokens += used[0] - held[0]
        self.cost += (used[1] or 0.0) - held[1]


@dataclass(kw_only=True)
class Rollout:
    """One query being solved by one snapshot of a team."""

    query: Query
    pool: Pool
    reader: Reader
    router: Router
    generate: Generate
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    sample: int = 0
    watch: Watch = lambda event: None
    turns: list[Turn] = field(default_factory=list, init=False)
    routings: list[Routing] = field(default_factory=list, init=False)
    failures: list[Failure] = field(default_factory=list, init=False)
    reviews: list[Review] = field(default_factory=list, init=False)
    exits: list[Exit] = field(default_factory=list, init=False)
    degraded: list[str] = field(default_factory=list, init=False)
    _ledger: Ledger = field(default_factory=Ledger, init=False)
    _asked: dict[str, int] = field(default_factory=dict, init=False)
    _waited: float = field(default=0.0, init=False)
    _path: float = field(default=0.0, init=False)
    _lost: float = field(default=0.0, init=False)
    _began: float = field(default_factory=time.perf_counter, init=False)

    async def route(self, without: Collection[int] = ()) -> Routing:
        """Ask the router what to do next, given the turns so far; `without` are the indices of those it is not
        shown.
        """
        after = len(self.turns)
        # By routings and not by turns: what a mixture asks beside its proposals changes no choice of seats.
        turns = tuple(turn for turn in self.turns if turn.index not in without)
        state = State(self.query, self.pool, turns, self._seed("router", len(self.routings)))
        if getattr(self.router, "instant", False):
            routing = self.router.route(state)
        else:
            routing = await asyncio.to_thread(self.router.route, state)
        routing = replace(routing, after=after, seed=state.seed)
        self.routings.append(routing)
        self.watch(routing)
        return routing

    async def ask(self, name: str, messages: Messages = (), *, reads: Sequence[int] = ()) -> Turn:
        """Ask one agent. Without `messages` it is asked the query itself. Raises AllAgentsFailed."""
        return (await self.ask_all([name], messages, reads=reads))[0]

    async def ask_all(
        self,
        names: Sequence[str],
        messages: Messages = (),
        *,
        reads: Sequence[int] = (),
        temperature: float | None = None,
    ) -> list[Turn]:
        """Ask several agents the same thing at once; a name given k times is sampled k times, each with its own
        seed. As `ask_each`, without those that failed.
        """
        read = tuple(reads)
        asks = [Ask(agent=name, messages=messages, reads=read, temperature=temperature) for name in names]
        return [turn for turn in await self.ask_each(asks) if turn is not None]

    async def ask_each(self, asks: Sequence[Ask]) -> list[Turn | None]:
        """Make all calls at once; a turn for each, None for one that failed and is noted.

        Turns are recorded in the order of `asks`. Where a limit leaves room for some calls only, those are made and
        recorded before BudgetExceeded is raised. Raises AllAgentsFailed where none gave a turn.
        """
        calls: list[asyncio.Task[Turn]] = []
        spent: BudgetExceeded | None = None
        for ask in asks:
            read = not ask.messages or ask.part in ANSWERING[1:]
            agent = _varied(self.pool[ask.agent], ask, self.reader if read else None)
            prompt = with_instruction(agent, ask.messages or self.query.messages)
            try:
                held = self._ledger.reserve(agent, prompt, self.limits)
            except BudgetExceeded as error:
                spent = error
                break
            # Only proposals count as the agent's own calls: what a mixture asks beside them changes no seed of
            # theirs, and a layer's aggregation is the same however many layers follow.
            whose = ask.agent if ask.part in ("", "proposer") else f"{ask.agent}/{ask.part}/{ask.layer}"
            nth = self._asked[whose] = self._asked.get(whose, -1) + 1
            asking = self._generate(ask, agent, prompt, held, self._seed(whose, nth))
            calls.append(asyncio.ensure_future(asking))
        turns = await self._gather([ask.agent for ask in asks], calls)
        if spent is not None:
            raise spent
        if not any(turns):
            raise AllAgentsFailed(", ".join(f"{f.agent}: {f.message}" for f in self.failures[-len(calls) :]))
        return turns

    async def _gather(self, names: Sequence[str], calls: list["asyncio.Task[Turn]"]) -> list[Turn | None]:
        """Wait for all calls; also when cancelled, what is finished gets on the trace."""
        start, before = time.perf_counter(), len(self.turns)
        self._lost = 0.0
        try:
            await asyncio.gather(*calls, return_exceptions=True)  # cancelled, it cancels all and sees them end
        finally:
            results = [CancelledError() if c.cancelled() else c.exception() or c.result() for c in calls]
            turns = [self._note(name, result) for name, result in zip(names, results, strict=False)]
            self._waited += time.perf_counter() - start
            self._path += max([self._lost, *(t.completion.seconds for t in self.turns[before:])])
        systemic = [r for r in results if isinstance(r, BaseException) and not isinstance(r, BackendError)]
        if systemic:
            raise systemic[0]
        return turns

    def _note(self, name: str, result: Turn | BaseException) -> Turn | None:
        if isinstance(result, Turn):
            turn = replace(result, index=len(self.turns))
            self.turns.append(turn)
            self.watch(turn)
            return turn
        if isinstance(result, BackendError):
            self.failures.append(_failure(self.pool[name], result))
        return None

    async def _generate(self, ask: Ask, agent: Agent, prompt: Messages, held: tuple[int, float], seed: int) -> Turn:
        completion, began = None, time.perf_counter()
        used: tuple[int, float | None] = (0, 0.0)
        try:
            async with asyncio.timeout(ask.seconds) as clock:
                completion = await self.generate(agent, prompt, seed)
            used = _used(agent, completion)
        except TimeoutError as error:
            if clock.expired():
                raise TimedOut(f"no answer within the {ask.seconds:g} s of its step") from None
            raise BackendError(f"timed out {error}".strip()) from None
        except BackendError as error:
            used = _used(agent, error)
            raise
        finally:
            self._ledger.settle(held, used)
            if completion is None:
                self._lost = max(self._lost, time.perf_counter() - began)
        return Turn(
            index=-1,
            agent=agent.name,
            role=agent.role,
            revision=agent.revision,
            messages=prompt,
            completion=completion,
            answer=self.reader.extract(completion.text) if ask.part in ANSWERING else None,
            reads=ask.reads,
            cost=used[1],
            part=ask.part,
            layer=ask.layer,
        )

    def finish(self, final: Turn | None, stopped: Literal["done", "budget", "failed"]) -> Trace:
        """The trace of all that happened, settled by `final`."""
        return Trace(
            query=self.query,
            sample=self.sample,
            revisions={agent.name: agent.revision for agent in self.pool.agents.values()},
            turns=tuple(self.turns),
            routings=tuple(self.routings),
            final=None if final is None else final.index,
            failures=tuple(self.failures),
            stopped=stopped,
            seconds=time.perf_counter() - self._began - self._waited + self._path,
            reviews=tuple(self.reviews),
            exits=tuple(self.exits),
            degraded="; ".join(self.degraded),
        )

    def _seed(self, name: str, nth: int) -> int:
        return draw(self.seed, self.query.id, self.sample, name, nth)


def _used(agent: Agent, call: Completion | BackendError) -> tuple[int, float | None]:
    """Tokens and dollars of a call, also of one that failed; what used no token costs nothing."""
    tokens = call.prompt_tokens + call.completion_tokens
    failed = isinstance(call, BackendError) and not tokens
    return tokens, 0.0 if failed else agent.price.of(call.prompt_tokens, call.completion_tokens)


def _failure(agent: Agent, error: BackendError) -> Failure:
    tokens, cost = _used(agent, error)
    kind, wait = type(error).__name__, error.retry_after
    return Failure(agent=agent.name, kind=kind, message=str(error), retry_after=wait, tokens=tokens, cost=cost)


def with_instruction(agent: Agent, messages: Messages) -> Messages:
    """The prompt an agent sees: its instruction leads the system message."""
    if not agent.instruction:
        return messages
    first, rest = messages[0], messages[1:]
    if first.role == "system":
        return (Message(role="system", content=f"{agent.instruction}\n\n{first.content}"), *rest)
    return (Message(role="system", content=agent.instruction), *messages)


def read_by(agent: Agent, reader: Reader) -> Agent:
    """The agent as it is asked where `reader` reads its answer: with the reader's ends of a completion."""
    if not reader.stop and reader.max_tokens is None:
        return agent
    own = agent.sampling
    most = min(own.max_tokens, reader.max_tokens or own.max_tokens)
    return replace(agent, sampling=replace(own, stop=(*own.stop, *reader.stop), max_tokens=most))


def _varied(agent: Agent, ask: Ask, reader: Reader | None) -> Agent:
    """The agent as it is asked: with the reader's ends; at another temperature or held to a schema, which its
    revision then says.
    """
    if reader is not None:
        agent = read_by(agent, reader)
    heat = ask.temperature
    if heat is not None and heat != agent.sampling.temperature:
        sampling = replace(agent.sampling, temperature=heat)
        agent = replace(agent, sampling=sampling, revision=f"{agent.revision}+t{heat:g}")
    if ask.schema:
        sampling = replace(agent.sampling, schema=ask.schema)
        agent = replace(agent, sampling=sampling, revision=f"{agent.revision}+schema")
    return agent


class Strategy(Protocol):
    """How agents work together."""

    async def solve(self, rollout: Rollout) -> Turn | None:
        """Ask through the rollout; return the turn that settles the query, None where nothing does."""
        ...
