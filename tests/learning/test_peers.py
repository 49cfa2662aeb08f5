"""What learners by turns share: exact resume, budgets, one adapter for all, the strategy's own prompts, export."""

import asyncio
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tiny_team import company, digest, flag_table

from coterie.errors import ConfigError
from coterie.learning.checkpoint import rounds
from coterie.learning.practice import Rollouts
from coterie.learning.rewards import Graded
from coterie.learning.sampler import Sample
from coterie.learning.training import METRICS, Training, opened, queries_of, settings_of
from coterie.team import Team
from coterie.types import Completion

KINDS = {
    "critic": {
        "use": "maporl",
        "strategy": {"use": "debate", "rounds": 2},
        "encoder": {"use": "hashed", "width": 32},
        "critic": {"hidden": 8, "standardise": 8, "lr": 0.01},
        "practice": {"group": 1, "updates": 2},
    },
    "debates": {
        "use": "maporl",
        "strategy": {"use": "debate", "rounds": 2},
        "encoder": None,
        "practice": {"group": 3, "updates": 1},
    },
    "tree": {
        "use": "at_grpo",
        "strategy": {"use": "moa", "layers": 2},
        "top": "cyd",
        "practice": {"group": 3},
    },
}


def made(folder, tiny, kind, **more):
    return company(folder, tiny, **(KINDS[kind] | {"batch": 2, "queries": 4} | more))


@pytest.fixture
def course(tmp_path, tiny, base):
    """Makes a course over the tiny base, closed afterwards."""
    opened_ones = []

    def make(kind, **more):
        team = made(tmp_path / str(len(opened_ones)), tiny, kind, **more)
        settings = settings_of(team)
        opened_ones.append(opened(settings, team, queries_of(settings, team)))
        return opened_ones[-1]

    yield make
    for one in opened_ones:
        for engine in set(one.engines.values()):
            engine.close()


def parts(one):
    return {
        name: (facts, {key: value.tobytes() for key, value in arrays.items()})
        for name, (facts, arrays) in one.state().parts.items()
    }


def record(folder):
    lines = (folder / METRICS).read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


# --- runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_ends_as_one_that_was_not_and_leaves_the_base_as_it_was(kind, tiny, base, tmp_path):
    """#11, #21: adapters, moments, critic, counters and record, bit for bit; its team loads and answers alone."""
    bits, flags = digest(base), flag_table(base)
    team = made(tmp_path, tiny, kind)
    straight = Training.open(team, tmp_path / "straight", False)
    assert straight.advance(lambda row: True)
    recipe = straight.export()
    straight.close()
    shutil.copytree(tmp_path / "straight", tmp_path / "killed")
    for number, path in rounds(tmp_path / "killed" / "checkpoints"):
        if number > 1:
            path.unlink()
    resumed = Training.open(made(tmp_path, tiny, kind), tmp_path / "killed", True)
    assert resumed.course.rounds == 1
    assert resumed.advance(lambda row: True)
    resumed.close()
    assert record(tmp_path / "killed") == record(tmp_path / "straight")
    last = [rounds(tmp_path / run / "checkpoints")[-1][1].read_bytes() for run in ("straight", "killed")]
    assert last[0] == last[1]
    assert digest(base) == bits
    assert flag_table(base) == flags
    found = Team.load(recipe)
    assert all(agent.adapter for agent in found.pool.values())
    assert {agent.role for agent in found.pool.values()} == {agent.role for agent in team.pool.values()}


@pytest.mark.parametrize("kind", KINDS)
def test_budgets_are_counted_as_in_co_evolution(kind, course):
    """Tokens, completions and updates of all agents together; neither budget is overshot."""
    one = course(kind, updates=4, queries=1000)
    while not one.finished:
        row = one.round()
    assert one.updates == row["updates"] == 4
    assert sum(row["agents"][name]["updates"] for name in one.names) == 4
    turns = 2 * 2 + 1 if kind == "tree" else 2 * 3  # layers of reasoners and the aggregator, or rounds of debate
    assert one.spent["completions"] == row["queries"] * one.settings.practice.group * turns
    assert 0 < one.spent["tokens"] <= 3 * one.spent["completions"]
    other = course(kind, queries=3)
    while not other.finished:
        last = other.round()
    assert (last["queries"], last["round"]) == (3, 2)
    third = course(kind, completions=1, queries=1000, batch=1)
    third.round()
    assert third.finished


