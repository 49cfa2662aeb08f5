"""What the tests of the HTTP backend share: agents, prompts, backends and teams over an upstream."""

from coterie.backends.endpoint import Endpoint
from coterie.backends.http import Http
from coterie.backends.retries import Clock, Deadlines
from coterie.config import build
from coterie.errors import BackendError
from coterie.pool import pool_of, revise
from coterie.rollout import Limits
from coterie.team import Backends, Team
from coterie.types import Agent, Message, Price, Query, Sampling

QUICK = Deadlines(connect=5, first_byte=5, idle=5, attempt=5, total=12)


def agent(model="m", name="a", *, adapter=None, price=None, **sampling):
    """An agent of endpoint `e`, with a price of a dollar a million unless told otherwise."""
    cost = Price(prompt=1, completion=1) if price is None else price
    found = Agent(name=name, model=f"http:e/{model}", adapter=adapter, price=cost, sampling=Sampling(**sampling))
    return revise(found)


def user(text="What is 2 + 2?", prefill=None):
    end = (Message(role="assistant", content=prefill),) if prefill is not None else ()
    return (Message(role="user", content=text), *end)


def http(upstream, clock=None, **options):
    """A backend with the one endpoint `e`, that tries once and is quick to give up unless told otherwise."""
    url = upstream if isinstance(upstream, str) else upstream.base_url
    options = {"retries": 0, "backoff": 0.01, "deadlines": QUICK, **options}
    made = Http(endpoints={"e": Endpoint(base_url=url, **options)})
    if clock is not None:
        object.__setattr__(made, "clock", clock)
    return made


async def outcome(backend, asked, messages=None, seed=0):
    """The completion, or the failure."""
    try:
        return await backend.generate(asked, messages or user(), seed=seed)
    except BackendError as error:
        return error


class FakeClock:
    """Time that passes only by sleeping, and by what `spend` says each look at it takes."""

    def __init__(self, date=1_700_000_000.0):
        self.time, self.start, self.slept = 0.0, date, []

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds

    def clock(self):
        return Clock(now=lambda: self.time, date=lambda: self.start + self.time, sleep=self.sleep)


def team(backend, models, strategy="single", *, limits=None, **options):
    """A team of agents named like their models, over one backend, ranked in the order given."""
    agents = [agent(model, name=model) for model in models]
    ranking = Ranked(tuple(models))
    return Team(
        pool=pool_of(agents),
        router=ranking,
        strategy=build("strategy", {"use": strategy, **options}),
        backends=Backends(opened={"http": backend}),
        limits=limits or Limits(),
    )


class Ranked:
    """A router that always prefers the agents in one order."""

    def __init__(self, names):
        self.names = names

    def route(self, state):
        from coterie.types import Routing

        weights = [2.0 ** -(i + 1) for i in range(len(self.names))]
        total = sum(weights)
        return Routing(weights={n: w / total for n, w in zip(self.names, weights, strict=True)}, seed=state.seed)


def query(text="What is 2 + 2?"):
    return Query(id="q", messages=user(text), task="math", contract="text", reference={"answer": "4"})
