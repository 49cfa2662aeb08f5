"""Expert folders: what is written is read back, and a revision changes exactly when answers may change."""

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.errors import ConfigError
from coterie.pool import agent_from, pool_of, read_agent, read_pool, revise, split_model, write_agent
from coterie.types import Agent, Price, Sampling

AGENT = Agent(
    name="solver", model="builtin:smollm2-135m", instruction="Be brief.", price=Price(prompt=0.0, completion=None)
)


def test_an_agent_survives_its_folder(tmp_path: Path):
    """B79: a price of 0 stays 0 and an unknown one stays unknown."""
    write_agent(tmp_path / "solver", AGENT)
    found = read_agent(tmp_path / "solver")
    assert replace(found, folder=None, revision="") == AGENT
    assert found.revision == revise(AGENT).revision
    assert found.price.of(10, 10) is None


@pytest.mark.parametrize(
    "change",
    [
        {"model": "local:other"},
        {"instruction": "Be long."},
        {"sampling": Sampling(temperature=0.1)},
        {"sampling": Sampling(stop=("x",))},
    ],
)
def test_the_revision_changes_with_what_changes_answers(change):
    assert revise(replace(AGENT, **change)).revision != revise(AGENT).revision


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"price": Price(prompt=3)}, {"domains": ("math",)}, {"folder": "x"}]
)
def test_the_revision_ignores_what_does_not(change):
    assert revise(replace(AGENT, **change)).revision == revise(AGENT).revision


def test_the_revision_follows_the_adapters_content_not_its_place(tmp_path: Path):
    """R13: an adapter replaced in place is another revision; a moved one is the same."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").write_bytes(b"weights")
    first, second = (revise(replace(AGENT, adapter=str(tmp_path / n))).revision for n in ("one", "two"))
    assert first == second
    (tmp_path / "two" / "adapter_model.safetensors").write_bytes(b"others!")
    assert revise(replace(AGENT, adapter=str(tmp_path / "two"))).revision != first


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"name": "a", "model": "gpt-4"}, "expected <backend>:<model>"),
        ({"name": "a", "model": "local:x", "temprature": 1}, "unknown key 'temprature'"),
        ({"name": "a", "model": "local:x", "sampling": {"temprature": 1}}, "did you mean 'temperature'"),
        ({"name": "a", "model": "local:x", "revision": "1"}, "worked out"),
        ({"name": "a", "model": "local:x", "adapter": "nowhere"}, "is not a folder"),
        ({"name": "a", "model": "local:x", "role": "boss"}, "role"),
        ({"name": "", "model": "local:x"}, "name '': must be printable"),
        ({"name": " a", "model": "local:x"}, "name ' a': must be printable, with no space around it"),
        ({"name": "a\nb", "model": "local:x"}, r"name 'a\\nb': must be printable"),
        ({"name": "\x1b[31ma", "model": "local:x"}, r"name '\\x1b\[31ma': must be printable"),
        ({"name": "a\u202eb", "model": "local:x"}, r"name 'a\\u202eb': must be printable"),
    ],
)
def test_a_wrong_agent_is_refused_by_name(tmp_path: Path, table, word):
    with pytest.raises(ConfigError, match=word) as caught:
        agent_from(table, "agent.yaml", tmp_path)
    assert str(caught.value).startswith("agent.yaml") or "model" in str(caught.value)


def test_a_pool_reads_tables_folders_and_patterns(tmp_path: Path):
    for name in ("b", "c"):
        write_agent(tmp_path / "experts" / name, replace(AGENT, name=name))
    pool = read_pool([{"name": "a", "model": "local:x"}, "experts/*"], "team.yaml", tmp_path)
    assert sorted(pool) == ["a", "b", "c"]
    with pytest.raises(ConfigError, match="no expert folder matches"):
        read_pool(["expert/*"], "team.yaml", tmp_path)
    with pytest.raises(ConfigError, match="used twice"):
        pool_of([AGENT, AGENT])
    with pytest.raises(ConfigError, match="at least one agent"):
        read_pool([], "team.yaml", tmp_path)


def test_models_are_split_at_the_first_colon():
    assert split_model("builtin:smollm2-135m") == ("local", "builtin:smollm2-135m")
    assert split_model("local:Qwen/Qwen3-0.6B@main") == ("local", "Qwen/Qwen3-0.6B@main")
    assert split_model("http:http://localhost:8000/v1#m") == ("http", "http://localhost:8000/v1#m")


def test_two_agents_of_one_recorded_table_are_two(tmp_path: Path):
    """`replay:` answers by the agent's name, so that the name is part of what changes the answers."""
    ada, bob = (revise(Agent(name=name, model=f"replay:{tmp_path}")) for name in ("ada", "bob"))
    assert ada.revision != bob.revision
