"""One copy per process, its identity, and one-line errors for what cannot be loaded."""

import gc
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import save, tiny_model  # noqa: E402

from coterie.backends import base_model as module  # noqa: E402
from coterie.backends.base_model import base_model  # noqa: E402
from coterie.errors import UserError  # noqa: E402


def test_threads_share_one_load(llama, monkeypatch):
    loads, load = [], module._load

    def counted(key, name):
        loads.append(key)
        return load(key, name)

    monkeypatch.setattr(module, "_load", counted)
    with ThreadPoolExecutor(8) as threads:
        bases = list(threads.map(lambda _: base_model(llama), range(8)))
    assert len(loads) == 1
    assert all(base is bases[0] for base in bases)
    assert base_model(llama + "/") is bases[0]


def test_a_base_that_nobody_holds_is_let_go(tmp_path):
    folder = save(tmp_path / "m")
    gone = weakref.ref(base_model(folder).model)
    gc.collect()
    assert gone() is None


def test_it_is_frozen_and_in_eval_mode(llama):
    base = base_model(llama)
    assert not base.model.training
    assert not any(p.requires_grad for p in base.model.parameters())
    assert {p.dtype for p in base.model.parameters()} == {
        torch.bfloat16 if torch.cuda.is_available() else torch.float32
    }
    assert base.context == 2048
    assert len(base.layers) == 2


def test_the_digest_is_that_of_the_content(llama, tmp_path):
    twin = shutil.copytree(llama, tmp_path / "twin")
    other = save(tmp_path / "other", model=tiny_model(rms_norm_eps=1e-3))
    digests = [base_model(str(folder)).digest for folder in (llama, twin, other)]
    assert digests[0] == digests[1] != digests[2]


def test_without_adapters_is_the_bare_base(llama, adapters):
    from pathlib import Path

    base, ids = base_model(llama), torch.arange(9)[None]
    key = base.adapters.load(Path(adapters[0]))
    with torch.inference_mode(), base.adapters.rows([key]):
        adapted = base.model(input_ids=ids).logits
        with base.without_adapters():
            bare = base.model(input_ids=ids).logits
        assert torch.equal(base.model(input_ids=ids).logits, adapted)
    assert torch.equal(bare, base.model(input_ids=ids).logits)
    assert not torch.allclose(bare, adapted, atol=0.1)
    base.adapters.drop(key)


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "builtin:nothing", "missing.gguf"])
def test_what_is_not_there_is_a_one_line_error(name):
    with pytest.raises(UserError) as caught:
        base_model(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unreachable_hub_is_a_one_line_error(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="nobody/nothing") as caught:
        base_model("nobody/nothing@main")
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_refused(tmp_path):
    folder = tmp_path / "m"
    save(folder)
    torch.save(tiny_model().state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError):
        base_model(str(folder))


def test_broken_weights_are_a_one_line_error(tmp_path):
    folder = tmp_path / "m"
    save(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(UserError, match="cannot load") as caught:
        base_model(str(folder))
    assert "\n" not in str(caught.value)


def test_the_lock_serves_in_order_and_nests(llama):
    """A thread that takes the lock again at once must not starve those who wait."""
    lock, order, waiting = base_model(llama).lock, [], []

    def enter(number):
        with lock, lock:
            order.append(number)

    with lock:
        for number in range(4):
            waiting.append(threading.Thread(target=enter, args=(number,)))
            waiting[-1].start()
            while len(lock._waiting) <= number:
                pass
    with lock:
        order.append("again")
    for thread in waiting:
        thread.join()
    assert order == [0, 1, 2, 3, "again"]
