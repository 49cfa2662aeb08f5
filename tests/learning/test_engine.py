"""Laws of agents that learn over one frozen base. #1, #2 ... number faults of others' loops; each is told
in words beside its number.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_team import OPTIMISER, digest, engine, flag_table, groups, save_base, shaken, snapshot

from coterie.backends.base_model import base_model
from coterie.errors import ConfigError
from coterie.learning import engine as engine_module
from coterie.learning.engine import taking_part
from coterie.learning.learner import Optimiser
from coterie.learning.losses import Loss, Terms, advantages
from coterie.learning.sampler import Ask
from coterie.types import Sampling

HEAT = 0.7
KL = Loss(beta=0.1)


def step(made, name, batch, heat=HEAT):
    made.forward_backward(name, batch, heat)
    return made.optim_step(name)


def gradients(made, name):
    return {key: tensor.grad.clone() for key, tensor in made.learners[name].weights.items()}


def gap(mine, theirs):
    return max(float((mine[key] - theirs[key]).detach().abs().max()) for key in theirs)


def rewarded(rewards, lengths=None, truncated=None, **settings):
    """A group with the advantages of these rewards."""
    (made,) = groups(1, size=len(rewards))
    gains = advantages(torch.tensor([rewards], dtype=torch.float64), **settings)[0].numpy()
    completions = made.completions
    if lengths is not None:
        completions = tuple(tuple(range(n)) for n in lengths)
    return replace(made, advantages=gains, completions=completions, truncated=truncated or (False,) * len(rewards))


# --- several agents, one base -------------------------------------------------------------------------


def test_isolation_a_step_on_one_leaves_every_bit_of_the_other(base):
    """#1, #2, #4: weights, moments, counters and the gathered gradient of B stand still while A learns."""
    made = engine(base, "a", "b", loss=KL)
    step(made, "b", groups(seed=1))
    made.forward_backward("b", groups(seed=2), HEAT)
    before, gathered, weight = snapshot(made, "b"), gradients(made, "b"), made.learners["b"].weight
    start = snapshot(made, "a")
    for seed in range(3):
        assert step(made, "a", groups(seed=seed)).outcome == "done"
    assert snapshot(made, "a")[1] != start[1]
    assert snapshot(made, "b") == before
    assert made.learners["b"].weight == weight
    assert gap(gradients(made, "b"), gathered) == 0


def test_interleaving_gives_each_what_training_alone_gives_bit_for_bit(base):
    """#2: A, B, A, B is A, A and B, B."""
    mixed, alone = engine(base, "a", "b", loss=KL), engine(base, "a", "b", loss=KL)
    for seed in range(3):
        step(mixed, "a", groups(seed=seed))
        step(mixed, "b", groups(seed=10 + seed))
    for name, shift in (("b", 10), ("a", 0)):
        for seed in range(3):
            step(alone, name, groups(seed=shift + seed))
    assert snapshot(mixed, "a") == snapshot(alone, "a")
    assert snapshot(mixed, "b") == snapshot(alone, "b")


def test_interleaving_holds_between_the_halves_of_a_step(base):
    """#1: gathering for B between A's gathering and A's step changes neither."""
    mixed, alone = engine(base, "a", "b"), engine(base, "a", "b")
    mixed.forward_backward("a", groups(seed=0), HEAT)
    mixed.forward_backward("b", groups(seed=1), HEAT)
    mixed.optim_step("a")
    mixed.optim_step("b")
    step(alone, "a", groups(seed=0))
    step(alone, "b", groups(seed=1))
    assert snapshot(mixed, "a") == snapshot(alone, "a")
    assert snapshot(mixed, "b") == snapshot(alone, "b")


