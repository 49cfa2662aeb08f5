"""A team: a pool, a router and a strategy. `Team.solve` is the one way a query is answered.

Whoever needs an answer calls it; new agents come in through `Team.swap`. A team is loaded
from a recipe, a YAML file that fills these slots.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from coterie.config import build, find, laid_over, nearest, override, read_yaml, validate
from coterie.errors import AllAgentsFailed, BudgetExceeded, ConfigError
from coterie.pool import read_pool, revise, split_model
from coterie.rollout import Limits, Rollout, Strategy, Watch
from coterie.storage.cache import Cache, call_key
from coterie.strategies.memory import ranked
from coterie.strategies.vote import weighted_vote
from coterie.tasks.catalog import query_of, reader_of
from coterie.types import Agent, Backend, Completion, Messages, Pool, Query, Router, Trace, Turn, spec

log = logging.getLogger(__name__)
BUILTIN_RECIPE = "builtin"


@spec
class Recipe:
    """The keys of a recipe file. `contracts` maps a kind of task to the answer contract its prompts use.

    `learner` says how the team is trained (`coterie train`); answering does not read it.
    """

    agents: list[Any]
    router: Any = "uniform"
    strategy: Any = "vote"
    learner: Any = None
    name: str = ""
    description: str = ""
    limits: Limits = field(default_factory=Limits)
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    contracts: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0


@dataclass
class Backends:
    """The backends that are open, shared by all teams that were given this object.

    There is one for each model, or one for all models of a kind of backend that serves many (`serves_many`).
    """

    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    where: str = ""
    opened: dict[str, Backend] = field(default_factory=dict)

    def of(self, agent: Agent) -> Backend:
        """The backend that holds the agent's base model."""
        if agent.model not in self.opened:
            scheme, model = split_model(agent.model)
            cls = find("backend", scheme, self.where)
            if getattr(cls, "serves_many", False):
                self.opened[agent.model] = self.opened.get(scheme) or self._open(cls, scheme, {})
                self.opened[scheme] = self.opened[agent.model]
            else:
                self.opened[agent.model] = self._open(cls, scheme, {"model": model})
        return self.opened[agent.model]

    def _open(self, cls: type, scheme: str, table: Mapping[str, Any]) -> Backend:
        options = {**table, **self.options.get(scheme, {})}
        backend: Backend = validate(cls, options, f"{self.where}backends.{scheme}")
        return backend

    def check(self, agent: Agent, seconds: float | None) -> None:
        """Raise ConfigError where the agent cannot be asked as things are set up. Loads and calls nothing.

        A call that hangs until its own deadline is to leave room for another agent's within `seconds`.
        """
        backend = self.of(agent)
        if (check := getattr(backend, "check", None)) is not None:
            check(agent)
        if (patience := getattr(backend, "patience", None)) is None or seconds is None:
            return
        if 2 * patience(agent) > seconds:
            raise ConfigError(
                f"{self.where}limits.seconds ({seconds:g}) has no room for another agent where {agent.name!r}"
                f" hangs: set deadlines.total of its endpoint to at most {seconds / 2:g}"
            )

    def identity(self, agent: Agent) -> str:
        """What the agent's backend says of its settings that change answers: part of every cache key."""
        backend = self.of(agent)
        of_agent = getattr(backend, "identity_of", None)
        return str(of_agent(agent) if of_agent else getattr(backend, "identity", ""))

    async def aclose(self) -> None:
        for backend in {id(backend): backend for backend in self.opened.values()}.values():
            await backend.aclose()
        self.opened.clear()


