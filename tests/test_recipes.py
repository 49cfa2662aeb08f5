"""Recipes that extend others: what is laid over what, and that each ablation differs by the key it ablates."""

import json
import re

import pytest
import yaml

from coterie.config import laid_over
from coterie.errors import ConfigError
from coterie.learning.training import settings_of
from coterie.strategies.prompts import MOST_RATIONALE, SHAPE, review_schema
from coterie.strategies.reviewer import BEST, WORST, read
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


@pytest.mark.parametrize("name", [n for n in recipes() if n.startswith("cera/") and n.count("/") == 1])
def test_a_published_setting_loads_without_its_model(name):
    team = Team.load(name)
    assert settings_of(team).tasks
    assert len(team.pool) == (3 if name.endswith("heterogeneous") else 4)


REM_MOA = [name for name in recipes() if name.startswith("rem_moa/")]
MOA = [name for name in recipes() if name.startswith("moa/")]


@pytest.mark.parametrize("name", [name for name in REM_MOA if "/ablations/" in name])
def test_an_ablation_of_rem_moa_differs_from_the_published_setting_by_one_switch(name):
    changed = differing(name, "rem_moa/qwen2.5-7b")
    assert len(changed) == 1
    assert changed <= {"strategy.adjacent", "strategy.shared", "strategy.rationales"}


def test_there_is_a_recipe_for_every_ablation_and_every_mixture():
    assert sum("/ablations/" in name for name in REM_MOA) == 3
    used = {read_recipe(recipe_file(name))["strategy"]["use"] for name in (*MOA, *REM_MOA)}
    mixtures = {
        "attention_moa",
        "debate",
        "moa",
        "rank_and_fuse",
        "rem_moa",
        "rmoa",
        "self_moa",
        "self_refine",
        "smoa",
    }
    assert used == mixtures | {"self_consistency"}


@pytest.mark.parametrize("name", [*REM_MOA, *MOA])
def test_a_mixtures_recipe_loads_without_its_models(name):
    team = Team.load(name)
    assert len(team.pool.names()) >= 3
    assert team.name not in ("", name)


def test_the_published_reviewer_is_held_to_the_form_that_its_prompt_asks_for():
    """Its endpoint takes schemas; a review's has the names of the prompt's shape and the scale of its reader."""
    team = Team.load("rem_moa/qwen2.5-7b")
    [name] = team.pool.names("reviewer")
    reviewer = team.pool[name]
    endpoint = reviewer.model.split("/")[0].removeprefix("http:")
    assert read_recipe(recipe_file("rem_moa/qwen2.5-7b"))["backends"]["http"]["endpoints"][endpoint]["schemas"]
    schema = json.loads(review_schema((1, 2, 3), reviewer.sampling.max_tokens))
    items = schema["properties"]["reviews"]["prefixItems"]
    shape = json.loads(re.sub("NUMBER|SCORE", "1", SHAPE))
    assert schema["required"] == list(shape)
    assert [item["properties"]["trace"] for item in items] == [{"enum": [n]} for n in (1, 2, 3)]
    for item in items:
        assert item["required"] == list(item["properties"]) == list(shape["reviews"][0])
        score, rationale = item["properties"]["score"], item["properties"]["rationale"]
        assert (score["minimum"], score["maximum"]) == (WORST, BEST)
        assert rationale["maxLength"] == MOST_RATIONALE
    assert read(json.dumps(shape), 1).exact


BASELINES = {
    "at-grpo": "ATGRPO",
    "base": None,
    "experts": None,
    "gspo": "Coevolve",
    "icl": None,
    "lin-ucb": None,
    "maporl": "MAPoRL",
    "route-moa": None,
}


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_has_the_budget_rewards_and_data_of_what_it_is_compared_with(name):
    team, other = Team.load(f"cera/baselines/{name}"), settings_of(Team.load("cera/smollm2"))
    if BASELINES[name] is None:
        assert team.config["learner"] is None
        return
    settings = settings_of(team)
    assert type(settings).__name__ == BASELINES[name]
    for part in ("tasks", "queries", "updates", "completions", "rewards", "optimiser", "lora", "max_batch"):
        assert getattr(settings, part) == getattr(other, part), part
    assert {agent.sampling for agent in team.pool.values()} == {
        agent.sampling for agent in Team.load("cera/smollm2").pool.values()
    }
    assert team.contracts == Team.load("cera/smollm2").contracts


def test_every_baseline_is_tested():
    assert {n.removeprefix("cera/baselines/") for n in recipes() if n.startswith("cera/baselines/")} == set(
        BASELINES
    )


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
