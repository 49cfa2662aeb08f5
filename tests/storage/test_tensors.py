"""Tensor files: whole or not at all, ours or refused."""

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from coterie.errors import ConfigError
from coterie.storage.tensors import load_tensors, save_tensors


def test_arrays_and_metadata_come_back(tmp_path):
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1.5, np.nan]),
        "none": np.zeros((0, 4)),
    }
    save_tensors(tmp_path / "deep" / "w.safetensors", arrays, {"format": 1, "agents": ["é"]})
    found, metadata = load_tensors(tmp_path / "deep" / "w.safetensors")
    assert metadata == {"format": 1, "agents": ["é"]}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_views_are_stored_as_they_read(tmp_path):
    """The format stores raw memory: a transposed or strided view must not come back scrambled."""
    whole = np.arange(12.0).reshape(3, 4)
    save_tensors(tmp_path / "w", {"t": whole.T, "s": whole[:, ::2]}, {})
    found, _ = load_tensors(tmp_path / "w")
    np.testing.assert_array_equal(found["t"], whole.T)
    np.testing.assert_array_equal(found["s"], whole[:, ::2])


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    """R17."""
    path = tmp_path / "w"
    save_tensors(path, {"a": np.ones(3)}, {"v": 1})
    with pytest.raises(ValueError, match="JSON"):
        save_tensors(path, {"a": np.zeros(3)}, {"v": float("nan")})
    assert load_tensors(path)[1] == {"v": 1}
    assert os.listdir(tmp_path) == ["w"]


def test_a_write_that_does_not_fit_is_one_line_and_leaves_the_old_file(tmp_path):
    """R17: the library says by an error of its own that there is no room."""
    path = tmp_path / "w"
    save_tensors(path, {"a": np.ones(3)}, {"v": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(ConfigError, match="cannot be written") as caught:
            save_tensors(path, {"a": np.ones(100_000)}, {"v": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert load_tensors(path)[1] == {"v": 1}
    assert os.listdir(tmp_path) == ["w"]


def test_readers_never_see_a_half_written_file(tmp_path):
    """R15."""
    path = tmp_path / "w"
    save_tensors(path, {"a": np.full(200_000, 0.0)}, {"v": 0})
    done = threading.Event()

    def write():
        for i in range(1, 15):
            save_tensors(path, {"a": np.full(200_000, float(i))}, {"v": i})
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        found, metadata = load_tensors(path)
        assert (found["a"] == metadata["v"]).all()
        seen.add(metadata["v"])
    writer.join()
    assert load_tensors(path)[1] == {"v": 14}
    assert os.listdir(tmp_path) == ["w"]


@pytest.mark.parametrize("content", [b"", b"hello", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      " + b"x" * 9])
def test_a_file_that_is_no_safetensors_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "w"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_tensors(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cut_file_is_refused(tmp_path):
    path = tmp_path / "w"
    save_tensors(path, {"a": np.ones(1000)}, {})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        load_tensors(path)


def test_a_foreign_file_and_a_missing_one_are_refused(tmp_path):
    safetensors.numpy.save_file({"a": np.ones(2)}, tmp_path / "foreign", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="was not written by coterie"):
        load_tensors(tmp_path / "foreign")
    with pytest.raises(ConfigError, match="no such file"):
        load_tensors(tmp_path / "absent")


def test_torch_is_not_needed(tmp_path):
    code = (
        "import sys; import numpy as np; from coterie.storage.tensors import load_tensors, save_tensors;"
        f"save_tensors({str(tmp_path / 'w')!r}, {{'a': np.ones(2)}}, {{}}); load_tensors({str(tmp_path / 'w')!r});"
        "assert 'torch' not in sys.modules"
    )
    source = str(Path(__file__).parents[2] / "src")
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": source})