def test_two_engines_on_one_base_do_not_share_agents_of_one_name(base):
    """An adapter or a reference of another run over the same base is never used."""
    first = engine(base, "a", reference="initial")
    shaken(first, "a", seed=1)
    asks = [Ask(prompt=(1, 2, 3), adapter=None, sampling=Sampling(max_tokens=6), seed=s) for s in range(4)]
    said = first.sample("a", asks)
    second = engine(base, "a", loss=KL)
    shaken(second, "a", seed=2)
    assert first.sample("a", asks) == said != second.sample("a", asks)
    step(second, "a", groups())
    assert second._reference("a", [groups()[0].prompted], HEAT).logprobs.equal(
        engine(base)._reference("a", [groups()[0].prompted], HEAT).logprobs
    )


def test_an_agent_that_leaves_takes_nothing_of_the_others_along(base):
    """State law iv: delete B, and A goes on bit for bit; nothing of B stays on the base."""
    both, alone = engine(base, "a", "b", reference="initial"), engine(base, "a", reference="initial")
    for made in (both, alone):
        step(made, "a", groups(seed=0))
    step(both, "b", groups(seed=5))
    loaded = len(base.adapters.loaded())
    both.remove("b")
    assert len(base.adapters.loaded()) == loaded - 2
    for made in (both, alone):
        step(made, "a", groups(seed=1))
    assert snapshot(both, "a") == snapshot(alone, "a")


def test_engines_leave_no_adapter_and_no_hook_on_the_base(base):
    """#16, #17: as many adapters as agents however often they learn, and none after the end."""
    before = len(base.adapters.loaded())
    made = engine(base, "a", "b", reference="initial")
    for seed in range(4):
        step(made, "a", groups(1, seed=seed))
    assert len(base.adapters.loaded()) == before + 4
    made.close()
    assert len(base.adapters.loaded()) == before


def test_hooks_are_gone_with_the_last_adapter(tmp_path):
    found = base_model(save_base(tmp_path / "own"))
    made = engine(found, "a")
    step(made, "a", groups(1))
    made.close()
    assert not any(module._forward_hooks for module in found.model.modules())


def test_gradients_reach_the_adapter_that_was_on_in_the_forward(base):
    """#7: what is laid over the base between forward and backward changes nothing."""
    made, plain = engine(base, "a", "b"), engine(base, "a", "b")
    shaken(made, "b", seed=3)
    original = engine_module.terms

    def meddling(*args):
        found = original(*args)
        made._put(made._live("a"), made.learners["b"].weights)
        return found

    plain.forward_backward("a", groups(), HEAT)
    engine_module.terms = meddling
    try:
        made.forward_backward("a", groups(), HEAT)
    finally:
        engine_module.terms = original
    assert gap(gradients(made, "a"), gradients(plain, "a")) == 0
    assert all(tensor.grad is None for tensor in made.learners["b"].weights.values())


def test_no_parameter_of_the_base_ever_requires_a_gradient(base):
    """#5, #6: the table of flags is the same after every verb, the reference passes among them."""
    flags, bits = flag_table(base), digest(base)
    assert not any(flags.values())
    made = engine(base, "a", "b", loss=KL, reference="initial")
    verbs = [
        lambda: made.forward_backward("a", groups(), HEAT),
        lambda: made.optim_step("a"),
        lambda: made.log_probs("b", groups(), HEAT),
        lambda: made.sample("a", [Ask(prompt=(1, 2), adapter=None, sampling=Sampling(max_tokens=3), seed=0)]),
        lambda: made.load("b", *made.state("a")),
        lambda: made.remove("b"),
    ]
    for verb in verbs:
        verb()
        assert flag_table(base) == flags
        assert all(tensor.requires_grad for tensor in made.learners["a"].weights.values())
    assert all(parameter.grad is None for parameter in base.model.parameters())
    assert digest(base) == bits


