"""Hidden states: the right layers, equal to the whole forward, computed once."""

import threading

import numpy as np
import pytest
import torch
from tiny import FAMILIES, TinyBase

import coterie.backends.base_model as base_model_module
from coterie.config import build
from coterie.errors import ConfigError
from coterie.features.hidden import Hidden, States, layers_of
from coterie.types import Message


def prompt(text):
    return (Message(role="user", content=text),)


PROMPTS = [prompt(text) for text in ("seven times eight?", "hi", "name a prime above ninety, please", "x" * 40)]


def whole_forward(base, messages, layers, limit=800):
    """Reference: transformers' own record of hidden states, embeddings at index 0."""
    ids = torch.tensor([base.prompt_ids(messages, limit)])
    with torch.inference_mode(), base.without_adapters():
        states = base.model(input_ids=ids, output_hidden_states=True).hidden_states
    return np.concatenate([states[layer][0, -1].numpy() for layer in layers])


@pytest.fixture
def encoder(monkeypatch):
    """Makes an encoder over one tiny base; counts how often the base is loaded."""

    def make(family="llama", **settings):
        base = TinyBase(family)
        loads = []

        def load(name):
            loads.append(name)
            return base

        monkeypatch.setattr(base_model_module, "base_model", load)
        hidden = Hidden(model="tiny", **settings)
        return hidden, base, loads

    return make


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch", [1, 4])
def test_states_are_those_of_the_whole_forward(encoder, family, batch):
    """R14: blocks 3 and 4 of 6, counted from 1, as an independent whole forward records them."""
    hidden, base, _ = encoder(family, batch=batch)
    found = hidden.encode(PROMPTS)
    assert found.shape == (4, 32)
    assert found.dtype == np.float32
    for row, messages in zip(found, PROMPTS, strict=True):
        np.testing.assert_allclose(row, whole_forward(base, messages, (3, 4)), atol=1e-5, rtol=1e-5)


def test_one_block_off_is_told_apart(encoder):
    """R14: the tolerance above would notice the neighbouring layers."""
    hidden, base, _ = encoder()
    found = hidden.encode(PROMPTS[:1])[0]
    for wrong in ((2, 3), (4, 5)):
        assert np.abs(found - whole_forward(base, PROMPTS[0], wrong)).max() > 1e-2


def test_the_forward_stops_at_the_deepest_block(encoder):
    hidden, base, _ = encoder()
    ran = []
    for i, block in enumerate(base.model.model.layers, 1):
        block.register_forward_hook(lambda module, given, output, i=i: ran.append(i))
    for part in (base.model.model.norm, base.model.lm_head):
        part.register_forward_hook(lambda module, given, output: ran.append("head"))
    hidden.encode(PROMPTS[:1])
    assert ran in ([1, 2, 3, 4], [1, 2, 3])  # whether the stop comes before the fourth block's other hook is open
    with base.without_adapters():
        assert base.model(input_ids=torch.tensor([[5, 6]])).logits.shape == (1, 2, 64)  # no hook of ours is left


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_does_not_change_a_row(encoder, family):
    hidden, base, _ = encoder(family, batch=8)
    together = hidden.encode(PROMPTS)
    alone = np.concatenate([States(base, None, 1, 0).of([base.prompt_ids(p, 800)]) for p in PROMPTS])
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_alone_on_a_cpu_a_row_does_not_depend_on_its_company(encoder):
    hidden, base, _ = encoder()
    together = hidden.encode(PROMPTS)
    alone = States(base, None, None, 0).of([base.prompt_ids(PROMPTS[2], 800)])
    np.testing.assert_array_equal(together[2:3], alone)


def test_rows_keep_the_order_of_the_prompts_and_equal_prompts_are_computed_once(encoder):
    hidden, base, _ = encoder(batch=2)
    order = [2, 0, 3, 0, 1, 2]
    found = hidden.encode([PROMPTS[i] for i in order])
    each = hidden.encode(PROMPTS)
    np.testing.assert_array_equal(found, each[order])
    assert base.forwards == 2  # four different prompts, two at a time; the second call all from memory


def test_long_prompts_are_cut_at_the_left(encoder):
    hidden, base, _ = encoder(max_prompt_tokens=10)
    found = hidden.encode([prompt("a long beginning, at the end"), prompt("other: at the end")])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(
        found[0], whole_forward(base, prompt("some at the end"), (3, 4), limit=10), atol=1e-5
    )


