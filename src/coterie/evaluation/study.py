"""A whole study: collect every agent's outcomes on a training task, fit routers, compare them with baselines on
another task. `coterie train` is its first half, `coterie demo` all of it. Prints nothing.
"""

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, Self

from coterie.config import build
from coterie.errors import ConfigError, DataError
from coterie.evaluation.evaluate import Entry, Progress, Watch, evaluate, run_config
from coterie.evaluation.floors import constant_team, echo_team
from coterie.outcomes import Outcomes
from coterie.rollout import Strategy
from coterie.routers.choice import means as known_means
from coterie.storage.runs import Run
from coterie.strategies.single import SelfConsistency, Single
from coterie.strategies.vote import TopK, Vote
from coterie.tasks.contamination import without_seen
from coterie.tasks.task import Task
from coterie.team import Team
from coterie.types import Pool, Query, Router, State, Trace, record

BEST = "best single"
EVERYBODY = "majority of all"
CONCURRENCY = 32


class Learned(Router, Protocol):
    """A router that is fitted from outcomes. `fit` gives a new router and leaves the old one alone."""

    def fit(self, outcomes: Outcomes) -> Self: ...

    def save(self, path: Path) -> None: ...


def learned(router: Any) -> Learned:
    """The router without what it has learned, if it is one that learns."""
    if not hasattr(router, "fit") or not hasattr(router, "save"):
        name = type(router).__name__
        raise ConfigError(f"router {name} learns nothing; choose one such as familiarity, knn or mlp")
    fresh: Learned = replace(router, weights=None)
    return fresh


def fit_once(router: Any, outcomes: Outcomes, folder: Path) -> Router:
    """The router fitted on the outcomes, from `folder` where this very fit has been done before."""
    fresh = learned(router)
    rows = [[query.id, [message.content for message in query.messages]] for query in outcomes.queries]
    facts = json.dumps([repr(fresh), rows, outcomes.scores.tolist(), dict(outcomes.revisions)])
    digest = sha256(facts.encode(errors="surrogatepass")).hexdigest()[:16]
    file = folder / f"{type(fresh).__name__.lower()}-{digest}.safetensors"
    if not file.is_file():
        fresh.fit(outcomes).save(file)
    fitted: Router = replace(fresh, weights=str(file))  # type: ignore[type-var]
    return fitted


def everybody(team: Team, name: str = EVERYBODY) -> Team:
    """The team with all its agents asked, one vote each: what outcomes are collected with."""
    return replace(team, name=name, router=build("router", "uniform"), strategy=TopK(weighted=False))


def alone(team: Team) -> list[Team]:
    """Each solver of the team by itself: what routing among them has to beat."""
    router, strategy = build("router", "uniform"), Single(fallbacks=0)
    return [
        replace(team, name=f"{name} alone", pool=Pool({name: team.pool[name]}), router=router, strategy=strategy)
        for name in team.pool.names()
    ]


async def collect(team: Team, task: Task, folder: Path, watch: Watch) -> Outcomes:
    """What each agent of the team scores on each query of a task; goes on where a killed one stopped.

    Calls that failed the last time are made again.
    """
    entry = Entry(team=everybody(team), queries=task.queries)
    run = Run.open(folder, run_config(task, [entry], None))
    run.forget_failures()
    traces = await evaluate([entry], run, concurrency=CONCURRENCY, watch=watch)
    outcomes = Outcomes.from_traces(traces[entry.team.name])
    if not outcomes.agents:
        raise DataError(f"{task.name}: no agent has a scored answer, so that there is nothing to learn from")
    if silent := [name for name in team.pool.names() if name not in outcomes.agents]:
        why = next((f.message for t in traces[entry.team.name] for f in t.failures if f.agent == silent[0]), "")
        raise DataError(
            f"{task.name}: agent {silent[0]!r} answered nothing{f' ({why})' if why else ''}; mend it and run again"
            " (what the others answered is kept), or take it out of the recipe"
        )
    return outcomes


def collected(team: Team, task: Task, folder: Path) -> Path:
    """Where below `folder` the outcomes of these very agents and queries are kept: others do not disturb them."""
    entry = Entry(team=everybody(team), queries=task.queries)
    facts = json.dumps(run_config(task, [entry], None), sort_keys=True, default=str)
    return folder / sha256(facts.encode(errors="surrogatepass")).hexdigest()[:12]


@record
class Study:
    """A finished comparison: scored traces by strategy, and where they lie."""

    task: str
    baseline: str
    traces: Mapping[str, Sequence[Trace]]
    folders: tuple[Path, ...]


def unseen(train: Task, test: Sequence[Query]) -> tuple[Task, int]:
    """The training task without what the test asks too, and how many that were; DataError if none is left."""
    kept, dropped = without_seen(train.queries, test)
    if not kept:
        raise DataError(f"{train.name}: every question is in the test task as well, so there is none to learn from")
    return replace(train, queries=kept), len(dropped)


