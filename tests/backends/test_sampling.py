"""Sampling against distributions known by hand and against transformers' own filters."""

import pytest

torch = pytest.importorskip("torch")

from coterie.backends import sampling  # noqa: E402
from coterie.backends.sampling import Settings, choose, generator, gumbel, keep_top_k, keep_top_p, log_probs  # noqa: E402
from coterie.types import Sampling  # noqa: E402


def logits_of(*probabilities):
    return torch.tensor([probabilities]).log()


def shares(probabilities, count=20_000, **options):
    """How often each token is drawn; the standard error is at most 0.0036."""
    settings = Settings.of([Sampling(**options)] * count)
    picks = choose(logits_of(*probabilities).repeat(count, 1), settings, [generator(0)] * count)
    return torch.bincount(picks, minlength=len(probabilities)) / count


def test_shares_are_the_softmax():
    assert torch.allclose(shares([0.1, 0.6, 0.3], temperature=1.0), torch.tensor([0.1, 0.6, 0.3]), atol=0.015)


def test_temperature_sharpens():
    """Temperature 0.5 squares the probabilities: 0.1, 0.6, 0.3 become 0.01, 0.36, 0.09 over 0.46."""
    wanted = torch.tensor([0.01, 0.36, 0.09]) / 0.46
    assert torch.allclose(shares([0.1, 0.6, 0.3], temperature=0.5), wanted, atol=0.015)


def test_top_k_keeps_the_best():
    assert torch.allclose(
        shares([0.1, 0.5, 0.4], temperature=1.0, top_k=2), torch.tensor([0, 5 / 9, 4 / 9]), atol=0.015
    )


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.5, [1]), (0.51, [1, 3]), (0.79, [1, 3]), (0.81, [1, 2, 3]), (0.0, [1]), (1.0, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    drawn = shares([0.05, 0.5, 0.15, 0.3], temperature=1.0, top_p=top_p)
    assert drawn.nonzero()[:, 0].tolist() == kept


def test_greedy_takes_the_largest_and_draws_nothing():
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    settings = Settings.of([Sampling(temperature=0.0)] * 3 + [Sampling(temperature=1e-9)] * 2)
    chance = generator(1)
    before = chance.get_state()
    assert choose(logits, settings, [chance] * 5).tolist() == logits.argmax(-1).tolist()
    assert torch.equal(chance.get_state(), before)


def test_filters_are_those_of_transformers():
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(6, 1000, generator=torch.Generator().manual_seed(1)) * 3
    ours = logits.clone()
    keep_top_k(ours, torch.full((6,), 40))
    assert torch.equal(ours, TopKLogitsWarper(40)(None, logits.clone()))
    ours = logits.clone()
    keep_top_p(ours, torch.full((6,), 0.9))
    assert torch.equal(ours, TopPLogitsWarper(0.9)(None, logits.clone()))


def test_a_nucleus_wider_than_the_head_is_found():
    """A flat distribution needs nearly the whole vocabulary, far more than the first look takes."""
    logits = torch.linspace(0, 1e-3, 5 * sampling.HEAD)[None].clone()
    keep_top_p(logits, torch.tensor([0.9]))
    assert logits.isfinite().sum().item() == pytest.approx(0.9 * 5 * sampling.HEAD, abs=3)


def test_impossible_tokens_are_never_drawn():
    """A uniform number may be 0, whose noise is -inf; the sum with -inf must not become NaN."""
    logits = torch.full((5000, 30), -torch.inf)
    logits[:, 7], logits[:, 29] = 0.0, -3.0
    picks = choose(logits, Settings.of([Sampling(temperature=1.0)] * 5000), [generator(0)] * 5000)
    assert set(picks.tolist()) == {7, 29}


def test_noise_is_gumbel():
    """Mean is Euler's constant, variance pi^2 / 6."""
    noise = gumbel([generator(3)], torch.empty(1, 200_000))
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(1.6449, abs=0.03)


def test_rounding_errors_hardly_ever_change_a_draw():
    """Other batch shapes give logits with other last bits: at 1e-5 about one draw in 10^5 may change."""
    source = torch.Generator().manual_seed(5)
    logits = torch.randn(4000, 500, generator=source) * 2
    shaken = logits + torch.randn(logits.shape, generator=source) * 1e-5
    settings = Settings.of([Sampling(temperature=1.0)] * 4000)
    first, second = (choose(x, settings, [generator(9)] * 4000) for x in (logits, shaken))
    assert (first != second).sum() <= 2


def test_rows_do_not_see_each_other():
    logits = torch.randn(4, 777, generator=torch.Generator().manual_seed(2)) * 2
    kinds = [
        Sampling(temperature=0.0),
        Sampling(temperature=0.7, top_p=0.8),
        Sampling(temperature=1.3, top_k=5),
        Sampling(temperature=1.0),
    ]
    together = choose(logits, Settings.of(kinds), [generator(i) for i in range(4)])
    for i, kind in enumerate(kinds):
        alone = choose(logits[i : i + 1], Settings.of([kind]), [generator(i)])
        assert alone.item() == together[i].item()


def test_inputs_stay_as_they_were():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(3))
    before = logits.clone()
    choose(logits, Settings.of([Sampling(temperature=1.0, top_k=3, top_p=0.5)] * 2), [generator(0)] * 2)
    assert torch.equal(logits, before)


def test_chance_depends_on_the_seed_only():
    logits = torch.zeros(1, 1000)
    settings = Settings.of([Sampling(temperature=1.0)])

    def drawn(seed):
        source = generator(seed)
        return [choose(logits, settings, [source]).item() for _ in range(5)]

    assert drawn(5) == drawn(5) == drawn(2**63 + 5)
    assert drawn(5) != drawn(6)
    assert len(set(drawn(5))) == 5


def test_log_probs_are_those_of_the_untempered_logits():
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(4))
    ids = torch.tensor([0, 39, 7])
    wanted = logits.log_softmax(-1)[torch.arange(3), ids]
    assert torch.allclose(log_probs(logits, ids), wanted, atol=1e-6)
