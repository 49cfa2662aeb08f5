"""Recipes that extend others: what is laid over what, and that each ablation differs by the key it ablates."""

import pytest
import yaml

from coterie.config import laid_over
from coterie.errors import ConfigError
from coterie.learning.training import settings_of
from coterie.team import Team, read_recipe, recipe_file, recipes

ABLATIONS = [name for name in recipes() if name.startswith("cera/ablations/")]
WITHOUT_MEANING = {"name", "description"}


def flat(value, path=""):
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{path}.{key}".lstrip(".")).items()}
    return {path: value}


def differing(name, parent):
    one, two = (flat(read_recipe(recipe_file(each))) for each in (name, parent))
    return {key for key in one.keys() | two.keys() if one.get(key) != two.get(key)} - WITHOUT_MEANING


def test_there_is_a_recipe_for_every_ablation_of_the_paper():
    assert len(ABLATIONS) == 17


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_differs_from_its_parent_by_what_it_ablates(name):
    parent = yaml.safe_load(recipe_file(name).read_text())["extends"]
    changed = differing(name, parent)
    limits = {"no-exploration": 2, "top-1": 3, "top-2": 3}  # two terms; another strategy has other fields
    assert 1 <= len(changed) <= limits.get(name.rpartition("/")[2], 1), changed
    settings_of(Team.load(name))


@pytest.mark.parametrize("name", [n for n in recipes() if n.startswith("cera/") and n not in ABLATIONS])
def test_a_published_setting_loads_without_its_model(name):
    team = Team.load(name)
    assert settings_of(team).tasks
    assert len(team.pool) == (3 if name.endswith("heterogeneous") else 4)


def test_mappings_join_and_everything_else_replaces():
    below = {"a": {"use": "x", "p": 1, "q": {"r": 1, "s": 2}}, "b": [1, 2], "c": 1}
    assert laid_over(below, {"a": {"q": {"s": 3}}, "b": [3]}) == {
        "a": {"use": "x", "p": 1, "q": {"r": 1, "s": 3}},
        "b": [3],
        "c": 1,
    }
    assert laid_over(below, {"a": {"use": "y", "t": 1}})["a"] == {"use": "y", "t": 1}
    assert below["b"] == [1, 2]


def test_a_recipe_beside_wins_over_a_built_in_one_and_extends_in_a_chain(tmp_path):
    (tmp_path / "one.yaml").write_text("extends: cera/smollm2\nname: one\nlearner: {batch: 4}\n")
    (tmp_path / "two.yaml").write_text("extends: one.yaml\nlearner: {queries: 40}\n")
    settings = settings_of(Team.load(tmp_path / "two.yaml"))
    assert (settings.batch, settings.queries, settings.practice.group) == (4, 40, 8)


def test_a_recipe_that_extends_itself_or_nothing_is_one_line(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigError, match="extends itself"):
        Team.load(tmp_path / "a.yaml")
    (tmp_path / "c.yaml").write_text("extends: cera/smollm\n")
    with pytest.raises(ConfigError, match="cera/smollm2"):
        Team.load(tmp_path / "c.yaml")
