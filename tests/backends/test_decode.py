"""The slot cache against plain forwards without a cache."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tiny_models import tiny_model  # noqa: E402

from coterie.backends import decode  # noqa: E402
from coterie.backends.decode import Decoder, Slots, batches  # noqa: E402
from coterie.errors import UserError  # noqa: E402


def prompts(*lengths):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 250, (n,), generator=generator).tolist() for n in lengths]


def seated(decoder, rows, capacity=4):
    """Slots that hold all but the last token of each prompt."""
    cache = decoder.prefill([row[:-1] for row in rows])
    slots = Slots(decoder.layers)
    slots.reserve(capacity, 8, cache)
    for i, row in enumerate(rows):
        slots.reserve(capacity, len(row), cache)
        slots.put(i, cache, i, len(row) - 1)
    return slots


def greedy(decoder, rows, steps):
    """Texts of a batch, and the logits of every step."""
    slots, seen = seated(decoder, rows), []
    rows = [list(row) for row in rows]
    for _ in range(steps):
        columns = max(map(len, rows))
        slots.reserve(len(rows), columns, None)
        logits = decoder.step(slots, [r[-1] for r in rows], [len(r) - 1 for r in rows], columns)
        seen.append(logits)
        for row, pick in zip(rows, logits.argmax(-1).tolist(), strict=True):
            row.append(pick)
    return rows, seen


MODELS = {
    "Llama": {},
    "Qwen3": {},
    "Mistral": {"sliding_window": 8},
    "Gemma3": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "GPTNeoX": {},
}


@pytest.mark.parametrize("kind", MODELS)
@torch.inference_mode()
def test_rows_of_any_length_decode_as_if_alone(kind):
    """Logits equal a forward over the whole row without any cache, also past a sliding window."""
    model = tiny_model(kind, **MODELS[kind])
    rows, steps = prompts(3, 21, 9, 2), 6
    texts, seen = greedy(Decoder(model), rows, steps)
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        whole = model(input_ids=torch.tensor([text[:-1]]), use_cache=False).logits[0, len(row) - 1 :]
        ours = torch.stack([logits[i] for logits in seen])
        assert torch.allclose(ours, whole, atol=2e-3, rtol=1e-3)
        assert text[len(row) :] == whole.argmax(-1).tolist()


def test_greedy_text_is_that_of_generate():
    model = tiny_model()
    rows = prompts(5, 30)
    texts, _ = greedy(Decoder(model), rows, 20)
    for row, text in zip(rows, texts, strict=True):
        wanted = model.generate(
            torch.tensor([row]), attention_mask=torch.ones(1, len(row)), max_new_tokens=20, do_sample=False
        )[0].tolist()
        assert text[: len(wanted)] == wanted


def test_long_prompts_go_in_pieces(monkeypatch):
    """R14: a prefill in pieces holds what one pass holds."""
    decoder, rows = Decoder(tiny_model()), prompts(50, 33)
    whole = decoder.prefill(rows)
    monkeypatch.setattr(decode, "PREFILL_TOKENS", 14)
    pieces = decoder.prefill(rows)
    for one, other in zip(whole.layers, pieces.layers, strict=True):
        for i, row in enumerate(rows):
            assert torch.allclose(one.keys[i, :, : len(row)], other.keys[i, :, : len(row)], atol=1e-4)
            assert torch.allclose(one.values[i, :, : len(row)], other.values[i, :, : len(row)], atol=1e-4)


def test_prefill_never_computes_the_head():
    model = tiny_model()
    model.lm_head.register_forward_hook(lambda *_: pytest.fail("the head was computed"))
    Decoder(model).prefill(prompts(7))


def test_a_row_moves_within_the_cache():
    """A row that ends gives its slot to the last one, which goes on as before."""
    decoder, rows = Decoder(tiny_model()), prompts(4, 12, 7)
    slots = seated(decoder, rows)
    still = decoder.step(seated(decoder, rows), [r[-1] for r in rows], [len(r) - 1 for r in rows], 12)
    slots.put(0, slots, 2, len(rows[2]) - 1)
    moved = [rows[2], rows[1]]
    logits = decoder.step(slots, [r[-1] for r in moved], [len(r) - 1 for r in moved], 12)
    assert torch.allclose(logits[0], still[2], atol=1e-4)
    assert torch.allclose(logits[1], still[1], atol=1e-4)


def test_room_grows_and_keeps_its_content():
    decoder, rows = Decoder(tiny_model()), prompts(5, 6)
    slots = seated(decoder, rows, capacity=2)
    before = [layer.keys[:2, :, :5].clone() for layer in slots.layers]
    columns = slots.columns
    slots.reserve(9, 5 * columns, None)
    assert slots.layers[0].keys.shape[0] == 9
    assert slots.columns >= 5 * columns
    for layer, kept in zip(slots.layers, before, strict=True):
        assert torch.equal(layer.keys[:2, :, :5], kept)


def test_an_unknown_kind_of_layer_is_refused():
    model = tiny_model()
    model.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(UserError, match="chunked_attention"):
        Decoder(model)


@given(st.lists(st.integers(1, 3000), max_size=60))
def test_prefill_batches_hold_every_prompt_once_with_little_padding(lengths):
    groups = batches(lengths)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[i] for i in group)
        assert len(group) == 1 or len(group) * longest <= decode.PREFILL_TOKENS
        assert all(lengths[i] >= decode.LEAST_FILL * longest for i in group)
