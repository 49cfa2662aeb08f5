"""Trees over layout and content: planted structure is learnt, missing is missing, the walk is sklearn's."""

import builtins
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from planted import AGENTS, KINDS, POOL, Planted, outcomes_of, planted, pool_of, query, state_of
from sklearn.ensemble import ExtraTreesRegressor

from coterie.config import build
from coterie.errors import ConfigError, MissingExtra
from coterie.routers.forest import Forest, principal
from coterie.routers.forest_fit import Plan, grow
from coterie.types import Message, Query, draw

TABLE = planted()
FRESH = [query(KINDS[i % 3], i) for i in range(2000, 2060)]
NAN = float("nan")


def bare(**more):
    return Forest(**{"encoder": Planted(), "trees": 20, **more})


@cache
def ready():
    """Fitted once: no test changes a router."""
    return bare().fit(TABLE)


def right(router, pool=POOL):
    best = router.predict(FRESH, pool).argmax(axis=1)
    return np.mean([pool.names()[i] == AGENTS[KINDS.index(q.domain)] for i, q in zip(best, FRESH, strict=True)])


# --- what is learnt -----------------------------------------------------------------------------------


def test_planted_experts_are_found_by_content():
    assert right(ready()) > 0.95
    found = ready().predict(FRESH, POOL)
    assert found.min() >= 0
    assert found.max() <= 1


def test_experts_that_only_the_layout_tells_are_found():
    """Words say nothing here (no components): who is right hangs on how the question is laid out."""

    def laid_out(number, open_ended):
        text = f"topic {number}\n\nA. yes\nB. no" if not open_ended else f"topic {number}?"
        return Query(id=f"q{number}", messages=(Message(role="user", content=text),))

    queries = [laid_out(i, i % 2) for i in range(120)]
    table = outcomes_of(queries, [[i % 2, 1 - i % 2] for i in range(120)], ("ada", "bob"))
    router = Forest(trees=10, components=0).fit(table)
    found = router.predict([laid_out(i, i % 2) for i in range(500, 540)], pool_of("ada", "bob"))
    assert (found.argmax(axis=1) == [1 - i % 2 for i in range(500, 540)]).all()


def test_shuffled_outcomes_teach_nothing():
    rows = np.random.default_rng(0).permutation(len(TABLE.queries))
    assert right(bare().fit(replace(TABLE, scores=TABLE.scores[rows]))) < 0.7


def test_agents_in_another_order_give_the_same_scores():
    """R6: in the pool, and in the outcomes that were fitted on."""
    assert np.array_equal(ready().predict(FRESH, pool_of(*AGENTS[::-1])), ready().predict(FRESH, POOL))
    order = [2, 0, 1]
    turned = replace(TABLE, agents=tuple(AGENTS[i] for i in order), scores=TABLE.scores[:, order])
    assert np.allclose(bare().fit(turned).predict(FRESH, POOL), ready().predict(FRESH, POOL), atol=1e-6)


def test_an_agent_that_was_down_on_half_is_ranked_by_the_other_half():
    """A missing outcome is missing, never a wrong answer: the same on queries of the same kind, seen or not."""
    scores = TABLE.scores.copy()
    scores[::2, 0] = NAN
    holed = bare(seed=3).fit(replace(TABLE, scores=scores))
    assert right(holed) > 0.9
    sums = [q for q in FRESH if q.domain == "sum"]
    with_all, with_half = (router.predict(sums, POOL)[:, 0].mean() for router in (ready(), holed))
    assert with_half > with_all - 0.15


def test_a_leaf_without_outcomes_of_an_agent_gives_its_mean():
    scores = TABLE.scores.copy()
    poems = [i for i, q in enumerate(TABLE.queries) if q.domain == "poem"]
    scores[poems, 0] = NAN  # ada was never asked for a poem; it solved half of the rest
    found = (
        bare(prior=0.5).fit(replace(TABLE, scores=scores)).predict([q for q in FRESH if q.domain == "poem"], POOL)
    )
    assert found[:, 0].mean() == pytest.approx(0.5, abs=0.08)
    assert (found.argmax(axis=1) == 1).all()


def test_a_prior_pulls_thin_leaves_to_the_mean():
    loose, tight = (bare(prior=prior).fit(TABLE).predict(FRESH, POOL) for prior in (0.0, 50.0))
    means = np.nanmean(TABLE.scores, axis=0)
    assert np.abs(tight - means).mean() < 0.5 * np.abs(loose - means).mean()


def test_an_agent_without_any_outcome_is_not_known():
    scores = TABLE.scores.copy()
    scores[:, 2] = NAN
    found = bare().fit(replace(TABLE, scores=scores)).predict(FRESH, POOL)
    assert (found[:, 2] == 0).all()


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_very_few_queries_fit(rows):
    found = bare().fit(TABLE.take(range(rows))).predict(FRESH, POOL)
    assert np.isfinite(found).all()


# --- the same again -----------------------------------------------------------------------------------


def test_the_same_outcomes_give_the_same_trees_and_another_seed_others():
    again, other = bare().fit(TABLE)._known.tensors, bare(seed=1).fit(TABLE)._known.tensors
    mine = ready()._known.tensors
    assert all(np.array_equal(mine[name], again[name]) for name in mine)
    assert not np.array_equal(mine["threshold"], other["threshold"])


def test_what_was_saved_predicts_the_same_bit_for_bit(tmp_path):
    path = tmp_path / "forest.safetensors"
    ready().save(path)
    loaded = build("router", {"use": "forest", "encoder": Planted(), "weights": path.name}, base=tmp_path)
    assert np.array_equal(loaded.predict(FRESH, POOL), ready().predict(FRESH, POOL))
    assert loaded.route(state_of(FRESH[0])) == ready().route(state_of(FRESH[0]))