def test_a_crash_in_the_middle_leaves_base_and_agents_as_they_were(base, monkeypatch):
    """The base's hash after a crash; what was gathered is forgotten, the next step is clean."""
    made, other = engine(base, "a", "b"), engine(base, "a", "b")
    bits, before = digest(base), snapshot(made, "a")
    calls = []

    def broken(*args):
        calls.append(1)
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "terms", broken)
        with pytest.raises(RuntimeError, match="memory"):
            made.forward_backward("a", groups(), HEAT)
    assert calls
    assert digest(base) == bits
    assert snapshot(made, "a") == before
    assert made.optim_step("a").outcome == "empty"
    laid = [pairs[made._live("a")] for pairs in base.adapters._pairs.values() if made._live("a") in pairs]
    assert len(laid) == 10
    assert all(tensor.grad_fn is None for pair in laid for tensor in pair)
    for each in (made, other):
        step(each, "a", groups())
    assert snapshot(made, "a") == snapshot(other, "a")


def test_dropout_is_absent(tmp_path):
    """#51: a model whose configuration has dropout gives the same numbers twice."""
    found = base_model(save_base(tmp_path / "dropping", attention_dropout=0.5))
    made = engine(found, "a")
    shaken(made, "a")
    assert not any(module.training for module in found.model.modules())
    first, again = (made.log_probs("a", groups(), HEAT) for _ in range(2))
    made.forward_backward("a", groups(), HEAT)
    assert not any(module.training for module in found.model.modules())
    for a, b in zip(first, again, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    made.close()


# --- batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean", "fixed_length"])
def test_two_half_batches_are_one_batch(base, aggregation):
    """Gradients add up, and so does what they are divided by."""
    loss = replace(KL, aggregation=aggregation, limit=8)
    whole, halves = engine(base, "a", loss=loss), engine(base, "a", loss=loss)
    for made in (whole, halves):
        shaken(made, "a", size=0.05)
    batch = groups(4)
    whole.forward_backward("a", batch, HEAT)
    halves.forward_backward("a", batch[:1], HEAT)
    halves.forward_backward("a", batch[1:], HEAT)
    assert whole.learners["a"].weight == halves.learners["a"].weight
    mine, theirs = gradients(halves, "a"), gradients(whole, "a")
    assert gap(mine, theirs) <= 1e-5 * max(float(g.abs().max()) for g in theirs.values())
    a, b = halves.optim_step("a"), whole.optim_step("a")
    assert (a.outcome, b.outcome) == ("done", "done")
    assert a.norm == pytest.approx(b.norm, rel=1e-5)
    assert a.metrics == pytest.approx(b.metrics, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [rewarded([1.0, math.nan, math.nan])],
        [rewarded([math.nan] * 4)],
        [rewarded([1.0, 0.0], lengths=[0, 0])],
        [rewarded([0.1] * 8)],
        [rewarded([0.3] * 8), rewarded([0.0] * 8)],
    ],
    ids=["nothing", "one verdict", "no verdict", "empty completions", "all 0.1", "all equal"],
)
def test_a_batch_that_says_nothing_is_no_step(base, batch):
    """#4, #27, #32, no gradient, no step: bit-equal afterwards, the step count and the moments too."""
    made = engine(base, "a", "fresh")
    step(made, "a", groups())
    for name in ("a", "fresh"):
        before = snapshot(made, name)
        done = step(made, name, batch)
        assert done.outcome == "empty"
        assert snapshot(made, name) == before


@pytest.mark.parametrize("value", [0.1, 0.3, 1000.1])
def test_equal_rewards_are_no_direction_however_they_round(base, value):
    """#27: the deviation of eight equal numbers is not 0 in float32."""
    assert not rewarded([value] * 8).advantages.any()


def test_all_truncated_say_nothing_where_truncated_ones_are_left_out(base):
    """#43, #44."""
    made = engine(base, "a", loss=Loss(beta=0.0, mask_truncated=True))
    before = snapshot(made, "a")
    assert step(made, "a", [rewarded([1.0, 0.0, 0.0], truncated=(True,) * 3)]).outcome == "empty"
    assert snapshot(made, "a") == before


