"""A whole replay: no look at test outcomes, seals, going on after a stop, the rows and the JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest
from replayed import AGENTS, ASKED, FAST, items_of, material_of, quiet, table_of

from coterie.errors import ConfigError, DataError
from coterie.evaluation.replay.contenders import CONTENDERS, Contender, Features, made, tried
from coterie.evaluation.replay.decide import Plan, Task, decide
from coterie.evaluation.replay.page import replay_sheet
from coterie.evaluation.replay.run import named, replay, shared, targets_of
from coterie.evaluation.report import write_report
from coterie.features.hashed import Hashed
from coterie.features.joined import Joined
from coterie.routers.choice import Target

NAN = float("nan")
SIZE = 240


@pytest.fixture
def material(tmp_path):
    return material_of(tmp_path / "table", table_of(items_of(SIZE)))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One finished replay with cost-aware rows; tests read it and do not touch its folder."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_CACHE", str(folder / "cache"))
        material = material_of(folder / "table", table_of(items_of(SIZE)))
        asked = replace(ASKED, targets=targets_of(material, None, None))
        yield folder / "run", replay(asked, material, folder / "run", quiet), material


def without_seconds(value):
    """JSON without the times that fitting took."""
    if isinstance(value, dict):
        return {key: without_seconds(inner) for key, inner in value.items() if key != "seconds"}
    return [without_seconds(inner) for inner in value] if isinstance(value, list) else value


def read(folder):
    return without_seconds(json.loads((folder / "table.json").read_text()))


def lines(folder):
    return [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]


def row(found, name):
    [one] = [one for one in found.rows if one.name == name]
    return one


# --- what it gives ------------------------------------------------------------------------------------


def test_routers_find_the_planted_experts_and_rows_stand_in_their_places(done):
    _, found, _ = done
    names = [one.name for one in found.rows]
    assert names[:6] == ["best single", "domain-only", "random", "cheapest", "majority", "oracle"]
    selected = "selected on validation: "
    best = max((one for one in found.rows if one.validation is not None), key=lambda one: one.validation)
    assert names[-1] == selected + best.name.removeprefix(selected)
    assert row(found, names[-1]).score == row(found, best.name.removeprefix(selected)).score
    assert set(names[6:-1]) == {
        f"{name}{more}" for name in ("kNN", "forest") for more in ("", ", cheapest within 0 points")
    }
    assert row(found, "kNN").score > row(found, "best single").score + 0.1
    assert row(found, "kNN").p_value < 0.01
    assert row(found, "kNN").gain == pytest.approx(
        100 * (row(found, "kNN").score - row(found, "best single").score)
    )
    assert row(found, "random").score < row(found, "best single").score
    assert found.splits == {"train": 144, "validation": 48, "test": 48}
    assert (found.missing, found.dropped, found.table, found.test) == (0, 0, "table", "table")


def test_no_row_beats_the_oracle_and_every_interval_holds_its_score(done):
    _, found, _ = done
    ceiling = row(found, "oracle")
    for one in found.rows:
        assert one.score <= ceiling.score + 1e-12
        assert all(mine <= best + 1e-12 for mine, best in zip(one.seeds, ceiling.seeds, strict=True))
        assert one.ci[0] <= one.score <= one.ci[1]
        assert len(one.seeds) == 2
        assert one.score == pytest.approx(np.mean(one.seeds))
        assert (one.p_value is None) == (one.name == "best single")


def test_costs_are_a_thousand_queries_and_calls_those_that_are_made(done):
    _, found, _ = done
    assert row(found, "cheapest").cost_usd_per_1k == pytest.approx(1.0, rel=0.05)
    assert row(found, "majority").cost_usd_per_1k == pytest.approx(7.0, rel=0.05)
    assert row(found, "majority").calls == 3
    assert {one.calls for one in found.rows if one.name != "majority"} == {1.0}
    weighed = row(found, "kNN, cheapest within 0 points")
    assert weighed.cost_usd_per_1k < row(found, "best single").cost_usd_per_1k
    assert weighed.cost_usd_per_1k <= row(found, "kNN").cost_usd_per_1k


def test_a_frontier_rises_with_cost_and_its_area_is_between_its_ends(done):
    _, found, _ = done
    front = found.frontier
    assert front.router in ("kNN", "forest")
    costs, scores = zip(*front.points, strict=True)
    assert list(costs) == sorted(costs)
    assert min(scores) > 0
    assert 0 < front.area < max(scores)


def test_the_table_on_disk_has_the_keys_that_others_read(done):
    folder, found, _ = done
    table = json.loads((folder / "table.json").read_text())
    assert {"table", "splits", "rows", "frontier"} <= set(table)
    assert table == json.loads(json.dumps(found.as_json()))
    for one in table["rows"]:
        assert {"name", "score", "ci", "cost_usd_per_1k", "calls", "p_value", "seeds"} <= set(one)
    assert table["frontier"][0].keys() == {"cost_usd_per_1k", "score"}
    assert {"best single", "domain-only", "majority", "random", "oracle"} <= {one["name"] for one in table["rows"]}


def test_the_report_page_names_every_row(done, tmp_path):
    _, found, _ = done
    write_report(tmp_path / "page.html", [], [replay_sheet(found)])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(one.name in page for one in found.rows)


# --- no look at what is judged ------------------------------------------------------------------------


def blinded(task, random=None):
    """The task with its test outcomes gone, or shuffled among the queries."""
    scores, costs = task.test.scores, task.test.costs
    if random is None:
        gone = np.full_like(scores, NAN)
        return replace(task, test=replace(task.test, scores=gone, costs=gone, tokens=gone))
    rows = random.permutation(len(scores))
    return replace(task, test=replace(task.test, scores=1 - scores[rows], costs=costs[rows][:, ::-1]))


@pytest.mark.parametrize("contender", FAST, ids=lambda c: c.name)
def test_decisions_do_not_depend_on_test_outcomes(material, contender):
    task = Task.of(material, material.split(0), 0)
    plan = Plan(targets={"cheap": Target(kind="at_most_cost", value=2.0)})
    features = Features.opened("hashed")
    found = [
        replace(decide(contender, one, material, features, plan), seconds=0.0)
        for one in (task, blinded(task), blinded(task, np.random.default_rng(0)))
    ]
    assert found[0] == found[1] == found[2]
    assert {"", "cheap", "trade 0"} <= set(found[0].picks)


@pytest.mark.parametrize("name", ["RouterDC", "LinUCB", "ICL-Router light", "HybridLLM", "familiarity"])
def test_no_contender_of_the_table_reads_test_outcomes(material, name):
    small = {
        "router_dc": {"width": 8, "epochs": 2},
        "icl": {"steps": 5, "cells": 32, "width": 16},
        "hybrid_llm": {"epochs": 2},
        "familiarity": {"hidden": 16, "width": 8, "epochs": 2},
    }
    [listed] = named([name])
    use = listed.candidates[0]["use"]
    contender = Contender(name=name, candidates=tried(use, small.get(use, {})))
    task = Task.of(material, material.split(0), 0)
    features, plan = Features.opened("hashed"), Plan(targets={})
    one, two = (decide(contender, t, material, features, plan) for t in (task, blinded(task)))
    assert replace(one, seconds=0.0) == replace(two, seconds=0.0)


def test_the_best_single_agent_is_chosen_on_train(material, tmp_path):
    """An agent that is right on the whole test part, and bad before, is not it."""
    split = material.split(0)
    scores = material.outcomes.scores.copy()
    scores[list(split.test)] = [0.0, 0.0, 1.0]
    asked = replace(ASKED, seeds=1)
    material.outcomes = replace(material.outcomes, scores=scores)
    found = replay(asked, material, tmp_path / "run", quiet)
    assert row(found, "best single").score == 0.0
    assert row(found, "oracle").score == 1.0
    means = material.outcomes.take(split.train).means()
    assert max(means, key=means.get) == "ada"


def test_rows_with_missing_outcomes_train_only(tmp_path):
    table = table_of(items_of(SIZE))
    table.scores[::5, 1] = NAN
    material = material_of(tmp_path / "table", table, AGENTS)
    found = replay(replace(ASKED, seeds=1), material, tmp_path / "run", quiet)
    assert found.missing == 48
    assert found.splits["train"] == 144
    assert found.splits["test"] < 48
    assert all(0 <= one.score <= 1 for one in found.rows)
    assert row(found, "kNN").score > row(found, "best single").score


# --- stopped, gone on with, changed -------------------------------------------------------------------


class Stopped(Exception):
    """A kill between two decisions."""


def stop_after(steps):
    left = [steps]

    def watch(step):
        if not step.phase.startswith("encoding"):
            left[0] -= 1
            if left[0] < 0:
                raise Stopped

    return watch


@pytest.mark.parametrize("steps", [0, 1, 3, 4])
def test_a_replay_that_was_stopped_goes_on_and_gives_the_same(done, tmp_path, steps):
    folder, found, material = done
    asked = replace(ASKED, targets=targets_of(material, None, None))
    with pytest.raises(Stopped):
        replay(asked, material, tmp_path / "run", stop_after(steps))
    assert not (tmp_path / "run" / "table.json").exists()
    assert not (tmp_path / "run" / "decisions.sha256").exists()
    again = replay(asked, material, tmp_path / "run", quiet)
    assert read(tmp_path / "run") == read(folder)
    assert without_seconds(lines(tmp_path / "run")) == without_seconds(lines(folder))
    assert [one.name for one in again.rows] == [one.name for one in found.rows]


def test_a_kill_within_a_line_loses_that_decision_alone(done, tmp_path):
    folder, _, material = done
    asked = replace(ASKED, targets=targets_of(material, None, None))
    with pytest.raises(Stopped):
        replay(asked, material, tmp_path / "run", stop_after(2))
    file = tmp_path / "run" / "decisions.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:50])
    for _ in range(2):
        replay(asked, material, tmp_path / "run", quiet)
        assert read(tmp_path / "run") == read(folder)
    assert without_seconds(lines(tmp_path / "run")) == without_seconds(lines(folder))


def test_a_finished_replay_is_read_and_not_fitted_again(done, tmp_path, monkeypatch):
    folder, found, material = done
    monkeypatch.setattr("coterie.evaluation.replay.jobs.decide", None)
    again = replay(replace(ASKED, targets=targets_of(material, None, None)), material, folder, quiet)
    assert again == found


@pytest.mark.parametrize("change", ["pick", "line", "more"])
def test_sealed_decisions_that_were_changed_are_refused(material, tmp_path, change):
    asked = replace(ASKED, seeds=1)
    replay(asked, material, tmp_path / "run", quiet)
    before = (tmp_path / "run" / "table.json").read_bytes()
    file = tmp_path / "run" / "decisions.jsonl"
    rows = lines(tmp_path / "run")
    if change == "pick":
        rows[0]["picks"][""][0] = (rows[0]["picks"][""][0] + 1) % 3
    rows = {"pick": rows, "line": rows[1:], "more": [*rows, rows[0]]}[change]
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    with pytest.raises(DataError, match="changed after it was sealed") as caught:
        replay(asked, material, tmp_path / "run", quiet)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "run" / "table.json").read_bytes() == before


@pytest.mark.parametrize("line", ["[]", "{}", "no json", '{"contender": 3}'])
def test_lines_that_are_no_decisions_are_said_with_their_place(material, tmp_path, line):
    asked = replace(ASKED, seeds=1)
    with pytest.raises(Stopped):
        replay(asked, material, tmp_path / "run", stop_after(1))
    with open(tmp_path / "run" / "decisions.jsonl", "a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"decisions\.jsonl:6") as caught:  # after four baselines and one router
        replay(asked, material, tmp_path / "run", quiet)
    assert "\n" not in str(caught.value)


def test_another_configuration_in_the_same_folder_is_refused(material, tmp_path):
    asked = replace(ASKED, seeds=1, contenders=FAST[:1])
    replay(asked, material, tmp_path / "run", quiet)
    before = (tmp_path / "run" / "decisions.jsonl").read_bytes()
    other = material_of(tmp_path / "other", table_of(items_of(SIZE), seed=1))
    for changed, on in (
        (replace(asked, seeds=2), material),
        (replace(asked, contenders=FAST[1:]), material),
        (replace(asked, targets={"t": Target(kind="within_points", value=1.0)}), material),
        (asked, other),
    ):
        with pytest.raises(ConfigError, match="another configuration") as caught:
            replay(changed, on, tmp_path / "run", quiet)
        assert "\n" not in str(caught.value)
    assert (tmp_path / "run" / "decisions.jsonl").read_bytes() == before


def test_the_same_table_and_seeds_give_the_same_table_elsewhere(material, tmp_path):
    asked = replace(ASKED, seeds=1, contenders=FAST[:1])
    for name in ("one", "two"):
        replay(asked, material, tmp_path / name, quiet)
    assert read(tmp_path / "one") == read(tmp_path / "two")


# --- costs --------------------------------------------------------------------------------------------


def test_without_known_costs_there_are_no_cost_rows_and_no_dollars(tmp_path):
    material = material_of(tmp_path / "table", table_of(items_of(SIZE), price=False))
    assert targets_of(material, None, None) == {}
    for wanted in ((1.0, None), (None, 0.0)):
        with pytest.raises(DataError, match="costs are not known") as caught:
            targets_of(material, *wanted)
        assert "\n" not in str(caught.value)
    found = replay(replace(ASKED, seeds=1), material, tmp_path / "run", quiet)
    names = [one.name for one in found.rows]
    assert "cheapest" not in names
    assert not any("," in name for name in names)
    assert {one.cost_usd_per_1k for one in found.rows} == {None}
    assert found.frontier is None
    assert read(tmp_path / "run")["frontier"] == []
    write_report(tmp_path / "page.html", [], [replay_sheet(found)])


def test_targets_are_rows_of_their_own_and_are_kept_to(material, tmp_path):
    targets = targets_of(material, 1.5, 2.0)
    assert list(targets) == ["at most $1.5 / 1k", "within 2 points"]
    found = replay(replace(ASKED, contenders=FAST[:1], targets=targets), material, tmp_path / "run", quiet)
    assert row(found, "kNN, at most $1.5 / 1k").cost_usd_per_1k == pytest.approx(1.5, rel=0.2)
    assert row(found, "kNN, within 2 points").cost_usd_per_1k < row(found, "best single").cost_usd_per_1k
    assert row(found, "kNN, within 2 points").ece is None


def test_a_target_out_of_reach_is_the_closest_there_is(material, tmp_path):
    """Nothing costs as little as this: the cheapest agent is asked, not the one with the best score."""
    targets = targets_of(material, 0.1, None) | {"sure": Target(kind="within_points", value=-90.0)}
    found = replay(replace(ASKED, contenders=FAST[:1], targets=targets), material, tmp_path / "run", quiet)
    cheapest = row(found, "cheapest")
    assert row(found, "kNN, at most $0.1 / 1k").cost_usd_per_1k == pytest.approx(cheapest.cost_usd_per_1k, rel=0.1)
    assert row(found, "kNN, sure").score == pytest.approx(row(found, "kNN").score, abs=0.05)


# --- on another table ---------------------------------------------------------------------------------


def test_another_table_judges_and_what_it_asks_is_not_learnt_from(material, tmp_path):
    """Half of the other table's questions are in the first one too, in another spelling."""
    theirs = [
        replace(one, id=f"other-{one.id}", question=one.question.upper().replace(" ", "  "))
        for one in items_of(120, SIZE - 60)
    ]
    first, second = shared(material, material_of(tmp_path / "other", table_of(theirs, seed=3)))
    found = replay(replace(ASKED, seeds=2), first, tmp_path / "run", quiet, second)
    assert found.dropped == 60
    assert (found.table, found.test) == ("table", "other")
    assert found.splits == {"train": 144, "validation": 36, "test": 120}
    assert row(found, "kNN").score > row(found, "best single").score
    assert row(found, "kNN").p_value < 0.05


