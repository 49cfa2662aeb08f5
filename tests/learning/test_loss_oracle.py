"""The policy loss against two judges: enumeration of a small policy, and TRL's GRPOTrainer on a tiny model.

Enumeration: a tabular softmax policy over three tokens (a, b, end) and completions of at most two tokens, in
float64, where expectations are finite sums. TRL's own code gets fixed tokens and fixed old and reference
log-probabilities, and its loss and gradients are compared with ours.
"""

import itertools
from dataclasses import replace

import pytest
import torch

from coterie.learning.losses import Loss, advantages, terms

A, B, END = 0, 1, 2
COMPLETIONS = [(END,), (A, END), (A, A), (A, B), (B, END), (B, A), (B, B)]
REWARDS = torch.tensor([0.0, 1.0, 0.25, -0.5, 0.5, 0.75, 0.0], dtype=torch.float64)
MASK = torch.tensor([[1, len(c) > 1] for c in COMPLETIONS], dtype=torch.bool)
LENGTHS = MASK.sum(1)
ON_POLICY = Loss(beta=0.0, clip_low=0.2, clip_high=0.2, limit=2)


def table(seed):
    """Logits of the three states that a token is drawn in: at the start, after a, after b."""
    return torch.randn(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_probs(logits):
    """Of every completion's tokens: (7, 2), 0 at padding."""
    logs = logits.log_softmax(-1)
    rows = [[logs[0, c[0]], logs[1 + c[0], c[1]] if len(c) > 1 else logs.new_zeros(())] for c in COMPLETIONS]
    return torch.stack([torch.stack(row) for row in rows])


def chances(logits):
    return log_probs(logits).sum(1).exp()


def gradient_of(function, logits):
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(function(logits), logits)[0]


def expected_loss_gradient(logits, gain, settings, **others):
    """The gradient that the loss's numerators have on average over completions that the policy draws."""
    odds = chances(others.get("drawn_by", logits)).detach()
    old, ref = others.get("old"), others.get("ref")

    def mean(theta):
        new = log_probs(theta)
        each = [
            terms(new[i : i + 1], _row(old, i), _row(ref, i), gain[i : i + 1], MASK[i : i + 1], settings).numerator
            for i in range(len(COMPLETIONS))
        ]
        return (odds * torch.stack(each)).sum()

    return gradient_of(mean, logits)


def _row(values, i):
    return None if values is None else values[i : i + 1]


def test_the_enumeration_is_of_a_distribution():
    assert chances(table(0)).sum().item() == pytest.approx(1.0)


def test_the_exact_gradient_is_that_of_finite_differences():
    logits = table(1)
    exact = gradient_of(lambda theta: (chances(theta) * REWARDS).sum(), logits)
    for place in itertools.product(range(3), range(3)):
        step = torch.zeros_like(logits)
        step[place] = 1e-5
        slope = ((chances(logits + step) - chances(logits - step)) * REWARDS).sum() / 2e-5
        assert exact[place].item() == pytest.approx(slope.item(), abs=1e-8)


@pytest.mark.parametrize("kind", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", ["token_mean", "fixed_length"])
@pytest.mark.parametrize("baseline", [0.0, 0.4])
def test_the_expected_gradient_is_the_policy_gradient(kind, aggregation, baseline):
    """At ratio 1 the numerators' mean gradient is minus that of the expected reward, whatever the baseline."""
    logits, settings = table(2), replace(ON_POLICY, ratio=kind, aggregation=aggregation)
    exact = gradient_of(lambda theta: (chances(theta) * REWARDS).sum(), logits)
    found = expected_loss_gradient(logits, REWARDS - baseline, settings)
    torch.testing.assert_close(found, -exact)


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_a_mean_by_sequence_follows_the_reward_over_the_length(kind):
    """Each completion's advantage counts divided by its length: the bias that `fixed_length` is there to remove."""
    logits, settings = table(3), replace(ON_POLICY, ratio=kind, aggregation="seq_mean")
    by_length = gradient_of(lambda theta: (chances(theta) * REWARDS / LENGTHS).sum(), logits)
    plain = gradient_of(lambda theta: (chances(theta) * REWARDS).sum(), logits)
    found = expected_loss_gradient(logits, REWARDS, settings)
    torch.testing.assert_close(found, -by_length)
    assert (found + plain).abs().max() > 1e-2


def test_groups_point_along_the_policy_gradient():
    """Over all 49 pairs, rewards minus their mean: G - 1 = 1 times the policy gradient."""
    logits, settings = table(4), replace(ON_POLICY, aggregation="fixed_length")
    exact = gradient_of(lambda theta: (chances(theta) * REWARDS).sum(), logits)

    def mean(theta):
        odds, new = chances(theta).detach(), log_probs(theta)
        total = theta.new_zeros(())
        for pair in itertools.product(range(len(COMPLETIONS)), repeat=2):
            rows = list(pair)
            gain = advantages(REWARDS[rows][None], scale_by_std=False)[0]
            total = total + odds[rows].prod() * terms(new[rows], None, None, gain, MASK[rows], settings).numerator
        return total

    torch.testing.assert_close(gradient_of(mean, logits), -exact)


def test_off_policy_the_token_ratio_corrects_one_token():
    """Completions of one token drawn by an older policy: the ratio makes the gradient that of the new one."""
    logits, older = table(5)[0], table(6)[0]
    wide = replace(ON_POLICY, ratio="token", clip_low=0.999, clip_high=1e6)
    exact = gradient_of(lambda theta: (theta.softmax(-1) * REWARDS[:3]).sum(), logits)

    def mean(theta):
        new, old = theta.log_softmax(-1)[:, None], older.log_softmax(-1)[:, None]
        each = [terms(new[[i]], old[[i]], None, REWARDS[[i]], MASK[[0], :1], wide).numerator for i in range(3)]
        return (older.softmax(-1) * torch.stack(each)).sum()

    assert (logits.softmax(-1) / older.softmax(-1)).min() > 0.001
    torch.testing.assert_close(gradient_of(mean, logits), -exact)


# --- which gradient each KL has (trap 45) ------------------------------------------------------------


def divergence(p, q):
    """KL(p || q) of log-probabilities."""
    return (p.exp() * (p - q)).sum(-1)


def kl_gradient(logits, reference, kind, drawn_by):
    """Mean gradient of the KL term alone over single tokens that `drawn_by` draws."""
    settings = Loss(ratio="token", kl=kind, beta=1.0, clip_low=0.0, clip_high=0.0)
    old = drawn_by.log_softmax(-1)[:, None]
    ref = reference.log_softmax(-1)[:, None]

    def mean(theta):
        new = theta.log_softmax(-1)[:, None]
        zero = torch.zeros(1, dtype=theta.dtype)
        each = [terms(new[[i]], old[[i]], ref[[i]], zero, MASK[[0], :1], settings).numerator for i in range(3)]
        return (drawn_by.softmax(-1) * torch.stack(each)).sum()

    return gradient_of(mean, logits)


def test_trap_45_k3_has_the_gradient_of_the_divergence_from_the_reference():
    logits, reference = table(7)[0], table(8)[0]
    towards = gradient_of(lambda t: divergence(reference.log_softmax(-1), t.log_softmax(-1)), logits)
    wanted = gradient_of(lambda t: divergence(t.log_softmax(-1), reference.log_softmax(-1)), logits)
    found = kl_gradient(logits, reference, "k3", logits)
    torch.testing.assert_close(found, towards)
    assert (found - wanted).abs().max() > 1e-2, "biased, unless near the reference"


def test_trap_45_k3_is_right_to_first_order_near_the_reference():
    logits = table(7)[0]
    reference = logits + 1e-4 * table(8)[0]
    wanted = gradient_of(lambda t: divergence(t.log_softmax(-1), reference.log_softmax(-1)), logits)
    found = kl_gradient(logits, reference, "k3", logits)
    assert (found - wanted).norm() < 1e-3 * wanted.norm()


@pytest.mark.parametrize("older", [7, 9])
def test_trap_45_weighted_k3_has_the_gradient_of_the_divergence(older):
    """On fresh tokens (7 is the policy itself) and on those of another policy."""
    logits, reference = table(7)[0], table(8)[0]
    wanted = gradient_of(lambda t: divergence(t.log_softmax(-1), reference.log_softmax(-1)), logits)
    torch.testing.assert_close(kl_gradient(logits, reference, "k3_weighted", table(older)[0]), wanted)
    if older != 7:
        assert (kl_gradient(logits, reference, "k3", table(older)[0]) - wanted).abs().max() > 1e-2


def test_trap_45_why_k1_and_k2_are_not_offered():
    """k1 has no gradient on average; k2 has, token by token, the one that weighted k3 has on fresh tokens."""
    logits, reference = table(7)[0], table(8)[0].log_softmax(-1)
    odds = logits.softmax(-1)
    first = gradient_of(lambda t: (odds * (t.log_softmax(-1) - reference)).sum(), logits)
    torch.testing.assert_close(first, torch.zeros_like(first))
    second = gradient_of(lambda t: (odds * (t.log_softmax(-1) - reference).square() / 2).sum(), logits)
    torch.testing.assert_close(second, kl_gradient(logits, table(8)[0], "k3_weighted", logits))


def test_the_kl_of_two_tokens_is_per_token_given_what_stands_before():
    """Weighted k3, sums over tokens: the gradient of each state's KL, the states as often as they are met."""
    logits, reference = table(10), table(11)
    settings = Loss(ratio="token", kl="k3_weighted", beta=1.0)
    met = torch.cat([torch.ones(1, dtype=torch.float64), logits[0].softmax(-1)[:2]])  # start, after a, after b
    per_state = gradient_of(
        lambda t: (met * divergence(t.log_softmax(-1), reference.log_softmax(-1))).sum(), logits
    )
    nothing = torch.zeros(len(COMPLETIONS), dtype=torch.float64)
    found = expected_loss_gradient(logits, nothing, settings, ref=log_probs(reference))
    torch.testing.assert_close(found, per_state)


# --- TRL ---------------------------------------------------------------------------------------------

PROMPT, WIDTH, ROWS = 5, 9, 6
METHODS = {"grpo": "seq_mean", "dapo": "token_mean", "bnpo": "token_mean", "dr_grpo": "fixed_length"}
"""TRL's names for the aggregations; its two token means differ in whose tokens they count, here the same."""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """TRL's trainer around a random Qwen3 with two layers; nothing is downloaded and nothing is trained."""
    trl = pytest.importorskip("trl", reason="trl is not installed")
    transformers = pytest.importorskip("transformers")
    datasets = pytest.importorskip("datasets")
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.3}
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**sizes, **heads, pad_token_id=0, eos_token_id=1)
    )
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        use_cpu=True,
        report_to=[],
        bf16=False,
        per_device_train_batch_size=ROWS,
        num_generations=ROWS,
        max_completion_length=WIDTH + 3,
    )
    rows = datasets.Dataset.from_dict({"prompt": ["a"] * ROWS})
    made = trl.GRPOTrainer(
        model,
        reward_funcs=_no_reward,
        args=arguments,
        train_dataset=rows,
        processing_class=_tokenizer(transformers),
    )
    made.current_gradient_accumulation_steps = 1
    made.model.eval()  # no dropout, and TRL leaves its metrics' training side alone
    return made


