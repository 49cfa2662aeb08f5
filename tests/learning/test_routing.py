"""The router while agents learn: Eqs. 26 and 27 by hand, C11, C13, C14, ablation metrics, agents, exact resume."""

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from coterie.config import validate
from coterie.errors import ConfigError
from coterie.features.hashed import Hashed
from coterie.learning.routing import RoutingLearner, RoutingUpdate
from coterie.routers.familiarity import Familiarity
from coterie.routers.heads import distance, predicted
from coterie.routers.headset import HeadSet
from coterie.routers.learned_scores import LearnedScores
from coterie.storage.tensors import load_tensors, save_tensors
from coterie.types import Agent, Message, Pool, Query, State

NAN = math.nan
SMALL = {"hidden": 24, "width": 12, "standardise": 0}
METRICS = ["familiarity", "regression", "classifier"]


def learner(names="ab", **settings):
    return RoutingLearner(list(names), 8, RoutingUpdate(**{**SMALL, **settings}))


def features(count=4, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 8), dtype=np.float32)


def gaps(found, x):
    return -np.log(found.familiarity(x)) / found.settings.scale


def solo(*flags):
    return np.array(flags, dtype=bool)


def weights(found):
    return {part: tensor.detach().clone() for part, tensor in found.parameters.items()}


# --- one step by hand ---------------------------------------------------------------------------------


def test_it_begins_unfamiliar_with_everything():
    """C9: distances near the square root of 2, familiarity near .06, so that four agents do not reach tau."""
    found = RoutingLearner(list("abcd"), 64, RoutingUpdate(standardise=0, hidden=128))
    f = found.familiarity(np.random.default_rng(0).standard_normal((32, 64), dtype=np.float32))
    assert f.shape == (32, 4)
    assert f.mean() == pytest.approx(math.exp(-2 * math.sqrt(2)), abs=0.01)
    assert f.sum(axis=1).max() < 0.7


def test_the_loss_is_that_of_the_paper():
    """Rewards (1, .5): advantages (.25, -.25). Beyond the margin the push is asleep: .25 d_a remains (C11)."""
    found, x = learner(margin=1.0), features(1)
    d = gaps(found, x)[0]
    assert d.min() > 1.0
    about = found.step(x, np.array([[1.0, 0.5]]), solo(False))
    assert about["loss"] == pytest.approx(0.25 * d[0], rel=1e-5)
    assert (about["pairs"], about["pulled"], about["pushed"], about["dormant"]) == (2, 1, 0, 1)


def test_only_the_better_agent_moves_while_the_push_sleeps():
    found, x = learner(), features(1)
    before = weights(found)
    found.step(x, np.array([[1.0, 0.0]]), solo(False))
    after = weights(found)
    assert not torch.equal(before["first"][0], after["first"][0])
    for part in before:
        assert torch.equal(before[part][1], after[part][1]), part


def test_within_the_margin_the_worse_agent_is_pushed():
    found, x = learner(margin=2.0, lr=1e-3), features(1)
    before = gaps(found, x)[0]
    about = found.step(x, np.array([[1.0, 0.0]]), solo(False))
    assert about["loss"] == pytest.approx(0.5 * before[0] + 0.5 * (2 - before[1]), rel=1e-5)
    after = gaps(found, x)[0]
    assert after[0] < before[0]
    assert after[1] > before[1]


def test_the_first_step_is_one_of_adam():
    """The first AdamW step moves each weight by the learning rate against the sign of its gradient."""
    found, x = learner(lr=1e-3), features(1)
    before = weights(found)["second_bias"][0]
    found.step(x, np.array([[1.0, NAN]]), solo(True))
    moved = (weights(found)["second_bias"][0] - before).abs()
    assert moved.numpy() == pytest.approx(np.full(12, 1e-3), rel=1e-2)


def test_without_a_margin_the_push_is_the_gradient_of_margin_two():
    x, rewards = features(6), np.random.default_rng(1).random((6, 2))
    free, bound = learner(margin=None), learner(margin=2.0)
    for found in (free, bound):
        for _ in range(3):
            found.step(x, rewards, solo(*[False] * 6))
    assert np.allclose(free.familiarity(x), bound.familiarity(x), atol=1e-5)


