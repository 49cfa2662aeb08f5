"""Adapters against PEFT itself, and every way in which one may not fit."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from safetensors.torch import load_file, save_file  # noqa: E402
from tiny_models import save_adapter, tiny_model  # noqa: E402

from coterie.backends.lora import CONFIG, WEIGHTS, Adapters, adapter_digest  # noqa: E402
from coterie.errors import UserError  # noqa: E402

IDS = torch.arange(5, 25).view(2, 10)


def plain(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def by_peft(model_folder, adapter):
    return peft.PeftModel.from_pretrained(plain(model_folder), adapter).eval()(input_ids=IDS).logits


@torch.inference_mode()
def by_hooks(adapters, model, keys, *, fixed=False):
    with adapters.rows(keys, fixed=fixed):
        return model(input_ids=IDS).logits


def weights_digest(model):
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(name.encode() + tensor.numpy().tobytes())
    return total.hexdigest()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True, "alpha": 3},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 5}},
        {"targets": "all-linear", "rank": 3},
    ],
)
def test_logits_are_those_of_peft(llama, tmp_path, options):
    folder = save_adapter(tmp_path / "x", llama, seed=3, **options)
    model = plain(llama)
    base = model(input_ids=IDS).logits
    adapters = Adapters(model)
    key = adapters.load(Path(folder))
    ours, wanted = by_hooks(adapters, model, [key, key]), by_peft(llama, folder)
    assert torch.allclose(ours, wanted, atol=1e-3, rtol=1e-4)
    assert (wanted - base).abs().max() > 0.5


@pytest.mark.parametrize("fixed", [False, True])
def test_each_row_goes_through_its_own_adapter(llama, adapters, fixed):
    model = plain(llama)
    loaded = Adapters(model)
    one, two, _ = (loaded.load(Path(folder)) for folder in adapters)
    alone = {key: by_hooks(loaded, model, [key, key]) for key in (one, two, None)}
    for keys in ([one, two], [two, None], [None, one], [None, None], [two, two]):
        mixed = by_hooks(loaded, model, keys, fixed=fixed)
        for row, key in enumerate(keys):
            assert torch.allclose(mixed[row], alone[key][row], atol=1e-4)
    assert (alone[one] - alone[two]).abs().max() > 0.5


def test_rows_that_do_not_lie_together(llama, adapters):
    model, ids = plain(llama), torch.arange(5, 25).view(4, 5)
    loaded = Adapters(model)
    one, two = (loaded.load(Path(folder)) for folder in adapters[:2])
    with torch.inference_mode(), loaded.rows([one, two, one, None]):
        mixed = model(input_ids=ids).logits
    with torch.inference_mode(), loaded.rows([one] * 4):
        alone = model(input_ids=ids).logits
    assert torch.allclose(mixed[[0, 2]], alone[[0, 2]], atol=1e-4)
    assert not torch.allclose(mixed[1], alone[1], atol=1e-2)


def test_the_base_is_never_changed(llama, adapters):
    """A5, A6, A11: weights, gradients' flags and outputs are as before, inside and after."""
    model = plain(llama).requires_grad_(False)
    before, base = weights_digest(model), model(input_ids=IDS).logits
    loaded = Adapters(model)
    keys = [loaded.load(Path(folder)) for folder in adapters]
    by_hooks(loaded, model, keys[:2])
    assert torch.equal(model(input_ids=IDS).logits, base)
    for key in keys:
        loaded.drop(key)
    assert weights_digest(model) == before
    assert not any(p.requires_grad for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_missing_adapter_is_an_error_and_never_the_base(llama, adapters):
    """A13, A14: answering with the base alone would go unnoticed."""
    loaded = Adapters(plain(llama))
    key = loaded.load(Path(adapters[0]))
    loaded.drop(key)
    with pytest.raises(KeyError), loaded.rows([key]):
        pass


def test_equal_content_is_loaded_once_and_held_until_the_last_drop(llama, adapters, tmp_path):
    twin = shutil.copytree(adapters[0], tmp_path / "twin")
    loaded = Adapters(plain(llama))
    key = loaded.load(Path(adapters[0]))
    size = loaded.bytes_of(key)
    assert loaded.load(twin) == key
    assert loaded.bytes_of(key) == size
    loaded.drop(key)
    assert key in loaded
    loaded.drop(key)
    assert key not in loaded


@pytest.mark.parametrize("name", ["mlp", "self_attn", "q_proj", "default", "weight", "a.b"])
def test_awkward_names_do_no_harm(llama, adapters, tmp_path, name):
    """E10: PEFT loses tensors of other adapters when one is called `mlp`; names play no part here."""
    model = plain(llama)
    loaded = Adapters(model)
    key = loaded.load(Path(adapters[0]))
    alone = by_hooks(loaded, model, [key, key])
    loaded.load(shutil.copytree(adapters[1], tmp_path / name))
    assert torch.equal(by_hooks(loaded, model, [key, key]), alone)


def test_an_adapter_takes_the_memory_of_its_file(llama, tmp_path):
    folder = Path(save_adapter(tmp_path / "x", llama, seed=0, rank=16, targets="all-linear"))
    loaded = Adapters(plain(llama))
    assert loaded.bytes_of(loaded.load(folder)) <= 1.1 * (folder / WEIGHTS).stat().st_size


def test_the_digest_is_that_of_the_content(adapters, tmp_path):
    twin = shutil.copytree(adapters[0], tmp_path / "twin")
    (twin / "README.md").write_text("other words")
    assert adapter_digest(twin) == adapter_digest(Path(adapters[0]))
    config = json.loads((twin / CONFIG).read_text())
    (twin / CONFIG).write_text(json.dumps(config | {"lora_alpha": 1}))
    assert adapter_digest(twin) != adapter_digest(Path(adapters[0]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"r": 8}, "rank 8"),
        ({"r": 0}, "positive"),
        ({"lora_alpha": None}, "positive"),
    ],
)
def test_what_is_not_plain_lora_is_refused(llama, adapters, tmp_path, change, words):
    folder = shutil.copytree(adapters[0], tmp_path / "x")
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | change))
    refused(llama, folder, words)