def test_a_replay_on_another_table_is_no_replay_on_this_one(material, tmp_path):
    other = material_of(tmp_path / "other", table_of(items_of(90, 1000)))
    asked = replace(ASKED, seeds=1, contenders=FAST[:1])
    replay(asked, material, tmp_path / "run", quiet, other)
    with pytest.raises(ConfigError, match="another configuration"):
        replay(asked, material, tmp_path / "run", quiet)


def test_tables_are_compared_on_the_agents_that_both_have(material, tmp_path):
    other = material_of(tmp_path / "other", table_of(items_of(90, 1000), agents=("bob", "cyd", "dee")))
    first, second = shared(material, other)
    assert first.outcomes.agents == second.outcomes.agents == ("bob", "cyd")
    strangers = material_of(tmp_path / "strange", table_of(items_of(90, 1000), agents=("cyd", "dee", "eve")))
    with pytest.raises(DataError, match="1 agents in common") as caught:
        shared(material, strangers)
    assert "\n" not in str(caught.value)


def test_a_test_table_that_leaves_nothing_to_learn_from_is_refused(material, tmp_path):
    same = material_of(tmp_path / "same", table_of(items_of(SIZE), seed=5))
    with pytest.raises(DataError, match="none is left to learn from") as caught:
        replay(ASKED, material, tmp_path / "run", quiet, same)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_test_table_without_a_row_that_all_answered_is_refused(material, tmp_path):
    table = table_of(items_of(90, 1000))
    table.scores[::2, 0] = NAN
    table.scores[1::2, 1] = NAN
    holed = material_of(tmp_path / "holed", table, AGENTS)
    with pytest.raises(DataError, match="holed") as caught:
        replay(ASKED, material, tmp_path / "run", quiet, holed)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_every_contender_is_made_over_the_replays_features_under_its_seed():
    """Also inside of routers around routers; each setting is one that its router has."""
    features = Features.opened("hashed")
    for contender in CONTENDERS:
        for table in contender.candidates:
            router = made(table, features, 7)
            while hasattr(router, "router"):
                assert router.seed == 7
                router = router.router
            assert router.encoder is features.sentence
            assert getattr(router, "seed", 7) == 7
    both = Features(words=Hashed(width=8), sentence=Hashed(width=16))
    assert both.of("forest") == Joined(encoders=(both.words, both.sentence))
    assert both.of("knn") is both.sentence


def test_a_calibrated_router_decides_and_is_better_calibrated(material, tmp_path):
    settings = {"router": {"use": "knn", "k": 1}}
    listed = (
        Contender(name="sure", candidates=tried("knn", {"k": 1})),
        Contender(name="calibrated", candidates=tried("calibrated", settings)),
    )
    found = replay(replace(ASKED, contenders=listed), material, tmp_path / "run", quiet)
    assert row(found, "calibrated").ece < row(found, "sure").ece
    assert row(found, "calibrated").score > row(found, "best single").score


def test_names_pick_contenders_in_the_order_of_the_table():
    assert [one.name for one in named(["forest", "kNN"])] == ["kNN", "forest"]
    assert named([]) == CONTENDERS
