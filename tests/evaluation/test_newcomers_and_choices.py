"""From recorded outcomes to a team that weighs cost, and to one with a new agent: train, calibrate, spread."""

import json

import numpy as np
import pytest
import yaml
from replayed import items_of, table_of, written

from coterie.cli.main import run
from coterie.storage.tablefile import read_table
from coterie.team import Team
from coterie.types import Message, Query

RECIPE = {
    "router": {
        "use": "cost_aware",
        "router": {"use": "knn", "k": 20, "encoder": {"use": "hashed"}},
        "weights": "router.safetensors",
    },
    "strategy": "single",
}


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "train", table_of(items_of(180)))
    written(tmp_path / "held", table_of(items_of(120, start=180), seed=1))
    save(tmp_path / "team.yaml", RECIPE)
    return tmp_path


def save(path, recipe, names=("ada", "bob", "cyd")):
    agents = [{"name": name, "model": "replay:./train", "price": {"prompt": 1, "completion": 1}} for name in names]
    path.write_text(yaml.safe_dump({**recipe, "agents": agents}), encoding="utf-8")
    return path


def told(capsys, *arguments):
    assert run([*arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    capsys.readouterr()
    assert run(list(arguments)) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    return line


def trained(capsys):
    told(capsys, "train", "-r", "team.yaml", "--table", "train")


def test_a_target_becomes_a_file_that_the_recipe_names(desk, capsys):
    trained(capsys)
    found = told(capsys, "calibrate", "-r", "team.yaml", "--table", "held", "--within-points", "20")
    assert found["queries"] == 120
    assert found["trade"] > 0
    assert found["interval"][0] <= found["score"] <= found["interval"][1]
    assert sorted(found["pool"]) == ["ada", "bob", "cyd"]
    assert len(found["data"]) == 16
    assert found["date"]
    chosen = {**RECIPE, "router": {**RECIPE["router"], "choice": "choice.json"}}
    team = Team.load(save(desk / "chosen.yaml", chosen))
    assert team.router._choice.trade == found["trade"]


def test_less_money_never_buys_more(desk, capsys):
    trained(capsys)
    dear, cheap = (
        told(capsys, "calibrate", "-r", "team.yaml", "--table", "held", "--at-most-cost", amount)
        for amount in ("4", "1.5")
    )
    assert cheap["cost_usd_per_1k"] <= 1.5
    assert dear["cost_usd_per_1k"] <= 4
    assert cheap["score"] <= dear["score"]


def test_a_changed_pool_is_refused(desk, capsys):
    trained(capsys)
    told(capsys, "calibrate", "-r", "team.yaml", "--table", "held", "--within-points", "20")
    chosen = {**RECIPE, "router": {**RECIPE["router"], "choice": "choice.json"}}
    team = Team.load(save(desk / "chosen.yaml", chosen, names=("ada", "bob")))
    query = Query(id="x", messages=(Message(role="user", content="Add the numbers 1 and 1."),))
    with pytest.raises(Exception, match=r"choice\.json: was set for another pool \(differs: cyd\)"):
        team.router.predict([query], team.pool)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--table", "held"), "give one target"),
        (("--table", "held", "--at-most-cost", "1", "--within-points", "1"), "give one target"),
        (("--within-points", "1"), "give one source of outcomes"),
        (("--table", "absent", "--within-points", "1"), "absent"),
        (("--table", "held", "--at-most-cost", "0.001"), "no trade reaches at_most_cost 0.001"),
    ],
)
def test_bad_requests_are_one_line(capsys, arguments, message):
    trained(capsys)
    assert message in refused(capsys, "calibrate", "-r", "team.yaml", *arguments)


def test_another_router_is_told_to_be_wrapped(desk, capsys):
    save(desk / "plain.yaml", {"router": "uniform"})
    line = refused(capsys, "calibrate", "-r", "plain.yaml", "--table", "held", "--within-points", "1")
    assert "cost_aware" in line


def test_an_agent_without_a_known_price_is_named(desk, capsys):
    written(desk / "free", table_of(items_of(120, start=180), price=False))
    recipe = yaml.safe_load((desk / "team.yaml").read_text())
    for agent in recipe["agents"]:
        agent.pop("price")
    (desk / "team.yaml").write_text(yaml.safe_dump(recipe))
    trained(capsys)
    line = refused(capsys, "calibrate", "-r", "team.yaml", "--table", "free", "--within-points", "1")
    assert "'ada': its costs are unknown" in line


