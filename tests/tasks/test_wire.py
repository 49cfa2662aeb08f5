"""The encoding between judge and solution: what goes in comes out, and bytes that lie do no harm."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.tasks.box import wire
from coterie.tasks.box.link import Remote, exception, overwrite
from coterie.tasks.box.wire import Uncarried, WireError, decode, encode

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
HASHABLE = st.recursive(
    ATOMS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=8
)
VALUES = st.recursive(
    HASHABLE | st.sets(HASHABLE, max_size=3) | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=3) | st.tuples(inner),
    max_leaves=20,
)


@given(VALUES)
def test_values_come_back_with_their_types(value):
    back = decode(encode(value))
    assert back == value
    assert repr(back) == repr(value) or "{" in repr(value)  # sets have no order


@given(VALUES, st.data())
def test_damaged_bytes_are_refused_or_give_plain_data(value, data):
    """Nothing but WireError, whatever a solution sends; and nothing but plain data."""
    content = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    for text in (bytes(content), bytes(content[: len(content) // 2])):
        try:
            encode(decode(text, lambda tag, number: number), lambda v: (b"H", 0))
        except WireError:
            continue


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_give_plain_data(content):
    try:
        decode(content, lambda tag, number: number)
    except WireError:
        pass


def test_no_type_or_module_outside_the_lists():
    system = encode(("os", "system", "true"))
    for content in (b"X" + system[1:], b"P" + wire.size(2) + b"os", b"B" + wire.size(4) + b"eval"):
        with pytest.raises(WireError):
            decode(content)


def test_a_count_that_lies_costs_nothing():
    with pytest.raises(WireError, match="more items than bytes"):
        decode(b"l" + wire.size(1 << 31))


def test_too_large_and_too_deep():
    with pytest.raises(WireError, match="4 MiB"):
        encode("x" * (5 << 20))
    deep = b"l" + wire.size(1)
    with pytest.raises(WireError, match="malformed"):
        decode(deep * 100_000 + b"N")


def test_special_floats():
    values = decode(encode([math.inf, -math.inf, math.nan, -0.0]))
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])
    assert math.copysign(1, values[3]) == -1


def test_objects_need_an_export():
    with pytest.raises(Uncarried):
        encode([object()])
    assert decode(encode([object()], lambda v: (b"H", 7)), lambda tag, number: (tag, number)) == [(b"H", 7)]


@pytest.mark.parametrize("names", [["SystemExit", "BaseException"], ["AssertionError", "Exception"], [], ["open"]])
def test_exceptions_never_end_the_judge_nor_look_like_an_assertion(names):
    error = exception(names, "no")
    assert isinstance(error, Exception)
    assert not isinstance(error, AssertionError)


def test_remote_objects_are_equal_to_themselves_alone():
    class Silent:
        """A link over which nothing may be asked."""

        def ask(self, *question):
            raise AssertionError(question)

    one, other = Remote(Silent(), 1), Remote(Silent(), 1)
    assert one == one
    assert one != other
    assert one != 2
    assert (one == [one]) is False
    with pytest.raises(TypeError):
        _ = one < 2


def test_overwrite_changes_the_same_object_or_nothing():
    values, pairs, kept = [1], {1: 2}, (1,)
    overwrite(values, [2, 3])
    overwrite(pairs, {3: 4})
    overwrite(kept, (2,))
    overwrite(values, "no list")
    assert (values, pairs, kept) == ([2, 3], {3: 4}, (1,))
