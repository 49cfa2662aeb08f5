"""LinUCB and Thompson: ridge regression by the batch formula, one reward a step, regret by hand, live learning."""

import json
from dataclasses import replace

import numpy as np
import pytest
from planted import AGENTS, KINDS, POOL, Planted, outcomes_of, planted, pool_of, query, state_of

from coterie.errors import ConfigError
from coterie.routers.arms import Arms, Pass, Play, account, contexts, frame_of, one_pass
from coterie.routers.bandit import LinUCB, Thompson

NAN = float("nan")
BOTH = pytest.mark.parametrize("kind", [LinUCB, Thompson], ids=["lin_ucb", "thompson"])
TABLE = planted()


def batch(x, rewards, ridge):
    """(ridge I + X'X)^-1 and X'r of the rows that have a reward, computed at once."""
    seen = ~np.isnan(rewards)
    return np.linalg.inv(ridge * np.eye(x.shape[1]) + x[seen].T @ x[seen]), x[seen].T @ rewards[seen]


def test_one_step_by_hand():
    """Ridge 2, x = (1, 1), reward 1: A = [[3, 1], [1, 3]], A^-1 = [[3, -1], [-1, 3]] / 8, theta = (1, 1) / 4."""
    arms = Arms.fresh(2, 2, 2.0)
    arms.learn(0, np.array([1.0, 1.0]), 1.0)
    assert arms.inverse[0] == pytest.approx(np.array([[3, -1], [-1, 3]]) / 8)
    assert arms.theta() == pytest.approx(np.array([[0.25, 0.25], [0, 0]]))
    assert arms.spreads(np.array([[1.0, 1.0]]))[0] == pytest.approx([np.sqrt(0.5), 1.0])


def test_rank_one_updates_equal_the_batch_formula():
    random = np.random.default_rng(0)
    x, rewards, pulled = random.normal(size=(300, 9)), random.random(300), random.integers(0, 3, 300)
    arms = Arms.fresh(3, 9, 0.7)
    for context, arm, reward in zip(x, pulled, rewards, strict=True):
        arms.learn(arm, context, reward)
    for arm in range(3):
        inverse, response = batch(x[pulled == arm], rewards[pulled == arm], 0.7)
        assert arms.inverse[arm] == pytest.approx(inverse, abs=1e-9)
        assert arms.response[arm] == pytest.approx(response)
        assert arms.theta()[arm] == pytest.approx(inverse @ response)


@BOTH
def test_a_fit_is_the_batch_regression_of_what_was_pulled_and_of_nothing_else(kind):
    """Scores of agents that were not pulled are never seen: changing them changes nothing."""
    router = kind(encoder=Planted(), dims=6)
    features = Planted().encode([q.messages for q in TABLE.queries])
    frame = frame_of(features, 6)
    play = Play(alpha=router.alpha, ridge=router.ridge, seed=0, sampled=kind is Thompson)
    x = contexts(features, frame)
    done = one_pass(x, TABLE.scores, play)
    pulled = np.empty(len(x), dtype=int)
    pulled[done.rows] = done.pulled
    other = np.where(np.arange(3) == pulled[:, None], TABLE.scores, 1 - TABLE.scores)
    known, same = (router.fit(replace(TABLE, scores=scores))._known for scores in (TABLE.scores, other))
    for arm in range(3):
        inverse, response = batch(x[pulled == arm], TABLE.scores[pulled == arm, arm], router.ridge)
        assert known.tensors["theta"][arm] == pytest.approx(inverse @ response, abs=1e-9)
    assert np.array_equal(known.tensors["theta"], same.tensors["theta"])
    assert known.notes["pulls"] == np.bincount(pulled, minlength=3).tolist()


@BOTH
def test_a_missing_outcome_of_the_pulled_agent_changes_nothing_and_is_counted(kind):
    """R23."""
    scores = TABLE.scores.copy()
    scores[:, 0] = NAN
    scores[0, 0] = 1.0
    known = kind(encoder=Planted(), dims=6).fit(replace(TABLE, scores=scores))._known
    assert known.notes["missing"] >= known.notes["pulls"][0] - 1
    assert sum(known.notes["pulls"]) == 120
    regret = known.notes["regret"]
    assert np.isfinite(regret["best_single"] + regret["oracle"]).all()


