"""`coterie bench replay`: what it prints, writes and goes on with; mistakes are one line and exit code 2."""

import json

import numpy as np
import pytest

from coterie.cli.main import run
from coterie.storage.tablefile import Item, Recorded, Table, save_table

KINDS = ("Add the numbers {0} and {0}.", "Please write a poem about {0}!", "def f(x): what is f({0})?")
AGENTS = ("ada", "bob", "cyd")


def write(folder, size=180, *, agents=AGENTS, start=0, price=True, holes=()):
    """Each agent knows one kind of question; ada also half of the others."""
    random = np.random.default_rng(1)
    numbers = range(start, start + size)
    items = [
        Item(id=f"q{i}", dataset=f"kind{i % 3}", task="math", category="", question=KINDS[i % 3].format(i))
        for i in numbers
    ]
    skill = np.full((size, len(agents)), 0.1)
    skill[:, 0] = 0.5
    skill[np.arange(size), np.arange(start, start + size) % len(agents)] = 1.0
    scores = (random.uniform(size=skill.shape) < skill).astype(float)
    scores[list(holes), 0] = np.nan
    costs = np.tile([0.004, 0.002, 0.001][: len(agents)], (size, 1)) * random.uniform(0.8, 1.2, skill.shape)
    table = Table(
        folder="",
        items=tuple(items),
        models=tuple(Recorded(agent=name) for name in agents),
        scores=scores,
        prompt_tokens=np.ones_like(scores),
        completion_tokens=np.ones_like(scores),
        costs=costs if price else np.full_like(costs, np.nan),
    )
    save_table(folder, table)
    return folder


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine")
    return tmp_path


QUICK = ("--router", "kNN", "--encoder", "hashed", "--seeds", "2")


def out(capsys, *arguments):
    assert run(["bench", *map(str, arguments)]) == 0, capsys.readouterr()
    return capsys.readouterr().out


