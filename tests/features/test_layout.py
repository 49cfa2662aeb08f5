"""The shape of a question: one column a name, finite for any text, a function of the question alone."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.features.layout import NAMES, Layout
from coterie.types import Message

CODE = "Write a function that adds.\n\nassert add(1, 2) == 3"
CHOICE = "Which one is red?\n\nA. Blood\nB. Grass\nC. Sky"


def says(text):
    return (Message(role="user", content=text),)


def of(text):
    """The features of a text by their names."""
    [row] = Layout().encode([says(text)])
    return dict(zip(NAMES, row.tolist(), strict=True))


def test_every_column_has_a_name_of_its_own():
    assert Layout().encode([says(CODE)]).shape == (1, len(NAMES))
    assert len(set(NAMES)) == len(NAMES)
    assert Layout().encode([]).shape == (0, len(NAMES))
    assert str(len(NAMES)) in Layout().identity


def test_columns_hold_what_their_names_say():
    found = of(CHOICE)
    assert found["log options"] == pytest.approx(math.log1p(3))
    assert found["log characters"] == pytest.approx(math.log1p(len(CHOICE)))
    assert found["log lines"] == pytest.approx(math.log1p(4))
    assert found["log paragraphs"] == pytest.approx(math.log1p(1))
    assert found["rate of ?"] == pytest.approx(100 / len(CHOICE))
    assert (found["opens with which"], found["opens with what"]) == (1, 0)
    assert (found["begins with a capital"], found["ends with ?"]) == (1, 0)
    code = of(CODE)
    assert code["has assert"] == code["opens with write"] == 1
    assert code["rate of 3"] == pytest.approx(100 / len(CODE))
    assert code["rate of digits"] == pytest.approx(300 / len(CODE))
    assert of("ein Maß für Öl")["rate beyond ASCII"] == pytest.approx(300 / 14)


def test_words_are_counted_by_length_and_variety():
    found = of("ab ab ab cdef")
    assert found["log words"] == pytest.approx(math.log1p(4))
    assert found["word length"] == pytest.approx(2.5)
    assert found["word variety"] == pytest.approx(0.5)


@given(st.text(max_size=200))
def test_any_text_gives_finite_numbers_and_the_same_again(text):
    rows = Layout().encode([says(text), says("other"), says(text)])
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    assert np.array_equal(rows[0], rows[2])


@pytest.mark.parametrize("text", ["", " \n\t", "\ud800", "x" * 200_000, "1" * 5000, "\n" * 5000])
def test_odd_texts_have_a_shape(text):
    assert np.isfinite(Layout().encode([says(text)])).all()


def test_only_the_last_question_counts():
    """Neither system text nor earlier turns, nor other prompts of the same call."""
    alone = Layout().encode([says(CODE)])
    longer = (
        Message(role="system", content="You are? A. Kind\nB. True"),
        Message(role="user", content="Which?"),
        Message(role="assistant", content="assert 1 == 1"),
        *says(CODE),
        Message(role="user", content="  "),
    )
    assert np.array_equal(Layout().encode([says("hello"), longer])[1:], alone)


def test_content_words_do_not_count_and_layout_does():
    one, other = Layout().encode([says("Where is the cat?"), says("Where is the dog?")])
    assert np.array_equal(one, other)
    assert not np.array_equal(one, Layout().encode([says("Where is the cat.")])[0])


def test_another_process_sees_the_same_and_needs_no_extra():
    code = (
        "import sys\n"
        "for name in ('torch', 'sklearn', 'scipy'): sys.modules[name] = None\n"
        "from coterie.features.layout import Layout\n"
        "from coterie.types import Message\n"
        f"print(Layout().encode([(Message(role='user', content={CHOICE!r}),)]).tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == Layout().encode([says(CHOICE)]).tobytes().hex()
