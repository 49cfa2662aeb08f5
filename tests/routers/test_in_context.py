"""ICL-Router light: numpy asks what torch trained, profiles are data, and a new agent needs no training."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from planted import AGENTS, KINDS, POOL, Planted, outcomes_of, planted, pool_of, query, state_of

from coterie.config import build
from coterie.errors import ConfigError, DataError
from coterie.routers.attention import answers, profiles
from coterie.routers.in_context import ICL, hard_rows, spread_out
from coterie.routers.in_context_training import Plan, forgotten, outputs, start

NAN = float("nan")
PLAN = Plan(
    width=16,
    layers=2,
    steps=1,
    cells=1,
    forget=0.0,
    lr=1.0,
    decay=0.0,
    noise=0.0,
    validation=0.0,
    patience=1,
    seed=0,
)


def many(size=150, agents=12, start=0):
    """Agents that solve one kind or two: enough of them to learn what a profile says about its agent."""
    queries = [query(KINDS[i % 3], i) for i in range(start, start + size)]
    solves = [{i % 3} if i % 2 else {i % 3, (i + 1) % 3} for i in range(agents)]
    scores = [[float(KINDS.index(q.domain) in kinds) for kinds in solves] for q in queries]
    return outcomes_of(queries, scores, [f"agent{i:02}" for i in range(agents)])


@cache
def reader():
    """Trained on agents of many kinds; no test changes it."""
    return ICL(encoder=Planted(), profile=16, width=16, steps=150, cells=256, noise=0.3, patience=30).fit(many())


@cache
def parts():
    """Untrained tensors, a profile of 6 queries with holes for 3 agents, and 5 queries."""
    random = np.random.default_rng(0)
    known = start(24, PLAN, random)
    scores = random.random((3, 6)).astype(np.float32)
    scores[0, :2], scores[1] = NAN, NAN
    pairs, x = random.normal(size=(6, 24)).astype(np.float32), random.normal(size=(5, 24)).astype(np.float32)
    return known, pairs, scores, x


def asked_in_numpy(known, pairs, scores, x):
    tensors = {name: tensor.detach().numpy() for name, tensor in known.items()}
    return answers(tensors, x, profiles(tensors, np.tile(pairs, (len(scores), 1, 1)), scores), scores)


def test_numpy_asks_the_network_that_torch_trains():
    known, pairs, scores, x = parts()
    with torch.no_grad():
        wanted = outputs(known, torch.from_numpy(pairs), torch.from_numpy(scores), torch.from_numpy(x)).numpy()
    assert wanted.shape == (5, 3)
    assert asked_in_numpy(known, pairs, scores, x) == pytest.approx(wanted, abs=1e-5)
    assert np.abs(wanted[:, 0] - wanted[:, 2]).max() > 1e-3


def test_missing_pairs_are_as_if_they_were_not_there():
    """R23: what a hole holds changes nothing, and an agent without any pair is answered from the query alone."""
    known, pairs, scores, x = parts()
    before = asked_in_numpy(known, pairs, scores, x)
    holes = pairs.copy()
    holes[:2] += 5
    after = asked_in_numpy(known, holes, scores, x)
    assert after[:, :2] == pytest.approx(before[:, :2], abs=1e-5)
    assert not np.allclose(after[:, 2], before[:, 2], atol=1e-3)
    shorter = asked_in_numpy(known, pairs[2:], scores[:1, 2:], x)
    assert shorter[:, 0] == pytest.approx(before[:, 0], abs=1e-5)


def test_pairs_have_no_order():
    known, pairs, scores, x = parts()
    turned = asked_in_numpy(known, pairs[::-1].copy(), scores[:, ::-1].copy(), x)
    assert turned == pytest.approx(asked_in_numpy(known, pairs, scores, x), abs=1e-5)


def test_hard_queries_are_those_that_few_solved_but_somebody_did():
    """Solved by all, none, one, two, one of three; with a hole: the known ones count."""
    scores = np.array([[1, 1, 1], [0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1], [NAN, 1, 0]], dtype=float)
    assert hard_rows(scores).tolist() == [2, 4]
    assert hard_rows(scores[:2]).tolist() == [0, 1]


def test_a_profile_is_spread_over_the_kinds_of_queries():
    table = planted(90)
    x = Planted().encode([q.messages for q in table.queries])
    rows = np.arange(0, 90)
    chosen = spread_out(x, rows, 3, 0)
    assert {table.queries[i].domain for i in chosen} == set(KINDS)
    assert len(set(spread_out(x, rows[:5], 16, 0).tolist())) == 5


def test_forgetting_takes_a_share_of_each_profile_and_never_adds():
    marks = torch.tensor([[1.0, 0.0] * 200, [NAN, 0.5] * 200])
    found = forgotten(marks, 0.5, np.random.default_rng(0))
    kept = ~torch.isnan(found)
    assert torch.equal(found[kept], marks[kept])
    assert 0.4 < kept[0].float().mean() < 1
    assert torch.equal(torch.isnan(forgotten(marks, 0.0, np.random.default_rng(0))), torch.isnan(marks))


def fresh(number):
    return [query(KINDS[i % 3], i) for i in range(3000, 3000 + number)]


def newcomers(queries, agents=AGENTS):
    """Outcomes of ada, bob and cyd, each the expert of one kind, that no router was trained on."""
    return outcomes_of(queries, [[float(q.domain == kind) for kind in KINDS] for q in queries], agents)


def test_agents_never_trained_on_are_routed_by_their_profiles_alone():
    router = reader().with_agents(newcomers(many().queries))
    best = router.predict(fresh(60), POOL).argmax(axis=1)
    assert (best == np.arange(60) % 3).mean() > 0.9
    assert all(
        np.array_equal(router._known.tensors[name], tensor)
        for name, tensor in reader()._known.tensors.items()
        if name not in ("pairs", "scores")
    )


def test_the_routers_own_profile_queries_are_enough_for_a_new_agent():
    """What `profile_queries` names is what to ask it; further outcomes of it change nothing."""
    wanted = reader().profile_queries
    assert len(wanted) == 16
    of = {q.id: q for q in many().queries}
    few = reader().with_agents(newcomers([of[name] for name in wanted]))
    more = reader().with_agents(newcomers(many().queries))
    assert few.predict(fresh(9), POOL) == pytest.approx(more.predict(fresh(9), POOL), abs=1e-5)


def test_outcomes_on_other_queries_make_a_profile_too_as_few_as_there_are():
    router = reader().with_agents(newcomers([query(KINDS[i % 3], i) for i in range(6000, 6009)]))
    marks = router._known.tensors["scores"][-3:]
    assert (~np.isnan(marks)).sum(axis=1).tolist() == [9, 9, 9]
    best = router.predict(fresh(60), POOL).argmax(axis=1)
    assert (best == np.arange(60) % 3).mean() > 0.8


def test_adding_an_agent_leaves_the_others_and_the_old_router_alone(tmp_path):
    names = many().agents
    pool = pool_of(*names)
    before = reader().predict(fresh(9), pool)
    router = reader().with_agents(newcomers(many().queries))
    everyone = router.predict(fresh(9), pool_of(*names, *AGENTS))
    assert everyone[:, [pool_of(*names, *AGENTS).names().index(name) for name in names]] == pytest.approx(
        before, abs=1e-5
    )
    assert np.array_equal(reader().predict(fresh(9), pool), before)
    with pytest.raises(ConfigError, match="other agents"):
        reader().predict(fresh(9), POOL)
    router.save(tmp_path / "w")
    loaded = ICL(encoder=Planted(), weights=str(tmp_path / "w"))
    assert np.array_equal(loaded.predict(fresh(9), POOL), router.predict(fresh(9), POOL))


def test_a_profile_of_the_same_revision_is_replaced_and_one_of_a_new_revision_added():
    """R4: agent00 got worse and is known by its new profile; a newer revision of it is another agent."""
    table = many()
    failing = outcomes_of(table.queries, np.zeros((len(table.queries), 1)), ("agent00",))
    pool = pool_of("agent00")
    sums = [q for q in fresh(30) if q.domain == "sum"]
    assert reader().predict(sums, pool).mean() > 0.8
    replaced = reader().with_agents(failing)
    assert len(replaced._known.keys) == len(table.agents)
    assert replaced.predict(sums, pool).mean() < 0.5
    newer = reader().with_agents(replace(failing, revisions={"agent00": "newer"}))
    assert len(newer._known.keys) == len(table.agents) + 1
    assert newer.predict(sums, pool).mean() > 0.8
    assert newer.predict(sums, pool_of("agent00", revisions={"agent00": "newer"})).mean() < 0.5


def test_no_outcomes_make_no_profile():
    with pytest.raises(DataError, match="no outcomes"):
        reader().with_agents(outcomes_of(many().queries, np.full((150, 3), NAN)))


def test_an_agent_that_was_down_on_the_whole_profile_is_answered_from_the_query_alone():
    """R23."""
    table = many()
    scores = table.scores.copy()
    rows = [i for i, q in enumerate(table.queries) if q.id in reader().profile_queries]
    scores[rows, 0] = NAN
    router = ICL(encoder=Planted(), profile=16, width=16, steps=10, cells=64).fit(replace(table, scores=scores))
    found = router.predict(fresh(9), pool_of(*table.agents))
    assert np.isfinite(found).all()
    assert (found[:, 0] > 0).all()


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(ConfigError, match="width"):
        build("router", {"use": "icl", "encoder": Planted(), "width": 30})


def test_one_query_and_many_are_answered_alike():
    """Queries are taken in blocks: more than one block gives what one by one gives."""
    asked = fresh(300)
    pool = pool_of(*many().agents)
    table = reader().predict(asked, pool)
    for i in (0, 255, 256, 299):
        routing = reader().route(state_of(asked[i], pool))
        assert list(routing.scores.values()) == pytest.approx(table[i].tolist(), abs=1e-5)