# --- a new agent --------------------------------------------------------------------------------------


INNER = {"use": "forest", "trees": 10, "components": 8, "encoder": {"use": "hashed"}}


def test_a_new_agent_is_learnt_from_a_few_telling_queries(desk, capsys):
    """The forest knows ada and bob; cyd, who alone can do the third kind, comes with 40 labels."""
    save(desk / "old.yaml", {"router": {**INNER, "weights": "old.safetensors"}}, names=("ada", "bob"))
    told(capsys, "train", "-r", "old.yaml", "--table", "train")
    router = {"use": "extended", "router": {**INNER, "weights": "old.safetensors"}, "weights": "new.safetensors"}
    save(desk / "new.yaml", {"router": router})
    found = told(capsys, "train", "-r", "new.yaml", "--table", "train", "--spread", "40")
    assert 5 <= found["queries"] <= 40
    team = Team.load(desk / "new.yaml")
    queries = [Query(id=str(i), messages=(Message(role="user", content=text),)) for i, text in enumerate(ASKED)]
    before = Team.load(desk / "old.yaml")
    scores = team.router.predict(queries, team.pool)
    assert scores[:, 2].argmax() == 2
    assert np.array_equal(scores[:, :2], before.router.predict(queries, before.pool))


ASKED = (
    "Add the numbers 999 and 999.",
    "Please write a short poem about the year 999!",
    "def f(x): what does f(999) return?",
)


def test_spread_is_for_extended_routers(capsys):
    line = refused(capsys, "train", "-r", "team.yaml", "--table", "train", "--spread", "40")
    assert "extended" in line


# --- learning curves and swaps ------------------------------------------------------------------------


def test_the_learning_curve_has_a_line_a_router(capsys):
    found = told(
        capsys, "bench", "labels", "train", "--labels", "20,60,9999", "--seeds", "2", "--encoder", "hashed",
        "--router", "kNN", "--out", "curve.html",
    )  # fmt: skip
    rows = {(row["name"], row["labels"]): row["score"] for row in found["rows"]}
    assert set(rows) == {(name, size) for name in ("best single", "kNN") for size in (20, 60)}
    assert rows["kNN", 60] > rows["best single", 60]


def test_the_test_part_of_a_curve_never_changes_with_the_labels(desk, capsys):
    """The same seed judges every size on the same queries: the best single agent's score says so."""
    found = told(
        capsys, "bench", "labels", "train", "--labels", "60,80", "--seeds", "1", "--encoder", "hashed",
        "--router", "kNN",
    )  # fmt: skip
    single = {row["score"] for row in found["rows"] if row["name"] == "best single"}
    assert len(single) == 1


def test_a_swap_compares_three_ways(desk, capsys):
    names = tuple("abcdefg")
    skill = np.random.default_rng(3).uniform(size=(7, 3))
    written(desk / "seven", table_of(items_of(240), agents=names, skill=skill, dollars=(0.001,) * 7))
    found = told(
        capsys, "bench", "swap", "seven", "--seeds", "2", "--encoder", "hashed", "--router", "kNN", "--labels", "64"
    )
    for row in found["rows"]:
        assert len({*row["left"], *row["came"]}) == 4
        assert row["loss"] == pytest.approx(100 * (row["retrained"] - row["extended"]))
    assert np.mean([row["extended"] for row in found["rows"]]) > np.mean([row["ignored"] for row in found["rows"]])


def test_a_small_table_cannot_swap(capsys):
    assert "six" in refused(capsys, "bench", "swap", "train", "--encoder", "hashed")


@pytest.mark.parametrize("labels", ["many", "3", ""])
def test_wrong_numbers_of_labels_are_one_line(capsys, labels):
    assert "--labels" in refused(capsys, "bench", "labels", "train", "--labels", labels, "--encoder", "hashed")


def test_tables_are_left_as_they_were(desk, capsys):
    before = read_table(desk / "train").scores
    trained(capsys)
    assert np.array_equal(before, read_table(desk / "train").scores)
