"""The familiarity router: how it begins, what it learns, what it refuses."""

import math
import threading
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
import torch
from planted import AGENTS, KINDS, POOL, Planted, outcomes_of, planted, pool_of, query, state_of

from coterie.config import build
from coterie.errors import ConfigError, DataError
from coterie.routers.familiarity import Familiarity
from coterie.routers.heads import Shape, basis, distance, fresh, normalised, predicted, signs, targeted
from coterie.routers.headset import HALF_ABOVE, HeadSet, Stack, Stacks
from coterie.types import Message, Query

SMALL = {"hidden": 64, "width": 32, "epochs": 40, "batch": 32}


@pytest.fixture(scope="module")
def trained():
    return Familiarity(encoder=Planted(), **SMALL).fit(planted())


def routings(router, pool=POOL, size=30, start=1000):
    return [router.route(state_of(query(KINDS[i % 3], i), pool)) for i in range(start, start + size)]


# --- heads -------------------------------------------------------------------------------------------


def test_untrained_heads_are_unfamiliar_with_everything():
    """C9: independent heads have d near 1.41 and f near 0.06, so that all of four agents are asked at 0.7."""
    pool = pool_of("a", "b", "c", "d")

    class Wide:
        def encode(self, prompts):
            return np.random.default_rng(len(prompts)).normal(0, 3, (len(prompts), 1152)).astype(np.float32)

    router = Familiarity(encoder=Wide())
    d = router.distances([query("sum", i).messages for i in range(40)], pool)
    assert d.shape == (40, 4)
    assert 1.3 < d.mean() < 1.5
    assert 0.05 < np.exp(-2 * d).mean() < 0.075
    assert np.exp(-2 * d).sum(axis=1).max() < 0.7


def test_a_predictor_is_never_a_copy_of_its_target():
    """C9: a copy would be familiar with everything from the start."""
    shape = Shape(features=40, hidden=16, width=8)
    x = normalised(torch.randn(50, 40, generator=torch.Generator().manual_seed(0)))
    d = distance(predicted(fresh(shape, ["k"]), x), targeted(basis(shape), signs(shape, ["k"]), x))
    assert d.mean() > 1.1


def test_targets_are_orthogonal_and_differ_between_agents():
    """C10: each target's layers are orthogonal; different agents' targets are uncorrelated."""
    shape = Shape(features=96, hidden=48, width=24)
    pair, keys = basis(shape), [f"k{i}" for i in range(8)]
    inputs, units = signs(shape, keys)
    for i in range(8):
        first, second = pair["target_first"] * inputs[i], pair["target_second"] * units[i]
        torch.testing.assert_close(first @ first.T, torch.eye(48), atol=1e-5, rtol=0)
        torch.testing.assert_close(second @ second.T, torch.eye(24), atol=1e-5, rtol=0)
    x = normalised(torch.randn(200, 96, generator=torch.Generator().manual_seed(0)))
    out = torch.nn.functional.normalize(targeted(pair, (inputs, units), x), dim=-1)
    cosine = torch.einsum("iqw,jqw->ij", out, out) / 200
    off = cosine[~torch.eye(8, dtype=torch.bool)]
    assert off.abs().mean() < 0.15
    torch.testing.assert_close(cosine.diagonal(), torch.ones(8))


def test_distance_is_that_of_the_formula_and_has_a_gradient_at_zero():
    """C12. Unit vectors (1,0) and (0.6,0.8): sqrt(0.16 + 0.64) = 0.894; opposite ones: 2; equal ones: 1e-6."""
    outputs = torch.tensor([[[2.0, 0.0]], [[3.0, 0.0]], [[1.0, 1.0]]], requires_grad=True)
    targets = torch.tensor([[[3.0, 4.0]], [[-1.0, 0.0]], [[2.0, 2.0]]])
    d = distance(outputs, targets)
    torch.testing.assert_close(d, torch.tensor([[math.sqrt(0.8), 2.0, 1e-6]]))
    d.sum().backward()
    assert torch.isfinite(outputs.grad).all()


