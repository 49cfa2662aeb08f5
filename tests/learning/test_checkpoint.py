"""Checkpoints: whole or not there, whatever kills or fills the disk meanwhile."""

import json
import math
import os
import re
import resource
import signal
import time

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.learning.checkpoint import Checkpoint, Damaged, newest, rounds, save

FACTS = {"count": 3, "names": ["ä", "b"], "share": 0.1 + 0.2, "none": None, "deep": {"z": 1, "a": [1, 2]}}


def state(number, size=50):
    """Parts whose content hangs on the round, so that a mixture of two would be noticed."""
    source = np.random.default_rng(number)
    arrays = {"x": source.standard_normal(size), "y/z": source.standard_normal((2, 3)).astype(np.float32)}
    odd = {"nan": np.array([math.nan, math.inf, -0.0]), "empty": np.zeros((0, 4)), "whole": np.arange(4)}
    return Checkpoint(
        round=number, parts={"run": (FACTS | {"round": number}, {}), "a": ({"n": number}, arrays), "b": ({}, odd)}
    )


def same(a, b):
    return a.round == b.round and {n: _bits(p) for n, p in a.parts.items()} == {
        n: _bits(p) for n, p in b.parts.items()
    }


def _bits(part):
    facts, arrays = part
    return json.dumps(facts, sort_keys=True), {
        k: (v.dtype.str, v.shape, v.tobytes()) for k, v in sorted(arrays.items())
    }


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    save(tmp_path, state(7), keep=2)
    assert same(newest(tmp_path), state(7))


def test_there_is_nothing_at_first(tmp_path):
    assert newest(tmp_path) is None
    assert newest(tmp_path / "absent") is None


def test_parts_whose_names_begin_alike_stay_apart(tmp_path):
    """#8: agents may be called `a` and `a/weights`, or like a path."""
    names = ["agent.a", "agent.a/weights", "agent.a/weights/x", "agent./", "agent.", "0", "1/"]
    parts = {name: ({"own": name}, {"weights/x": np.full(2, i)}) for i, name in enumerate(names)}
    save(tmp_path, Checkpoint(round=1, parts=parts), keep=1)
    assert same(newest(tmp_path), Checkpoint(round=1, parts=parts))


def test_a_single_number_and_an_array_turned_over_are_whole_when_they_come_back(tmp_path):
    odd = {"step": np.array(3.0), "turned": np.arange(6.0).reshape(2, 3).T}
    save(tmp_path, Checkpoint(round=1, parts={"a": ({1: "whole numbers become texts"}, odd)}), keep=1)
    assert newest(tmp_path).parts["a"][1]["turned"].tolist() == odd["turned"].tolist()


def test_the_newest_stay(tmp_path):
    for number in (1, 2, 9, 10):
        save(tmp_path, state(number), keep=2)
    assert [number for number, _ in rounds(tmp_path)] == [9, 10]
    assert newest(tmp_path).round == 10


def test_a_kill_at_any_moment_leaves_one_to_go_on_from(tmp_path):
    """kill -9 at twenty moments, most of them inside a save; what is there is whole."""
    save(tmp_path, state(1, 20000), keep=2)
    last = 1
    for moment in range(20):
        child = os.fork()
        if not child:
            number = last
            while True:
                number += 1
                save(tmp_path, state(number, 20000), keep=2)
        try:
            while rounds(tmp_path)[-1][0] == last:
                time.sleep(0.0005)
            time.sleep(0.0004 * moment)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        found = newest(tmp_path)
        assert found.round >= last
        assert same(found, state(found.round, 20000))
        last = found.round
    assert last > 20
    save(tmp_path, state(last + 1), keep=2)
    assert len(list(tmp_path.iterdir())) == 2, "drafts of killed processes are swept up"