def test_regret_by_hand():
    """Three steps, agents a (best single: mean 2/3) and b. Pulled: b, a, b; rewards 0, 0, missing.

    Against a: 1 - 0, then 0 - 0, then unknown: 1, 1, 1. Against the best of each query: 1 - 0, then 1 - 0: 1, 2, 2.
    """
    scores = np.array([[1, 0], [0, 1], [1, NAN], [NAN, 0]])
    done = Pass(arms=Arms.fresh(2, 1, 1.0), rows=np.array([0, 1, 2]), pulled=np.array([1, 0, 1]))
    assert account(done, scores[:3]) == {
        "pulls": [1, 2],
        "missing": 1,
        "regret": {"steps": [1, 2, 3], "best_single": [1, 1, 1], "oracle": [1, 2, 2]},
    }


@BOTH
def test_a_regret_curve_has_100_steps_at_most_and_only_rises_against_the_oracle(kind, tmp_path):
    table = planted(360)
    known = kind(encoder=Planted(), dims=6).fit(table)._known
    regret = known.notes["regret"]
    assert len(regret["steps"]) == 100
    assert regret["steps"][0] == 1
    assert regret["steps"][-1] == 360
    assert (np.diff(regret["oracle"]) >= 0).all()
    assert all(single <= oracle for single, oracle in zip(regret["best_single"], regret["oracle"], strict=True))
    assert json.loads(json.dumps(known.notes)) == known.notes
    kind(encoder=Planted(), dims=6).fit(table).save(tmp_path / "w")
    assert kind(encoder=Planted(), weights=str(tmp_path / "w"))._known.notes == known.notes


@BOTH
def test_learning_online_beats_the_best_single_agent(kind):
    """Sublinear regret: the second half of the pass costs less than the first, and best single is left behind."""
    regret = kind(encoder=Planted(), dims=6).fit(planted(360))._known.notes["regret"]
    half = regret["oracle"][49]
    assert regret["oracle"][-1] - half < 0.7 * half
    assert regret["best_single"][-1] < -60


@BOTH
def test_live_learning_is_pure_and_equals_the_batch_formula(kind):
    router = kind(encoder=Planted(), dims=6).fit(TABLE)
    before = {name: tensor.copy() for name, tensor in router._known.tensors.items()}
    asked = [query(KINDS[i % 3], 700 + i) for i in range(30)]
    after = router
    for i, one in enumerate(asked):
        after = after.learn(one, AGENTS[i % 2], float(i % 4 == 0), POOL)
    assert all(np.array_equal(tensor, before[name]) for name, tensor in router._known.tensors.items())
    x = contexts(Planted().encode([q.messages for q in asked]), before)
    for arm in range(2):
        rows = np.arange(30) % 2 == arm
        rewards = (np.arange(30)[rows] % 4 == 0).astype(float)
        inverse = np.linalg.inv(np.linalg.inv(before["inverse"][arm]) + x[rows].T @ x[rows])
        response = before["response"][arm] + x[rows].T @ rewards
        assert after._known.tensors["inverse"][arm] == pytest.approx(inverse, abs=1e-9)
        assert after._known.tensors["theta"][arm] == pytest.approx(inverse @ response)
    assert np.array_equal(after._known.tensors["theta"][2], before["theta"][2])
    assert sum(after._known.notes["pulls"]) == 150


@BOTH
@pytest.mark.parametrize("reward", [None, NAN])
def test_live_a_missing_reward_is_only_counted(kind, reward):
    """R23."""
    router = kind(encoder=Planted(), dims=6).fit(TABLE)
    after = router.learn(query("sum", 1), "ada", reward, POOL)
    assert np.array_equal(after._known.tensors["theta"], router._known.tensors["theta"])
    assert after._known.notes["missing"] == router._known.notes["missing"] + 1


@BOTH
def test_a_new_agent_is_learnt_live_and_survives_the_disk(kind, tmp_path):
    """Eve solves everything: after some rewards she is first, and before any she is pulled out of curiosity."""
    pool = pool_of(*AGENTS, "eve")
    router = kind(encoder=Planted(), dims=6, alpha=3.0).fit(TABLE)
    asked = [query(KINDS[i % 3], 900 + i) for i in range(60)]
    assert router.route(state_of(asked[0], pool)).scores["eve"] == 0
    assert "eve" in {router.pull(one, pool, seed) for seed, one in enumerate(asked)}
    for one in asked:
        router = router.learn(one, "eve", 1.0, pool)
    fresh = [query(KINDS[i % 3], 3000 + i) for i in range(30)]
    assert (router.predict(fresh, pool)[:, 3] > 0.8).all()
    router.save(tmp_path / "w")
    loaded = kind(encoder=Planted(), weights=str(tmp_path / "w"), alpha=3.0)
    assert np.array_equal(loaded.predict(fresh, pool), router.predict(fresh, pool))
    again = loaded.learn(fresh[0], "eve", 0.0, pool)
    assert again.predict(fresh[:1], pool)[0, 3] < router.predict(fresh[:1], pool)[0, 3]