def test_all_agents_together_equal_each_agent_alone():
    """The one batched operation is the per-agent network, written out here once."""
    shape = Shape(features=30, hidden=12, width=6, seed=3)
    keys = ["x", "y", "z"]
    heads = fresh(shape, keys)
    generator = torch.Generator().manual_seed(0)
    heads["gain"], heads["shift"] = (torch.randn(3, 30, generator=generator) for _ in range(2))
    pair, flips = basis(shape), signs(shape, keys)
    x = normalised(torch.randn(5, 30, generator=generator))
    found = Stack(heads, pair, flips).distances(x)
    for i in range(3):
        one = x * heads["gain"][i] + heads["shift"][i]
        c = torch.nn.functional.silu(one @ heads["first"][i] + heads["first_bias"][i])
        c = c @ heads["second"][i] + heads["second_bias"][i]
        z = torch.nn.functional.silu((x * flips[0][i]) @ pair["target_first"].T) * flips[1][i]
        gap = c / c.norm(dim=1, keepdim=True) - (t := z @ pair["target_second"].T) / t.norm(dim=1, keepdim=True)
        torch.testing.assert_close(found[:, i], gap.norm(dim=1), atol=1e-5, rtol=1e-5)


def test_large_batches_give_what_small_ones_give():
    """More queries than units: gain, shift and signs are put on the matrices instead of the features."""
    shape = Shape(features=20, hidden=6, width=4, seed=3)
    keys = ["a", "b", "c"]
    heads = {part: tensor.clone().requires_grad_() for part, tensor in fresh(shape, keys).items()}
    with torch.no_grad():
        heads["gain"] += torch.rand(3, 20)
        heads["shift"] += torch.rand(3, 20)
    x = normalised(torch.randn(15, 20, generator=torch.Generator().manual_seed(0)))
    found, slopes = [], []
    for size in (15, 5):
        parts = x.split(size)
        outputs = torch.cat([predicted(heads, part) for part in parts], dim=1)
        found.append((outputs, torch.cat([targeted(basis(shape), signs(shape, keys), part) for part in parts], 1)))
        slopes.append(torch.autograd.grad(outputs.square().sum(), list(heads.values())))
    for large, small in (*zip(*found, strict=True), *zip(*slopes, strict=True)):
        torch.testing.assert_close(large, small, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5])
def test_many_agents_in_half_precision_stay_close(rows):
    shape = Shape(features=64, hidden=32, width=16)
    keys = [f"k{i}" for i in range(HALF_ABOVE + 9)]
    heads, pair = fresh(shape, keys), basis(shape)
    x = normalised(torch.randn(rows, 64, generator=torch.Generator().manual_seed(1)))
    found = Stack(heads, pair, signs(shape, keys)).distances(x)
    exact = distance(predicted(heads, x), targeted(pair, signs(shape, keys), x))
    assert found.shape == (rows, len(keys))
    assert (found - exact).abs().max() < 2e-3
    assert (found - exact).abs().max() > 0  # it is the half-precision path that was compared