def test_the_gradient_is_clipped_over_all_heads():
    found, x = learner(), features(64)
    about = found.step(x, np.tile([[1.0, 0.0]], (64, 1)), solo(*[False] * 64))
    assert about["norm"] > 1.0
    total = sum(float(t.grad.square().sum()) for t in found.parameters.values()) ** 0.5
    assert total == pytest.approx(1.0, rel=1e-3)


# --- which rewards say something ----------------------------------------------------------------------


def test_a_solo_success_draws_near_and_a_solo_failure_does_nothing():
    """C13: max(0, reward), so that a length penalty below 0 pushes nobody away."""
    found, x = learner(), features(2)
    before = gaps(found, x)
    about = found.step(x, np.array([[-0.5, NAN], [NAN, 0.0]]), solo(True, True))
    assert about == {"pairs": 2.0, "left_out": 0.0, "stepped": 0.0}
    found.step(x, np.array([[0.5, NAN], [NAN, 0.0]]), solo(True, True))
    after = gaps(found, x)
    assert after[0, 0] < before[0, 0]
    assert after[:, 1].tolist() == before[:, 1].tolist()


def test_one_reward_of_several_routed_is_left_out():
    """C14, trap 56: a missing outcome makes no solo and no comparison."""
    found, x = learner(), features(2)
    before = weights(found)
    about = found.step(x, np.array([[1.0, NAN], [NAN, NAN]]), solo(False, False))
    assert (about["left_out"], about["stepped"], found.updates) == (1.0, 0.0, 0)
    assert all(torch.equal(before[part], now) for part, now in weights(found).items())


def test_equal_rewards_have_no_direction():
    """Trap 27: eight times 0.1 is no difference."""
    found = learner("abc")
    about = found.step(features(1), np.array([[0.1, 0.1, 0.1]]), solo(False))
    assert about["stepped"] == 0.0


def test_no_query_is_no_mistake():
    found = learner("abc")
    assert found.familiarity(np.zeros((0, 8), np.float32)).shape == (0, 3)
    assert found.step(np.zeros((0, 8), np.float32), np.zeros((0, 3)), solo())["stepped"] == 0.0


def test_many_agents_of_which_few_were_asked_give_the_same_step():
    """Heads without a reward are left out of the sums; the step is that of a loss over all."""
    found, x = learner("abcdef", lr=1e-3, margin=2.0), features(5)
    rewards = np.full((5, 6), NAN)
    rewards[:, [1, 4]] = np.random.default_rng(0).random((5, 2))
    before = gaps(found, x)
    about = found.step(x, rewards, solo(*[False] * 5))
    advantage = rewards - np.nanmean(rewards, axis=1, keepdims=True)
    pairs = np.where(advantage >= 0, advantage * before, -advantage * np.maximum(0, 2 - before))
    assert about["loss"] == pytest.approx(np.nansum(pairs), rel=1e-5)
    after = gaps(found, x)
    assert after[:, [0, 2, 3, 5]].tolist() == before[:, [0, 2, 3, 5]].tolist()
    assert not np.isclose(after[:, [1, 4]], before[:, [1, 4]], rtol=1e-6).any()


def test_a_solo_row_with_several_rewards_is_a_mistake():
    with pytest.raises(ValueError, match="rewards of several"):
        learner().step(features(1), np.array([[1.0, 0.0]]), solo(True))


def test_a_gradient_that_is_no_number_is_skipped_and_counted():
    found, x = learner(), features(1)
    before = weights(found)
    about = found.step(np.full_like(x, np.nan), np.array([[1.0, 0.0]]), solo(False))
    assert (about["stepped"], found.skipped) == (0.0, 1)
    assert all(torch.equal(before[part], now) for part, now in weights(found).items())
    assert found.step(x, np.array([[1.0, 0.0]]), solo(False))["stepped"] == 1.0