def test_a_truncated_one_that_is_left_out_weighs_nothing(base):
    """#44: truncated and normal is normal alone, in what is summed and in what it is divided by."""
    loss = Loss(beta=0.0, mask_truncated=True)
    mixed, alone = engine(base, "a", loss=loss), engine(base, "a", loss=loss)
    group = rewarded([1.0, 0.0, 0.0, 0.5], truncated=(False, False, True, False))
    rows = [0, 1, 3]
    rest = replace(
        group,
        completions=tuple(group.completions[i] for i in rows),
        advantages=group.advantages[rows],
        truncated=(False,) * 3,
    )
    mixed.forward_backward("a", [group], HEAT)
    alone.forward_backward("a", [rest], HEAT)
    assert mixed.learners["a"].weight == alone.learners["a"].weight
    assert gap(gradients(mixed, "a"), gradients(alone, "a")) < 1e-7


def test_an_empty_completion_and_one_without_verdict_leave_the_group(base):
    """#32, #43: the others learn as if they had been alone with their advantages."""
    group = replace(
        rewarded([1.0, 0.0, 0.5, math.nan]),
        completions=((1, 2, 3), (4, 5), (), (6,)),
    )
    kept = taking_part(group)
    assert kept.completions == ((1, 2, 3), (4, 5))
    made, alone = engine(base, "a"), engine(base, "a")
    assert step(made, "a", [group]).outcome == step(alone, "a", [kept]).outcome == "done"
    assert snapshot(made, "a") == snapshot(alone, "a")


def test_groups_that_are_not_run_still_weigh(base):
    """C4: an equal group leaves the gradient's direction alone and adds its tokens to the normaliser."""
    made, alone = engine(base, "a"), engine(base, "a")
    (group,), still = groups(1), rewarded([0.0, 0.0, 0.0])
    made.forward_backward("a", [group, still], HEAT)
    alone.forward_backward("a", [group], HEAT)
    tokens = sum(map(len, still.completions))
    assert made.learners["a"].weight == alone.learners["a"].weight + tokens
    assert gap(gradients(made, "a"), gradients(alone, "a")) == 0


def test_mixed_rewards_always_have_a_gradient(base):
    """#52: for every choice of ratio and aggregation."""
    for ratio in ("token", "sequence"):
        for aggregation in ("token_mean", "seq_mean", "fixed_length"):
            loss = Loss(beta=0.0, ratio=ratio, aggregation=aggregation, limit=8)
            made = engine(base, "a", loss=loss)
            assert step(made, "a", [rewarded([1.0, 0.0, 0.0])]).norm > 1e-3
            made.close()


def test_ratio_levels_have_one_gradient_on_fresh_rollouts(base):
    """#52b: with one update a batch the two levels differ in nothing, the aggregations do."""
    found = {}
    for ratio in ("token", "sequence"):
        for aggregation in ("token_mean", "seq_mean"):
            made = engine(base, "a", loss=Loss(beta=0.0, ratio=ratio, aggregation=aggregation))
            made.forward_backward("a", [rewarded([1.0, 0.0], lengths=[2, 10])], HEAT)
            made.learners["a"]._scale([tensor.grad for tensor in made.learners["a"].weights.values()])
            found[ratio, aggregation] = gradients(made, "a")
            made.close()
    for aggregation in ("token_mean", "seq_mean"):
        assert gap(found["token", aggregation], found["sequence", aggregation]) < 1e-6
    assert gap(found["token", "token_mean"], found["token", "seq_mean"]) > 1e-3