def test_weights_of_other_features_or_agents_are_refused(tmp_path):
    """R4."""
    path = str(tmp_path / "forest.safetensors")
    ready().save(path)
    with pytest.raises(ConfigError, match="fitted on features of planted"):
        Forest(weights=path).predict(FRESH, POOL)
    with pytest.raises(ConfigError, match="the encoder gives 7"):
        bare(encoder=Planted(width=7), weights=path).predict(FRESH, POOL)
    with pytest.raises(ConfigError, match="other agents or revisions"):
        bare(weights=path).predict(FRESH, pool_of(*AGENTS, revisions=dict.fromkeys(AGENTS, "new")))
    with pytest.raises(ConfigError, match="not fitted"):
        bare().predict(FRESH, POOL)


def test_weights_over_another_layout_are_refused(tmp_path, monkeypatch):
    """R4: a later version that lays questions out in other columns never reads these."""
    path = str(tmp_path / "forest.safetensors")
    ready().save(path)
    monkeypatch.setattr("coterie.features.layout.Layout.identity", property(lambda self: "layout:2:80"))
    with pytest.raises(ConfigError, match="layout"):
        bare(weights=path).predict(FRESH, POOL)


def test_fit_needs_scikit_learn_and_asking_does_not(tmp_path, monkeypatch):
    path = str(tmp_path / "forest.safetensors")
    ready().save(path)
    expected, real = ready().predict(FRESH, POOL), builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "sklearn":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "coterie.routers.forest_fit")
    with pytest.raises(MissingExtra, match=r"coterie\[routers\]"):
        bare().fit(TABLE)
    assert np.array_equal(bare(weights=path).predict(FRESH, POOL), expected)


# --- against the library ------------------------------------------------------------------------------


def test_our_walk_ends_in_sklearns_leaves_and_gives_its_scores():
    """Without missing outcomes and prior a leaf's mean is sklearn's own value."""
    random = np.random.default_rng(5)
    plan = Plan(trees=7, leaf=3, share=0.5, prior=0.0, seed=11)
    x = random.normal(size=(200, 9)).astype(np.float32)
    y = (random.uniform(size=(200, 4)) < 0.5).astype(float)
    library = ExtraTreesRegressor(
        n_estimators=7, min_samples_leaf=3, max_features=0.5, random_state=draw(11, "forest") % 2**32
    ).fit(x, y)
    tensors = grow(x, y, plan)
    ask = random.normal(size=(500, 9)).astype(np.float32)
    nodes = walked(tensors, ask)
    assert np.array_equal(nodes - tensors["roots"], library.apply(ask))
    assert np.allclose(tensors["values"][nodes].mean(axis=1), library.predict(ask), atol=1e-6)


def walked(tensors, rows):
    """Node by node, as the router does it for many at once."""
    found = np.zeros((len(rows), len(tensors["roots"])), dtype=int)
    for i, row in enumerate(rows):
        for tree, node in enumerate(tensors["roots"]):
            while tensors["left"][node] >= 0:
                side = "left" if row[tensors["feature"][node]] <= tensors["threshold"][node] else "right"
                node = tensors[side][node]
            found[i, tree] = node
    return found


def test_the_router_walks_as_by_hand():
    known = ready()._known
    rows = ready()._inputs(FRESH, Planted().encode([q.messages for q in FRESH]), known.tensors)
    assert np.array_equal(ready().leaves(FRESH), walked(known.tensors, rows))


def test_components_are_the_directions_of_largest_variance():
    random = np.random.default_rng(2)
    x = (random.normal(size=(300, 5)) * [5, 1, 3, 0.1, 0.5]).astype(np.float32)
    space = principal(x, 3)
    assert space["axes"].shape == (5, 3)
    assert np.allclose(space["axes"].T @ space["axes"], np.eye(3), atol=1e-5)
    assert np.abs(space["axes"]).argmax(axis=0).tolist() == [0, 2, 1]
    assert (space["axes"].max(axis=0) > 0.9).all(), "the largest coordinate is positive"
    projected = ((x - space["centre"]) @ space["axes"]).var(axis=0)
    assert (np.diff(projected) < 0).all()


def test_more_components_than_there_are_give_all():
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    assert principal(x, 60)["axes"].shape == (6, 3)
    assert principal(x[:1], 60)["axes"].shape == (6, 0)


def test_without_layout_the_encoding_alone_is_read():
    """What only the layout tells is found with it, and cannot be without it."""

    def laid_out(number):
        text = f"topic {number}?" if number % 2 else f"topic {number}\n\nA. yes\nB. no"
        return Query(id=f"q{number}", messages=(Message(role="user", content=text),))

    table = outcomes_of([laid_out(i) for i in range(120)], [[i % 2, 1 - i % 2] for i in range(120)], ("ada", "bob"))
    asked, pool = [laid_out(i) for i in range(500, 540)], pool_of("ada", "bob")
    found = Forest(encoder=Blind(), trees=5).fit(table).predict(asked, pool)
    assert (found.argmax(axis=1) == [1 - i % 2 for i in range(500, 540)]).all()
    blind = Forest(encoder=Blind(), trees=5, layout=False).fit(table).predict(asked, pool)
    assert np.ptp(blind, axis=0).max() == 0


class Blind:
    """An encoder that sees nothing."""

    def encode(self, prompts):
        return np.zeros((len(prompts), 4), dtype=np.float32)