def test_an_adapter_of_another_model_is_refused(llama, tmp_path):
    other = tiny_model(hidden_size=32, head_dim=8)
    other.save_pretrained(tmp_path / "other")
    refused(llama, save_adapter(tmp_path / "x", tmp_path / "other", seed=0), r"needs \(4, 96\) and \(64, 4\)")


def test_weights_for_unknown_or_halved_layers_are_refused(llama, adapters, tmp_path):
    folder = shutil.copytree(adapters[0], tmp_path / "x")
    tensors = load_file(folder / WEIGHTS)
    name = next(iter(tensors))
    save_file(
        tensors | {"base_model.model.model.layers.9.mlp.up_proj.lora_A.weight": torch.ones(1)}, folder / WEIGHTS
    )
    refused(llama, folder, "layers.9")
    save_file({k: v for k, v in tensors.items() if k != name}, folder / WEIGHTS)
    refused(llama, folder, "one half")
    save_file({}, folder / WEIGHTS)
    refused(llama, folder, "no LoRA weights")


def test_broken_files_are_refused(llama, adapters, tmp_path):
    folder = shutil.copytree(adapters[0], tmp_path / "x")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])
    refused(llama, folder, WEIGHTS)
    (folder / CONFIG).write_text("{")
    refused(llama, folder, CONFIG)
    (folder / WEIGHTS).unlink()
    refused(llama, folder, WEIGHTS)


def refused(model_folder, folder, words):
    """A one-line error that names the folder; nothing of it stays loaded."""
    model = plain(model_folder)
    with pytest.raises(UserError, match=words) as caught:
        Adapters(model).load(Path(folder))
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(module._forward_hooks for module in model.modules())
