"""The policy loss against numbers derived by hand. Numbers in names are rows of the list of known faults."""

import math
from dataclasses import replace

import pytest
import torch

from coterie.backends.sampling import entropies
from coterie.config import validate
from coterie.errors import ConfigError
from coterie.learning.logprobs import Picked
from coterie.learning.losses import (
    Loss,
    Measured,
    active,
    advantages,
    kl_tokens,
    ratio,
    surrogate,
    telling,
    terms,
    weight,
)

NAN = float("nan")
PLAIN = Loss(ratio="token", beta=0.0)
SHAPES = ("token_mean", "seq_mean", "fixed_length")
KINDS = ("token", "sequence")


def padded(lengths, width=None):
    """A mask with the given completion lengths."""
    return torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]


def policy(lengths, width=None, seed=0):
    """Log-probabilities of a policy, of an older one and of a reference, and the mask."""
    random = torch.Generator().manual_seed(seed)
    mask = padded(lengths, width)
    new = -torch.rand(mask.shape, generator=random) * 3
    old = new + 0.3 * torch.randn(mask.shape, generator=random)
    ref = new + 0.3 * torch.randn(mask.shape, generator=random)
    return new.requires_grad_(), old, ref, mask


def loss_and_gradient(new, old, ref, gain, mask, settings):
    found = terms(new, old, ref, gain, mask, settings)
    loss = found.numerator / found.weight
    return loss.item(), torch.autograd.grad(loss, new)[0]


def second_takes_no_part(new, old, ref, gain, mask, settings):
    """Of three rows the second changes neither the loss nor any gradient."""
    some = loss_and_gradient(new, old, ref, gain, mask, settings)
    kept = [0, 2]
    alone = new.detach()[kept].requires_grad_()
    only = loss_and_gradient(alone, old[kept], ref[kept], gain[kept], mask[kept], settings)
    assert some[0] == pytest.approx(only[0])
    torch.testing.assert_close(some[1][kept], only[1])
    assert (some[1][1] == 0).all()


# --- groups ------------------------------------------------------------------------------------------


def test_advantages_by_hand():
    """Eq. 20, C5. (1, 1, 0, 0): std sqrt(1/3). One of eight right: mean 1/8, variance 1/8."""
    found = advantages(torch.tensor([[1.0, 1.0, 0.0, 0.0]]))
    half = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    torch.testing.assert_close(found, torch.tensor([[half, half, -half, -half]], dtype=torch.float64))
    found = advantages(torch.tensor([[1.0] + [0.0] * 7]))
    assert found[0, 0].item() == pytest.approx(0.875 / (math.sqrt(1 / 8) + 1e-4))
    assert found[0, 1].item() == pytest.approx(-0.125 / (math.sqrt(1 / 8) + 1e-4))


def test_advantages_without_deviation_are_differences():
    found = advantages(torch.tensor([[1.0, 0.0, 0.5]]), scale_by_std=False)
    assert found.tolist() == [[0.5, -0.5, 0.0]]


@pytest.mark.parametrize("value", [0.1, 0.3, 0.5, 1000.1, -0.7, 0.0])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_trap_27_equal_rewards_give_exactly_zero(value, kind):
    """In float32 the deviation of eight times 0.1 is 8e-9, not 0."""
    rewards = torch.full((1, 8), value, dtype=kind)
    for scaled in (True, False):
        assert (advantages(rewards, scaled) == 0).all()
    assert not telling(rewards).any()


def test_trap_27_rewards_that_differ_by_rounding_are_equal():
    rewards = torch.tensor([[0.1 + 0.2, 0.3, 0.3], [1000.1, 1000.1 + 6e-5, 1000.1]], dtype=torch.float64)
    assert rewards[0, 0] != rewards[0, 1]
    assert (advantages(rewards) == 0).all()
    assert telling(torch.tensor([[0.0, 1e-3]])).item(), "a small difference is one"


def test_trap_26_a_group_of_halves_is_not_telling():
    """A mean within (0, 1) is no sign of a spread."""
    assert telling(torch.tensor([[0.5] * 8, [1.0, 0.0] * 4])).tolist() == [False, True]


def test_trap_28_raw_scores_decide_not_shaped_ones():
    """An all-wrong group whose length penalties differ has advantages, and is not telling all the same."""
    raw = torch.zeros(1, 4)
    shaped = raw - torch.tensor([[0.0, 0.2, 0.4, 1.0]])
    assert (advantages(shaped) != 0).any()
    assert not telling(raw).any()