def test_a_full_disk_leaves_the_older_one(tmp_path):
    """A quota of 64 KiB a file: one line that says so, nothing half written, and it works again with space."""
    save(tmp_path, state(1), keep=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"round-00000002.safetensors: cannot be written") as caught:
            save(tmp_path, state(2, 100_000), keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["round-00000001.safetensors"]
    assert same(newest(tmp_path), state(1))
    save(tmp_path, state(2, 100_000), keep=2)
    assert newest(tmp_path).round == 2


def test_a_damaged_newest_one_is_told_and_the_one_before_taken(tmp_path, caplog):
    save(tmp_path, state(1), keep=3)
    path = save(tmp_path, state(2), keep=3)
    path.write_bytes(path.read_bytes()[:-40])
    with caplog.at_level("WARNING"):
        assert same(newest(tmp_path), state(1))
    [told] = caplog.messages
    assert re.search(r"round-00000002\.safetensors: .*: going on from the checkpoint before$", told)
    path.with_name("round-00000001.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"round-00000002.* nor is one of the 1 before it: put a whole one back"):
        newest(tmp_path)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_is_no_reason_to_let_a_whole_one_go(tmp_path, keep):
    """After a fall back rounds are made again below it, until its own is written anew."""
    for number in (3, 4, 9):
        path = save(tmp_path, state(number), keep=9)
    path.write_bytes(b"torn")
    save(tmp_path, state(5), keep)
    assert [number for number, _ in rounds(tmp_path)] == [4, 5, 9][2 - keep :]
    assert same(newest(tmp_path), state(5))
    save(tmp_path, state(9), keep)
    assert same(newest(tmp_path), state(9))
    assert len(rounds(tmp_path)) == keep


def test_one_under_another_name_is_damaged(tmp_path, caplog):
    """It is told, and the one before is taken; nothing whole goes for it later."""
    save(tmp_path, state(1), keep=3)
    save(tmp_path, state(2), keep=3).rename(tmp_path / "round-00000009.safetensors")
    assert same(newest(tmp_path), state(1))
    assert "not of the round in its name" in caplog.text


def test_what_was_changed_is_damaged_whatever_it_is(tmp_path):
    """A bit of a number, a fact of another type, a part less: the header's digest is of all of it."""
    from coterie.storage.tensors import load_tensors, save_tensors

    save(tmp_path, state(1), keep=9)
    path = save(tmp_path, state(2), keep=9)
    arrays, about = load_tensors(path)
    bit = {**arrays, "0/x": np.nextafter(arrays["0/x"], np.inf)}
    fact = {**about, "parts": [[name, {**facts, "n": "2"}] for name, facts in about["parts"]]}
    for changed, notes in ((bit, about), (arrays, fact), (arrays, {**about, "parts": about["parts"][:2]})):
        save_tensors(path, changed, notes)
        assert same(newest(tmp_path), state(1))
    save_tensors(path, arrays, {key: value for key, value in about.items() if key != "digest"})
    assert same(newest(tmp_path), state(2)), "those of older versions have none"


def test_one_that_cannot_be_taken_up_gives_way_to_the_one_before(tmp_path):
    for number in (1, 2, 3):
        save(tmp_path, state(number), keep=9)
    seen = []

    def take(found):
        seen.append(found.round)
        if found.round > 1:
            raise Damaged(f"round {found.round}: no")

    assert newest(tmp_path, take).round == 1
    assert seen == [3, 2, 1]


def test_a_folder_in_the_place_of_a_checkpoint_is_told_at_once(tmp_path):
    save(tmp_path, state(1), keep=9)
    (tmp_path / "round-00000002.safetensors").mkdir()
    with pytest.raises(ConfigError, match=r"round-00000002.*move it away"):
        newest(tmp_path)


@pytest.mark.parametrize("notes", [{}, {"format": 0, "parts": []}, {"format": 1, "parts": {}}])
def test_a_file_of_something_else_is_refused(tmp_path, notes):
    from coterie.storage.tensors import save_tensors

    save_tensors(tmp_path / "round-00000003.safetensors", {"x": np.zeros(1)}, notes)
    with pytest.raises(ConfigError, match="is no checkpoint of this version"):
        newest(tmp_path)


def test_other_files_are_left_alone(tmp_path):
    for name in ("notes.txt", "round-1.safetensors", "round-00000001.safetensors.bak"):
        (tmp_path / name).write_text("mine")
    for number in range(3):
        save(tmp_path, state(number), keep=1)
    assert len(list(tmp_path.iterdir())) == 4