@BOTH
def test_live_learning_files_an_agent_under_its_revision(kind):
    """R4: a new revision of ada starts afresh, and the old one's statistics stay."""
    newer = pool_of(*AGENTS, revisions={"ada": "newer"})
    router = kind(encoder=Planted(), dims=6).fit(TABLE)
    after = router.learn(query("sum", 1), "ada", 1.0, newer)
    assert after._known.keys == (*router._known.keys, "newer")
    assert np.array_equal(after._known.tensors["theta"][0], router._known.tensors["theta"][0])
    with pytest.raises(ConfigError, match="did you mean 'ada'"):
        router.learn(query("sum", 1), "adda", 1.0, POOL)


@BOTH
def test_pulls_repeat_with_the_seed_and_do_not_depend_on_the_order_of_agents(kind):
    """R6."""
    router = kind(encoder=Planted(), dims=6, alpha=1.0).fit(planted(30))
    asked = [query(KINDS[i % 3], 900 + i) for i in range(40)]
    one = [router.pull(q, POOL, i) for i, q in enumerate(asked)]
    assert one == [router.pull(q, pool_of(*AGENTS[::-1]), i) for i, q in enumerate(asked)]


def test_at_alpha_0_the_live_pull_is_the_best_mean():
    router = LinUCB(encoder=Planted(), dims=6).fit(TABLE)
    sure = LinUCB(encoder=Planted(), dims=6, alpha=0.0)
    vars(sure)["_known"] = router._known
    for i in range(30):
        asked = query(KINDS[i % 3], 3000 + i)
        assert sure.pull(asked, POOL) == router.route(state_of(asked)).ranked()[0]


def test_thompson_draws_scores_as_its_posterior_has_them():
    """Mean and deviation of the drawn values over many draws are those of N(mean, (alpha * spread)^2)."""
    play = Play(alpha=0.5, ridge=1.0, seed=0, sampled=True)
    random = np.random.default_rng(0)
    drawn = np.stack([play.values(np.array([0.3, 1.0]), np.array([2.0, 0.1]), random) for _ in range(4000)])
    assert drawn.mean(axis=0) == pytest.approx([0.3, 1.0], abs=0.05)
    assert drawn.std(axis=0) == pytest.approx([1.0, 0.05], rel=0.05)


def test_the_frame_keeps_the_widest_directions():
    """Rows spread along the third feature: one axis finds it; all axes keep every distance, up to one scale."""
    random = np.random.default_rng(1)
    rows = (random.normal(size=(200, 5)) * [0.1, 0.1, 3, 0.1, 0.1] + [20, 0, 0, 0, 0]).astype(np.float32)
    one = frame_of(rows, 1)["axes"]
    assert np.abs(one[2, 0]) / np.linalg.norm(one) > 0.99
    every = contexts(rows, frame_of(rows, 0))
    assert every.shape == (200, 6)
    assert (every[:, -1] == 1).all()
    assert (every[:, :-1] ** 2).sum(axis=1).mean() == pytest.approx(1)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    ratios = np.linalg.norm(every[:10] - every[10:20], axis=1) / np.linalg.norm(unit[:10] - unit[10:20], axis=1)
    assert ratios == pytest.approx(np.full(10, ratios[0]), rel=1e-4)
    assert contexts(rows[:2], frame_of(rows[:1], 3)).shape == (2, 4)


def test_agents_without_any_difference_are_pulled_alike():
    """Equal agents: the first pulls are drawn, none is preferred by its place."""
    queries = [query("sum", i) for i in range(200)]
    table = outcomes_of(queries, np.full((200, 3), 0.5))
    pulls = np.sum(
        [LinUCB(encoder=Planted(), dims=4, seed=s).fit(table)._known.notes["pulls"] for s in range(3)], 0
    )
    assert pulls.min() > 0.2 * pulls.sum()
