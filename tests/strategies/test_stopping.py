"""Learned depth: what a layer shows, the rule learned from sweeps, its file, and a team that follows it."""

import asyncio
import json
from dataclasses import replace

import pytest
from mixtures import QUERY, attempts, boxed, calls, knowing, team_of

from coterie.cli.main import run
from coterie.errors import ConfigError, DataError
from coterie.evaluation.depth import early
from coterie.evaluation.evaluate import grade_all
from coterie.evaluation.learned_depth import learn_depth
from coterie.storage.runs import Run
from coterie.strategies.stopping import facts
from coterie.tasks.catalog import reader_of
from coterie.team import Team
from coterie.types import Completion, Query, Review, Score, Turn

RULE = {
    "weights": {"agreement": 20.0},
    "bias": -15.0,
    "threshold": 0.5,
    "layers": 3,
    "queries": 40,
    "accuracy": 0.9,
    "full": 0.9,
    "depth": 1.5,
}
ASKED = replace(QUERY, reference={"answers": ["7"]})
TEAM = {"a": boxed("7"), "b": boxed("8"), "c": boxed("7"), "reviewer:r": knowing("7"), "aggregator:m": boxed("7")}


def proposal(index, layer, answer):
    return Turn(
        index=index,
        agent="a",
        role="solver",
        revision="r",
        messages=(),
        completion=Completion(text="x"),
        answer=answer,
        part="proposer",
        layer=layer,
    )


