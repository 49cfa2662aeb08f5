"""Encoders of text: what they read, and that a vector is the same everywhere."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import coterie.features.sentence as sentence_module
from coterie.config import build
from coterie.errors import MissingExtra
from coterie.features.hashed import Hashed, asked
from coterie.features.sentence import Sentence
from coterie.types import Message

SOURCE = str(Path(__file__).parents[2] / "src")


def said(*pairs):
    return tuple(Message(role=role, content=content) for role, content in pairs)


def ask(text):
    return said(("user", text))


@pytest.mark.parametrize(
    "messages",
    [
        ask("What is 2+2?"),
        said(("system", "You are a harness. " * 500), ("user", "What is 2+2?")),
        said(("user", "Hi"), ("assistant", "Hello"), ("user", "What is 2+2?")),
        said(("user", "What is 2+2?"), ("assistant", "Answer:")),
        said(("user", "What is 2+2?"), ("user", " \n")),
    ],
)
def test_the_routing_text_is_the_last_human_text(messages):
    """R9 and B24: system texts, earlier turns, prefills and blank messages do not decide."""
    assert asked(messages) == "What is 2+2?"
    np.testing.assert_array_equal(Hashed().encode([messages]), Hashed().encode([ask("What is 2+2?")]))


def test_no_human_text_is_an_empty_one():
    assert asked(said(("system", "x"))) == ""
    assert asked(()) == ""
    np.testing.assert_array_equal(Hashed(width=8).encode([()]), np.zeros((1, 8)))


def test_hashed_rows_have_norm_one_and_near_texts_are_near():
    rows = Hashed().encode(
        [
            ask("How many apples does Tom have left?"),
            ask("How many pears does Ann have left?"),
            ask("def f(x): return x"),
        ]
    )
    assert rows.shape == (3, 1024)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert rows[0] @ rows[1] > 0.4 > 0.2 > abs(rows[0] @ rows[2])


def test_collisions_cancel_in_the_mean():
    """The signs of the hash are balanced: unrelated texts have inner products around 0 even in few dimensions."""
    letters = np.random.default_rng(0).integers(97, 123, (60, 30, 6)).astype(np.uint8)
    texts = [" ".join(word.tobytes().decode() for word in words) for words in letters]
    rows = Hashed(width=64).encode([ask(t) for t in texts])
    inner = (rows @ rows.T)[np.triu_indices(60, 1)]
    assert abs(inner.mean()) < 0.02


def test_hashed_vectors_are_equal_in_every_process():
    code = (
        "from coterie.features.hashed import Hashed; from coterie.types import Message; import hashlib;"
        "row = Hashed(width=64).encode([(Message(role='user', content='Ünï, 2 words'),)]).tobytes();"
        "print(hashlib.sha256(row).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_hashed_needs_no_extra():
    code = (
        "import sys; from coterie.features.hashed import Hashed; Hashed().encode([()]);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": SOURCE})


def test_hashed_takes_odd_texts():
    rows = Hashed().encode([ask("\ud800 lone"), ask("🌍" * 10), ask("x" * 100_000), ask("\x00")])
    assert np.isfinite(rows).all()


def test_it_is_built_from_a_recipe():
    assert build("encoder", {"use": "hashed", "width": 32}).encode([ask("hi")]).shape == (1, 32)
    assert build("encoder", "sentence") == Sentence()


def test_a_missing_model_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(sentence_module, "PACKAGE", "no_such_package_here")
    with pytest.raises(MissingExtra, match=r"coterie\[sentence\]"):
        Sentence().encode([ask("hi")])


@pytest.mark.model
def test_sentences_come_from_the_installed_model_without_network(monkeypatch):
    """R8 and R5: one load for ten threads that come at once, and no connection is opened."""
    import sentence_transformers

    made = []
    original = sentence_transformers.SentenceTransformer

    def counted(*given, **options):
        made.append(given)
        return original(*given, **options)

    def refused(*given):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", counted)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    encoder, found = Sentence(), {}
    texts = ["How many apples are left?", "How many pears remain?", "Sort a list in Python."]

    def work(i):
        found[i] = encoder.encode([ask(texts[i % 3])])[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    rows = encoder.encode([ask(t) for t in texts])
    assert rows.shape == (3, 384)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert rows[0] @ rows[1] > 0.5 > rows[0] @ rows[2]
    for i, row in found.items():
        np.testing.assert_allclose(row, rows[i % 3], atol=1e-5)
    assert encoder.encode([]).shape == (0, 384)
