"""Matrix factorisation: its product and its loss by hand, and what each agent's level is for."""

import numpy as np
import pytest
import torch
from planted import POOL, Planted, outcomes_of, planted, query

from coterie.routers.descent import cross_entropy
from coterie.routers.factorisation import MatrixFactorisation, products, sigmoid

NAN = float("nan")


def test_product_by_hand():
    """Query (1, 2), W = [[1, 0], [0, 3]], b = (0, 1): inside (1, 7). Agents (1, 0) and (0, 1), levels 0 and -7."""
    tensors = {
        "project": np.array([[1.0, 0.0], [0.0, 3.0]]),
        "shift": np.array([0.0, 1.0]),
        "agents": np.eye(2),
        "levels": np.array([0.0, -7.0]),
    }
    found = products(tensors, np.array([[1.0, 2.0]]))
    assert found.tolist() == [[1.0, 0.0]]
    assert sigmoid(found)[0] == pytest.approx([1 / (1 + np.exp(-1)), 0.5])
    assert sigmoid(np.array([-1e4, 1e4])).tolist() == [0, 1]


def test_cross_entropy_by_hand():
    """Logits 0: log 2 whatever the score; a sure and right logit costs nothing; a missing cell does not count.

    A graded score of 0.25 at logit log(1/3), its own log-odds, costs its entropy: 0.5623.
    """
    flat = torch.zeros(1, 3)
    assert cross_entropy(flat, torch.tensor([[1.0, 0.3, NAN]])).item() == pytest.approx(np.log(2))
    assert cross_entropy(torch.tensor([[40.0, 5.0]]), torch.tensor([[1.0, NAN]])).item() == pytest.approx(0)
    graded = cross_entropy(torch.tensor([[np.log(1 / 3)]]), torch.tensor([[0.25]]))
    assert graded.item() == pytest.approx(0.5623, abs=1e-4)
    assert cross_entropy(flat, torch.full((1, 3), NAN)).item() == 0


def test_predictions_are_probabilities_of_graded_scores():
    """An agent that always gets a quarter of the points is predicted at about a quarter."""
    table = planted()
    scores = np.tile([0.25, 0.75, 0.5], (len(table.queries), 1))
    router = MatrixFactorisation(encoder=Planted(), width=8).fit(outcomes_of(table.queries, scores))
    found = router.predict([query("sum", i) for i in range(3000, 3040)], POOL)
    assert found.mean(axis=0) == pytest.approx([0.25, 0.75, 0.5], abs=0.07)


def test_early_stopping_keeps_the_epoch_that_validates_best():
    """Without validation the last epoch stays, and other weights come out."""
    table = planted(60)
    stopped, last = (
        MatrixFactorisation(encoder=Planted(), width=8, epochs=25, validation=share).fit(table)._known.tensors
        for share in (0.3, 0.0)
    )
    assert not np.allclose(stopped["agents"], last["agents"])
