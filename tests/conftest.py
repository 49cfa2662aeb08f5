"""Fixtures that all tests share."""

import os
from pathlib import Path

import pytest

# Tests work on small arrays: more threads would only wait for each other, on busy cores for minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from coterie.backends.recorded import Scripted
from coterie.config import build
from coterie.pool import pool_of, revise
from coterie.strategies.vote import Vote
from coterie.team import Backends, Team
from coterie.types import Agent, Price

CACHE = Path(os.environ.get("COTERIE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "coterie")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Calls are cached in a throw-away folder; fetched models are shared with the user's."""
    folder = tmp_path_factory.mktemp("cache")
    models = CACHE.expanduser() / "models"
    models.mkdir(parents=True, exist_ok=True)
    (folder / "models").symlink_to(models, target_is_directory=True)
    monkeypatch.setenv("COTERIE_CACHE", str(folder))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of benchmark slices that the environment variable COTERIE_DATA names."""
    folder = Path(os.environ.get("COTERIE_DATA", ""))
    if "COTERIE_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("the benchmark slices are not here; set COTERIE_DATA")
    return folder


@pytest.fixture
def scripted_team():
    """Makes a team of scripted agents: replies by name, and the router, strategy and limits to use."""

    def make(replies, *, router=None, strategy=None, **parts):
        agents = [
            revise(Agent(name=name, model=f"scripted:{name}", price=Price(prompt=1, completion=1)))
            for name in replies
        ]
        opened = {agent.model: Scripted(model=agent.name, answer=_answer(replies[agent.name])) for agent in agents}
        return Team(
            pool=pool_of(agents),
            router=router or build("router", "uniform"),
            strategy=strategy or Vote(threshold=2.0),
            backends=Backends(opened=opened),
            **parts,
        )

    return make


def _answer(reply):
    return reply if callable(reply) else lambda agent, messages, seed: reply