@pytest.mark.parametrize("kind", KINDS)
def test_equal_runs_are_equal_and_another_seed_is_another_run(kind, course):
    one, two, other = course(kind), course(kind), course(kind)
    other.seed = 99
    for each in (one, two, other):
        row = each.round()
        assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert parts(one) == parts(two)
    assert parts(one) != parts(other)


@pytest.mark.parametrize("kind", KINDS)
def test_one_adapter_for_all_learns_from_all(kind, course):
    """Shared: one agent's adapter moves, by everybody's answers; the others' stay as they were drawn."""
    one = course(kind, shared=True)
    fresh = parts(one)
    one.round()
    moved = {name for name in one.names if parts(one)[f"agent.{name}"] != fresh[f"agent.{name}"]}
    assert moved == {"ann"}
    assert {one.policy(name) for name in one.names} == {"ann"}
    assert one.updates == one.settings.practice.updates


@pytest.mark.parametrize("kind", ["critic", "tree"])
def test_an_agent_leaves_and_the_run_goes_on_without_it(kind, course, tmp_path):
    one = course(kind, queries=8)
    one.round()
    one.without("bob")
    assert set(one.round()["agents"]) == {"ann", "cyd"}
    two = course(kind, queries=8)
    two.load(one.state())
    assert two.names == ["ann", "cyd"]
    assert two.round() | {"seconds": 0} == one.round() | {"seconds": 0}
    with pytest.raises(ConfigError, match="cannot leave"):
        one.without("cyd")


WRONG = [
    ("debates", {"practice": {"group": 1}}, "nothing to compare"),
    ("tree", {"top": None}, "one agent of role aggregator"),
    ("tree", {"practice": {"group": 1}}, "nothing to compare"),
    ("critic", {"strategy": "vote"}, "the strategy `debate`, not Vote"),
    ("critic", {"strategy": {"use": "debate", "panel": {"width": 2}}}, "every agent in every round"),
    ("tree", {"strategy": {"use": "debate"}}, "the strategy `moa`"),
    ("tree", {"strategy": {"use": "moa", "agreement": 0.5}}, "every agent in every round"),
    ("tree", {"tau": 1}, "unknown key"),
]


@pytest.mark.parametrize(("kind", "change", "words"), WRONG)
def test_settings_that_cannot_work_are_refused_in_one_line(kind, change, words, tiny, tmp_path):
    with pytest.raises(ConfigError, match=words) as caught:
        settings_of(made(tmp_path, tiny, kind, **change))
    assert "\n" not in str(caught.value)


# --- as the team answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["debates", "tree"])
def test_agents_are_asked_in_training_what_their_team_asks_them(kind, course, tiny, tmp_path, monkeypatch):
    """The strategy, given what the agents said in training, asks for nothing that they were not asked there."""
    one, team, said = course(kind), made(tmp_path / "team", tiny, kind), {}

    def say(name, asked, turn, clock, group=1):
        values = np.array([1.0, 0.5, 0.0])[:group]
        graded = Graded(raw=values, shaped=values, solved=values)
        texts = [f"{name} {turn} {k}" for k in range(group)]
        samples = tuple(Sample(ids=(1,), text=text, finish="stop", entropy=0.0) for text in texts)
        for query in asked:
            said[query.id, name, query.messages] = texts[0]
        return [Rollouts(query=query, prompt=(1,), samples=samples, graded=graded) for query in asked]

    monkeypatch.setattr(one, "_say", say)
    monkeypatch.setattr(one, "_teach", lambda *given: {name: [] for name in one.names})
    one.round()
    for key in {key for key, _, _ in said}:
        asked = []

        async def generate(agent, messages, seed, key=key, asked=asked):
            asked.append(agent.name)
            return Completion(text=said[key, agent.name, messages])

        rollout = replace(team.rollout(one.queries[key]), generate=generate)
        asyncio.run(team.strategy.solve(rollout))
        assert len(asked) == {"debates": 6, "tree": 5}[kind] == len([1 for query, _, _ in said if query == key])
