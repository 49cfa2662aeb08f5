"""What all published routers keep: they find planted experts, leave out what is missing, know no agents' order."""

import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from planted import AGENTS, KINDS, POOL, Planted, outcomes_of, planted, pool_of, query, state_of

from coterie.config import build
from coterie.errors import ConfigError, DataError

NAN = float("nan")
SETTINGS = {
    "hybrid_llm": {"small": "ada", "large": "bob", "epochs": 40},
    "icl": {"steps": 60, "cells": 96, "width": 16, "profile": 12, "noise": 0.3, "patience": 20},
    "lin_ucb": {"dims": 8},
    "matrix_factorisation": {"width": 8, "epochs": 25},
    "route_moa": {"width": 8, "epochs": 25},
    "router_dc": {"width": 8, "epochs": 20},
    "thompson": {"dims": 8},
}
NAMES = sorted(SETTINGS)
SCORERS = [name for name in NAMES if name != "hybrid_llm"]
TABLE = planted()
FRESH = [query(KINDS[i % 3], i) for i in range(2000, 2060)]


def bare(name, **more):
    return build("router", {"use": name, "encoder": Planted(), **SETTINGS[name], **more})


@cache
def ready(name):
    """Fitted once: no test changes a router, which is part of the contract."""
    return bare(name).fit(TABLE)


def turned(table, order):
    """The table with its agents listed in another order."""
    return replace(
        table,
        agents=tuple(table.agents[i] for i in order),
        **{part: getattr(table, part)[:, order] for part in ("scores", "tokens", "costs")},
    )


def accuracy(router, pool=POOL):
    """How often the first choice is the kind's expert; a kind whose expert is no candidate is left out."""
    right = {kind: agent for kind, agent in zip(KINDS, AGENTS, strict=True) if agent in pool}
    asked = [q for q in FRESH if q.domain in right]
    best = router.predict(asked, pool).argmax(axis=1)
    return np.mean([pool.names()[i] == right[q.domain] for i, q in zip(best, asked, strict=True)])


@pytest.mark.parametrize("name", SCORERS)
def test_planted_experts_are_found(name):
    """Bob's lucky third of the sums must not win the sums."""
    assert accuracy(ready(name)) > 0.9


@pytest.mark.parametrize("name", SCORERS)
def test_shuffled_outcomes_teach_nothing(name):
    """Three kinds, three agents: a fit that sees only luck is right a third of the time, give or take."""
    found = []
    for seed in range(4):
        rows = np.random.default_rng(seed).permutation(len(TABLE.queries))
        found.append(accuracy(bare(name).fit(replace(TABLE, scores=TABLE.scores[rows]))))
    assert np.mean(found) < 0.6


@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_what_route_says(name):
    router = ready(name)
    table = router.predict(TABLE.queries[:9], POOL)
    assert table.shape == (9, 3)
    assert (table >= 0).all()
    for row, asked in zip(table, TABLE.queries, strict=False):
        routing = router.route(state_of(asked))
        assert list(routing.scores) == POOL.names()
        assert list(routing.scores.values()) == pytest.approx(row.tolist(), abs=1e-6)
        assert sum(routing.weights.values()) == pytest.approx(1)
    assert router.predict([], POOL).shape == (0, 3)


@pytest.mark.parametrize("name", NAMES)
def test_agents_in_another_order_give_the_same_router(name):
    """R6: listed, pooled and fitted in another order."""
    other = bare(name).fit(turned(TABLE, [2, 0, 1]))
    assert np.array_equal(other.predict(FRESH, POOL), ready(name).predict(FRESH, POOL))
    back = ready(name).predict(FRESH, pool_of(*AGENTS[::-1]))
    assert np.array_equal(back, ready(name).predict(FRESH, POOL))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_outcomes_give_the_same_weights_and_another_seed_others(name):
    one, two, other = ready(name)._known, bare(name).fit(TABLE)._known, bare(name, seed=1).fit(TABLE)._known
    assert one.tensors.keys() == two.tensors.keys()
    assert all(np.array_equal(one.tensors[key], two.tensors[key], equal_nan=True) for key in one.tensors)
    assert one.notes == two.notes
    assert not all(np.array_equal(one.tensors[key], other.tensors[key], equal_nan=True) for key in one.tensors)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_saved_decides_as_before_and_is_no_other_routers(name, tmp_path):
    """R4."""
    path = str(tmp_path / "router.safetensors")
    ready(name).save(path)
    assert np.array_equal(bare(name, weights=path).predict(FRESH, POOL), ready(name).predict(FRESH, POOL))
    for other in NAMES:
        if other != name:
            with pytest.raises(ConfigError, match=f"holds weights of {name} .* not of the router {other}"):
                bare(other, weights=path).route(state_of(FRESH[0]))
    with pytest.raises(ConfigError, match="24 features, the encoder gives 7"):
        bare(name, encoder=Planted(width=7), weights=path).route(state_of(FRESH[0]))
    with pytest.raises(ConfigError, match="not fitted"):
        bare(name).route(state_of(FRESH[0]))


