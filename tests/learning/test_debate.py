"""MAPoRL: who sees what, what an answer is worth, what a critic makes of it."""

import math

import numpy as np
import pytest
from test_peers import course  # noqa: F401 - a fixture

from coterie.learning.debate import credited
from coterie.learning.learner import Step


def test_an_answer_is_worth_its_verdict_and_what_the_company_makes_of_it_later():
    """papers.md section 5, by hand: three agents, three turns, g = 0.3."""
    verdicts = np.array([[[1.0], [0.0], [0.0]], [[1.0], [1.0], [0.0]], [[1.0], [1.0], [1.0]]])
    found = credited(verdicts, 0.3)[..., 0]
    later = 0.3 * 2 / 3 + 0.09 * 1
    assert found[0] == pytest.approx([(v + later) / 1.39 for v in (1, 0, 0)])
    assert found[1] == pytest.approx([(v + 0.3) / 1.3 for v in (1, 1, 0)])
    assert found[2] == pytest.approx([1, 1, 1])
    assert credited(verdicts, 0.0) == pytest.approx(verdicts)


def test_no_verdict_is_never_a_wrong_answer():
    nan = math.nan
    verdicts = np.array([[[1.0, 1.0], [nan, 0.0]], [[nan, nan], [1.0, nan]]])
    found = credited(verdicts, 0.5)
    assert found[0, 0] == pytest.approx([1.0, 1.0])  # the last turn has a mean of 1, or nobody has a verdict
    assert math.isnan(found[0, 1, 0])
    assert found[0, 1, 1] == 0
    assert np.isnan(found[1]).tolist() == [[True, True], [False, True]]


def test_advantages_are_against_the_critic_or_the_other_debates(course, monkeypatch):  # noqa: F811
    """The critic sees the prompt alone, learns every round, and what it expected is no gain."""
    one = course("critic", loss={"scale_by_std": False})
    taught = {}

    def teach(said, gains, clock):
        taught.update(gains)
        return {name: [] for name in one.names}

    monkeypatch.setattr(one, "_teach", teach)
    worth = np.array([[0.1, 0.4, 0.0], [0.2, 0.3, 0.0], [0.3, 0.2, 0.0], [0.4, 0.1, 0.0]])
    earned, gains_of = np.array([[1.0, 0.0], [0.5, 1.0]]), one._gains
    monkeypatch.setattr(one.critic, "familiarity", lambda features: worth)
    monkeypatch.setattr(one, "_gains", lambda said, rewards: gains_of(said, dict.fromkeys(rewards, earned)))
    before = one.critic.updates
    one.round()
    assert one.critic.updates == before + 2
    by_hand = (  # each answer's reward less what it was expected to be, less their mean: 0.375, 0.375, 0.625
        [0.525, -0.575, -0.175, 0.225],
        [0.225, -0.675, -0.075, 0.525],
        [0.375, -0.625, -0.125, 0.375],
    )
    for name, gains in zip(one.critic.agents, by_hand, strict=True):
        assert taught[name].shape == (2 * 2, 1)
        assert taught[name].ravel() == pytest.approx(gains, abs=1e-6)
    group = course("debates")
    monkeypatch.setattr(group, "_teach", teach)
    group.round()
    for gains in taught.values():
        assert gains.shape == (2 * 2 * 3, 1)
        assert np.nansum(gains.reshape(-1, 3), axis=1) == pytest.approx(np.zeros(4), abs=1e-6)


def test_the_critic_learns_what_answers_are_worth(course):  # noqa: F811
    """Its error on what it was told falls: a baseline that knows nothing would not be one."""
    one = course("critic")
    names, features = one.names, np.eye(32, dtype=np.float32)[:8]
    rewards = {name: np.tile([0.0, 1.0], 4) for name in names}

    def error():
        worth = one.critic.familiarity(features)
        return float(np.mean((worth - np.tile([0.0, 1.0], 4)[:, None]) ** 2))

    before = error()
    table = np.stack([rewards[name] for name in names], axis=1)
    for _ in range(150):
        one.critic.step(features, table, np.zeros(8, dtype=bool))
    assert error() < before / 4


def test_agents_learn_from_every_turn(course, monkeypatch):  # noqa: F811
    one = course("debates", strategy={"use": "debate", "rounds": 3})
    seen = {}

    def step(name, found, clock, gains=None):
        seen[name] = (len(found), gains.shape)
        return (Step(outcome="empty", lr=0.0, norm=0.0),)

    monkeypatch.setattr(one, "_step", step)
    one.round()
    assert seen == dict.fromkeys(one.names, (18, (18, 1)))
