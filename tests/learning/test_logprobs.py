"""Log-probabilities of completions: against plain full-length forwards, alone and in company."""

import math

import pytest
import torch
from tiny_team import SIZES, TURN_END, engine, groups, save_base, shaken
from torch.autograd import gradcheck

from coterie.backends.base_model import base_model
from coterie.errors import ConfigError
from coterie.learning import logprobs
from coterie.learning.logprobs import Picked, Prompted, head_of, passes, told

HEAT = 0.7
KINDS = {
    "Llama": {},
    "Qwen3": {"hidden_size": 48, "num_hidden_layers": 3},
    "tied": {"kind": "Qwen3", "tie_word_embeddings": True},
    "Mistral": {"sliding_window": 5},
    "Gemma3": {
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 16,
    },
}
"""Two of them see the last five tokens only, in all layers or in every other."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder, held = tmp_path_factory.mktemp("bases"), {}

    def find(kind):
        if kind not in held:
            options = dict(KINDS[kind])
            held[kind] = base_model(save_base(folder / kind, options.pop("kind", kind), **options))
        return held[kind]

    return find


def batch(seed=0):
    """Prompts of different lengths, one of a single token; completions from none to twelve tokens."""
    source = torch.Generator().manual_seed(seed)

    def ids(length):
        return tuple(torch.randint(0, TURN_END, (length,), generator=source).tolist())

    return [
        Prompted(prompt=ids(17), completions=(ids(3), ids(12), ids(1))),
        Prompted(prompt=ids(1), completions=(ids(6), ())),
        Prompted(prompt=ids(8), completions=(ids(9),)),
    ]


@torch.no_grad()
def plain(base, prompt, completion, heat=HEAT):
    """One row alone through the whole model, without cache and padding: log-probabilities."""
    if not completion:
        return torch.zeros(0)
    logits = base.model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits
    logs = (logits[0, len(prompt) - 1 : -1].float() / heat).log_softmax(-1)
    return logs.gather(1, torch.tensor(completion)[:, None])[:, 0]


def rows(found, wanted):
    """The told rows, cut to their lengths."""
    lengths = [len(c) for group in wanted for c in group.completions]
    return [row[:n] for row, n in zip(found, lengths, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heat", [1.0, HEAT])
def test_equal_to_a_plain_forward_of_every_row(bases, kind, heat):
    """#47, #48: at the sampling temperature, whatever the padding; families with a sliding window too."""
    found, wanted = bases(kind), batch()
    with found.without_adapters(), torch.no_grad():
        got = told(found, wanted, heat)
    assert got.logprobs.shape == got.mask.shape == (6, 12)
    assert got.mask.sum(1).tolist() == [3, 12, 1, 6, 0, 9]
    assert not got.logprobs[got.mask == 0].any()
    expected = [plain(found, group.prompt, c, heat) for group in wanted for c in group.completions]
    for mine, logs in zip(rows(got.logprobs, wanted), expected, strict=True):
        assert torch.allclose(mine, logs, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_is_the_row_in_company(bases, kind):
    """#48: to 1e-5, in other batches and at other places."""
    found, wanted = bases(kind), batch(1)
    with found.without_adapters(), torch.no_grad():
        together = rows(told(found, wanted, HEAT).logprobs, wanted)
        turned = rows(told(found, wanted[::-1], HEAT).logprobs, wanted[::-1])
        alone = [
            told(found, [Prompted(prompt=group.prompt, completions=(c,))], HEAT).logprobs[0, : len(c)]
            for group in wanted
            for c in group.completions
        ]
    for a, b in zip(together, alone, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    for a, b in zip([*together[5:], *together[3:5], *together[:3]], turned, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_the_window_matters(bases):
    """The comparison above means something: what lies outside of the window changes nothing, inside it does."""
    found = bases("Mistral")
    far, near = (tuple([1] * 20), tuple([2] * 10 + [1] * 10)), (3, 4)
    with found.without_adapters(), torch.no_grad():
        a, b = (told(found, [Prompted(prompt=p, completions=(near,))]).logprobs for p in far)
        c = told(found, [Prompted(prompt=(*[1] * 19, 5), completions=(near,))]).logprobs
        full = bases("Llama")
        d, e = (told(full, [Prompted(prompt=p, completions=(near,))]).logprobs for p in far)
    assert torch.allclose(a, b, atol=1e-5)
    assert (a - c).abs().max() > 1e-3
    assert (d - e).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["Llama", "Gemma3"])
def test_gradients_are_those_of_whole_rows(bases, kind):
    """The prompt is run once a group, with gradient: the same gradient as running it with every row."""
    found = bases(kind)
    made = engine(found, "a")
    shaken(made, "a")
    weights, wanted = made.learners["a"].weights, batch(2)
    with made._over(made._live("a")):
        made._put(made._live("a"), weights)
        told(found, wanted, HEAT).logprobs.square().sum().backward()
        mine = {key: tensor.grad.clone() for key, tensor in weights.items()}
        for tensor in weights.values():
            tensor.grad = None
        made._put(made._live("a"), weights)
        for group in wanted:
            for c in (c for c in group.completions if c):
                logits = found.model(input_ids=torch.tensor([[*group.prompt, *c]]), use_cache=False).logits
                logs = (logits[0, len(group.prompt) - 1 : -1] / HEAT).log_softmax(-1)
                made._put(made._live("a"), weights)
                logs.gather(1, torch.tensor(c)[:, None]).square().sum().backward()
    for key, tensor in weights.items():
        assert torch.allclose(mine[key], tensor.grad, rtol=1e-3, atol=1e-4 * float(tensor.grad.abs().max())), key
    made.close()


def test_uniform_logits_have_log_probability_minus_log_v(tmp_path):
    """#50: whatever the padding and the temperature."""
    found = base_model(save_base(tmp_path / "flat"))
    found.model.get_output_embeddings().weight.zero_()
    with found.without_adapters():
        for heat in (0.3, 1.0):
            got = told(found, batch(), heat)
            assert torch.allclose(got.logprobs[got.mask > 0], torch.tensor(-math.log(SIZES["vocab_size"])))


def test_empty_completions_have_no_number_and_take_none_from_others(base):
    """#43."""
    empty = Prompted(prompt=(1, 2, 3), completions=((), ()))
    with base.without_adapters(), torch.no_grad():
        assert not told(base, [empty]).mask.any()
        alone = told(base, batch()[:1]).logprobs
        beside = told(base, [*batch()[:1], empty]).logprobs
    assert torch.allclose(alone, beside[:3], atol=1e-5)
    assert not beside[3:].any()


# --- the head -----------------------------------------------------------------------------------------


def test_picked_has_the_gradient_that_it_says():
    """log softmax(h W / t) by finite differences in float64, several chunks among them."""
    source = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 6, generator=source, dtype=torch.float64, requires_grad=True)
    head = torch.randn(9, 6, generator=source, dtype=torch.float64)
    chosen = torch.tensor([0, 8, 3, 3, 1])

    def function(h):
        logs = ((h @ head.T) / HEAT).log_softmax(-1)
        return logs.gather(1, chosen[:, None])[:, 0]

    got = Picked.apply(hidden, chosen, head, HEAT)
    upstream = torch.randn(5, generator=source)
    (mine,) = torch.autograd.grad(got, hidden, upstream)
    (expected,) = torch.autograd.grad(function(hidden), hidden, upstream.double())
    assert gradcheck(function, (hidden,))
    assert torch.allclose(got.double(), function(hidden), atol=1e-5)
    assert torch.allclose(mine, expected, atol=1e-5)


def test_chunks_change_nothing(base, monkeypatch):
    """Neither numbers nor gradients, beyond rounding."""
    made = engine(base, "a")
    shaken(made, "a")
    found = []
    for size in (256, 3):
        monkeypatch.setattr(logprobs, "CHUNK", size)
        made.forward_backward("a", groups(3), HEAT)
        learner = made.learners["a"]
        found.append([tensor.grad.clone() for tensor in learner.weights.values()])
        learner.start()
    largest = max(float(gradient.abs().max()) for gradient in found[0])
    assert all(torch.allclose(a, b, atol=1e-5 * largest, rtol=1e-4) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Gemma2", {"query_pre_attn_scalar": 16}),
        ("Cohere", {"logit_scale": 0.5}),
        ("Granite", {"logits_scaling": 2.0}),
    ],
)
def test_a_head_that_is_more_than_a_product_is_refused(tmp_path, kind, changes):
    """Soft caps and scales: numbers without them would be another model's."""
    found = base_model(save_base(tmp_path / kind, kind, **changes))
    with pytest.raises(ConfigError, match="more than one product"):
        head_of(found)


# --- passes -------------------------------------------------------------------------------------------


def test_passes_take_every_group_once_the_longest_first():
    wanted = [
        Prompted(prompt=(1,) * p, completions=((1,) * c,)) for p, c in ((5, 3), (50, 9), (2, 9), (4, 0), (7, 3))
    ]
    found = list(passes(wanted, tokens=60))
    assert sorted(i for part in found for i in part) == [0, 1, 2, 3, 4]
    longest = [max(len(wanted[i].completions[0]) for i in part) for part in found]
    assert longest == sorted(longest, reverse=True)
    assert all(sum(wanted[i].size for i in part) <= 60 or len(part) == 1 for part in found)
    assert list(passes([], tokens=60)) == []


def test_a_group_larger_than_a_pass_goes_alone():
    wanted = [Prompted(prompt=(1,) * 100, completions=((1,) * 100,)) for _ in range(2)]
    assert list(passes(wanted, tokens=60)) == [[0], [1]]