@pytest.mark.parametrize("name", NAMES)
def test_unknown_agents_get_nothing_and_unknown_pools_are_refused(name):
    """R4, R5."""
    found = ready(name).predict(FRESH[:5], pool_of(*AGENTS, "newcomer"))
    assert (found[:, 3] == 0).all()
    assert (found[:, :3].max(axis=1) > 0).all()
    with pytest.raises(ConfigError, match="ada") as caught:
        ready(name).route(state_of(FRESH[0], pool_of(*AGENTS, revisions=dict.fromkeys(AGENTS, "newer"))))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_200_parallel_routings_equal_serial_ones(name):
    """R1."""
    states = [state_of(query(KINDS[i % 3], 5000 + i), seed=i) for i in range(200)]
    serial = [ready(name).route(state) for state in states]
    router, found, barrier = bare(name).fit(TABLE), {}, threading.Barrier(8)

    def work(part):
        barrier.wait()
        for i in range(part, 200, 8):
            found[i] = router.route(states[i])

    threads = [threading.Thread(target=work, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(200)] == serial


@pytest.mark.parametrize("name", SCORERS)
def test_an_outage_is_no_incompetence(name):
    """R23: where ada was down on half of the sums she still wins the sums, as she does fitted on the rest."""
    scores = TABLE.scores.copy()
    scores[::2, 0] = NAN
    down = bare(name).fit(replace(TABLE, scores=scores))
    sums = [asked for asked in FRESH if asked.domain == "sum"]
    assert (down.predict(sums, POOL).argmax(axis=1) == 0).mean() > 0.8


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_that_was_always_down_is_not_known(name):
    """R23: a column without a single outcome is as if it had not been there."""
    scores = TABLE.scores.copy()
    scores[:, 2] = NAN
    down = bare(name).fit(replace(TABLE, scores=scores)).predict(FRESH, POOL)
    absent = turned(TABLE, [0, 1])
    assert (down[:, 2] == 0).all()
    assert np.array_equal(down, bare(name).fit(absent).predict(FRESH, POOL))


@pytest.mark.parametrize("name", NAMES)
def test_queries_without_any_outcome_change_nothing(name):
    """R23."""
    lost = outcomes_of([*TABLE.queries, *FRESH], np.vstack([TABLE.scores, np.full((60, 3), NAN)]))
    assert np.array_equal(bare(name).fit(lost).predict(FRESH, POOL), ready(name).predict(FRESH, POOL))
    with pytest.raises(DataError, match="no outcomes"):
        bare(name).fit(replace(TABLE, scores=np.full_like(TABLE.scores, NAN)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("agents", [1, 2])
def test_small_pools(name, agents):
    few = pool_of(*AGENTS[:agents])
    more = {"small": None, "large": None} if name == "hybrid_llm" else {}
    router = bare(name, **more).fit(turned(TABLE, list(range(agents))))
    routing = router.route(state_of(FRESH[0], few))
    assert set(routing.weights) == set(AGENTS[:agents])
    assert sum(routing.weights.values()) == pytest.approx(1)
    assert accuracy(router, few) == 1 if agents == 1 else accuracy(router, few) > 0.9


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_that_always_wins_is_chosen(name):
    scores = np.tile([0.0, 1.0, 0.0], (len(TABLE.queries), 1))
    router = bare(name).fit(replace(TABLE, scores=scores))
    assert (router.predict(FRESH, POOL).argmax(axis=1) == 1).mean() > 0.95


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_handful_of_queries_is_enough_to_fit(name, size):
    found = bare(name).fit(TABLE.take(range(size))).predict(FRESH, POOL)
    assert np.isfinite(found).all()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
from planted import POOL
from test_published import FRESH, NAMES, TABLE, bare
from coterie.errors import MissingExtra
for name in NAMES:
    found = bare(name, weights=f"{sys.argv[1]}/{name}").predict(FRESH, POOL)
    assert np.array_equal(found, np.load(f"{sys.argv[1]}/{name}.npy")), name
    try:
        bare(name).fit(TABLE)
    except MissingExtra as error:
        assert "coterie[local]" in str(error)
    else:
        assert name in ("lin_ucb", "thompson"), name
"""


def test_asking_needs_no_torch_and_training_says_what_to_install(tmp_path):
    for name in NAMES:
        ready(name).save(tmp_path / name)
        np.save(tmp_path / f"{name}.npy", ready(name).predict(FRESH, POOL))
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