# --- the reference ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["base", "initial", "folder"])
def test_kl_is_exactly_zero_at_step_zero(base, tmp_path, start):
    """#10: the reference is what the agent begins as: the base, or its initial adapter, fresh or from a folder."""
    options = {"reference": "base" if start == "base" else "initial"}
    if start == "folder":
        source = engine(base, "x")
        shaken(source, "x")
        source.write("x", tmp_path / "adapter")
        options["folder"] = tmp_path / "adapter"
    made = engine(base, "a", "b", loss=Loss(beta=1.0), optimiser=replace(OPTIMISER, lr=1e-9, floor=0.0), **options)
    for name in ("a", "b"):
        assert step(made, name, groups(3)).metrics["kl_mean"] == 0.0
    again = engine(base, "a", loss=Loss(beta=1.0), **options)
    step(again, "a", groups(3))
    assert step(again, "a", groups(3)).metrics["kl_mean"] > 0.0


def test_the_reference_is_the_first_adapter_after_a_resume_too(base):
    """#10, #21: what is restored are the weights, not what they are measured against."""
    made = engine(base, "a", loss=KL, reference="initial")
    step(made, "a", groups(seed=0))
    resumed = engine(base, "a", loss=KL, reference="initial")
    resumed.load("a", *made.state("a"))
    assert step(resumed, "a", groups(seed=1)) == step(made, "a", groups(seed=1))
    assert snapshot(made, "a") == snapshot(resumed, "a")


def test_kl_pulls_back_to_the_reference(base):
    """The term has a gradient of its own, where advantages are all 0."""
    made = engine(base, "a", loss=Loss(beta=1.0))
    shaken(made, "a", size=0.05)
    first = [step(made, "a", [rewarded([0.0] * 4)]) for _ in range(12)]
    assert all(one.outcome == "done" for one in first)
    assert first[-1].metrics["kl_mean"] < 0.8 * first[0].metrics["kl_mean"]


# --- steps --------------------------------------------------------------------------------------------


def test_save_load_step_is_step(base):
    """State law v, #21, #21b, #23: bit for bit, also of an agent that never stepped; not without moments."""
    made = engine(base, "a", "idle")
    step(made, "a", groups(seed=0))
    resumed, cold = engine(base, "a", "idle"), engine(base, "a")
    for name in ("a", "idle"):
        facts, arrays = made.state(name)
        resumed.load(name, facts, arrays)
        assert snapshot(resumed, name) == snapshot(made, name)
    facts, arrays = made.state("a")
    weights = {key: value for key, value in arrays.items() if key.startswith("weights/")}
    cold.load("a", facts | {"steps": {}}, weights)
    for each in (made, resumed, cold):
        step(each, "a", groups(seed=1))
    step(made, "idle", groups(seed=2))
    step(resumed, "idle", groups(seed=2))
    assert snapshot(resumed, "a") == snapshot(made, "a")
    assert snapshot(resumed, "idle") == snapshot(made, "idle")
    assert snapshot(cold, "a") != snapshot(made, "a")


def test_loading_forgets_a_gathered_gradient(base):
    made = engine(base, "a")
    kept = made.state("a")
    made.forward_backward("a", groups(), HEAT)
    made.load("a", *kept)
    assert made.optim_step("a").outcome == "empty"


def test_a_loaded_state_is_the_one_that_is_sampled_with(base):
    """#21b: no copy elsewhere keeps the old adapter."""
    made, other = engine(base, "a"), engine(base, "a")
    shaken(made, "a")
    other.load("a", *made.state("a"))
    asks = [Ask(prompt=(3, 4, 5), adapter=None, sampling=Sampling(max_tokens=8), seed=s) for s in range(3)]
    assert other.sample("a", asks) == made.sample("a", asks) != engine(base, "a").sample("a", asks)


def test_rate_one_in_a_billion_changes_next_to_nothing(base):
    made = engine(base, "a", optimiser=Optimiser(lr=1e-12, floor=0.0, warmup=0, weight_decay=0.0))
    before = {key: tensor.detach().clone() for key, tensor in made.learners["a"].weights.items()}
    assert step(made, "a", groups()).outcome == "done"
    assert gap(made.learners["a"].weights, before) < 1e-10


