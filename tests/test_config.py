"""Strict configuration: whatever is misspelt is refused in one line that names the nearest known thing."""

from dataclasses import field, replace
from pathlib import Path

import pytest

from coterie.config import build, find, names, override, read_yaml, validate
from coterie.errors import ConfigError
from coterie.learning.losses import Loss
from coterie.rollout import Limits
from coterie.strategies.vote import Vote
from coterie.types import spec


@spec
class Outer:
    limits: Limits = field(default_factory=Limits)
    width: int = 3


def test_build_makes_the_component_that_use_names():
    assert build("strategy", {"use": "vote", "threshold": 0.5}) == Vote(threshold=0.5)
    assert build("strategy", "vote") == Vote()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"use": "vote", "treshold": 0.5}, ["unknown key 'treshold'", "did you mean 'threshold'"]),
        ({"use": "votes"}, ["unknown strategy 'votes'", "did you mean 'vote'"]),
        ({"threshold": 0.5}, ["needs `use: <name>`", "vote"]),
        ({"use": "vote", "threshold": "high"}, ["strategy.threshold", "number"]),
        ([1], ["needs `use: <name>`"]),
    ],
)
def test_a_wrong_table_is_one_clear_line(table, words):
    """R11: unknown keys are refused, never dropped."""
    with pytest.raises(ConfigError) as caught:
        build("strategy", table, "team.yaml: ")
    message = str(caught.value)
    assert message.startswith("team.yaml: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_an_unknown_key_is_found_at_any_depth():
    with pytest.raises(ConfigError, match=r"file\.yaml\.limits: unknown key 'call'; did you mean 'calls'"):
        validate(Outer, {"limits": {"call": 3}}, "file.yaml")


@spec
class Learns:
    loss: Loss = field(default_factory=Loss)


@pytest.mark.parametrize("name", Loss.presets)
def test_a_recipe_begins_from_a_published_loss_by_its_name(name):
    """By itself, with settings of its own, and with one laid over it on the command line."""
    known = Loss.presets[name]
    assert validate(Learns, {"loss": name}, "r").loss == known
    assert validate(Learns, {"loss": {"use": name, "beta": 0.5}}, "r").loss == replace(known, beta=0.5)
    table = override({"loss": name}, ["loss.limit=7"])
    assert validate(Learns, table, "r").loss == replace(known, limit=7)


def test_a_preset_that_is_none_is_named_and_so_is_a_wrong_key_beside_one():
    with pytest.raises(ConfigError, match=r"^r\.loss: no preset 'gsop'; did you mean 'gspo'"):
        validate(Learns, {"loss": "gsop"}, "r")
    with pytest.raises(ConfigError, match=r"^r\.loss: unknown key 'betta'; did you mean 'beta'"):
        validate(Learns, {"loss": {"use": "dapo", "betta": 1}}, "r")
    with pytest.raises(ConfigError, match=r"^r\.loss: no preset 3"):
        validate(Learns, {"loss": {"use": 3}}, "r")


def test_names_resolve_and_every_builtin_can_be_imported():
    for kind in ("backend", "encoder", "router", "strategy"):
        for name in names(kind):
            assert isinstance(find(kind, name), type)


def test_override_sets_nested_values_without_touching_the_input():
    table = {"strategy": "vote", "agents": [{"name": "a"}]}
    changed = override(table, ["strategy.threshold=0.9", "agents.0.sampling.temperature=0", "limits.calls=3"])
    assert changed["strategy"] == {"use": "vote", "threshold": 0.9}
    assert changed["agents"] == [{"name": "a", "sampling": {"temperature": 0}}]
    assert changed["limits"] == {"calls": 3}
    assert table == {"strategy": "vote", "agents": [{"name": "a"}]}


@pytest.mark.parametrize("setting", ["threshold", "=3", "agents.7.name=x", "seed.deep=1", "a=[1"])
def test_a_wrong_setting_is_named(setting):
    with pytest.raises(ConfigError, match="--set"):
        override({"agents": [{}], "seed": 4}, [setting])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: 1\na: 2\n", "twice"),
        ("- 1\n", "mapping"),
        ("a: [1\n", "not valid YAML"),
        ("a: !!python/name:os.system\n", "YAML"),
    ],
)
def test_yaml_is_read_strictly(tmp_path: Path, text, word):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=word) as caught:
        read_yaml(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_yaml(tmp_path / "b.yaml")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: 2020-13-45\n", "not valid YAML"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested too deep|not valid"),
        ('a: "\\ud83d"\n', "YAML"),
    ],
)
def test_yaml_that_has_no_value_is_one_line(tmp_path: Path, text, word):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=word) as caught:
        read_yaml(file)
    assert "\n" not in str(caught.value)


def test_yaml_joins_escaped_halves_and_merges_keys(tmp_path: Path):
    file = tmp_path / "x.yaml"
    file.write_text('a: "\\ud83d\\ude00"\nbase: &b {x: 1}\nuse:\n  <<: *b\n  y: 2\n')
    assert read_yaml(file) == {"a": "\U0001f600", "base": {"x": 1}, "use": {"x": 1, "y": 2}}