# --- learning -----------------------------------------------------------------------------------------


def planted(metric, steps=120):
    """Two kinds of query; a solves the first, b the second."""
    centres = np.eye(2, 8, dtype=np.float32) * 6
    found = learner(metric=metric, lr=1e-2)
    for step in range(steps):
        random = np.random.default_rng(step)
        kind = random.integers(0, 2, 16)
        x = centres[kind] + random.standard_normal((16, 8), dtype=np.float32)
        found.step(x, np.eye(2)[kind] * 0.8, np.zeros(16, dtype=bool))
    return found.familiarity(centres)


@pytest.mark.parametrize("metric", METRICS)
def test_it_finds_a_planted_expert(metric):
    """Law 18."""
    scores = planted(metric)
    assert scores[0, 0] > scores[0, 1] + 0.2
    assert scores[1, 1] > scores[1, 0] + 0.2
    assert scores.min() >= 0
    assert scores.max() <= 1


def test_a_classifier_shares_out_one_and_leaves_out_what_nobody_solved():
    found, x = learner("abc", metric="classifier"), features(3)
    assert found.familiarity(x).sum(axis=1) == pytest.approx(1.0)
    assert found.step(x[:1], np.array([[0.0, 0.0, NAN]]), solo(False))["stepped"] == 0.0
    logits = np.log(found.familiarity(x[:1]))[0]
    about = found.step(x[:1], np.array([[0.6, 0.2, NAN]]), solo(False))
    assert about["loss"] == pytest.approx(-0.75 * logits[0] - 0.25 * logits[1], rel=1e-5)


def test_a_regression_learns_rewards_as_they_are():
    found, x = learner(metric="regression", lr=1e-2), features(2)
    for _ in range(120):
        found.step(x, np.array([[0.9, 0.3], [0.5, NAN]]), solo(False, True))
    assert found.familiarity(x)[[0, 0, 1], [0, 1, 0]] == pytest.approx([0.9, 0.3, 0.5], abs=0.05)


def test_features_are_standardised_over_the_first_queries():
    sample = features(64) * 5 + 100
    found = RoutingLearner(["a"], 8, RoutingUpdate(hidden=24, width=12, standardise=64), sample)
    spread = sample.std(axis=0)
    by_hand = learner("a").familiarity((sample - sample.mean(axis=0)) / spread)
    assert found.familiarity(sample) == pytest.approx(by_hand, abs=1e-4)
    with pytest.raises(ConfigError, match="standardise"):
        RoutingLearner(["a"], 8, RoutingUpdate())


def test_a_margin_that_is_too_small_is_told():
    """m >= ln(4 / .7) / 2 = 0.871; with scale 1 margin 1 is too small, as 4/e = 1.47 passes .7."""
    assert RoutingUpdate().margin_warning(4, 0.7) is None
    assert "0.871" in RoutingUpdate(margin=0.8).margin_warning(4, 0.7)
    assert "1.743" in RoutingUpdate(scale=1.0).margin_warning(4, 0.7)
    assert "no distance reaches" in RoutingUpdate().margin_warning(256, 0.7)
    assert RoutingUpdate(margin=None).margin_warning(256, 0.7) is None
    assert RoutingUpdate(metric="regression").margin_warning(256, 0.7) is None


@pytest.mark.parametrize(("key", "value"), [("lr", 0), ("margin", -1), ("metric", "other"), ("betas", [0.9, 1])])
def test_settings_are_bounded(key, value):
    with pytest.raises(ConfigError, match=key):
        validate(RoutingUpdate, {key: value}, "routing")


# --- agents that leave --------------------------------------------------------------------------------


def practised(metric="familiarity", names="abc", steps=5):
    found = learner(names, metric=metric, lr=1e-3)
    practise(found, range(steps))
    return found


def practise(found, steps, names="abc"):
    """Steps whose rewards hang on the agents' names, so that another set of agents gets the same."""
    for step in steps:
        rewards = np.array([[((step * 5 + q * 3 + ord(n)) % 7) / 7 for n in found.agents] for q in range(4)])
        found.step(features(4, step), rewards, np.zeros(4, dtype=bool))