def _no_reward(completions, **_):
    return [0.0] * len(completions)


def _tokenizer(transformers):
    from tokenizers import Tokenizer, models

    inner = Tokenizer(models.WordLevel({f"t{i}": i for i in range(128)}, unk_token="t2"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="t0", eos_token="t1")


@pytest.fixture(scope="module")
def batch(trainer):
    """Fixed tokens with prompts padded at the left, lengths from 1 to the width, old and reference log-probs."""
    random = torch.Generator().manual_seed(3)
    lengths = torch.tensor([9, 1, 4, 7, 2, 5])
    mask = (torch.arange(WIDTH) < lengths[:, None]).long()
    before = (torch.arange(PROMPT) >= torch.tensor([0, 2, 1, 0, 3, 1])[:, None]).long()
    ids = {
        "prompt_ids": torch.randint(3, 128, (ROWS, PROMPT), generator=random) * before,
        "prompt_mask": before,
        "completion_ids": torch.randint(3, 128, (ROWS, WIDTH), generator=random) * mask,
        "completion_mask": mask,
    }
    with torch.no_grad():
        new = _log_probs(trainer, ids)
    noise = torch.randn(2, ROWS, WIDTH, generator=random)
    shift = torch.tensor([0.3, -0.4, 0.05, -0.02, -0.5, 0.2])[:, None]  # so that sequence ratios leave the bounds
    return ids | {
        "old_per_token_logps": new - shift + 0.3 * noise[0],
        "ref_per_token_logps": new + 0.3 * noise[1],
        "advantages": torch.tensor([1.2, -0.7, 0.4, -1.1, 0.9, -0.3]),
        "num_items_in_batch": mask.sum(),
    }


def _log_probs(trainer, ids):
    both = [torch.cat([ids[f"prompt_{part}"], ids[f"completion_{part}"]], 1) for part in ("ids", "mask")]
    return trainer._get_per_token_logps_and_entropies(trainer.model, *both, WIDTH)[0]


def _ours(trainer, batch, settings):
    return terms(
        _log_probs(trainer, batch),
        batch["old_per_token_logps"],
        batch["ref_per_token_logps"],
        batch["advantages"],
        batch["completion_mask"],
        settings,
    )


def _theirs(trainer, batch, method, settings):
    trainer.loss_type, trainer.importance_sampling_level = method, settings.ratio
    trainer.beta, trainer.epsilon_low, trainer.epsilon_high = settings.beta, settings.clip_low, settings.clip_high
    trainer.args.use_bias_correction_kl = settings.kl == "k3_weighted"
    trainer._metrics["eval"].clear()
    return trainer._compute_loss(trainer.model, dict(batch))


def _gradients(trainer, loss):
    return torch.autograd.grad(loss, list(trainer.model.parameters()), allow_unused=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("clip", [(0.2, 0.28), (0.05, 0.1), (3e-4, 4e-4)])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_trl_gives_the_same_loss_and_gradient(trainer, batch, method, level, clip, beta):
    """Value and every parameter's gradient within 1e-5, and the same KL and share of clipped ratios."""
    settings = Loss(
        ratio=level,
        aggregation=METHODS[method],
        beta=beta,
        clip_low=clip[0],
        clip_high=clip[1],
        limit=trainer.max_completion_length,
    )
    found = _ours(trainer, batch, settings)
    ours, theirs = found.numerator / found.weight, _theirs(trainer, batch, method, settings)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)
    for mine, other in zip(_gradients(trainer, ours), _gradients(trainer, theirs), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)
    measured = found.metrics.named()
    assert measured["clip_fraction"] > 0
    assert measured["clip_fraction"] == pytest.approx(
        trainer._metrics["eval"]["clip_ratio/region_mean"][0], abs=1e-6
    )
    if beta:
        assert measured["kl_mean"] == pytest.approx(trainer._metrics["eval"]["kl"][0], abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_trl_weighs_the_kl_alike(trainer, batch, method):
    """`k3_weighted` with token ratios is TRL's corrected KL. (With sequence ratios TRL weighs by those instead.)"""
    settings = Loss(
        ratio="token",
        aggregation=METHODS[method],
        beta=0.3,
        kl="k3_weighted",
        limit=trainer.max_completion_length,
    )
    found, theirs = _ours(trainer, batch, settings), _theirs(trainer, batch, method, settings)
    assert (found.numerator / found.weight).item() == pytest.approx(theirs.item(), abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_trl_on_policy_has_ratio_one(trainer, batch, method):
    """Without old log-probabilities both take the new ones."""
    fresh = batch | {"old_per_token_logps": None}
    settings = Loss(aggregation=METHODS[method], beta=0.3, limit=trainer.max_completion_length)
    found, theirs = _ours(trainer, fresh, settings), _theirs(trainer, fresh, method, settings)
    assert (found.numerator / found.weight).item() == pytest.approx(theirs.item(), abs=1e-5)
    assert found.metrics.named()["ratio_max"] == 1.0


@pytest.mark.parametrize("method", ["grpo", "dr_grpo"])
def test_where_trl_counts_sequences_that_are_masked(trainer, batch, method):
    """Trap 44: TRL keeps a masked completion in the number of sequences; here it is in neither. Row 0 of six."""
    cut = batch["completion_mask"].clone()
    cut[0] = 0
    masked = batch | {"completion_mask": cut, "num_items_in_batch": cut.sum()}
    settings = Loss(aggregation=METHODS[method], beta=0.3, limit=trainer.max_completion_length)
    theirs = _theirs(trainer, masked, method, settings)
    new, old = _log_probs(trainer, batch), batch["old_per_token_logps"]
    found = terms(new, old, batch["ref_per_token_logps"], batch["advantages"], cut, settings)
    assert (found.numerator / found.weight).item() * 5 / 6 == pytest.approx(theirs.item(), abs=1e-5)
