"""What every router keeps: weights over the pool's solvers, no order, no races, fit is copy on write, files."""

import threading
from dataclasses import replace
from functools import cache

import pytest
from planted import AGENTS, KINDS, Planted, planted, pool_of, query, state_of

from coterie.config import build, names
from coterie.errors import ConfigError
from coterie.types import Agent, Pool, Price

FEATURES = {"familiarity", "knn", "mlp"}
LEARNED = ("best_single", "domain", "familiarity", "knn", "mlp", "oracle")
MINE = (*LEARNED, "cheapest", "random", "uniform")
SETTINGS = {"familiarity": {"hidden": 32, "width": 16, "epochs": 4}, "mlp": {"epochs": 10}}
TABLE = planted()


def table_of(name, **more):
    encoder = {"encoder": Planted()} if name in FEATURES else {}
    return {"use": name, **encoder, **SETTINGS.get(name, {}), **more}


@cache
def ready(name):
    """Fitted once: no test changes a router, which is part of the contract."""
    router = build("router", table_of(name))
    return router.fit(TABLE) if name in LEARNED else router


def pool(order=AGENTS, extra=()):
    agents = [
        replace(pool_of(name)[name], price=Price(prompt=1 + i, completion=1)) for i, name in enumerate(AGENTS)
    ]
    found = {agent.name: agent for agent in agents} | {
        name: Agent(name=name, model="x:y", revision="new") for name in extra
    }
    judge = Agent(name="judge", model="x:y", role="aggregator", revision="j")
    return Pool({name: found[name] for name in (*order, *extra)} | {"judge": judge})


def test_this_list_is_complete():
    assert set(MINE) <= set(names("router"))


@pytest.mark.parametrize("name", MINE)
def test_weights_sum_to_one_over_the_solvers(name):
    router = ready(name)
    for asked in TABLE.queries[:6]:
        routing = router.route(state_of(asked, pool()))
        assert set(routing.weights) == set(AGENTS)
        assert sum(routing.weights.values()) == pytest.approx(1)
        assert all(weight >= 0 for weight in routing.weights.values())
        assert set(routing.scores) in (set(), set(AGENTS))
        assert routing.ranked() == sorted(AGENTS, key=routing.ranked().index)


@pytest.mark.parametrize("name", MINE)
def test_order_of_agents_is_irrelevant(name):
    """R6."""
    router = ready(name)
    for asked in TABLE.queries[:6]:
        one = router.route(state_of(asked, pool(), seed=5))
        other = router.route(state_of(asked, pool(AGENTS[::-1]), seed=5))
        assert one == other
        assert one.ranked() == other.ranked()


@pytest.mark.parametrize("name", [*LEARNED, "cheapest"])
def test_an_agent_never_seen_gets_the_lowest_score_and_a_valid_weight(name):
    routing = ready(name).route(state_of(TABLE.queries[0], pool(extra=("newcomer",))))
    assert sum(routing.weights.values()) == pytest.approx(1)
    assert routing.weights["newcomer"] >= 0
    assert routing.score("newcomer") < max(routing.score(agent) for agent in AGENTS)
    if name != "familiarity":
        assert routing.score("newcomer") == min(routing.score(agent) for agent in routing.weights)


@pytest.mark.parametrize("name", MINE)
def test_parallel_routings_equal_serial_ones(name):
    """R1."""
    states = [state_of(TABLE.queries[i % 40], pool(), seed=i) for i in range(80)]
    serial = [ready(name).route(state) for state in states]
    router, found, barrier = ready(name), {}, threading.Barrier(8)

    def work(part):
        barrier.wait()
        for i in range(part, 80, 8):
            found[i] = router.route(states[i])

    threads = [threading.Thread(target=work, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(80)] == serial


@pytest.mark.parametrize("name", LEARNED)
def test_built_fitted_saved_loaded_decides_the_same(name, tmp_path):
    """The walk of `coterie train`."""
    router = ready(name)
    path = tmp_path / f"{name}.safetensors"
    router.save(path)
    loaded = build("router", table_of(name, weights=path.name), base=tmp_path)
    assert loaded.weights == str(path)
    for asked in TABLE.queries[:9]:
        assert loaded.route(state_of(asked, pool())) == router.route(state_of(asked, pool()))


@pytest.mark.parametrize("name", LEARNED)
def test_fit_returns_a_new_router(name):
    before = build("router", table_of(name))
    after = before.fit(TABLE)
    assert after is not before
    again = after.fit(planted(60, 60))
    first = after.route(state_of(TABLE.queries[0], pool()))
    assert again is not after
    assert after.route(state_of(TABLE.queries[0], pool())) == first
    if name != "familiarity":
        with pytest.raises(ConfigError, match="not fitted"):
            before.route(state_of(TABLE.queries[0], pool()))


@pytest.mark.parametrize("name", LEARNED)
def test_weights_of_other_revisions_are_refused(name):
    """R4."""
    stale = pool_of(*AGENTS, revisions=dict.fromkeys(AGENTS, "newer"))
    with pytest.raises(ConfigError, match="ada") as caught:
        ready(name).route(state_of(TABLE.queries[0], stale))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["best_single", "domain", "familiarity", "knn", "mlp"])
def test_a_learned_router_beats_chance_on_fresh_queries(name):
    router = ready(name) if name != "familiarity" else build("router", table_of(name, epochs=40)).fit(TABLE)
    right = [router.route(state_of(query(KINDS[i % 3], i))).ranked()[0] == AGENTS[i % 3] for i in range(6000, 6030)]
    assert sum(right) / 30 >= (1 / 3 if name == "best_single" else 0.9)