@pytest.mark.parametrize("metric", METRICS)
def test_the_others_go_on_as_they_were_when_one_leaves(metric):
    found, other = practised(metric), practised(metric)
    other.without("b")
    assert other.agents == ("a", "c")
    x, rows = features(3, 9), torch.tensor([0, 2])
    kept = found.familiarity(x)[:, [0, 2]]
    if metric == "classifier":
        kept = kept / kept.sum(axis=1, keepdims=True)
    assert np.allclose(other.familiarity(x), kept, atol=1e-6)
    for part, moments in other._moments().items():
        axis, before = found.scorer.axis(part), found._moments()[part]["exp_avg"]
        assert torch.equal(moments["exp_avg"], before if axis is None else before.index_select(axis, rows))
    practise(other, range(5, 8))
    assert other.updates == 8


def test_unknown_and_last_agents_cannot_go():
    for found, name in ((learner("a"), "a"), (learner("ab"), "z")):
        with pytest.raises(ConfigError, match="cannot be removed"):
            found.without(name)


def test_the_order_of_agents_means_nothing():
    one, two = learner("abc"), learner("cab")
    assert one.agents == two.agents
    assert np.array_equal(one.familiarity(features()), two.familiarity(features()))


# --- for a team ---------------------------------------------------------------------------------------


def team_of(found, **revisions):
    return Pool({n: Agent(name=n, model="scripted:x", revision=revisions.get(n, f"r-{n}")) for n in found.agents})


def hashed_learner(**settings):
    encoder = Hashed()
    prompts = [(Message(role="user", content=text),) for text in ("what is 2 + 2", "a poem", "sort a list")]
    x = encoder.encode(prompts)
    update = RoutingUpdate(hidden=16, width=8, standardise=3, lr=1e-3, **settings)
    found = RoutingLearner(list("abc"), x.shape[1], update, x)
    for _ in range(5):
        found.step(x, np.eye(3), np.zeros(3, dtype=bool))
    return found, encoder, prompts, x


def test_a_team_gets_a_router_for_the_present_revisions(tmp_path):
    """Targets and heads stay those of the lineage whatever the revision is; the file keeps that, too."""
    found, encoder, prompts, x = hashed_learner()
    for number in range(2):
        pool = team_of(found, a=f"a-{number}")
        router = found.router(pool, encoder)
        router.save(tmp_path / "router.safetensors")
        again = Familiarity(encoder=encoder, hidden=16, width=8, weights=str(tmp_path / "router.safetensors"))
        for one in (router, again):
            queries = [Query(id=str(i), messages=prompt) for i, prompt in enumerate(prompts)]
            assert one.predict(queries, pool) == pytest.approx(found.familiarity(x), abs=1e-5)
            scores = one.route(State(queries[0], pool)).scores
            assert scores["a"] == pytest.approx(found.familiarity(x)[0, 0], abs=1e-5)


@pytest.mark.parametrize("metric", ["regression", "classifier"])
def test_a_team_gets_the_scores_that_an_ablation_learned(metric, tmp_path):
    """From the file too, whoever is in the pool; an agent that was not there in training has no score."""
    found, encoder, prompts, x = hashed_learner(metric=metric)
    pool = team_of(found, a="a-1")
    made = found.router(pool, encoder)
    made.save(tmp_path / "router.safetensors")
    again = LearnedScores(encoder=encoder, weights=str(tmp_path / "router.safetensors"))
    queries = [Query(id=str(i), messages=prompt) for i, prompt in enumerate(prompts)]
    more = pool.with_agents(Agent(name="b2", model="scripted:x", revision="new"), without=["a"])
    for one in (made, again):
        assert one.predict(queries, pool) == pytest.approx(found.familiarity(x), abs=1e-6)
        routing = one.route(State(queries[0], pool))
        assert routing.scores["a"] == pytest.approx(found.familiarity(x)[0, 0], abs=1e-6)
        assert routing.ranked()[0] == "a"
        assert one.predict(queries, more)[:, [0, 2]] == pytest.approx(found.familiarity(x)[:, 1:], abs=1e-6)
        assert not one.predict(queries, more)[:, 1].any()
        with pytest.raises(ConfigError, match="other agents or revisions"):
            one.predict(queries, team_of(found, a="x", b="y", c="z"))


