"""Sampling for learning: what comes back, and that it comes from the adapter that is being trained."""

import math

import pytest
import torch
from tiny_team import END, SIZES, TURN_END, engine, groups, probe, save_base, shaken

from coterie.backends.base_model import base_model
from coterie.errors import Diverged
from coterie.learning.engine import Group
from coterie.learning.sampler import Ask, sample
from coterie.types import Sampling

HEAT = 0.7
PROMPTS = [(1, 2, 3), (4,), tuple(range(18)), (7, 7, 7, 7, 7, 7)]


def asks(count=8, prompts=PROMPTS, **sampling):
    settings = Sampling(**({"temperature": HEAT, "max_tokens": 10} | sampling))
    return [Ask(prompt=prompts[i % len(prompts)], adapter=None, sampling=settings, seed=i) for i in range(count)]


# --- the adapter that is trained is the one that samples ----------------------------------------------


def test_sampling_and_learning_agree_about_every_token(base):
    """#13, #14: also after an update, which both see at once."""
    made = engine(base, "a")
    for _ in range(3):
        assert probe(made, "a", asks()) < 1e-4
        made.forward_backward("a", groups(), HEAT)
        made.optim_step("a")


def test_an_adapter_that_sampling_ignores_is_noticed(base, monkeypatch):
    """#13: an engine that answers with the base although the adapter is loaded."""
    made = engine(base, "a")
    shaken(made, "a")
    assert probe(made, "a", asks()) < 1e-4
    original = base.adapters.rows

    def ignoring(keys, *, fixed=False):
        return original([None] * len(keys) if torch.is_inference_mode_enabled() or len(keys) > 1 else keys)

    with monkeypatch.context() as patch:
        patch.setattr(base.adapters, "rows", ignoring)
        assert probe(made, "a", asks()) > 0.1


def test_an_adapter_that_is_only_half_applied_is_noticed(base, monkeypatch):
    """#14: module names that do not match."""
    made = engine(base, "a")
    shaken(made, "a")
    part = {name: tensor for name, tensor in made.learners["a"].weights.items() if "q_proj" in name}
    base.adapters.drop(made._live("a"))
    made._put(made._live("a"), part)
    said = made.sample("a", asks())
    made._lay("a")
    group = [
        Group(prompt=ask.prompt, completions=(one.ids,), advantages=torch.zeros(1).numpy(), truncated=(False,))
        for ask, one in zip(asks(), said, strict=True)
    ]
    learnt = made.log_probs("a", group, 1.0)
    assert max(abs(one.logprobs[0] - row[0]) for one, (row,) in zip(said, learnt, strict=True)) > 0.1


def test_what_is_sampled_is_always_the_newest_adapter(base):
    """#15: no cache keeps what an older version of an adapter said."""
    made, fresh = engine(base, "a"), engine(base, "a")
    before = made.sample("a", asks())
    for _ in range(4):
        made.forward_backward("a", groups(), HEAT)
        made.optim_step("a")
    after = made.sample("a", asks())
    assert before != after
    fresh.load("a", *made.state("a"))
    assert fresh.sample("a", asks()) == after


def test_agents_do_not_answer_for_each_other(base):
    made = engine(base, "a", "b")
    shaken(made, "b")
    assert made.sample("a", asks()) == sample(base, asks(), 64) != made.sample("b", asks())


# --- what comes back ----------------------------------------------------------------------------------


def test_both_end_tokens_end_a_completion(base):
    """#49: neither is cut as too long, and both are part of what is learned."""
    found = engine(base, "a").sample("a", asks(80))
    ends = [one.ids[-1] for one in found if one.finish == "stop"]
    assert {END, TURN_END} == base.eos_ids == set(ends)
    for one in found:
        assert not set(one.ids[:-1]) & base.eos_ids
        assert (one.finish == "stop") == (one.ids[-1] in base.eos_ids)
        assert len(one.ids) == 10 or one.finish == "stop"
        assert not any(mark in one.text for mark in ("<|endoftext|>", "<|im_end|>"))


def test_fresh_rollouts_have_ratio_one(base):
    """#47 to #49: T = 0.7, prompts of different lengths, two end tokens; against a plain forward of every row."""
    made = engine(base, "a")
    shaken(made, "a", size=0.1)
    given = asks(16)
    said = made.sample("a", given)
    batch = [
        Group(prompt=ask.prompt, completions=(one.ids,), advantages=torch.ones(1).numpy(), truncated=(False,))
        for ask, one in zip(given, said, strict=True)
    ]
    learnt = made.log_probs("a", batch, HEAT)
    for ask, one, (row,) in zip(given, said, learnt, strict=True):
        with torch.no_grad(), made._over(made._live("a")):
            logits = base.model(input_ids=torch.tensor([[*ask.prompt, *one.ids]]), use_cache=False).logits
        logs = (logits[0, len(ask.prompt) - 1 : -1] / HEAT).log_softmax(-1)
        expected = logs.gather(1, torch.tensor(one.ids)[:, None])[:, 0]
        assert torch.allclose(torch.from_numpy(row), expected, atol=1e-5)
        assert torch.allclose((torch.from_numpy(row) - expected).mean().exp(), torch.tensor(1.0), atol=1e-5)


def test_entropy_is_the_mean_over_completion_tokens(base):
    """#50, C8: of the untempered distribution, prompts and padding left out."""
    made = engine(base, "a")
    given = asks(8)
    for ask, one in zip(given, made.sample("a", given), strict=True):
        with base.without_adapters(), torch.no_grad():
            logits = base.model(input_ids=torch.tensor([[*ask.prompt, *one.ids]]), use_cache=False).logits
        logs = logits[0, len(ask.prompt) - 1 : -1].log_softmax(-1)
        assert one.entropy == pytest.approx(float(-(logs.exp() * logs).sum(-1).mean()), abs=1e-4)
        assert len(one.logprobs) == len(one.ids)


def test_entropy_of_uniform_logits_is_log_v(tmp_path):
    """#50."""
    found = base_model(save_base(tmp_path / "flat"))
    found.model.get_output_embeddings().weight.zero_()
    for one in sample(found, asks(6), 64):
        assert one.entropy == pytest.approx(math.log(SIZES["vocab_size"]), abs=1e-5)


def test_a_stop_text_ends_a_completion_and_leaves_the_text(base):
    found = engine(base, "a").sample("a", asks(40, stop=("9",)))
    cut = [one for one in found if one.ids[-1] not in base.eos_ids and one.finish == "stop"]
    assert cut
    assert all("9" not in one.text for one in found)


def test_equal_asks_give_equal_completions_in_their_order(base):
    made = engine(base, "a")
    given = asks(12)
    first = made.sample("a", given)
    assert made.sample("a", given) == first
    assert [one.ids for one in made.sample("a", given[::-1])][::-1] == [one.ids for one in first]
    assert len({one.ids for one in first}) > 3


def test_small_batches_say_the_same(base):
    """More completions than places: the others wait."""
    given = [Ask(prompt=a.prompt, adapter=None, sampling=a.sampling, seed=a.seed) for a in asks(12)]
    small, large = sample(base, given, 3), sample(base, given, 64)
    assert [one.ids for one in small] == [one.ids for one in large]


def test_a_model_without_numbers_names_the_agent(tmp_path):
    """NaN logits end in a clear message, not in a completion of token 0."""
    found = base_model(save_base(tmp_path / "broken"))
    made = engine(found, "ann")
    found.model.get_output_embeddings().weight.fill_(math.nan)
    with pytest.raises(Diverged, match=r"agent ann: a completion could not be sampled: .*not finite"):
        made.sample("ann", asks(2))
