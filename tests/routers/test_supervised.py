"""kNN and MLP: they find a planted expert and treat missing outcomes as missing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from planted import AGENTS, KINDS, Planted, outcomes_of, planted, pool_of, query, state_of

from coterie.errors import ConfigError
from coterie.routers.network import loss_of
from coterie.routers.supervised import KNN, MLP, nearest

NAN = float("nan")


def accuracy(router):
    asked = [(KINDS[i % 3], i) for i in range(2000, 2060)]
    return np.mean([router.route(state_of(query(*q))).ranked()[0] == AGENTS[KINDS.index(q[0])] for q in asked])


@pytest.mark.parametrize(
    "router",
    [
        KNN(encoder=Planted()),
        KNN(encoder=Planted(), standardise=True, k=5),
        *(MLP(encoder=Planted(), objective=objective) for objective in ("best", "share", "reward")),
    ],
    ids=["knn", "knn-raw", "best", "share", "reward"],
)
def test_a_planted_expert_is_found(router):
    """Bob's lucky third of the sums must not win the sums."""
    assert accuracy(router.fit(planted())) > 0.95


class Line:
    """The number of a question is its one feature, beside a constant."""

    identity = "line"

    def encode(self, prompts):
        return np.array([[int(p[-1].content.split()[1]), 1.0] for p in prompts], dtype=np.float32)


def test_knn_averages_the_nearest_by_hand():
    """Features (n, 1) by cosine: of 0, 1, 2, 50 the nearest two to 1 are 1 and 2."""
    table = outcomes_of(
        [query("sum", n) for n in (0, 1, 2, 50)], [[1, 0, 0], [0.5, 1, 0], [0.5, 0, NAN], [0, 0, 1]]
    )
    router = KNN(encoder=Line(), k=2).fit(table)
    routing = router.route(state_of(query("sum", 1)))
    assert routing.scores == pytest.approx({"ada": 0.5, "bob": 0.5, "cyd": 0.0})
    assert routing.info["nearest"] == pytest.approx(1)
    far = router.route(state_of(query("sum", 60)))  # nearest: 50 and 2; cyd has an outcome of the first only
    assert far.scores == pytest.approx({"ada": 0.25, "bob": 0.0, "cyd": 1.0})


def test_knn_falls_back_to_the_mean_where_no_neighbour_has_an_outcome():
    """R23."""
    table = outcomes_of([query("sum", n) for n in (0, 1, 50)], [[1, 0, NAN], [1, 1, NAN], [0, 0, 0.75]])
    router = KNN(encoder=Line(), k=2).fit(table)
    assert router.route(state_of(query("sum", 1))).scores["cyd"] == pytest.approx(0.75)


def test_more_neighbours_than_queries_is_the_mean():
    table = planted(12)
    assert KNN(encoder=Planted(), k=99).fit(table).route(state_of(query("sum", 1))).scores == pytest.approx(
        table.means()
    )


@pytest.mark.parametrize("k", [1, 3, 29, 30, 99])
@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_the_nearest_are_those_of_a_stable_sort_with_any_number_of_ties(k, levels):
    near = np.random.default_rng(k * levels).integers(levels, size=(40, 30)) / levels
    assert nearest(near, k).tolist() == np.argsort(-near, axis=1, kind="stable")[:, :k].tolist()


def test_losses_by_hand():
    """Logits 0 for three agents: -log p = log 3, whatever the target; an unsolved query costs nothing.

    reward: outputs 0.5, scores (1, 0, missing): (0.25 + 0.25) / 2 known cells.
    """
    flat = torch.zeros(2, 3)
    scores = torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.0, 0.0]])
    assert loss_of(flat, scores, "best").item() == pytest.approx(np.log(3))
    assert loss_of(flat, scores, "share").item() == pytest.approx(np.log(3))
    sure = torch.tensor([[10.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert loss_of(sure, scores, "best").item() == pytest.approx(9.08e-5, rel=1e-2)
    assert loss_of(sure, scores, "share").item() == pytest.approx(
        10 / 3, rel=1e-3
    )  # a third of the mass is at logit 0
    half = torch.full((1, 3), 0.5)
    assert loss_of(half, torch.tensor([[1.0, 0.0, NAN]]), "reward").item() == pytest.approx(0.25)


def test_missing_outcomes_do_not_teach_the_regression():
    """R23: where ada was down she is not learnt to fail."""
    table = planted()
    scores = table.scores.copy()
    scores[::2, 0] = NAN
    router = MLP(encoder=Planted()).fit(replace(table, scores=scores))
    assert accuracy(router) > 0.95
    sums = [router.route(state_of(query("sum", i))).scores["ada"] for i in range(3000, 3010)]
    assert np.mean(sums) > 0.75


def test_the_same_outcomes_give_the_same_network():
    one, other = (MLP(encoder=Planted()).fit(planted())._known.tensors for _ in range(2))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_training_without_a_validation_share_keeps_the_last_epoch():
    assert accuracy(MLP(encoder=Planted(), validation=0.0, epochs=30).fit(planted())) > 0.95


def test_weights_that_read_other_features_are_refused(tmp_path):
    MLP(encoder=Planted()).fit(planted()).save(tmp_path / "w")
    with pytest.raises(ConfigError, match="24 features, the encoder gives 7"):
        MLP(encoder=Planted(width=7), weights=str(tmp_path / "w")).route(state_of(query("sum", 1)))
    with pytest.raises(ConfigError, match="weights of mlp"):
        KNN(encoder=Planted(), weights=str(tmp_path / "w")).route(state_of(query("sum", 1), pool_of(*AGENTS)))
