"""Encoders side by side: columns in their order, an identity of all, settings that are checked."""

import numpy as np
import pytest

from coterie.config import build
from coterie.errors import ConfigError
from coterie.features.hashed import Hashed
from coterie.features.joined import Joined
from coterie.features.layout import Layout
from coterie.types import Message

PROMPTS = [(Message(role="user", content=text),) for text in ("2 + 2?", "Name a river.", "")]


def test_columns_are_those_of_the_encoders_in_their_order():
    hashed, layout = Hashed(width=64), Layout()
    both = Joined(encoders=(hashed, layout)).encode(PROMPTS)
    assert both.dtype == np.float32
    assert np.array_equal(both[:, :64], hashed.encode(PROMPTS))
    assert np.array_equal(both[:, 64:], layout.encode(PROMPTS))
    turned = Joined(encoders=(layout, hashed)).encode(PROMPTS)
    assert np.array_equal(turned[:, -64:], both[:, :64])
    assert Joined(encoders=(hashed, layout)).encode([]).shape == (0, both.shape[1])


def test_its_identity_tells_its_parts_and_their_order():
    """R4: weights that were fitted on one layout of columns never read another."""
    hashed, layout = Hashed(), Layout()
    found = {
        Joined(encoders=parts).identity
        for parts in ((hashed,), (layout,), (hashed, layout), (layout, hashed), (Hashed(width=8), layout))
    }
    assert len(found) == 5


def test_a_recipe_builds_it_with_its_parts():
    made = build("encoder", {"use": "joined", "encoders": ["layout", {"use": "hashed", "width": 32}]})
    assert made == Joined(encoders=(Layout(), Hashed(width=32)))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "encoders"),
        ({"encoders": []}, "at least 1"),
        ({"encoders": ["hashd"]}, "did you mean 'hashed'"),
        ({"encoders": [3]}, "needs `use: <name>`"),
        ({"encoders": "hashed"}, "encoders"),
        ({"encoders": ["hashed"], "width": 3}, "unknown key 'width'"),
        ({"encoders": [{"use": "hashed", "wdth": 3}]}, "did you mean 'width'"),
    ],
)
def test_wrong_settings_are_one_line(table, said):
    with pytest.raises(ConfigError) as caught:
        build("encoder", {"use": "joined", **table})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