def test_layers_can_be_chosen(encoder):
    hidden, base, _ = encoder(layers=(5, 1, 2))
    np.testing.assert_allclose(
        hidden.encode(PROMPTS[:1])[0], whole_forward(base, PROMPTS[0], (5, 1, 2)), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("depth", "layers"), [(36, (18, 27)), (28, (14, 21)), (32, (16, 24)), (30, (15, 22)), (1, (1, 1))]
)
def test_default_layers(depth, layers):
    assert layers_of(depth, None) == layers


@pytest.mark.parametrize("layers", [(0,), (7,), (3, -1), ()])
def test_a_layer_that_is_not_there_is_a_users_error(encoder, layers):
    hidden, _, _ = encoder(layers=layers)
    with pytest.raises(ConfigError, match="block"):
        hidden.encode(PROMPTS)


def test_memory_is_bounded(encoder):
    """R3."""
    hidden, base, _ = encoder(remember=3)
    hidden.encode([prompt(f"question {i}") for i in range(20)])
    assert len(hidden._states.cache.rows) == 3
    hidden.encode([prompt("question 19")])
    assert base.forwards == 20
    hidden.encode([prompt("question 0")])
    assert base.forwards == 21


def test_many_threads_load_once_and_compute_each_prompt_once(encoder):
    """R8 and R1: twenty parallel first requests."""
    hidden, base, loads = encoder()
    barrier, found = threading.Barrier(20), {}

    def ask(i):
        barrier.wait()
        found[i] = hidden.encode([PROMPTS[i % 4]])[0]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == ["tiny"]
    assert base.forwards == 4
    serial = States(base, None, 1, 0).of([base.prompt_ids(p, 800) for p in PROMPTS])
    for i, row in found.items():
        np.testing.assert_array_equal(row, serial[i % 4])


def test_another_threads_forward_runs_through(encoder):
    """The hook that ends our forward must not end somebody else's on the same model."""
    hidden, base, _ = encoder()
    shapes = []

    def meanwhile(module, given, output):
        if threading.current_thread() is threading.main_thread() and not shapes:
            other = threading.Thread(
                target=lambda: shapes.append(base.model(input_ids=torch.tensor([[5, 6]])).logits.shape)
            )
            other.start()
            other.join()

    base.model.model.layers[1].register_forward_hook(meanwhile)
    found = hidden.encode(PROMPTS[:1])
    assert shapes == [(1, 2, 64)]
    np.testing.assert_allclose(found[0], whole_forward(base, PROMPTS[0], (3, 4)), atol=1e-5, rtol=1e-5)


def test_nothing_is_loaded_before_the_first_prompt_and_no_prompts_are_no_rows(encoder):
    """R5."""
    hidden, _, loads = encoder()
    assert loads == []
    assert hidden.encode([]).shape == (0, 32)


def test_it_is_built_from_a_recipe():
    made = build("encoder", {"use": "hidden", "layers": [3, 4], "batch": 2})
    assert made == Hidden(layers=(3, 4), batch=2)
    with pytest.raises(ConfigError, match="batch"):
        build("encoder", {"use": "hidden", "bathc": 2})


@pytest.mark.model
def test_the_embedded_model_gives_its_whole_forwards_states():
    """R14 on the real model: 30 blocks, so 15 and 22, 576 numbers each."""
    from coterie.backends.base_model import base_model

    base = base_model("builtin:smollm2-135m")
    messages = (Message(role="system", content="Be brief."), Message(role="user", content="What is 7 * 8?"))
    single = Hidden().encode([messages])
    assert single.shape == (1, 1152)
    ids = torch.tensor([base.prompt_ids(messages, 800)])
    with torch.inference_mode(), base.without_adapters():
        states = base.model(input_ids=ids, output_hidden_states=True).hidden_states
    whole = np.concatenate([states[layer][0, -1].numpy() for layer in (15, 22)])
    np.testing.assert_allclose(single[0], whole, atol=1e-5)
    longer = (Message(role="user", content="Tell me a long story about a fox, a crow and a piece of cheese."),)
    padded = Hidden(batch=2).encode([messages, longer])[0]
    # Some coordinates of this model's states are near 200: 1e-4 is meant for numbers of order one.
    assert np.abs(padded - single[0]).max() < 1e-4 * max(1.0, np.abs(single).max())