def test_trap_29_a_constant_reward_ends_without_a_step():
    rewards = torch.full((3, 4), 0.5)
    assert not telling(rewards).any()
    new, old, _, mask = policy([3] * 12)
    _, gradient = loss_and_gradient(new, old, None, advantages(rewards).flatten(), mask, PLAIN)
    assert (gradient == 0).all()


def test_trap_30_groups_of_different_sizes():
    """Eight and four: each is normalised by its own; then every completion weighs the same, a prompt by its own."""
    large = torch.tensor([[1.0, 0, 0, 0, 1, 0, 0, 0]])
    small = torch.tensor([[1.0, 0, 0, 0]])
    together = advantages(torch.cat([large, torch.nn.functional.pad(small, (0, 4), value=NAN)]))
    torch.testing.assert_close(together[:1], advantages(large))
    torch.testing.assert_close(together[1:, :4], advantages(small))
    assert together[1, 4:].isnan().all()
    new, _, _, mask = policy([5] * 16)
    settings = replace(PLAIN, aggregation="seq_mean")
    _, gradient = loss_and_gradient(
        new, None, None, torch.where(together.isnan(), NAN, 1.0).flatten(), mask, settings
    )
    torch.testing.assert_close(gradient.view(2, -1).sum(1), torch.tensor([-8 / 12, -4 / 12]))


def test_trap_31_a_constant_column_gives_zero_not_nan():
    rewards = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.5]])
    found = advantages(rewards)
    assert found.isfinite().all()
    assert (found[0] == 0).all()


@pytest.mark.parametrize("missing", [NAN, float("inf"), float("-inf")])
def test_trap_32_errors_leave_the_group_and_never_count_as_zero(missing):
    torch.testing.assert_close(
        advantages(torch.tensor([[1.0, missing, 0.0, 1.0]]))[0, [0, 2, 3]],
        advantages(torch.tensor([[1.0, 0.0, 1.0]]))[0],
    )
    assert advantages(torch.tensor([[1.0, missing]])).isnan().all(), "one alone has nothing to compare"
    lost = torch.tensor([[missing] * 3])
    assert advantages(lost).isnan().all()
    assert not telling(torch.cat([lost, torch.tensor([[1.0, missing, missing]])])).any()
    assert telling(torch.tensor([[1.0, missing, 0.0]])).item()


def test_trap_32_a_group_of_errors_changes_nothing():
    """A missing verdict is out of numerator and weight, as if the completion had not been sampled."""
    new, old, ref, mask = policy([4, 2, 6])
    gain = torch.tensor([1.0, NAN, -0.5])
    for aggregation in SHAPES:
        settings = Loss(aggregation=aggregation, limit=10, beta=0.1)
        second_takes_no_part(new, old, ref, gain, mask, settings)
    found = terms(new, old, ref, torch.full((3,), NAN), mask, Loss())
    assert (found.numerator.item(), found.weight, found.metrics.named()) == (0.0, 0.0, {})


def test_no_groups_and_groups_of_none():
    assert advantages(torch.zeros(0, 4)).shape == (0, 4)
    assert telling(torch.zeros(0, 4)).shape == (0,)
    assert telling(torch.zeros(2, 0)).tolist() == [False, False]


# --- tokens ------------------------------------------------------------------------------------------


def test_ratios_by_hand():
    """Log-ratios (0.2, 0, padding): tokens e^0.2, 1; the sequence e^0.1. Eq. 21."""
    new, old = torch.tensor([[-1.0, -2.0, 7.0]]), torch.tensor([[-1.2, -2.0, -9.0]])
    mask = padded([2], 3)
    torch.testing.assert_close(ratio(new, old, mask, "token"), torch.tensor([[math.exp(0.2), 1.0, 1.0]]))
    torch.testing.assert_close(ratio(new, old, mask, "sequence"), torch.tensor([[math.exp(0.1)]]))


def test_trap_42_a_sequence_ratio_is_a_mean_in_log_space():
    """500 tokens, each 0.5 % less likely: e^-0.005 = 0.995, not e^-2.5 = 0.08."""
    old = torch.full((1, 500), -1.0)
    found = ratio(old - 0.005, old, torch.ones(1, 500), "sequence")
    assert found.item() == pytest.approx(math.exp(-0.005), abs=1e-5)