@dataclass
class Team:
    """Agents that answer together."""

    pool: Pool
    router: Router
    strategy: Strategy
    name: str = "team"
    limits: Limits = field(default_factory=Limits)
    contracts: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    cache: Cache | None = None
    backends: Backends = field(default_factory=Backends)
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        agents = {name: agent if agent.revision else revise(agent) for name, agent in self.pool.items()}
        self.pool = Pool(agents, self.pool.version)
        self._check(self.pool)

    @staticmethod
    def load(
        source: str | Path,
        settings: Sequence[str] = (),
        *,
        cache: Cache | None = None,
        backends: Backends | None = None,
    ) -> "Team":
        """The team of a recipe file or built-in recipe, with `key.path=value` settings applied.

        Opens no model. Raises ConfigError of one line that names file and key.
        """
        file = recipe_file(source)
        table = override(read_recipe(file), settings)
        recipe: Recipe = validate(Recipe, table, str(file))
        where, base = f"{file}: ", file.parent
        team = Team(
            pool=read_pool(recipe.agents, str(file), base),
            router=build("router", recipe.router, where, base),
            strategy=build("strategy", recipe.strategy, where, base),
            name=recipe.name or file.stem,
            limits=recipe.limits,
            contracts=recipe.contracts,
            seed=recipe.seed,
            cache=cache,
            backends=backends or Backends(recipe.backends, where),
            config=table,
        )
        for agent in team.pool.values():
            team.backends.check(agent, team.limits.seconds if len(team.pool) > 1 else None)
        return team

    async def solve(self, query: Query, *, sample: int = 0, watch: Watch = lambda event: None) -> Trace:
        """Answer one query. The pool is read once, so that a swap never touches a running rollout.

        An agent's failure or a spent limit ends in the best answer so far; only systemic faults raise.
        """
        rollout = self.rollout(query, sample, watch)
        stopped: Literal["done", "budget", "failed"] = "done"
        clock = asyncio.timeout(self.limits.seconds)
        try:
            async with clock:
                return rollout.finish(await self.strategy.solve(rollout), stopped)
        except BudgetExceeded:
            stopped = "budget"
        except TimeoutError:
            if not clock.expired():
                raise
            stopped = "budget"
        except AllAgentsFailed:
            return rollout.finish(None, "failed")  # also where some answered, but fewer than the strategy's quorum
        return rollout.finish(await asyncio.to_thread(best_so_far, rollout), stopped)

    def rollout(self, query: Query, sample: int = 0, watch: Watch = lambda event: None) -> Rollout:
        """The query with everything that solving it may use; nothing is asked yet."""
        return Rollout(
            query=query,
            pool=self.pool,
            reader=reader_of(query),
            router=self.router,
            generate=self._generate,
            limits=self.limits,
            seed=self.seed,
            sample=sample,
            watch=watch,
        )

    async def solve_all(
        self, queries: Iterable[Query], concurrency: int = 16, *, sample: int = 0
    ) -> AsyncGenerator[Trace, None]:
        """Traces as they are finished, at most `concurrency` rollouts at a time; all of one `sample` number."""

        waiting = iter(queries)
        running: set[asyncio.Task[Trace]] = set()
        ended: asyncio.Queue[asyncio.Task[Trace]] = asyncio.Queue()

        def begin(count: int) -> None:
            for query in islice(waiting, count):
                task = asyncio.create_task(self.solve(query, sample=sample))
                task.add_done_callback(ended.put_nowait)
                running.add(task)

        begin(concurrency)
        try:
            while running:
                task = await ended.get()
                running.remove(task)
                begin(1)
                yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)  # each is read: the first error is told

    async def swap(self, *agents: Agent, without: Sequence[str] = ()) -> None:
        """Put new agents, or new revisions of old ones, in place for all later queries.

        Everything is prepared first and put in place by one assignment: a swap that fails leaves the team
        as it was, and running rollouts keep the pool they began with.
        """
        revised = [revise(agent) for agent in agents]
        self._after(revised, without)
        for agent in revised:
            await self.backends.of(agent).prepare(agent)
        self.pool = self._after(revised, without)  # another swap may have ended meanwhile: build on its pool

    def _after(self, agents: Sequence[Agent], without: Sequence[str]) -> Pool:
        """The pool after a swap; ConfigError where there can be no such pool."""
        absent = [name for name in without if name not in self.pool]
        if absent:
            raise ConfigError(f"cannot remove agent {absent[0]!r}{nearest(absent[0], self.pool)}")
        pool = self.pool.with_agents(*agents, without=without)
        self._check(pool)
        return pool

    def ask(self, text: str, task: str = "chat") -> Trace:
        """Answer one text and close the models again: the one door for code without an event loop."""
        return asyncio.run(self._ask(self.query(text, task)))

    def query(self, text: str, task: str = "chat") -> Query:
        """A text as a query of a kind of task; equal texts have equal ids, and so equal answers."""
        digest = sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
        return query_of(text, task, contract=self.contracts.get(task), id=f"ask-{digest}")

    async def _ask(self, query: Query) -> Trace:
        try:
            return await self.solve(query)
        finally:
            await self.backends.aclose()

    async def warm(self, queries: Sequence[Query]) -> None:
        """Let the router's encoder see all prompts in batches, before they come one by one."""
        encoder = getattr(self.router, "encoder", None)
        if encoder is not None and queries:
            await asyncio.to_thread(encoder.encode, [query.messages for query in queries])

    async def _generate(self, agent: Agent, messages: Messages, seed: int) -> Completion:
        backend = self.backends.of(agent)
        if self.cache is None:
            return await backend.generate(agent, messages, seed=seed)
        key = call_key(agent, messages, seed, self.backends.identity(agent))
        hit = self.cache.get(key)
        if hit is not None and (hit.tokens is not None or not getattr(backend, "return_tokens", False)):
            return hit
        completion = await backend.generate(agent, messages, seed=seed)
        await asyncio.to_thread(self.cache.put, key, completion)
        return completion

    def _check(self, pool: Pool) -> None:
        if not pool.names("solver"):
            raise ConfigError(f"team {self.name!r} has no agent with role solver")
        if (check := getattr(self.strategy, "check", None)) is not None:
            check(pool, self.limits)
        unknown = [a.name for a in pool.values() if a.price.of(1, 1) is None]
        if self.limits.cost_usd is not None and unknown:
            raise ConfigError(f"limits.cost_usd cannot be kept: the price of agent {unknown[0]!r} is unknown")


