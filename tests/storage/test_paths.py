"""One folder for everything that can be made again, whoever asks for it."""

from pathlib import Path

import pytest

from coterie.backends.builtin import models_folder
from coterie.storage.cache import default_path
from coterie.storage.paths import cache_folder


@pytest.mark.parametrize(
    ("own", "xdg", "expected"),
    [
        ("/own", "/xdg", "/own"),
        ("~/own", "/xdg", "/home/ada/own"),
        ("", "/xdg", "/xdg/coterie"),
        ("", "~/xdg", "/home/ada/xdg/coterie"),
        ("", "", "/home/ada/.cache/coterie"),
    ],
)
def test_calls_and_models_lie_in_one_folder(monkeypatch, own, xdg, expected):
    for name, value in {"COTERIE_CACHE": own, "XDG_CACHE_HOME": xdg, "HOME": "/home/ada"}.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)
    assert default_path() == Path(expected) / "calls.sqlite"
    assert models_folder() == Path(expected) / "models"