def unseen_outcomes(outcomes: Outcomes, test: Sequence[Query]) -> tuple[Outcomes, int]:
    """As `unseen`, for recorded outcomes."""
    kept, dropped = without_seen(outcomes.queries, test)
    if not kept and dropped:
        raise DataError("every recorded question is in the test task as well, so there is none to learn from")
    names = {query.id for query in kept}
    rows = [i for i, query in enumerate(outcomes.queries) if query.id in names]
    return outcomes.take(rows) if dropped else outcomes, len(dropped)


async def compare(team: Team, train: Task, test: Task, folder: Path, watch: Watch) -> Study:
    """Fit the team's router on `train`, then answer `test` with it and with every baseline.

    No query of `test` is seen in fitting, choosing the best single agent or the constant answers: what `train` asks
    too is left out of it, by its digest. Writes the fitted router to `folder/router.safetensors`.
    """
    learned(team.router)
    size = len(train.queries)
    train, left_out = unseen(train, test.queries)
    if left_out:
        watch(Progress(phase="left out of training: asked in the test", done=left_out, total=size))
    outcomes = await collect(team, train, folder / "train", watch)
    watch(Progress(phase="fitting routers", done=0, total=1))
    team = replace(team, router=await asyncio.to_thread(fit_once, team.router, outcomes, folder / "routers"))
    learners = await asyncio.to_thread(baselines, team, outcomes, folder / "routers")
    shutil.copyfile(team.router.weights, folder / "router.safetensors")  # type: ignore[attr-defined]
    watch(Progress(phase="fitting routers", done=1, total=1))
    voters = everybody(team)
    floors = [constant_team(train.queries, test.queries), echo_team(test.queries)]
    teams = [team, *variants(team, learners, outcomes, test.queries), voters, *floors]
    entries = [Entry(team=member, queries=test.queries) for member in teams]
    run = Run.open(folder / "test", run_config(test, entries, BEST))
    # Asking everybody first fills the batches best; what the others ask of the same agents is then known.
    entries.sort(key=lambda entry: entry.team is not voters)
    traces = await evaluate(entries, run, concurrency=CONCURRENCY, watch=watch)
    traces = {member.name: traces[member.name] for member in teams}
    hindsight = Outcomes.from_traces(traces[voters.name])
    oracle = replace(team, name="oracle", router=build("router", "oracle").fit(hindsight), strategy=Single())
    entry = Entry(team=oracle, queries=test.queries)
    traces |= await evaluate([entry], Run.open(folder / "oracle", run_config(test, [entry], None)), watch=watch)
    return Study(task=test.name, baseline=BEST, traces=traces, folders=(folder / "test", folder / "oracle"))


def baselines(team: Team, outcomes: Outcomes, folder: Path) -> dict[str, Router]:
    """The baseline routers, fitted on the same outcomes and over the same features as the team's own."""
    encoder = getattr(team.router, "encoder", None)
    encoded = {"encoder": encoder} if encoder is not None else {}
    fields: dict[str, dict[str, Any]] = {"best_single": {}, "domain": {}, "knn": encoded, "mlp": encoded}
    routers = {name: build("router", {"use": name, **options}) for name, options in fields.items()}
    return {name: fit_once(router, outcomes, folder) for name, router in routers.items()}


def variants(team: Team, fitted: Mapping[str, Router], outcomes: Outcomes, queries: Sequence[Query]) -> list[Team]:
    """The baseline strategies over the team's own agents."""

    def variant(name: str, router: Router, strategy: Strategy) -> Team:
        return replace(team, name=name, router=router, strategy=strategy)

    repeats = equal_tokens(outcomes, fitted["best_single"], team, queries[0])
    chosen = [
        variant(f"{team.name}, top 1", team.router, Single()),
        variant("random", build("router", "random"), Single()),
        variant(BEST, fitted["best_single"], Single()),
        variant(f"best single, sampled {repeats}x", fitted["best_single"], SelfConsistency(samples=repeats)),
        variant("best by domain", fitted["domain"], Single()),
        variant("kNN, top 1", fitted["knn"], Single()),
        variant("MLP, top 1", fitted["mlp"], Single()),
        variant("kNN, vote", fitted["knn"], Vote(threshold=getattr(team.strategy, "threshold", 0.7))),
    ]
    if len({agent.price for agent in team.pool.values() if agent.price.of(1, 1) is not None}) > 1:
        chosen.insert(2, variant("cheapest", build("router", "cheapest"), Single()))
    return chosen


def equal_tokens(outcomes: Outcomes, router: Router, team: Team, query: Query) -> int:
    """How often the best single agent may be sampled for the tokens that asking everybody takes (at least 2)."""
    means: dict[str, float] = dict(zip(outcomes.agents, known_means(outcomes.tokens, 0).tolist(), strict=True))
    best = router.route(State(query, team.pool)).ranked()[0]
    return max(2, round(sum(means.values()) / means[best]))
