"""A whole study: collect every agent's outcomes on a training task, fit routers, compare them with baselines on
another task. `coterie train` is its first half, `coterie demo` all of it. Prints nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from coterie.config import build
from coterie.errors import ConfigError, DataError
from coterie.evaluation.evaluate import Entry, Watch, evaluate, run_config
from coterie.evaluation.floors import constant_team, echo_team
from coterie.outcomes import Outcomes
from coterie.rollout import Strategy
from coterie.storage.runs import Run
from coterie.strategies.single import SelfConsistency, Single
from coterie.strategies.vote import TopK, Vote
from coterie.tasks.task import Task
from coterie.team import Team
from coterie.types import Query, Router, State, Trace, record

BEST = "best single"
EVERYBODY = "majority of all"


class Learned(Router, Protocol):
    """A router that is fitted from outcomes. `fit` gives a new router and leaves the old one alone."""

    def fit(self, outcomes: Outcomes) -> Self: ...

    def save(self, path: Path) -> None: ...


def learned(router: Any) -> Learned:
    """The router, if it is one that learns."""
    if not hasattr(router, "fit") or not hasattr(router, "save"):
        raise ConfigError(
            f"router {type(router).__name__} learns nothing; choose one such as familiarity, knn or mlp"
        )
    found: Learned = router
    return found


def everybody(team: Team, name: str = EVERYBODY) -> Team:
    """The team with all its agents asked, one vote each: what outcomes are collected with."""
    return replace(team, name=name, router=build("router", "uniform"), strategy=TopK(weighted=False))


async def collect(team: Team, task: Task, folder: Path, watch: Watch) -> Outcomes:
    """What each agent of the team scores on each query of a task; goes on where a killed one stopped."""
    entry = Entry(team=everybody(team), queries=task.queries)
    run = Run.open(folder, run_config(task, [entry], None))
    traces = await evaluate([entry], run, watch=watch)
    outcomes = Outcomes.from_traces(traces[entry.team.name])
    if not outcomes.agents:
        raise DataError(f"{task.name}: no agent has a scored answer, so that there is nothing to learn from")
    return outcomes


@record
class Study:
    """A finished comparison: scored traces by strategy, and where they lie."""

    task: str
    baseline: str
    traces: Mapping[str, Sequence[Trace]]
    folders: tuple[Path, ...]


async def compare(team: Team, train: Task, test: Task, folder: Path, watch: Watch) -> Study:
    """Fit the team's router on `train`, then answer `test` with it and with every baseline.

    No query of `test` is seen in fitting, choosing the best single agent or the constant answers. Writes
    the fitted router to `folder/router.safetensors`.
    """
    outcomes = await collect(team, train, folder / "train", watch)
    ours = learned(team.router).fit(outcomes)
    ours.save(folder / "router.safetensors")
    team = replace(team, router=ours)
    voters = everybody(team)
    floors = [constant_team(train.queries, test.queries), echo_team(test.queries)]
    teams = [team, *variants(team, outcomes, test.queries), voters, *floors]
    entries = [Entry(team=member, queries=test.queries) for member in teams]
    run = Run.open(folder / "test", run_config(test, entries, BEST))
    traces = await evaluate(entries, run, watch=watch)
    hindsight = Outcomes.from_traces(traces[voters.name])
    oracle = replace(team, name="oracle", router=build("router", "oracle").fit(hindsight), strategy=Single())
    entry = Entry(team=oracle, queries=test.queries)
    traces |= await evaluate([entry], Run.open(folder / "oracle", run_config(test, [entry], None)), watch=watch)
    return Study(task=test.name, baseline=BEST, traces=traces, folders=(folder / "test", folder / "oracle"))


def variants(team: Team, outcomes: Outcomes, queries: Sequence[Query]) -> list[Team]:
    """The baselines over the team's own agents, fitted on the same outcomes."""

    def variant(name: str, router: Router, strategy: Strategy) -> Team:
        return replace(team, name=name, router=router, strategy=strategy)

    encoder = getattr(team.router, "encoder", None)
    encoded = {"encoder": encoder} if encoder is not None else {}
    fitted = {name: build("router", {"use": name}).fit(outcomes) for name in ("best_single", "domain")}
    fitted |= {name: build("router", {"use": name, **encoded}).fit(outcomes) for name in ("knn", "mlp")}
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
    if any(agent.price.of(1, 1) is not None for agent in team.pool.values()):
        chosen.insert(2, variant("cheapest", build("router", "cheapest"), Single()))
    return chosen


def equal_tokens(outcomes: Outcomes, router: Router, team: Team, query: Query) -> int:
    """How often the best single agent may be sampled for the tokens that asking everybody takes (at least 2)."""
    means = np.nanmean(outcomes.tokens, axis=0)
    best = router.route(State(query, team.pool)).ranked()[0]
    return max(2, round(float(means.sum()) / float(means[outcomes.agents.index(best)])))