def refused(capsys, *arguments):
    """The one line that the command ends with."""
    capsys.readouterr()
    assert run(["bench", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    last = error.strip().splitlines()[-1]
    assert last.startswith("coterie: "), error
    assert "Traceback" not in error
    return last


def test_replay_prints_a_table_and_leaves_a_folder(capsys, desk):
    words = out(capsys, "replay", "mine", *QUICK, "--out", "run")
    assert "mine (108 train, 36 validation, 36 test queries; 2 seeds)" in words
    for name in ("best single", "domain-only", "random", "cheapest", "majority", "oracle", "kNN"):
        assert f" {name} " in words
    assert "frontier of kNN: area 0." in words
    assert {path.name for path in (desk / "run").iterdir() if path.name[0] != "."} == {
        "run.json",
        "decisions.jsonl",
        "decisions.sha256",
        "times.jsonl",
        "table.json",
        "report.html",
    }


def test_json_has_the_keys_and_rows_that_were_promised(capsys):
    found = json.loads(out(capsys, "replay", "mine", *QUICK, "--json", "--out", "run"))
    assert {"table", "splits", "rows", "frontier"} <= set(found)
    assert found["table"] == "mine"
    assert found["splits"] == {"train": 108, "validation": 36, "test": 36}
    rows = {row["name"]: row for row in found["rows"]}
    assert {"best single", "domain-only", "majority", "random", "oracle", "kNN"} <= set(rows)
    for row in found["rows"]:
        assert {"name", "score", "ci", "cost_usd_per_1k", "calls", "p_value", "seeds"} <= set(row)
        assert row["ci"][0] <= row["score"] <= row["ci"][1]
        assert len(row["seeds"]) == 2
    assert rows["kNN"]["score"] > rows["best single"]["score"] + 0.1
    assert rows["best single"]["p_value"] is None
    assert all(set(point) == {"cost_usd_per_1k", "score"} for point in found["frontier"])


def test_the_same_command_goes_on_and_says_the_same(capsys):
    first, second = (out(capsys, "replay", "mine", *QUICK, "--json", "--out", "run") for _ in range(2))
    assert first == second
    line = refused(capsys, "replay", "mine", *QUICK[:-1], "3", "--out", "run")
    assert "another configuration (differs: seeds)" in line


def test_agents_and_routers_are_given_with_commas_or_again(capsys):
    found = json.loads(
        out(capsys, "replay", "mine", "--agents", "ada,cyd", *QUICK, "--router", "kNN", "--json", "--out", "run")
    )
    assert {row["name"] for row in found["rows"] if row["name"] == "majority" and row["calls"] == 2}
    again = json.loads(out(capsys, "replay", "mine", "-a", "ada", "-a", "cyd", *QUICK, "--json", "--out", "run"))
    assert again == found


def test_targets_are_rows(capsys):
    options = ("--at-most-cost", "1.5", "--within-points", "1", "--json", "--out", "run")
    found = json.loads(out(capsys, "replay", "mine", *QUICK, *options))
    names = [row["name"] for row in found["rows"]]
    assert names[-3:] == ["kNN, at most $1.5 / 1k", "kNN, within 1 points", "selected on validation: kNN"]


def test_another_table_judges(capsys, desk):
    write(desk / "other", 90, start=150)
    found = json.loads(out(capsys, "replay", "mine", "--test", "other", *QUICK, "--json", "--out", "run"))
    assert (found["test"], found["dropped"], found["splits"]["test"]) == ("other", 30, 90)
    assert "30 training questions left out" in out(
        capsys, "replay", "mine", "--test", "other", *QUICK, "--out", "run"
    )


def test_tables_without_costs_have_no_dollars(capsys, desk):
    write(desk / "free", price=False, holes=(1, 2))
    found = json.loads(out(capsys, "replay", "free", *QUICK, "--json", "--out", "run"))
    assert {row["cost_usd_per_1k"] for row in found["rows"]} == {None}
    assert (found["frontier"], found["frontier_area"], found["missing"]) == ([], None, 2)
    assert "costs are not known" in refused(capsys, "replay", "free", *QUICK, "--at-most-cost", "1")
    assert "2 missing outcomes" in out(capsys, "replay", "free", *QUICK, "--out", "run")


def test_mistakes_are_one_line(capsys, desk):
    write(desk / "alone", agents=("ada",))
    write(desk / "tiny", 2)
    write(desk / "strange", agents=("xi", "yo", "zed"))
    (desk / "empty").mkdir()
    assert "no such file" in refused(capsys, "replay", "nowhere", *QUICK)
    assert "no such file" in refused(capsys, "replay", "empty", *QUICK)
    assert "two agents" in refused(capsys, "replay", "alone", *QUICK)
    assert "two agents" in refused(capsys, "replay", "mine", *QUICK, "-a", "ada")
    assert "did you mean 'bob'" in refused(capsys, "replay", "mine", *QUICK, "-a", "ada,bbo")
    assert "too few questions" in refused(capsys, "replay", "tiny", *QUICK)
    assert "did you mean 'kNN'" in refused(capsys, "replay", "mine", "--router", "knN")
    assert "0 agents in common" in refused(capsys, "replay", "mine", "--test", "strange", *QUICK)
    assert not (desk / "runs").exists(), "nothing is left of what could not begin"


@pytest.mark.parametrize(
    "options", [("--seeds", "0"), ("--seeds", "x"), ("--at-most-cost", "-1"), ("--encoder", "none"), ("--sed", "1")]
)
def test_options_that_cannot_be_are_refused(capsys, options):
    assert run(["bench", "replay", "mine", *options]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_damaged_or_foreign_folder_is_one_line(capsys, desk):
    out(capsys, "replay", "mine", *QUICK, "--out", "run")
    file = desk / "run" / "decisions.jsonl"
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 1'))
    assert "changed after it was sealed" in refused(capsys, "replay", "mine", *QUICK, "--out", "run")
    (desk / "run" / "run.json").write_text("{")
    assert "is damaged" in refused(capsys, "replay", "mine", *QUICK, "--out", "run")