@pytest.mark.parametrize(
    ("rho", "gain", "cost", "slope"),
    [
        (1.5, 1.0, -1.2, 0.0),
        (1.5, -1.0, 1.5, 1.0),
        (0.5, -1.0, 0.8, 0.0),
        (0.5, 1.0, -0.5, -1.0),
        (1.0, 2.0, -2.0, -2.0),
        (1.3, 0.0, 0.0, 0.0),
    ],
)
def test_surrogate_by_hand(rho, gain, cost, slope):
    """Eq. 22 with clip 0.2: the bound holds only on the side that the advantage pulls to."""
    rho = torch.tensor(rho, requires_grad=True)
    found = surrogate(rho, torch.tensor(gain), 0.2, 0.2)
    found.backward()
    assert found.item() == pytest.approx(cost)
    assert rho.grad.item() == pytest.approx(slope)


def test_surrogate_clips_higher_than_lower():
    """DAPO: 1.25 and 0.8 are within [0.8, 1.28], 1.4 and 0.75 are not; two of four tokens are clipped."""
    rho, gain = torch.tensor([1.25, 1.4, 0.8, 0.75]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    torch.testing.assert_close(surrogate(rho, gain, 0.2, 0.28), torch.tensor([-1.25, -1.28, 0.8, 0.8]))
    old = torch.full((4, 1), -1.0)
    found = terms(old + rho.log()[:, None] + 1e-6, old, None, gain, torch.ones(4, 1), Loss.presets["dapo"])
    assert found.metrics.named()["clip_fraction"] == 0.5


def test_kl_by_hand():
    """Eqs. 23-24. Reference 0.5, policy 0.25: x = log 2, 2 - log 2 - 1."""
    found = kl_tokens(torch.tensor([0.25, 0.5]).log(), torch.tensor([0.5, 0.5]).log())
    torch.testing.assert_close(found, torch.tensor([1 - math.log(2), 0.0]))


def test_trap_45_the_weight_of_the_kl_is_the_token_ratio_at_either_level():
    """Log-ratios (0.2, -0.4), x = (log 2, 0): e^0.2 * (1 - log 2), also where the surrogate's ratio is a mean."""
    old = torch.tensor([[-1.0, -2.0]])
    new = old + torch.tensor([[0.2, -0.4]])
    ref = new + torch.tensor([[math.log(2), 0.0]])
    for kind in KINDS:
        settings = Loss(ratio=kind, kl="k3_weighted", beta=1.0)
        found = terms(new, old, ref, torch.zeros(1), torch.ones(1, 2), settings)
        assert found.numerator.item() == pytest.approx(math.exp(0.2) * (1 - math.log(2)), abs=1e-6)


def test_kl_of_a_policy_with_itself_is_exactly_zero():
    """Row 10: at step 0 the adapter is its reference."""
    new, _, _, mask = policy([3, 7])
    found = terms(new, None, new.detach().clone(), torch.zeros(2), mask, Loss(beta=1.0))
    assert found.numerator.item() == 0.0
    assert found.metrics.named()["kl_mean"] == 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gain", [1.0, -1.0])
def test_far_apart_policies_give_numbers(kind, gain):
    """e^200 is infinite in float32, and the branch that the minimum leaves would have gradient 0 * infinity."""
    new = torch.tensor([[-0.1, -0.2]], requires_grad=True)
    old, ref = torch.tensor([[-200.0, -300.0]]), torch.tensor([[-0.1, 199.0]])
    settings = Loss(ratio=kind, beta=0.1, kl="k3_weighted")
    value, gradient = loss_and_gradient(new, old, ref, torch.tensor([gain]), torch.ones(1, 2), settings)
    assert math.isfinite(value)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_trap_47_the_first_ratio_is_one_at_the_sampling_temperature(temperature):
    """A sampler at T draws from logits / T; log-probabilities of the logits themselves are of another policy."""
    random = torch.Generator().manual_seed(1)
    hidden, head = torch.randn(6, 8, generator=random), torch.randn(32, 8, generator=random)
    ids = torch.randint(32, (6,), generator=random)
    drawn = (hidden @ head.T / temperature).log_softmax(-1).gather(1, ids[:, None]).T
    new = Picked.apply(hidden.requires_grad_(), ids, head, temperature)[None]
    for kind in KINDS:
        rho = ratio(new, drawn, torch.ones(1, 6), kind)
        torch.testing.assert_close(rho, torch.ones_like(rho), atol=1e-5, rtol=0)
    untempered = Picked.apply(hidden, ids, head, 1.0)[None]
    assert (temperature == 1.0) == bool(
        (ratio(untempered, drawn, torch.ones(1, 6), "token") - 1).abs().max() < 1e-5
    )


@pytest.mark.parametrize("level", [-3.0, 0.0, 40.0])
def test_trap_50_uniform_logits_have_entropy_log_v(level):
    torch.testing.assert_close(entropies(torch.full((5, 11), level)), torch.full((5,), math.log(11)))


# --- batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_terms_by_hand(kind):
    """One sequence of two tokens, A = 1, on-policy, KL 0: -1 a token."""
    new = torch.tensor([[-1.0, -2.0]])
    for aggregation, numerator, divisor in (("token_mean", -2, 2), ("seq_mean", -1, 1), ("fixed_length", -2, 4)):
        settings = Loss(ratio=kind, aggregation=aggregation, limit=4)
        found = terms(new, new, new, torch.ones(1), torch.ones(1, 2), settings)
        assert (found.numerator.item(), found.weight) == (numerator, divisor)


def test_terms_with_everything_by_hand():
    """Two sequences, of 2 and 1 tokens, sequence ratios e^0.1 and e^-0.3, advantages 1 and -1, clip 0.2, beta 0.5.

    Costs: -e^0.1 = -1.10517 (within), and for -1: max(e^-0.3, 0.8) = 0.8 (clipped). KL: x = (log 2, 0) and 0:
    0.30685, 0, 0. Sum of tokens 2 * -1.10517 + 0.8 + 0.5 * 0.30685 = -1.25692; means -1.10517 + 0.07671 + 0.8.
    """
    new = torch.tensor([[-1.0, -2.0, 0.0], [-3.0, 0.0, 0.0]])
    old = torch.tensor([[-1.2, -2.0, 0.0], [-2.7, 0.0, 0.0]])
    ref = new + torch.tensor([[math.log(2), 0.0, 0.0], [0.0, 0.0, 0.0]])
    gain, mask = torch.tensor([1.0, -1.0]), padded([2, 1], 3)
    found = terms(new, old, ref, gain, mask, Loss(beta=0.5))
    kl = 1 - math.log(2)
    assert found.numerator.item() == pytest.approx(-2 * math.exp(0.1) + 0.8 + 0.5 * kl, abs=1e-6)
    assert found.weight == 3
    mean = terms(new, old, ref, gain, mask, Loss(beta=0.5, aggregation="seq_mean"))
    assert mean.numerator.item() == pytest.approx(-math.exp(0.1) + 0.8 + 0.25 * kl, abs=1e-6)
    assert found.metrics.named() == pytest.approx(
        {
            "clip_fraction": 0.5,
            "ratio_mean": (math.exp(0.1) + math.exp(-0.3)) / 2,
            "ratio_max": math.exp(0.1),
            "kl_mean": kl / 3,
        },
        abs=1e-6,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_trap_41_a_token_mean_counts_a_sequence_by_its_length(kind):
    """Lengths 10 and 2, A = 1: pulls of -10/12 and -2/12 in sum over tokens; by sequences -1/2 each."""
    new, _, _, mask = policy([10, 2])
    expected = {
        "token_mean": [-10 / 12, -2 / 12],
        "seq_mean": [-0.5, -0.5],
        "fixed_length": [-10 / 40, -2 / 40],
    }
    for aggregation, pulls in expected.items():
        settings = Loss(ratio=kind, aggregation=aggregation, beta=0.0, limit=20)
        _, gradient = loss_and_gradient(new, None, None, torch.ones(2), mask, settings)
        torch.testing.assert_close(gradient.sum(1), torch.tensor(pulls))


def test_trap_41_the_combination_is_said():
    """C6: it is the paper's, kept and told, not silently changed."""
    assert any("proportion to its length" in line for line in Loss().remarks())
    assert not Loss.presets["grpo"].remarks()
    assert not Loss.presets["gspo"].remarks()


@pytest.mark.parametrize("aggregation", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_trap_43_an_empty_completion_weighs_nothing(kind, aggregation):
    settings = Loss(ratio=kind, aggregation=aggregation, limit=8, beta=0.1)
    new, old, ref, mask = policy([3, 0, 5])
    gain = torch.tensor([1.0, 1.0, -1.0])
    second_takes_no_part(new, old, ref, gain, mask, settings)


@pytest.mark.parametrize("aggregation", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (3, 0), (3, 5)])
def test_trap_43_nothing_active_is_no_loss_and_no_nan(kind, aggregation, shape):
    """All empty, no sequence, no column: numerator 0, weight 0, a gradient of zeros, nothing measured."""
    new = torch.zeros(shape, requires_grad=True)
    settings = Loss(ratio=kind, aggregation=aggregation, limit=8)
    found = terms(new, new.detach(), new.detach(), torch.ones(shape[0]), torch.zeros(shape), settings)
    found.numerator.backward()
    assert (found.numerator.item(), found.weight) == (0.0, 0.0)
    assert (new.grad == 0).all()
    assert found.metrics == Measured()


@pytest.mark.parametrize("aggregation", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_trap_44_truncated_sequences_leave_numerator_and_weight(kind, aggregation):
    settings = Loss(ratio=kind, aggregation=aggregation, limit=8, beta=0.1, mask_truncated=True)
    new, old, ref, mask = policy([3, 8, 5])
    gain, cut = torch.tensor([1.0, 0.5, -1.0]), torch.tensor([False, True, False])
    some = loss_and_gradient(new, old, ref, gain, active(mask, cut, settings), settings)
    kept = [0, 2]
    alone = new.detach()[kept].requires_grad_()
    only = loss_and_gradient(alone, old[kept], ref[kept], gain[kept], mask[kept], settings)
    assert some[0] == pytest.approx(only[0])
    torch.testing.assert_close(some[1][kept], only[1])
    kept = active(mask, cut, replace(settings, mask_truncated=False))
    assert weight(kept, replace(settings, aggregation="token_mean")) == 16


def test_trap_44_all_truncated_is_no_step():
    settings = Loss(mask_truncated=True)
    new, old, ref, mask = policy([4, 4])
    found = terms(new, old, ref, torch.tensor([1.0, -1.0]), active(mask, torch.ones(2), settings), settings)
    assert (found.numerator.item(), found.weight) == (0.0, 0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", ["k3", "k3_weighted"])
def test_what_stands_at_padding_is_never_read(kind, penalty):
    """NaN and infinities there reach neither the value nor the gradient nor what is measured."""
    settings = Loss(ratio=kind, kl=penalty, beta=0.1)
    new, old, ref, mask = policy([3, 1, 5])
    gain = torch.tensor([1.0, -1.0, 0.5])
    clean = loss_and_gradient(new, old, ref, gain, mask, settings)
    spoilt = new.detach().masked_fill(~mask, NAN).requires_grad_()
    dirty = (old.masked_fill(~mask, float("-inf")), ref.masked_fill(~mask, NAN))
    found = loss_and_gradient(spoilt, *dirty, gain, mask.float(), settings)
    assert found[0] == clean[0]
    torch.testing.assert_close(found[1], clean[1], rtol=0, atol=0)
    assert (found[1][~mask] == 0).all()
    measured = terms(spoilt, *dirty, gain, mask, settings).metrics
    assert measured == terms(new, old, ref, gain, mask, settings).metrics


@pytest.mark.parametrize("aggregation", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", ["k3", "k3_weighted"])
def test_law_3_parts_of_a_batch_equal_the_batch(kind, aggregation, penalty):
    """Any split, padded to its own width: sum of numerators over sum of weights, and the same measurements."""
    settings = Loss(
        ratio=kind, aggregation=aggregation, kl=penalty, limit=9, beta=0.2, clip_low=0.05, clip_high=0.05
    )
    new, old, ref, mask = policy([2, 9, 1, 4, 0, 7])
    gain = torch.tensor([1.0, -1.0, NAN, 0.5, 1.0, -0.2])
    whole = loss_and_gradient(new, old, ref, gain, mask, settings)
    measured = terms(new, old, ref, gain, mask, settings).metrics
    for parts in (([0, 1, 2], [3, 4, 5]), ([5], [4], [0, 3], [2], [1])):
        numerator, total, seen = torch.zeros(()), 0.0, Measured()
        for rows in parts:
            width = int(mask[rows].sum(1).max())
            sliced = (tensor[rows][:, :width] for tensor in (new, old, ref))
            found = terms(*sliced, gain[rows], mask[rows][:, :width], settings)
            numerator, total, seen = numerator + found.numerator, total + found.weight, seen + found.metrics
        loss = numerator / total
        assert loss.item() == pytest.approx(whole[0], abs=1e-6)
        torch.testing.assert_close(torch.autograd.grad(loss, new)[0], whole[1])
        assert seen.named() == pytest.approx(measured.named(), abs=1e-6)


def test_the_order_of_rows_does_not_matter():
    new, old, ref, mask = policy([2, 5, 3])
    gain, order = torch.tensor([1.0, -1.0, 0.3]), [2, 0, 1]
    for kind in KINDS:
        settings = Loss(ratio=kind)
        value, gradient = loss_and_gradient(new, old, ref, gain, mask, settings)
        other = loss_and_gradient(
            new.detach()[order].requires_grad_(), old[order], ref[order], gain[order], mask[order], settings
        )
        assert other[0] == pytest.approx(value, abs=1e-6)
        torch.testing.assert_close(other[1], gradient[order])


@pytest.mark.parametrize("name", Loss.presets)
def test_trap_52_every_method_has_a_gradient(name):
    """Mixed rewards must move something, on-policy and off; there is no level of ratio that means none."""
    settings = Loss.presets[name].within(6)
    gain = advantages(torch.tensor([[1.0, 0.0, 1.0]]), settings.scale_by_std).flatten()
    new, old, ref, mask = policy([3, 6, 2])
    for before in (None, old):
        _, gradient = loss_and_gradient(new, before, ref if settings.beta else None, gain, mask, settings)
        assert gradient.norm() > 1e-3
    for key, value in (("ratio", None), ("aggregation", None), ("kl", "none"), ("ratio", "word")):
        with pytest.raises(ConfigError, match=key):
            validate(Loss, {key: value}, "loss")


def test_trap_52_a_level_that_is_none_is_refused_also_without_a_recipe():
    new, old, ref, mask = policy([3])
    with pytest.raises(ConfigError, match="ratio"):
        terms(new, old, ref, torch.ones(1), mask, Loss(ratio=None))
    with pytest.raises(ConfigError, match="aggregation"):
        terms(new, old, ref, torch.ones(1), mask, Loss(aggregation=None))


def test_trap_52b_on_fresh_rollouts_the_level_of_the_ratio_is_inert():
    """Lengths 2 and 10, A = 1.6: token and sequence ratio have equal gradients, only the aggregation differs.

    Sums a row: 1.6 * 2/12 = 0.27 and 1.6 * 10/12 = 1.33 by tokens, 0.8 and 0.8 by sequences. No clip acts.
    """
    new, _, _, mask = policy([2, 10])
    gain = torch.tensor([1.6, 1.6])
    for aggregation, sums in (("token_mean", [-1.6 * 2 / 12, -1.6 * 10 / 12]), ("seq_mean", [-0.8, -0.8])):
        found = [
            loss_and_gradient(
                new, None, None, gain, mask, Loss(ratio=k, aggregation=aggregation, beta=0.0, clip_low=c)
            )
            for k in KINDS
            for c in (0.0, 0.2)
        ]
        for _, gradient in found:
            torch.testing.assert_close(gradient, found[0][1], rtol=0, atol=1e-7)
            torch.testing.assert_close(gradient.sum(1), torch.tensor(sums))
    assert terms(new, None, None, gain, mask, Loss(beta=0.0)).metrics.named() == {
        "clip_fraction": 0.0,
        "ratio_mean": 1.0,
        "ratio_max": 1.0,
    }


def test_trap_52b_after_a_first_update_they_differ():
    new, old, _, mask = policy([2, 10])
    gain = torch.tensor([1.0, -1.0])
    token, sequence = (
        loss_and_gradient(new, old, None, gain, mask, Loss(ratio=kind, beta=0.0))[1] for kind in KINDS
    )
    assert (token - sequence).abs().max() > 1e-3


def test_trap_53_the_clip_that_suits_a_sequence_ratio():
    """A ratio of 1.001 over a sequence: 0.2 does not act, 4e-4 does; on tokens that far apart 0.2 does."""
    old = torch.full((2, 50), -1.0)
    new = (old + torch.tensor([[0.001], [-0.001]])).requires_grad_()
    gain, mask = torch.tensor([1.0, -1.0]), torch.ones(2, 50)
    clipped = {
        name: terms(new, old, old, gain, mask, Loss.presets[name]).metrics.named()["clip_fraction"]
        for name in ("cera", "gspo", "grpo")
    }
    assert clipped == {"cera": 0.0, "gspo": 1.0, "grpo": 0.0}
    assert any("never acts" in line for line in Loss().remarks())
    assert not any("never acts" in line for line in Loss(clip_low=3e-4, clip_high=4e-4).remarks())
    far = terms(old + 0.3, old, None, torch.ones(2), mask, Loss.presets["dapo"]).metrics.named()
    assert far["clip_fraction"] == 1.0


def test_the_clip_takes_the_gradient_only_where_it_is_counted():
    """Four sequences, ratio up or down, advantage up or down: two are clipped, and only these have no gradient."""
    old = torch.full((4, 3), -1.0)
    new = (old + torch.tensor([0.5, 0.5, -0.5, -0.5])[:, None]).requires_grad_()
    gain = torch.tensor([1.0, -1.0, 1.0, -1.0])
    for kind in KINDS:
        settings = Loss(ratio=kind, beta=0.0)
        _, gradient = loss_and_gradient(new, old, None, gain, torch.ones(4, 3), settings)
        assert (gradient != 0).any(1).tolist() == [False, True, True, False]
        assert terms(new, old, None, gain, torch.ones(4, 3), settings).metrics.named()["clip_fraction"] == 0.5


def test_only_the_new_policy_carries_gradient():
    new, old, ref, mask = policy([3, 2])
    old, ref, gain = old.requires_grad_(), ref.requires_grad_(), torch.ones(2, requires_grad=True)
    terms(new, old, ref, gain, mask, Loss(beta=0.1, kl="k3_weighted")).numerator.backward()
    assert new.grad is not None
    assert old.grad is ref.grad is gain.grad is None


def test_half_precision_is_widened_first():
    """In bfloat16 a log-ratio of 0.001 at -5 is rounded away; sums are in float32."""
    new, old, _, mask = policy([40, 3])
    found = terms(new.bfloat16(), old.bfloat16(), None, torch.ones(2), mask, PLAIN)
    assert found.numerator.dtype == torch.float32
    exact = terms(new.bfloat16().float(), old.bfloat16().float(), None, torch.ones(2), mask, PLAIN)
    assert found.numerator.item() == exact.numerator.item()


def test_a_reference_is_measured_without_beta_and_demanded_with_it():
    new, old, ref, mask = policy([3, 2])
    with_it, without = (terms(new, old, r, torch.ones(2), mask, PLAIN) for r in (ref, None))
    assert with_it.numerator.item() == without.numerator.item()
    assert with_it.metrics.named()["kl_mean"] > 0
    assert "kl_mean" not in without.metrics.named()
    with pytest.raises(ConfigError, match="reference"):
        terms(new, old, None, torch.ones(2), mask, Loss())


def test_fixed_length_is_the_same_for_every_part():
    """The divisor is a setting, never the width that a part happens to be padded to; too small a limit is said."""
    settings = replace(Loss.presets["dr_grpo"], limit=100)
    assert weight(padded([3, 5]), settings) == weight(padded([3, 5], 60), settings) == 200
    for wrong in (0, 4):
        with pytest.raises(ConfigError, match="at least 5"):
            weight(padded([3, 5]), replace(settings, limit=wrong))
    assert Loss.presets["dr_grpo"].within(7).limit == 7
    assert settings.within(7).limit == 100


def test_presets():
    """Constants of the papers; the default is the reproduction."""
    assert Loss() == Loss.presets["cera"] == validate(Loss, {}, "loss")
    assert (Loss().ratio, Loss().aggregation, Loss().beta, Loss().clip_low) == ("sequence", "token_mean", 1e-4, 0.2)
    bounds = {name: (s.clip_low, s.clip_high) for name, s in Loss.presets.items()}
    assert bounds["gspo"] == (3e-4, 4e-4)
    assert bounds["dapo"] == (0.2, 0.28)
    assert not Loss.presets["dr_grpo"].scale_by_std
    with pytest.raises(ConfigError, match="clip_low"):
        validate(Loss, {"clip_low": 1.0}, "loss")