def test_the_facts_of_a_layer_by_hand():
    turns = [proposal(i, 1 + i // 3, a) for i, a in enumerate(["7", "8", None, "7", "7.0", "8"])]
    reviews = [Review(turn=i, layer=1 + i // 3, score=s) for i, s in enumerate([9, 2, 4, 8, 6, 1])]
    reader = reader_of(ASKED)
    one, two = (facts(turns, reviews, layer, reader) for layer in (1, 2))
    assert one == {"depth": 0, "agreement": pytest.approx(1 / 3), "kept": 0.0, "best": 0.9, "mean": 0.5}
    assert (two["depth"], two["kept"], two["best"], two["mean"]) == (0.5, 1.0, 0.9, 0.5)
    neutral = facts(turns, [], 2, reader)
    assert (neutral["best"], neutral["mean"]) == (0.5, 0.5)
    chat = reader_of(Query(id="q", messages=QUERY.messages, task="chat", contract="raw"))
    assert (facts(turns, [], 2, chat)["agreement"], facts(turns, [], 2, chat)["kept"]) == (0.0, 0.0)


def hasty(agent, messages, seed):
    """An aggregator that errs where it sees one layer only, and an 8 in it."""
    shown = attempts(messages)
    return boxed("8" if len(shown) == 3 and any("{8}" in body for body in shown.values()) else "7")


@pytest.fixture(scope="module")
def swept():
    """Sweeps to layer 2 of 40 queries: of the even ones the first layer agrees and is right, else the second is."""

    async def one(number):
        replies = TEAM | {"b": boxed("7" if number % 2 == 0 else "8"), "aggregator:m": hasty}
        team = team_of(replies, {"use": "rem_moa", "layers": 2, "every_layer": True})
        return await team.solve(replace(ASKED, id=str(number)))

    async def every():
        return graded([await one(number) for number in range(40)])

    return asyncio.run(every())


def graded(traces, right=lambda turn: turn.answer == "7"):
    """The traces with the verdicts that `right` gives their turns."""
    found = []
    for trace in traces:
        scores = [
            Score(verdict="pass" if right(turn) else "fail", value=float(right(turn))) for turn in trace.turns
        ]
        turns = (replace(turn, score=score) for turn, score in zip(trace.turns, scores, strict=True))
        found.append(replace(trace, turns=tuple(turns)))
    return found


def test_a_rule_learned_from_sweeps_stops_where_nothing_is_lost(swept):
    """Where all three agree layer 1 is right, else only layer 2 is: a mean depth of 1.5 at full accuracy."""
    rule = learn_depth(swept)
    assert (rule.accuracy, rule.full, rule.depth) == (1.0, 1.0, 1.5)
    assert (rule.queries, rule.layers, dict(rule.pool)) == (40, 2, dict(swept[0].revisions))
    reader = reader_of(ASKED)
    stops = [rule.stops(facts(t.turns, t.reviews, 1, reader)) for t in swept]
    assert stops == [number % 2 == 0 for number in range(40)]
    assert learn_depth(swept) == rule
    cheaper = learn_depth(swept, within=0.5)
    assert (cheaper.accuracy, cheaper.depth) == (0.5, 1.0)


def test_where_nothing_can_be_learned_it_is_said(swept):
    with pytest.raises(DataError, match="no graded depth sweep"):
        learn_depth([replace(trace, exits=()) for trace in swept])
    with pytest.raises(DataError, match="0 are worse"):
        learn_depth(graded(swept, lambda turn: True))


def ruled(replies, **settings):
    """A team that follows RULE, as if it had been learned with its pool."""
    pool = team_of(TEAM, {"use": "rem_moa"}).pool
    rule = RULE | {"pool": {name: agent.revision for name, agent in pool.items()}}
    return team_of(replies, {"use": "rem_moa", "layers": 3, "depth": rule, **settings})


@pytest.mark.parametrize("use", ["rem_moa", "moa"])
async def test_a_team_stops_where_its_rule_says(use):
    """The rule wants more than three quarters to agree: all three do and it aggregates at once; two do and it goes
    on to the end."""
    agreeing = TEAM | {"b": boxed("7")}
    early_one = await ruled(agreeing, use=use).solve(ASKED)
    whole = await ruled(TEAM, use=use).solve(ASKED)
    reviews = use == "rem_moa"
    assert (len(early_one.turns), len(whole.turns)) == (4 + reviews, 10 + 3 * reviews)
    assert [(found.layer, found.why) for found in early_one.exits] == [(1, "learned")]
    assert early_one.turns[early_one.final].part == "aggregator"
    assert early_one.exits[0].turn == early_one.final
    assert whole.exits == ()


async def test_in_the_shadow_a_rule_only_notes():
    agreeing = TEAM | {"b": boxed("7")}
    team = ruled(agreeing, shadow=True, every_layer=True)
    trace = await team.solve(ASKED)
    assert len(calls(team, "a")) == 3
    assert [found.why for found in trace.exits] == ["depth", "learned", "depth", "learned", "depth"]
    found = early([trace])
    assert found is not None
    assert (found.stopped, found.calls) == (1, 8)  # two layers, their reviews


def test_settings_of_a_rule_that_cannot_apply():
    fewer = {name: reply for name, reply in TEAM.items() if name != "b"}
    with pytest.raises(ConfigError, match=r"was learned with another pool \(differs: b\)"):
        ruled(fewer, panel={"width": 3})
    for settings, said in (
        ({"shadow": True}, "every_layer"),
        ({"agreement": 1.0}, "set one of them"),
        ({"layers": 4}, "learned on 3 layers"),
        ({"depth": RULE}, "pool"),
        ({"depth": RULE | {"pool": {}, "bias": float("nan")}}, "bias"),
        ({"depth": RULE | {"pool": {}, "weights": {"agreements": 1.0}}}, "agreements"),
    ):
        with pytest.raises(ConfigError, match=said):
            ruled(TEAM, **settings)


async def test_the_command_learns_a_depth_from_a_run(swept, tmp_path, capsys):
    """The recipe that it writes is loaded as a team; another pool's run is refused."""
    recipe = tmp_path / "team.yaml"
    table = {"name": "rem", "agents": [], "strategy": {"use": "rem_moa", "every_layer": True, "layers": 2}}
    for name, agent in team_of(TEAM, {"use": "rem_moa"}).pool.items():
        table["agents"].append({"name": name, "role": agent.role, "model": agent.model})
    recipe.write_text(json.dumps(table))
    folder = Run.open(tmp_path / "run", {"task": "t", "baseline": None, "recipes": {"rem": {}}})
    for trace in swept:
        folder.append("rem", trace)
    folder.seal({"rem": swept})
    await grade_all({"rem": swept}, folder, lambda progress: None)
    command = ["layers", str(tmp_path / "run"), "--learn-depth", str(recipe), "-o", str(tmp_path / "out.yaml")]
    assert run(command) == 0
    assert "100.0% after 1.50 of 2 layers" in capsys.readouterr().out
    team = Team.load(tmp_path / "out.yaml")
    assert (team.strategy.depth.depth, team.strategy.every_layer, team.strategy.layers) == (1.5, False, 2)
    recipe.write_text(recipe.read_text().replace('"name": "b"', '"name": "x"'))
    assert run(command) == 2
    assert "nothing in this run was answered" in capsys.readouterr().err