def test_stacks_are_built_once_and_bounded(monkeypatch):
    """R1 and R3."""
    heads, stacks = HeadSet.untrained(Shape(features=8, hidden=4, width=4)), Stacks()
    found = []
    threads = [threading.Thread(target=lambda: found.append(stacks.of(heads, ("a", "b")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(stack) for stack in found}) == 1
    for i in range(5):
        stacks.of(heads, (f"k{i}",))
    assert len(stacks.known) == 2


# --- routing -----------------------------------------------------------------------------------------


def test_it_learns_who_is_familiar_with_what(trained):
    """Fresh questions of each kind go to the agent that solves this kind, with room to the others."""
    for routing in routings(trained):
        assert sum(routing.weights.values()) == pytest.approx(1)
        assert all(0 < f <= 1 for f in routing.scores.values())
    right = [r.ranked()[0] == AGENTS[i % 3] for i, r in enumerate(routings(trained), 1000 % 3)]
    assert np.mean(right) > 0.9
    top = [max(r.scores.values()) for r in routings(trained)]
    assert np.mean(top) > 0.5 > 0.25 > np.mean([min(r.scores.values()) for r in routings(trained)])


def test_scores_are_exp_of_the_distances_and_weights_their_shares(trained):
    routing = routings(trained)[0]
    for name, gap in routing.info["distance"].items():
        assert routing.scores[name] == pytest.approx(math.exp(-2 * gap))
        assert routing.weights[name] == pytest.approx(routing.scores[name] / sum(routing.scores.values()))


def test_fit_leaves_the_old_router_as_it_was():
    before = Familiarity(encoder=Planted(), **SMALL)
    first = routings(before)[0].scores
    after = before.fit(planted())
    assert routings(before)[0].scores == first
    assert routings(after)[0].scores != first
    again = routings(after)[0].scores
    after.fit(planted(60, 5000))
    assert routings(after)[0].scores == again


def test_the_same_outcomes_give_the_same_weights(trained):
    again = Familiarity(encoder=Planted(), **SMALL).fit(planted())
    for part, tensor in trained._trained.trained.items():
        assert torch.equal(tensor, again._trained.trained[part])
    other = Familiarity(encoder=Planted(), **SMALL, seed=1).fit(planted())
    assert not torch.equal(other._trained.trained["first"], again._trained.trained["first"])


def test_no_direction_no_change():
    """R18: where everybody scores the same nothing is learnt, whatever the score."""
    router = Familiarity(encoder=Planted(), **SMALL, standardise=False)
    table = planted()
    for value in (0.0, 1.0, 0.3):
        flat = replace(table, scores=np.full_like(table.scores, value))
        untouched = [r.scores for r in routings(router)]
        assert [r.scores for r in routings(router.fit(flat))] == untouched


def test_missing_outcomes_are_no_failures():
    """R23: an agent that was down for most of its questions is learnt from the rest."""
    table = planted()
    scores = table.scores.copy()
    scores[::2, 0] = np.nan
    holed = Familiarity(encoder=Planted(), **SMALL).fit(replace(table, scores=scores))
    sums = [r for i, r in enumerate(routings(holed), 1000) if KINDS[i % 3] == "sum"]
    assert np.mean([r.ranked()[0] == "ada" for r in sums]) > 0.9


def test_without_any_outcome_there_is_nothing_to_fit():
    table = planted()
    with pytest.raises(DataError, match="no outcomes"):
        Familiarity(encoder=Planted()).fit(replace(table, scores=np.full_like(table.scores, np.nan)))


def test_solo_outcomes_teach_familiarity():
    """C13: one agent alone is pulled by its reward, and its failures leave it alone."""
    queries = [query(KINDS[i % 2], i) for i in range(80)]
    table = outcomes_of(queries, [[float(q.domain == "sum")] for q in queries], agents=("ada",))
    router = Familiarity(encoder=Planted(), **SMALL).fit(table)
    f = {k: router.route(state_of(query(k, 999), pool_of("ada"))).scores["ada"] for k in ("sum", "poem")}
    assert f["sum"] > 0.3 > 0.15 > f["poem"]


def test_order_of_agents_does_not_matter(trained):
    """R6: permuted agents, in the pool and in the table, have permuted scores."""
    turned = pool_of(*reversed(AGENTS))
    assert [r.scores for r in routings(trained, turned)] == [r.scores for r in routings(trained)]
    table = planted()
    shuffled = replace(table, agents=table.agents[::-1], scores=table.scores[:, ::-1].copy())
    again = Familiarity(encoder=Planted(), **SMALL).fit(shuffled)
    for one, other in zip(routings(trained), routings(again), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-3)


def test_equal_agents_tie_and_the_seed_decides():
    """Two names of one revision have one head; neither is preferred by its place."""
    pool = pool_of("a", "b", revisions={"a": "same", "b": "same"})
    router = Familiarity(encoder=Planted())
    firsts = set()
    for seed in range(20):
        routing = router.route(state_of(query("sum", 1), pool, seed=seed))
        assert routing.scores["a"] == routing.scores["b"]
        firsts.add(routing.ranked()[0])
    assert firsts == {"a", "b"}


def test_two_hundred_parallel_routings_equal_serial_ones(trained):
    """R1."""
    queries = [query(KINDS[i % 3], i) for i in range(200)]
    serial = [trained.route(state_of(q)) for q in queries]
    fresh_copy = Familiarity(encoder=Planted(), **SMALL).fit(planted())
    found, barrier = {}, threading.Barrier(20)

    def work(part):
        barrier.wait()
        for i in range(part, 200, 20):
            found[i] = fresh_copy.route(state_of(queries[i]))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(200)] == serial


def test_a_swapped_agent_begins_unfamiliar_and_the_others_stay(trained):
    pool = pool_of(*AGENTS, revisions={"ada": "another"})
    asked = state_of(query("sum", 1000), pool)
    swapped, before = trained.route(asked), trained.route(state_of(query("sum", 1000)))
    assert before.scores["ada"] > 0.4 > 0.15 > swapped.scores["ada"]
    for name in ("bob", "cyd"):
        assert swapped.scores[name] == pytest.approx(before.scores[name], abs=1e-6)


def test_fitting_again_keeps_what_is_known_of_other_agents(trained):
    queries = [query("poem", i) for i in range(40)]
    newcomer = outcomes_of(queries, np.ones((40, 1)), agents=("dan",))
    both = trained.fit(newcomer)
    pool = pool_of(*AGENTS, "dan")
    old, new = trained.route(state_of(query("sum", 7), pool)), both.route(state_of(query("sum", 7), pool))
    for name in AGENTS:
        assert new.scores[name] == pytest.approx(old.scores[name], abs=1e-6)
    assert both.route(state_of(query("poem", 7), pool)).scores["dan"] > 0.3


# --- files -------------------------------------------------------------------------------------------


def test_saved_and_loaded_it_decides_the_same(trained, tmp_path):
    path = tmp_path / "router.safetensors"
    trained.save(path)
    loaded = build("router", {"use": "familiarity", "encoder": Planted(), "weights": str(path), **SMALL})
    assert routings(loaded) == routings(trained)
    loaded.save(tmp_path / "again.safetensors")
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_weights_are_read_once_at_the_first_question(trained, tmp_path):
    path = tmp_path / "w"
    router = Familiarity(encoder=Planted(), weights=str(path), **SMALL)
    trained.save(path)
    before = routings(router)
    path.unlink()
    assert routings(router) == before


def test_weights_for_other_agents_are_refused(trained, tmp_path):
    """R4: the file names its agents and revisions; one that is still there is enough."""
    trained.save(tmp_path / "w")
    router = Familiarity(encoder=Planted(), weights=str(tmp_path / "w"), **SMALL)
    with pytest.raises(ConfigError) as caught:
        routings(router, pool_of("eve", "fay"))
    assert "eve" in str(caught.value)
    assert "ada" in str(caught.value)
    with pytest.raises(ConfigError, match="other agents or revisions"):
        routings(router, pool_of(*AGENTS, revisions=dict.fromkeys(AGENTS, "newer")))
    assert set(routings(router, pool_of("ada", "eve"))[0].scores) == {"ada", "eve"}


def test_weights_for_other_features_are_refused(trained, tmp_path):
    trained.save(tmp_path / "w")

    class Other(Planted):
        identity = "other"

    with pytest.raises(ConfigError, match="features of planted, not of other"):
        routings(Familiarity(encoder=Other(), weights=str(tmp_path / "w"), **SMALL))
    with pytest.raises(ConfigError, match="24 features, the encoder gives 9"):
        routings(Familiarity(encoder=Planted(width=9), weights=str(tmp_path / "w"), **SMALL))
    with pytest.raises(ConfigError, match="hidden, width"):
        routings(Familiarity(encoder=Planted(), weights=str(tmp_path / "w")))


def test_files_that_are_not_its_weights_are_refused(tmp_path):
    safetensors.numpy.save_file({"a": np.ones(2)}, tmp_path / "foreign")
    build("router", "best_single").fit(planted()).save(tmp_path / "means")
    for name, reason in (("foreign", "not written by coterie"), ("means", "best_single"), ("gone", "no such file")):
        with pytest.raises(ConfigError, match=reason) as caught:
            routings(Familiarity(encoder=Planted(), weights=str(tmp_path / name)))
        assert "\n" not in str(caught.value)


def test_an_unfitted_router_has_nothing_to_save(tmp_path):
    with pytest.raises(ConfigError, match="not fitted"):
        Familiarity(encoder=Planted()).save(tmp_path / "w")


def test_it_is_built_from_a_recipe_with_its_encoder():
    made = build(
        "router", {"use": "familiarity", "encoder": {"use": "hashed", "width": 16}, "hidden": 8, "width": 4}
    )
    assert made.encoder.width == 16
    assert set(made.route(state_of(query("sum", 1))).scores) == set(AGENTS)
    with pytest.raises(ConfigError, match="expected an encoder"):
        build("router", {"use": "familiarity", "encoder": 5})


@pytest.mark.model
def test_with_the_embedded_models_states_it_tells_sums_from_cities():
    """The real encoder end to end: two agents, two kinds of question, fresh questions go to the right one."""
    towns = (
        "Rome",
        "Oslo",
        "Lima",
        "Cairo",
        "Delhi",
        "Seoul",
        "Quito",
        "Accra",
        "Turin",
        "Kyoto",
        "Leeds",
        "Porto",
    )

    def asked(i):
        text = (
            f"What is {i + 3} plus {7 * i % 31}?"
            if i % 2
            else f"Name a street in {towns[i // 2 % 12]}, number {i}."
        )
        return Query(id=str(i), messages=(Message(role="user", content=text),))

    table = outcomes_of(
        [asked(i) for i in range(32)], [[i % 2, 1 - i % 2] for i in range(32)], agents=("ada", "bob")
    )
    router = Familiarity(hidden=64, width=32, epochs=40, batch=16).fit(table)
    pool = pool_of("ada", "bob")
    firsts = [router.route(state_of(asked(i), pool)).ranked()[0] for i in range(32, 48)]
    assert firsts == ["bob", "ada"] * 8