def best_so_far(rollout: Rollout) -> Turn | None:
    """What a stopped rollout has: a mixture's last answer for all, else its best-ranked proposal, else the vote
    over the answers of its last layer by the last routing.
    """
    if rollout.exits or rollout.reviews:
        return rollout.turns[rollout.exits[-1].turn if rollout.exits else ranked(rollout.reviews)[0].turn]
    scores = rollout.routings[-1].scores or rollout.routings[-1].weights if rollout.routings else {}
    turns = [turn for turn in rollout.turns if turn.answers and turn.role == "solver"]
    last = max((turn.layer for turn in turns), default=0)
    return weighted_vote([turn for turn in turns if turn.layer == last], scores, rollout.reader.same)


def recipe_file(source: str | Path) -> Path:
    """The file of a recipe: a path, or the name of a built-in recipe."""
    path = Path(source)
    if path.is_file():
        return path
    inside = Path(str(files("coterie") / "recipes" / f"{source}.yaml"))
    if inside.is_file():
        return inside
    raise ConfigError(f"recipe {str(source)!r}: no such file or built-in recipe{nearest(str(source), recipes())}")


def recipes() -> list[str]:
    """Names of the built-in recipes, those of a family with its folder: `cera/smollm2`."""
    folder = Path(str(files("coterie") / "recipes"))
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def read_recipe(file: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The table of a recipe file, laid over that of the recipe which it `extends`.

    `extends` is a file beside it or the name of a built-in recipe. Relative paths of both are taken from the
    folder of the extending file. Raises: ConfigError for a recipe that extends itself.
    """
    if file.resolve() in seen:
        raise ConfigError(f"{file}: extends itself, by way of {', '.join(path.name for path in seen)}")
    table = read_yaml(file)
    parent = table.pop("extends", None)
    if parent is None:
        return table
    beside = file.parent / str(parent)
    found = beside if beside.is_file() else recipe_file(str(parent))
    return laid_over(read_recipe(found, (*seen, file.resolve())), table)