def test_weights_of_a_metric_that_is_none_are_told(tmp_path):
    found, encoder, prompts, _ = hashed_learner(metric="regression")
    pool, file = team_of(found), tmp_path / "router.safetensors"
    for key, notes in (("first", {"metric": "regression"}), ("", {"metric": "other"})):
        known = found.router(pool, encoder)._known
        tensors = {part: tensor for part, tensor in known.tensors.items() if part != key}
        replace(known, tensors=tensors, notes=notes).save(file)
        with pytest.raises(ConfigError, match=r"router.safetensors: is damaged"):
            LearnedScores(encoder=encoder, weights=str(file)).predict([Query(id="q", messages=prompts[0])], pool)
    with pytest.raises(ConfigError, match="coterie train"):
        LearnedScores(encoder=encoder).predict([], pool)


def test_agents_of_one_revision_are_one():
    found, encoder, prompts, x = hashed_learner()
    pool = team_of(found, a="same", b="same")
    queries = [Query(id=str(i), messages=prompt) for i, prompt in enumerate(prompts)]
    assert found.router(pool, encoder).predict(queries, pool) == pytest.approx(
        found.familiarity(x)[:, [0, 0, 2]], abs=1e-5
    )


def test_a_learned_head_goes_on_learning_under_its_target():
    heads = practised().headset({"a": "r1", "b": "r2", "c": "r3"})
    more = heads.with_trained(["b"], ["r2"], {part: t[[1]] for part, t in heads.trained.items()})
    x = torch.randn(4, 8)
    for one in (heads, more):
        order = list(one.keys)
        gap = distance(predicted(one.predictors(order), x), one.targets(order)(x))
        assert gap[:, order.index("r2")].tolist() == pytest.approx(
            distance(predicted(heads.trained, x), heads.targets(heads.keys)(x))[:, 1].tolist(), abs=1e-6
        )


def test_a_damaged_lineage_is_refused():
    heads = practised().headset({"a": "r1", "b": "r2", "c": "r3"})
    artefact = heads.artefact("familiarity", "", {})
    assert HeadSet.of(artefact).lineage == ("a", "b", "c")
    artefact.notes["lineage"] = ("a",)
    with pytest.raises(ConfigError, match="lineage"):
        HeadSet.of(artefact)


def test_other_metrics_have_no_heads_to_give():
    with pytest.raises(ConfigError, match="no heads"):
        learner(metric="regression").headset({"a": "r", "b": "s"})


# --- exact resume -------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("at", [0, 1, 4])
def test_straight_equals_resumed_and_not_cold(metric, at, tmp_path):
    """Trap 21: through a file, with moments; weights alone are not enough."""
    straight = practised(metric, steps=7)
    first = practised(metric, steps=at)
    about, arrays = first.state()
    save_tensors(tmp_path / "router.safetensors", arrays, about)
    tensors, notes = load_tensors(tmp_path / "router.safetensors")
    second = RoutingLearner(["x"], 8, first.settings)
    second.load(notes, tensors)
    practise(second, range(at, 7))
    expected, found = straight.state(), second.state()
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    assert all(np.array_equal(found[1][name], array) for name, array in expected[1].items())
    if at:
        cold = RoutingLearner(["x"], 8, first.settings)
        cold.load(about, {name: array for name, array in arrays.items() if name[:4] in ("head", "shar")})
        practise(cold, range(at, 7))
        assert not np.array_equal(cold.state()[1]["head.first"], expected[1]["head.first"])


def test_a_state_is_a_copy():
    found = practised()
    _, arrays = found.state()
    kept = {name: array.copy() for name, array in arrays.items()}
    practise(found, range(5, 8))
    assert all(np.array_equal(arrays[name], array) for name, array in kept.items())
