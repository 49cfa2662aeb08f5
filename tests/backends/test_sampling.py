"""Sampling against distributions known by hand and against transformers' own filters."""

import pytest

torch = pytest.importorskip("torch")

from coterie.backends import sampling  # noqa: E402
from coterie.backends.sampling import Settings, choose, invert, keep_top_k, keep_top_p, log_probs, uniforms  # noqa: E402
from coterie.types import Sampling  # noqa: E402


def logits_of(*probabilities):
    return torch.tensor([probabilities]).log()


def sweep(probabilities, count=1000, **options):
    """Share of each token over evenly spaced numbers: the exact distribution up to 1 / count."""
    numbers = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    settings = Settings.of([Sampling(**options)] * count)
    picks = choose(logits_of(*probabilities).repeat(count, 1), settings, numbers)
    return torch.bincount(picks, minlength=len(probabilities)) / count


def test_shares_are_the_softmax():
    assert torch.allclose(sweep([0.1, 0.6, 0.3], temperature=1.0), torch.tensor([0.1, 0.6, 0.3]), atol=2e-3)


def test_temperature_sharpens():
    """Temperature 0.5 squares the probabilities: 0.1, 0.6, 0.3 become 0.01, 0.36, 0.09 over 0.46."""
    wanted = torch.tensor([0.01, 0.36, 0.09]) / 0.46
    assert torch.allclose(sweep([0.1, 0.6, 0.3], temperature=0.5), wanted, atol=2e-3)


def test_top_k_keeps_the_best():
    assert torch.allclose(
        sweep([0.1, 0.5, 0.4], temperature=1.0, top_k=2), torch.tensor([0, 5 / 9, 4 / 9]), atol=2e-3
    )


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.5, [1]), (0.51, [1, 3]), (0.79, [1, 3]), (0.81, [1, 2, 3]), (0.0, [1]), (1.0, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    shares = sweep([0.05, 0.5, 0.15, 0.3], temperature=1.0, top_p=top_p)
    assert shares.nonzero()[:, 0].tolist() == kept


def test_greedy_takes_the_largest_and_ignores_the_numbers():
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    settings = Settings.of([Sampling(temperature=0.0)] * 3 + [Sampling(temperature=1e-9)] * 2)
    for number in (0.0, 0.5, 0.999999):
        picks = choose(logits, settings, torch.full((5,), number, dtype=torch.float64))
        assert picks.tolist() == logits.argmax(-1).tolist()


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


def test_the_ends_of_the_interval_pick_possible_tokens():
    """The last number below 1 must not fall off the end, on padding or on a token of weight 0."""
    logits = torch.full((2, 300), -torch.inf)
    logits[:, 7], logits[:, 290] = 0.0, 0.0
    numbers = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert invert(logits, numbers).tolist() == [7, 290]


def test_rows_do_not_see_each_other():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(4, 777, generator=generator) * 2
    kinds = [
        Sampling(temperature=0.0),
        Sampling(temperature=0.7, top_p=0.8),
        Sampling(temperature=1.3, top_k=5),
        Sampling(temperature=1.0),
    ]
    numbers = torch.rand(4, generator=generator, dtype=torch.float64)
    together = choose(logits, Settings.of(kinds), numbers)
    for i, kind in enumerate(kinds):
        alone = choose(logits[i : i + 1], Settings.of([kind]), numbers[i : i + 1])
        assert alone.item() == together[i].item()


def test_inputs_stay_as_they_were():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(3))
    before = logits.clone()
    choose(logits, Settings.of([Sampling(temperature=1.0, top_k=3, top_p=0.5)] * 2), uniforms(0, 2))
    assert torch.equal(logits, before)


def test_numbers_depend_on_the_seed_only():
    assert torch.equal(uniforms(5, 3), uniforms(5, 30)[:3])
    assert not torch.equal(uniforms(5, 3), uniforms(6, 3))
    assert uniforms(2**63 + 5, 3).tolist() == uniforms(5, 3).tolist()
    many = uniforms(1, 10_000)
    assert 0 <= many.min()
    assert many.max() < 1
    assert many.mean().item() == pytest.approx(0.5, abs=0.01)


def test_log_probs_are_those_of_the_untempered_logits():
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(4))
    ids = torch.tensor([0, 39, 7])
    wanted = logits.log_softmax(-1)[torch.arange(3), ids]
    assert torch.allclose(log_probs(logits, ids), wanted, atol=1e-6)