def test_the_clock_is_the_agents_own(base):
    """C21: ten updates of A leave B at the beginning of its warm-up."""
    made = engine(base, "a", "b", optimiser=Optimiser(lr=1.0, floor=0.1, warmup=4, horizon=8))
    assert [made.optimiser.rate(n) for n in (0, 1, 3, 4, 8, 99)] == [0.25, 0.5, 1.0, 1.0, pytest.approx(0.1), 0.1]
    rates = [step(made, "a", groups(1, seed=s)).lr for s in range(3)]
    assert rates == [0.25, 0.5, 0.75]
    assert step(made, "b", groups(1)).lr == 0.25


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_numbers_that_are_none_are_skipped_and_counted(base, monkeypatch, where):
    """A loss or a gradient that is NaN leaves the agent as it was; the others do not notice."""
    made, alone = engine(base, "a", "b"), engine(base, "a", "b")
    for each in (made, alone):
        step(each, "a", groups(seed=0))
    before = snapshot(made, "a")
    original = engine_module.terms

    def broken(new, *rest):
        found = original(new, *rest)
        bad = found.numerator * float("nan") if where == "loss" else found.numerator + (new * 0.0).sqrt().sum()
        return Terms(numerator=bad, weight=found.weight, metrics=found.metrics)

    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "terms", broken)
        done = step(made, "a", groups(seed=1))
    assert done.outcome == "skipped"
    assert math.isnan(done.norm)
    facts, arrays = snapshot(made, "a")
    assert facts == before[0] | {"skipped": 1}
    assert arrays == before[1]
    for each in (made, alone):
        step(each, "a", groups(seed=2))
        step(each, "b", groups(seed=3))
    assert snapshot(made, "a")[1] == snapshot(alone, "a")[1]
    assert snapshot(made, "b") == snapshot(alone, "b")


def test_one_broken_pass_spoils_the_whole_step(base, monkeypatch):
    """A later sound part of the batch does not hide it."""
    made = engine(base, "a")
    before = snapshot(made, "a")
    original = engine_module.terms

    def broken(*args):
        found = original(*args)
        return replace_numerator(found, float("inf"))

    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "terms", broken)
        made.forward_backward("a", groups(seed=1), HEAT)
    made.forward_backward("a", groups(seed=2), HEAT)
    assert made.optim_step("a").outcome == "skipped"
    assert snapshot(made, "a")[1] == before[1]


def replace_numerator(found, factor):
    return Terms(numerator=found.numerator * factor, weight=found.weight, metrics=found.metrics)


def test_the_gradient_is_clipped_to_the_bound(base):
    made = engine(base, "a", optimiser=replace(OPTIMISER, clip=1e-3))
    made.forward_backward("a", groups(), HEAT)
    learner = made.learners["a"]
    norm = learner._scale([tensor.grad for tensor in learner.weights.values()])
    left = torch.stack([tensor.grad.norm() for tensor in learner.weights.values()]).norm()
    assert norm > 1e-3
    assert float(left) == pytest.approx(1e-3, rel=1e-3)


# --- several updates a batch --------------------------------------------------------------------------


def with_old(made, batch, heat=HEAT):
    found = made.log_probs("a", batch, heat)
    return [replace(group, old=old) for group, old in zip(batch, found, strict=True)]


def test_ratio_is_one_before_the_first_update_and_moves_after_it(base):
    """#47, #52b: at T = 0.7, prompts of different lengths; after one update it is another."""
    for ratio in ("token", "sequence"):
        made = engine(base, "a", loss=Loss(beta=0.0, ratio=ratio))
        shaken(made, "a")
        batch = with_old(made, groups(4))
        first, second = step(made, "a", batch), step(made, "a", batch)
        assert first.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
        assert first.metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert first.metrics["clip_fraction"] == 0.0
        assert abs(second.metrics["ratio_max"] - 1.0) > 1e-3
        made.close()


