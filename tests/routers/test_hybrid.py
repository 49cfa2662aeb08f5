"""HybridLLM: whom it pairs, what it learns, and that its scores follow the rule."""

from dataclasses import replace

import numpy as np
import pytest
from planted import AGENTS, POOL, Planted, outcomes_of, planted, pool_of, query, state_of

from coterie.errors import ConfigError, DataError
from coterie.routers.hybrid import HybridLLM, split

NAN = float("nan")
TABLE = planted()


def hybrid(**more):
    return HybridLLM(**{"encoder": Planted(), "epochs": 40, "layers": (16,), **more})


def costing(costs=(NAN,) * 3, tokens=(NAN,) * 3, table=TABLE):
    """The table with these costs and tokens on every query."""
    shape = (len(table.queries), 1)
    return replace(table, costs=np.tile(costs, shape), tokens=np.tile(tokens, shape))


def pair(table, **more):
    return hybrid(epochs=1, **more).fit(table)._known.names


def test_small_where_it_does_as_well_and_large_elsewhere():
    """Ada (small) solves sums, bob (large) poems and a third of the sums, neither code: a tie is 1/2."""
    router = hybrid(small="ada", large="bob").fit(TABLE)
    for kind, agent in (("sum", "ada"), ("poem", "bob")):
        for number in range(3000, 3010):
            routing = router.route(state_of(query(kind, number)))
            assert routing.ranked()[0] == agent
            assert routing.scores["cyd"] == 0
    ties = router.predict([query("code", i) for i in range(3000, 3020)], POOL)
    assert ties[:, 0].mean() == pytest.approx(0.5, abs=0.1)


def test_labels_by_hand():
    """Where small is always ahead by 0.1 the label is sigmoid(1) = 0.731, and so is the mean prediction."""
    scores = np.tile([0.6, 0.5, NAN], (120, 1))
    router = hybrid(small="ada", large="bob", epochs=200).fit(outcomes_of(TABLE.queries, scores))
    found = router.predict([query("sum", i) for i in range(3000, 3030)], POOL)
    assert found[:, 0].mean() == pytest.approx(1 / (1 + np.exp(-1)), abs=0.05)


def test_scores_cross_at_the_threshold_where_the_small_one_is_ahead():
    said = np.array([0.0, 0.4, 0.79, 0.8, 0.9, 1.0])
    small, large = split(said, 0.8).T
    assert (small >= 0).all()
    assert (large >= 0).all()
    assert (small > large).tolist() == [False, False, False, True, True, True]
    assert small == pytest.approx([0, 0.25, 0.49375, 0.5, 0.75, 1])
    assert small + large == pytest.approx(np.ones(6))
    assert (np.diff(split(np.linspace(0, 1, 50), 0.3)[:, 0]) > 0).all()
    small, large = split(said, 0.0).T
    assert (small > large).all()


def test_a_higher_threshold_asks_the_large_one_more():
    asked = [query(("sum", "poem", "code")[i % 3], i) for i in range(3000, 3060)]
    shares = [
        (router.predict(asked, POOL)[:, 0] > 0.5).mean()
        for router in (hybrid(small="ada", large="bob", threshold=t).fit(TABLE) for t in (0.05, 0.5, 0.98))
    ]
    assert shares[0] >= shares[1] >= shares[2]
    assert shares[0] > 0.6
    assert shares[2] < 0.1


def test_the_pair_is_the_cheapest_and_the_best():
    """Bob has the best mean (a third of the sums besides the poems)."""
    assert pair(costing((3, 2, 1))) == ("cyd", "bob")
    assert pair(costing((1, 2, 3))) == ("ada", "bob")


def test_where_the_cheapest_is_the_best_the_best_of_the_others_is_large():
    scores = TABLE.scores.copy()
    scores[0, 2] = 1.0  # cyd is ahead of ada
    assert pair(costing((2, 1, 3), table=replace(TABLE, scores=scores))) == ("bob", "cyd")


def test_an_unknown_cost_is_never_cheapest_and_tokens_stand_in_where_none_is_known():
    assert pair(costing((NAN, 2, 1))) == ("cyd", "bob")
    assert pair(costing((5, 9, NAN))) == ("ada", "bob")
    assert pair(costing(tokens=(900, 100, 50))) == ("cyd", "bob")
    scores = TABLE.scores.copy()
    scores[0, 2] = 1.0
    assert pair(costing(table=replace(TABLE, scores=scores))) == ("cyd", "bob")  # the second best


def test_one_name_given_leaves_the_other_to_the_rule():
    assert pair(costing((3, 2, 1)), large="ada") == ("cyd", "ada")
    assert pair(costing((3, 2, 1)), small="bob")[0] == "bob"
    assert pair(costing((3, 1, 2)), large="bob") == ("cyd", "bob")


def test_a_pair_that_cannot_be_is_refused_in_one_line():
    for more in ({"small": "eve"}, {"large": "adda"}):
        with pytest.raises(ConfigError, match="no outcomes of the agent"):
            hybrid(**more).fit(TABLE)
    with pytest.raises(ConfigError, match="did you mean 'ada'"):
        hybrid(large="adda").fit(TABLE)
    with pytest.raises(ConfigError, match="one agent"):
        hybrid(small="ada", large="ada").fit(TABLE)


def test_queries_that_one_of_the_pair_has_no_outcome_of_are_left_out():
    """R23: ada's outages are no failures; without a common query there is nothing to learn from."""
    scores = TABLE.scores.copy()
    scores[::2, 0] = NAN
    router = hybrid(small="ada", large="bob", epochs=200).fit(replace(TABLE, scores=scores))
    sums = router.predict([query("sum", i) for i in range(3000, 3020)], POOL)
    assert (sums[:, 0] > sums[:, 1]).mean() > 0.9
    scores = TABLE.scores.copy()
    scores[::2, 0], scores[1::2, 1] = NAN, NAN
    with pytest.raises(DataError, match="both ada and bob"):
        hybrid(small="ada", large="bob").fit(replace(TABLE, scores=scores))


def test_a_pool_with_neither_of_the_pair_is_refused():
    router = hybrid(small="ada", large="bob").fit(TABLE)
    with pytest.raises(ConfigError, match="other agents"):
        router.route(state_of(query("sum", 1), pool_of("cyd")))
    assert router.route(state_of(query("sum", 1), pool_of("bob", "cyd"))).ranked()[0] == "bob"


def test_names_of_one_revision_are_one_agent():
    """Two names of one revision are merged: their costs are averaged, and either name picks them."""
    revisions = {"ada": "same", "bob": "rev-bob", "cyd": "same"}
    table = costing((1, 5, 3), table=outcomes_of(TABLE.queries, TABLE.scores, AGENTS, revisions))
    assert pair(table) == ("ada+cyd", "bob")
    assert hybrid(small="cyd", epochs=1).fit(table)._known.keys == ("same", "rev-bob")
    assert hybrid(small="bob", epochs=1).fit(table)._known.keys == ("rev-bob", "same")
