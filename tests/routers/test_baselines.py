"""Routers without features: what each prefers, ties, unknowns."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted import AGENTS, POOL, outcomes_of, planted, pool_of, query, state_of

from coterie.errors import ConfigError
from coterie.routers.baselines import BestSingle, Cheapest, Domain, Oracle, Random, Uniform
from coterie.types import Agent, Pool, Price

NAN = float("nan")
ASKED = query("sum", 1)


def priced(**prices):
    return Pool({name: Agent(name=name, model="x:y", price=price) for name, price in prices.items()})


def test_uniform_weights_are_equal_and_the_seed_decides_who_is_first():
    firsts = [Uniform().route(state_of(ASKED, seed=seed)) for seed in range(60)]
    assert all(set(r.weights.values()) == {1 / 3} for r in firsts)
    counts = [sum(r.ranked()[0] == name for r in firsts) for name in AGENTS]
    assert min(counts) > 8


def test_random_depends_on_the_seed_and_spreads():
    router = Random()
    assert router.route(state_of(ASKED, seed=4)) == router.route(
        state_of(ASKED, pool_of(*reversed(AGENTS)), seed=4)
    )
    tops = [router.route(state_of(ASKED, seed=seed)).ranked()[0] for seed in range(300)]
    assert min(tops.count(name) for name in AGENTS) > 60


def test_cheapest_goes_by_the_price_of_a_call():
    pool = priced(a=Price(prompt=1, completion=9), b=Price(prompt=2, completion=2), c=Price(prompt=0, completion=0))
    assert Cheapest().route(state_of(ASKED, pool)).ranked() == ["c", "b", "a"]
    assert Cheapest(prompt_tokens=1000, completion_tokens=1).route(state_of(ASKED, pool)).ranked() == [
        "c",
        "a",
        "b",
    ]


def test_an_unknown_price_is_never_cheapest_and_zero_is_a_price():
    """B79."""
    pool = priced(a=Price(), b=Price(prompt=3, completion=3), c=Price(prompt=1, completion=None))
    weights = Cheapest().route(state_of(ASKED, pool)).weights
    assert weights == {"a": 0.0, "b": 1.0, "c": 0.0}
    free = priced(a=Price(), b=Price(prompt=0, completion=0))
    assert Cheapest().route(state_of(ASKED, free)).weights == {"a": 0.0, "b": 1.0}
    with pytest.raises(ConfigError, match="a, b"):
        Cheapest().route(state_of(ASKED, priced(a=Price(), b=Price(prompt=1))))


def test_equal_prices_are_decided_by_the_seed():
    pool = priced(a=Price(prompt=1, completion=1), b=Price(prompt=1, completion=1))
    assert {Cheapest().route(state_of(ASKED, pool, seed=s)).ranked()[0] for s in range(20)} == {"a", "b"}


def test_best_single_goes_by_the_mean_of_what_is_known():
    """R23: cyd's one outcome is a success; bob's three average 2/3; ada's missing ones do not count as failures."""
    table = outcomes_of([query("sum", i) for i in range(3)], [[NAN, 1, NAN], [0.5, 1, NAN], [0.5, 0, 1]])
    routing = BestSingle().fit(table).route(state_of(query("code", 99)))
    assert routing.scores == pytest.approx({"ada": 0.5, "bob": 2 / 3, "cyd": 1.0})
    assert routing.ranked() == ["cyd", "bob", "ada"]


def test_domain_goes_by_the_domain_and_falls_back_to_everything():
    table = planted()
    router = Domain().fit(table)
    for kind, name in zip(("sum", "poem", "code"), AGENTS, strict=True):
        routing = router.route(state_of(query(kind, 5000)))
        assert routing.ranked()[0] == name
        assert routing.info == {"domain": kind, "seen": True}
    unseen = router.route(state_of(replace(ASKED, metadata={"domain": "law"})))
    assert unseen.scores == pytest.approx(table.means())
    assert unseen.info["seen"] is False


def test_an_agent_without_outcomes_in_a_domain_counts_with_its_mean():
    table = planted()
    scores = table.scores.copy()
    scores[[q.domain == "sum" for q in table.queries], 2] = NAN
    routing = Domain().fit(replace(table, scores=scores)).route(state_of(ASKED))
    assert routing.scores["cyd"] == pytest.approx(0.5)  # all of code, no poem


def test_oracle_knows_the_outcomes_of_the_very_query():
    table = planted()
    router = Oracle().fit(table)
    for asked, row in zip(table.queries, table.scores, strict=True):
        assert row[AGENTS.index(router.route(state_of(asked)).ranked()[0])] == row.max()
    with pytest.raises(ConfigError, match="sum-4242"):
        router.route(state_of(query("sum", 4242)))


def test_nobody_solved_it_weighs_all_the_same():
    """No division by zero."""
    table = outcomes_of([ASKED], [[0.0, 0.0, 0.0]])
    for router in (Oracle(), BestSingle(), Domain()):
        assert router.fit(table).route(state_of(ASKED)).weights == pytest.approx(dict.fromkeys(AGENTS, 1 / 3))


def test_outcomes_of_two_names_of_one_revision_are_averaged():
    table = outcomes_of([ASKED], [[1.0, 0.0, 0.2]], revisions={"ada": "r", "bob": "r", "cyd": "s"})
    pool = pool_of(*AGENTS, revisions={"ada": "r", "bob": "r", "cyd": "s"})
    assert BestSingle().fit(table).route(state_of(ASKED, pool)).scores == {"ada": 0.5, "bob": 0.5, "cyd": 0.2}


def test_outcomes_without_revisions_hold_by_name():
    table = outcomes_of([ASKED], [[1.0, 0.0, 0.2]], revisions={})
    assert BestSingle().fit(table).route(state_of(ASKED)).scores == {"ada": 1.0, "bob": 0.0, "cyd": 0.2}


def test_baselines_need_no_extra():
    code = (
        "import sys; import coterie.routers.baselines, coterie.routers.supervised;assert 'torch' not in sys.modules"
    )
    source = str(Path(__file__).parents[2] / "src")
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": source})


def test_means_are_numbers_of_the_pool(tmp_path):
    router = BestSingle().fit(planted())
    assert np.isclose(sum(router.route(state_of(ASKED, POOL)).weights.values()), 1)