def test_old_log_probabilities_are_those_of_a_fresh_batch(base):
    """The first of several updates is the one that a batch without old log-probabilities makes."""
    made, fresh = engine(base, "a"), engine(base, "a")
    batch = groups(3)
    made.forward_backward("a", with_old(made, batch), HEAT)
    fresh.forward_backward("a", batch, HEAT)
    assert gap(gradients(made, "a"), gradients(fresh, "a")) < 1e-5


def test_log_probabilities_of_old_leave_no_gradient(base):
    made = engine(base, "a")
    made.log_probs("a", groups(), HEAT)
    assert all(tensor.grad is None for tensor in made.learners["a"].weights.values())


def test_old_log_probabilities_of_a_large_group_go_through_in_parts(base, monkeypatch):
    """Memory is bounded there as in learning; every completion's numbers stand at its own place."""
    made = engine(base, "a")
    shaken(made, "a")
    lengths = [2, 9, 1, 0, 7, 9, 3]
    batch = [rewarded([1.0, 0.0] * 3 + [0.5], lengths=lengths), replace(rewarded([]), completions=()), *groups(2)]
    whole, sizes, original = made.log_probs("a", batch, HEAT), [], engine_module.told

    def watched(base, given, *rest):
        sizes.append((sum(one.size for one in given), sum(len(one.completions) for one in given)))
        return original(base, given, *rest)

    made.pass_tokens = 24
    monkeypatch.setattr(engine_module, "told", watched)
    parts = made.log_probs("a", batch, HEAT)
    assert len(sizes) > 4
    assert all(size <= 24 or rows == 1 for size, rows in sizes)
    assert [len(row) for row in parts[0]] == lengths
    assert [len(found) for found in parts] == [7, 0, 4, 4]
    for mine, theirs in zip(parts, whole, strict=True):
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(mine, theirs, strict=True))


def test_old_log_probabilities_of_groups_without_a_token(base):
    """#43: empty completions, one or all, have none, and the others keep theirs."""
    made = engine(base, "a")
    shaken(made, "a")
    part = replace(rewarded([1.0, 0.0]), completions=((1, 2), ()))
    none = replace(rewarded([1.0, 0.0]), completions=((), ()))
    (a, b), (c, d) = made.log_probs("a", [part, none], HEAT)
    assert [len(row) for row in (a, b, c, d)] == [2, 0, 0, 0]
    assert [len(row) for row in made.log_probs("a", [none], HEAT)[0]] == [0, 0]


# --- what is refused ----------------------------------------------------------------------------------


def test_agents_have_names_of_their_own(base):
    made = engine(base, "a")
    with pytest.raises(ConfigError, match="a: is there already"):
        made.add("a", 1)


def test_trainable_numbers_are_what_the_settings_mean(base, monkeypatch):
    """#65: r (in + out) over the adapted layers, by hand; another count is refused at the start."""
    made = engine(base, "a")
    per_layer = {"q_proj": 32 + 32, "v_proj": 32 + 16, "o_proj": 32 + 32, "up_proj": 32 + 48, "down_proj": 48 + 32}
    learner = made.learners["a"]
    assert sum(t.numel() for t in learner.weights.values()) == 2 * 4 * sum(per_layer.values())
    assert {id(t) for group in learner.optimiser.param_groups for t in group["params"]} == {
        id(t) for t in learner.weights.values()
    }
    short = dict(list(learner.weights.items())[2:])
    monkeypatch.setattr(engine_module.adapters, "fresh", lambda *args: short)
    with pytest.raises(ConfigError, match="trainable numbers where the lora settings mean"):
        made.add("b", 0)


def test_an_agents_start_depends_on_its_seed_alone(base):
    """#12: neither on how many agents there are nor on torch's own generator."""
    first = engine(base, "a", "b", "c")
    torch.manual_seed(123)
    second = engine(base)
    second.add("c", 102)
    assert snapshot(first, "c") == snapshot(second, "c") != snapshot(first, "a")
