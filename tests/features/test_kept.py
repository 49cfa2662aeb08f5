"""An encoder that remembers: each text once, across instances, threads and processes; a damaged file is nothing."""

import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.features import kept
from coterie.features.hashed import Hashed
from coterie.features.kept import Kept
from coterie.types import Message


@dataclass
class Counting:
    """Three numbers of a text; counts how often each was encoded."""

    identity: str = "counting"
    seen: list[str] = field(default_factory=list)
    wait: float = 0.0

    def encode(self, prompts):
        time.sleep(self.wait)
        texts = [messages[-1].content for messages in prompts]
        self.seen += texts
        return np.array([[len(text), text.count("a"), 1] for text in texts], dtype=np.float32).reshape(-1, 3)


def says(*texts):
    return [(Message(role="user", content=text),) for text in texts]


def test_a_text_is_encoded_once_and_rows_come_in_the_order_asked():
    inner = Counting()
    made = Kept(inner)
    found = made.encode(says("aa", "b", "aa", "ccc"))
    assert found.dtype == np.float32
    assert np.array_equal(found, Counting().encode(says("aa", "b", "aa", "ccc")))
    assert np.array_equal(made.encode(says("ccc", "b")), found[[3, 1]])
    assert sorted(inner.seen) == ["aa", "b", "ccc"]


def test_no_prompt_gives_no_row_of_the_right_width():
    assert Kept(Counting()).encode([]).shape == (0, 3)
    assert Kept(Hashed(width=16)).encode([]).shape == (0, 16)


def test_another_instance_finds_what_an_earlier_one_kept(tmp_path):
    first = Kept(Counting(), tmp_path).encode(says("aa", "b"))
    later = Counting()
    made = Kept(later, tmp_path)
    assert np.array_equal(made.encode(says("b", "aa")), first[::-1])
    assert later.seen == []
    made.encode(says("new", "aa"))
    assert later.seen == ["new"]
    last = Counting()
    Kept(last, tmp_path).encode(says("aa", "b", "new"))
    assert last.seen == [], "what a second process adds leaves the first one's vectors in the file"


def test_another_process_finds_them_too(tmp_path):
    prompts = says("Add 1 and 2.", "Add 2 and 3.")
    before = Kept(Hashed(width=32), tmp_path).encode(prompts)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from coterie.features.hashed import Hashed\n"
        "from coterie.features.kept import Kept\n"
        "from coterie.types import Message\n"
        "def refuse(self, prompts): raise SystemExit('encoded again')\n"
        "Hashed.encode = refuse\n"
        "prompts = [(Message(role='user', content=text),) for text in ('Add 2 and 3.', 'Add 1 and 2.')]\n"
        "print(Kept(Hashed(width=32), Path(sys.argv[1])).encode(prompts).tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == before[::-1].tobytes().hex()


def test_encoders_of_other_features_keep_apart(tmp_path):
    """R4."""
    Kept(Counting(), tmp_path).encode(says("aa"))
    other = Counting(identity="counting:2")
    Kept(other, tmp_path).encode(says("aa"))
    assert other.seen == ["aa"]
    assert Kept(other, tmp_path).identity == "counting:2"


def test_prompts_that_differ_in_role_or_place_are_kept_apart():
    made = Kept(Counting())
    one = (Message(role="system", content="x"), Message(role="user", content="y"))
    rows = [(Message(role="user", content="x"), Message(role="user", content="y")), one, one[::-1], one[1:]]
    made.encode(rows)
    assert len(made.known) == 4


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "foreign", "fewer"])
def test_a_damaged_file_is_nothing_kept(tmp_path, damage):
    first = Kept(Counting(), tmp_path)
    rows = first.encode(says("aa", "b"))
    whole = first.file.read_bytes()
    if damage == "foreign":
        from safetensors.numpy import save_file

        save_file({"vectors": np.ones((2, 3), dtype=np.float32)}, first.file)
    elif damage == "fewer":
        kept.save_tensors(first.file, {"vectors": np.ones((1, 3), dtype=np.float32)}, {"keys": ["k", "l"]})
    else:
        first.file.write_bytes({"empty": b"", "cut": whole[:-5], "noise": b"\xff" * len(whole)}[damage])
    inner = Counting()
    assert np.array_equal(Kept(inner, tmp_path).encode(says("aa", "b")), rows)
    assert sorted(inner.seen) == ["aa", "b"]
    again = Counting()
    Kept(again, tmp_path).encode(says("aa", "b"))
    assert again.seen == [], "the damaged file was replaced by a whole one"


def test_threads_that_ask_at_once_encode_each_text_once(tmp_path):
    """R8."""
    inner = Counting(wait=0.01)
    made, barrier, found = Kept(inner, tmp_path), threading.Barrier(8), {}

    def work(part):
        barrier.wait()
        found[part] = made.encode(says("aa", "b", f"own {part}"))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(inner.seen) == sorted(["aa", "b", *(f"own {part}" for part in range(8))])
    for part in range(8):
        assert np.array_equal(found[part], Counting().encode(says("aa", "b", f"own {part}")))


def test_two_instances_on_one_folder_leave_a_whole_file(tmp_path):
    barrier = threading.Barrier(4)

    def work(part):
        barrier.wait()
        for i in range(5):
            Kept(Counting(), tmp_path).encode(says(f"{part} {i}"))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inner = Counting()
    Kept(inner, tmp_path).encode(says("0 0"))
    assert list(tmp_path.glob("*.safetensors")) == [Kept(inner, tmp_path).file]
    assert len(Kept(inner, tmp_path).encode(says("0 0", "1 0", "2 0", "3 0"))) == 4


def test_a_kill_loses_one_chunk_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "CHUNK", 2)

    class Stopped(Counting):
        def encode(self, prompts):
            if len(self.seen) >= 4:
                raise KeyboardInterrupt
            return super().encode(prompts)

    texts = [f"text {i}" for i in range(8)]
    with pytest.raises(KeyboardInterrupt):
        Kept(Stopped(), tmp_path).encode(says(*texts))
    later = Counting()
    Kept(later, tmp_path).encode(says(*texts))
    assert later.seen == texts[4:]


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        Kept(Counting(), tmp_path / "file").encode(says("aa"))
    assert "\n" not in str(caught.value)
