"""RouterDC's losses by hand, whom they compare, and what RouteMoA's scorer says."""

import numpy as np
import pytest
import torch
from planted import POOL, Planted, outcomes_of, planted, query

from coterie.routers.clusters import k_means
from coterie.routers.columns import columns_of, ranks
from coterie.routers.contrast import agent_contrast, companions_of, query_contrast
from coterie.routers.contrastive import RouteMoA, RouterDC

NAN = float("nan")


def contrast(logits, scores, best=3, worst=3, ceiling=0.5):
    """The loss of one query."""
    scores = np.array([scores], dtype=float)
    rank = torch.from_numpy(ranks(scores, [str(i) for i in range(scores.shape[1])], 0))
    given = torch.tensor([logits], dtype=torch.float32, requires_grad=True)
    loss = agent_contrast(given, torch.from_numpy(scores).float(), rank, best, worst, ceiling)
    loss.backward()
    return loss.item(), given.grad[0].tolist()


def test_agent_contrast_by_hand():
    """One good agent at logit log 2, two bad at 0: -log(2 / (2 + 1 + 1)) = log 2."""
    assert contrast([np.log(2), 0, 0], [1, 0, 0])[0] == pytest.approx(np.log(2))


def test_two_good_agents_are_each_held_against_the_bad_one_and_not_against_each_other():
    """log(1 + 1) for each of the two: 2 log 2. The gradient pulls both alike and pushes the bad one."""
    loss, slope = contrast([0, 0, 0], [1, 0.9, 0])
    assert loss == pytest.approx(2 * np.log(2))
    assert slope == pytest.approx([-0.5, -0.5, 1.0])


@pytest.mark.parametrize(
    "scores",
    [[1, 1, 1], [0, 0, 0], [1, NAN, NAN], [1, 0.9, 0.8]],
    ids=["all solved", "none solved", "others missing", "none below the ceiling"],
)
def test_a_query_that_tells_no_agents_apart_costs_nothing(scores):
    assert contrast([3, -1, 2], scores) == (0.0, [0.0, 0.0, 0.0])


def test_a_missing_agent_is_neither_good_nor_bad():
    """R23."""
    loss, slope = contrast([np.log(2), 0, 50], [1, 0, NAN])
    assert loss == pytest.approx(np.log(1.5))
    assert slope[2] == 0


def test_only_the_best_and_the_worst_are_compared():
    """best = 1: 0.8 is no longer pulled; worst = 1: 0.2 is no longer pushed."""
    _, slope = contrast([0, 0, 0, 0], [1, 0.8, 0.2, 0], best=1, worst=1)
    assert slope == pytest.approx([-0.5, 0, 0, 0.5])


def test_a_partial_score_stands_against_lower_ones_alone():
    """Three scores, all among the best and the worst: 0.4 against 0.3 and 0.2, 0.3 against 0.2: log 3 + log 2."""
    assert contrast([0, 0, 0], [0.4, 0.3, 0.2])[0] == pytest.approx(np.log(6))


def test_query_contrast_by_hand():
    """Cosine 1 with its companion, 0 with the stranger: -log(e / (e + 1)); one of its cluster is no stranger."""
    inside, friends = torch.eye(2), 3 * torch.eye(2)
    apart = torch.eye(2, dtype=torch.bool)
    assert query_contrast(inside, friends, apart).item() == pytest.approx(-np.log(np.e / (np.e + 1)))
    assert query_contrast(inside, friends, torch.ones(2, 2, dtype=torch.bool)).item() == 0


def test_companions_are_other_queries_of_the_cluster():
    labels = np.array([0, 1, 0, 2, 1, 0])
    for seed in range(20):
        rows = np.array([0, 1, 2, 3, 4, 5, 0])
        found = companions_of(rows, labels, np.random.default_rng(seed))
        assert (labels[found] == labels[rows]).all()
        assert [row == friend for row, friend in zip(rows, found, strict=True)] == [row == 3 for row in rows]
    drawn = {int(companions_of(np.array([0]), labels, np.random.default_rng(seed))[0]) for seed in range(20)}
    assert drawn == {2, 5}


def test_k_means_finds_the_kinds():
    """Three far clusters; the same seed gives the same labels; never more clusters than queries that differ."""
    table = planted(60)
    x = Planted().encode([q.messages for q in table.queries])
    labels = k_means(x, 3, 0)
    assert len({(q.domain, label) for q, label in zip(table.queries, labels.tolist(), strict=True)}) == 3
    assert np.array_equal(labels, k_means(x, 3, 0))
    assert set(k_means(np.ones((5, 2)), 3, 0)) == {0}
    assert sorted(set(k_means(x[:4], 9, 0).tolist())) == [0, 1, 2, 3]


def test_ranks_put_the_best_first_the_missing_last_and_draw_between_equal_ones():
    """Equal agents come first about equally often, and a draw belongs to the agent, not to its column."""
    scores = np.tile([1.0, 1.0, 0.0, NAN], (400, 1))
    rank = ranks(scores, ["a", "b", "c", "d"], 0)
    assert (rank[:, 2] == 2).all()
    assert (rank[:, 3] == 3).all()
    assert 0.4 < (rank[:, 0] == 0).mean() < 0.6
    turned = ranks(scores[:, [1, 0, 2, 3]], ["b", "a", "c", "d"], 0)
    assert np.array_equal(turned, rank[:, [1, 0, 2, 3]])


def test_columns_come_in_the_order_of_their_keys_without_queries_that_nobody_has_an_outcome_of():
    table = outcomes_of([query("sum", i) for i in range(3)], [[1, 0.5, 0], [NAN] * 3, [0, NAN, 1]], ("z", "m", "a"))
    found = columns_of(table)
    assert found.names == ("a", "m", "z")
    assert found.keys == ("rev-a", "rev-m", "rev-z")
    assert found.queries == ("sum-0", "sum-2")
    assert np.array_equal(found.scores, [[0, 0.5, 1], [1, NAN, 0]], equal_nan=True)


def test_router_dc_gives_shares():
    found = RouterDC(encoder=Planted(), width=8).fit(planted()).predict([query("sum", 1), query("code", 2)], POOL)
    assert found.sum(axis=1) == pytest.approx([1, 1])


def test_clusters_change_what_router_dc_learns():
    with_queries, without = (
        RouterDC(encoder=Planted(), width=8, query_weight=weight).fit(planted())._known.tensors
        for weight in (1.0, 0.0)
    )
    assert not np.allclose(with_queries["project"], without["project"])


def test_route_moa_stays_a_probability_under_the_contrast():
    """The contrast alone moves all scores of a query at will: cross-entropy keeps them near the shares solved."""
    table = planted()
    router = RouteMoA(encoder=Planted(), width=8, contrast=0.3).fit(table)
    found = router.predict([query("sum", i) for i in range(3000, 3040)], POOL).mean(axis=0)
    assert found[0] > 0.8
    assert found[1] == pytest.approx(1 / 3, abs=0.2)
    assert found[2] < 0.2
