"""The simulated world: what practice teaches and costs, and that everything is drawn from seeds."""

import numpy as np
import pytest

from coterie.learning.students import Items, Students, World, items, voted


def easy(domain, count=16):
    return Items(
        features=np.zeros((count, 4), np.float32), domain=np.full(count, domain), difficulty=np.zeros(count)
    )


def test_queries_of_a_domain_are_near_each_other():
    world = World(noise=0.5)
    found = items(world, 400, 3, "train")
    assert found.features.shape == (400, 32)
    assert set(found.domain) == {0, 1, 2, 3}
    centres = np.stack([found.features[found.domain == d].mean(axis=0) for d in range(4)])
    nearest = ((found.features[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == found.domain).mean() > 0.95
    again, other = items(world, 400, 3, "train"), items(world, 400, 3, "test")
    assert np.array_equal(found.features, again.features)
    assert not np.array_equal(found.features, other.features)


def test_a_chance_is_the_skill_on_a_middling_query():
    students = Students(World(spread=0.0, base=0.25), 2, 0)
    hard = Items(
        features=np.zeros((3, 4)), domain=np.array([0, 1, 2]), difficulty=np.array([0.0, np.log(3), -30.0])
    )
    chances = students.chances(hard)
    assert chances.shape == (3, 2)
    assert chances[:, 0] == pytest.approx([0.25, 0.1, 1.0])  # odds 1/3, a third of it, and nearly sure
    assert students.chances(hard, 1).tolist() == chances[:, 1].tolist()


def test_practice_raises_its_domain_and_costs_the_others():
    world = World(spread=0.0)
    students = Students(world, 2, 0)
    for _ in range(100):
        rewards, entropy = students.practise(0, easy(1))
    assert students.skill[0, 1] > world.base + 0.2
    assert (students.skill[0, [0, 2, 3]] < world.base).all()
    assert (students.skill[0, [0, 2, 3]] >= world.base / 2).all()
    assert (students.skill[1] == world.base).all()
    assert students.updates.tolist() == [100, 0]
    assert rewards.shape == (16,)
    assert set(rewards * 8) <= set(range(9))
    assert entropy < 0.4 * (1 - world.base)


def test_groups_without_a_difference_teach_nothing():
    students = Students(World(spread=0.0), 1, 0)
    found = Items(features=np.zeros((16, 4)), domain=np.zeros(16, int), difficulty=np.full(16, 60.0))
    before = students.skill.copy()
    rewards, _ = students.practise(0, found)
    assert not rewards.any()
    assert np.array_equal(students.skill, before)


def test_one_step_by_hand():
    """Groups of 4 r (1 - r) = 1 in domain 0: gain .1 of the way from .25 to .85, forgetting .1 of .25 - .125."""
    students = Students(World(spread=0.0, gain=0.1, forgetting=0.1, capacity=100.0), 1, 0)
    students._learn(0, np.array([1.0, 0, 0, 0]))
    assert students.skill[0] == pytest.approx([0.31, 0.2375, 0.2375, 0.2375])


def test_a_full_adapter_learns_no_more():
    students = Students(World(spread=0.0, capacity=0.6), 1, 0)
    students.skill[0] = [0.85, 0.25, 0.25, 0.25]
    students._learn(0, np.array([0.0, 1.0, 0, 0]))
    assert students.skill[0, 1] == 0.25


def test_the_same_practice_gives_the_same_rewards_whoever_else_practises():
    """No generator runs on: draws hang on the seed, the agent and its own count of updates."""
    one, two = Students(World(), 3, 5), Students(World(), 3, 5)
    two.practise(1, easy(0))
    assert one.practise(0, easy(2))[0].tolist() == two.practise(0, easy(2))[0].tolist()


def test_a_vote_follows_weights():
    sure, hopeless = np.array([[1.0, 0.0, 0.0]]), np.array([[0.0, 0.0, 0.0]])
    assert voted(World(), sure, np.array([[0.9, 0.3, 0.3]]), 0).all()
    assert voted(World(), sure, np.array([[1.0, 0.0, 0.0]]), 0).all()
    assert not voted(World(), hopeless, np.array([[0.9, 0.3, 0.3]]), 0).any()
    one_answer = World(answers=1)  # the two others are wrong together
    assert not voted(one_answer, sure, np.array([[0.5, 0.3, 0.3]]), 0).any()


def test_a_larger_even_vote_is_more_often_right():
    chances = np.full((2000, 9), 0.6)
    few, many = np.zeros((2000, 9)), np.ones((2000, 9))
    few[:, 0] = 1
    assert voted(World(), chances, few, 0).mean() == pytest.approx(0.6, abs=0.04)
    assert voted(World(), chances, many, 0).mean() > 0.85
