"""Commands meet faults: outages, weights of another pool, folders of another kind, numbers that are none."""

import json
import logging
import subprocess
import sys

import numpy as np
import pytest
from test_bench_commands import QUICK, write

from coterie.cli import options
from coterie.cli.main import run
from coterie.config import build
from coterie.outcomes import Outcomes
from coterie.pool import pool_of, revise
from coterie.types import Agent, Message, Query

RECIPE = """
name: toy
agents:
  - {name: a, model: "scripted:a"}
  - {name: b, model: "scripted:b"}
router: ROUTER
backends: {scripted: {rules: [RULES]}}
contracts: {math: text}
"""
DOWN = '{fault: overloaded, contains: "2 + 2"}, {reply: "Answer: 4"}'


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"t{n}", "question": f"{n} + {n}?", "answer": str(2 * n), "task": "math"} for n in range(1, 5)]
    (tmp_path / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe(tmp_path)
    return tmp_path


def recipe(desk, rules='{reply: "Answer: 4"}', router="uniform"):
    (desk / "toy.yaml").write_text(RECIPE.replace("RULES", rules).replace("ROUTER", router))


def refused(capsys, *arguments):
    """The one line on stderr that the command consists of."""
    capsys.readouterr()
    assert run([str(a) for a in arguments]) == 2
    [line] = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("run folder")]
    return line


def test_an_outage_is_told_and_asked_again(desk, capsys):
    recipe(desk, DOWN)
    command = ("eval", "toy.yaml", "--task", "toy.jsonl", "--out", "a run")
    assert run(command) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    again = "the same command with --out 'a run' --retry asks them again"
    assert told == [f"warning: 1 of 4 queries failed (Overloaded 1); {again}"]
    assert run((*command, "--retry")) == 0
    assert "asked again: 1 queries" in capsys.readouterr().err
    assert len((desk / "a run" / "decisions.sha256").read_text().splitlines()) == 2


def test_nothing_but_failures_is_exit_code_1_and_nothing_failed_is_not_told(desk, capsys):
    assert run(("eval", "toy.yaml", "--task", "toy.jsonl", "--out", "fine")) == 0
    assert "warning" not in capsys.readouterr().err
    recipe(desk, "{fault: error}")
    assert run(("eval", "toy.yaml", "--task", "toy.jsonl", "--out", "down", "--json")) == 1
    caught = capsys.readouterr()
    assert "4 of 4 queries failed (BackendError 4)" in caught.err
    assert json.loads(caught.out)["rows"][0]["errors"] == 4


def test_retry_needs_a_run_to_go_on_with(desk, capsys):
    for more in ((), ("--out", "none")):
        assert "--out" in refused(capsys, "eval", "toy.yaml", "--task", "toy.jsonl", "--retry", *more)
    assert not (desk / "none").exists()


def fitted(agents, file):
    """Weights of a router that knows these agents."""
    pool = pool_of([revise(Agent(name=name, model=f"scripted:{name}")) for name in agents])
    queries = tuple(Query(id=f"q{i}", messages=(Message(role="user", content=f"what is {i}?"),)) for i in range(12))
    scores = np.random.default_rng(0).integers(0, 2, (12, len(agents))).astype(float)
    outcomes = Outcomes(
        queries=queries,
        agents=tuple(agents),
        revisions={name: pool[name].revision for name in agents},
        scores=scores,
        tokens=np.ones_like(scores),
        costs=np.ones_like(scores),
    )
    build("router", {"use": "knn", "encoder": "hashed"}).fit(outcomes).save(file)


def test_weights_of_another_pool_are_one_line_before_the_folder_is_made(desk, capsys):
    fitted(("x", "y"), desk / "w.safetensors")
    recipe(desk, router="{use: knn, encoder: hashed, weights: w.safetensors}")
    line = refused(capsys, "eval", "toy.yaml", "--task", "toy.jsonl", "--out", "run")
    assert line.startswith("coterie: ")
    assert not (desk / "run").exists()
    refused(capsys, "eval", "toy.yaml", "--task", "toy.jsonl")
    assert not (desk / "runs").exists()


async def test_one_error_of_many_leaves_no_other_unread(scripted_team, caplog):
    """Several rollouts end in the same systemic fault at once; one is raised, the others are read."""
    import asyncio
    import gc

    def broken(agent, messages, seed):
        raise RuntimeError("broken")

    team = scripted_team({"a": broken})
    with caplog.at_level(logging.ERROR, "asyncio"):
        with pytest.raises(RuntimeError, match="broken"):
            async for _ in team.solve_all([team.query(f"q {i}") for i in range(40)]):
                pass
        gc.collect()
        await asyncio.sleep(0)
    assert not caplog.records


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "NaN", "infinity", "1e999"])
@pytest.mark.parametrize(
    "command", [("bench", "replay", "mine"), ("calibrate", "--table", "mine")], ids=["replay", "calibrate"]
)
@pytest.mark.parametrize("option", ["--at-most-cost", "--within-points"])
def test_a_number_option_takes_finite_numbers_only(desk, capsys, command, option, value):
    line = refused(capsys, *command, option, value)
    assert option in line
    assert "finite" in line


def test_every_number_option_is_a_finite_one():
    """The whole kind: no command has a float option of click's own type, which takes nan."""
    import click

    from coterie.cli.main import cli

    def walk(command):
        for one in getattr(command, "commands", {}).values():
            yield from walk(one)
        yield command

    kinds = [p.type for command in walk(cli) for p in command.params]
    assert any(isinstance(kind, options.Number) for kind in kinds)
    loose = [k for k in kinds if isinstance(k, type(click.FLOAT)) and not isinstance(k, options.Number)]
    assert not loose


def test_a_replays_folder_is_no_run_of_an_evaluation(desk, capsys):
    write(desk / "mine")
    recipe(desk, router="{use: knn, encoder: hashed}")
    assert run(["bench", "replay", "mine", *QUICK, "--out", "replayed"]) == 0
    for command in (("report",), ("compare",), ("train", "-r", "toy.yaml", "--run")):
        line = refused(capsys, *command, "replayed")
        assert "replayed/report.html" in line
        assert "bench replay" in line
    assert not (desk / "report.html").exists()


@pytest.mark.parametrize(
    "facts", [{"recipes": ["a"]}, {"recipes": "a"}, {"recipes": {}, "baseline": ["a"]}, {"baseline": 3}]
)
def test_a_run_whose_facts_are_of_another_shape_is_damaged(desk, capsys, facts):
    (desk / "bad").mkdir()
    (desk / "bad" / "run.json").write_text(json.dumps({"task": "t"} | facts))
    for command in ("report", "compare"):
        assert "damaged" in refused(capsys, command, "bad")


def test_a_target_that_cannot_be_met_is_marked_everywhere(desk, capsys):
    write(desk / "mine")
    assert run(["bench", "replay", "mine", *QUICK, "--at-most-cost", "0", "--out", "r"]) == 0
    words = capsys.readouterr().out
    assert "at most $0 / 1k (unmet in 2 of 2 seeds)" in words
    assert "no trade met the target" in words
    page = (desk / "r" / "report.html").read_text()
    assert "at most $0 / 1k (unmet in 2 of 2 seeds)" in page
    assert "no trade met the target" in page
    rows = json.loads((desk / "r" / "table.json").read_text())["rows"]
    assert [row["unmet"] for row in rows if "at most" in row["name"]] == [2]
    assert run(["bench", "replay", "mine", *QUICK, "--at-most-cost", "100", "--out", "r2"]) == 0
    assert "unmet" not in capsys.readouterr().out
    assert "no trade met" not in (desk / "r2" / "report.html").read_text()


def test_more_labels_than_there_are_is_one_line(desk, capsys):
    write(desk / "mine")
    quick = ("--encoder", "hashed", "--seeds", "1", "--router", "kNN")
    line = refused(capsys, "bench", "labels", "mine", *quick, "--labels", "99999999999")
    assert "there are 144" in line
    assert run(["bench", "labels", "mine", *quick, "--labels", "60,99999999999"]) == 0
    assert "left out, as there are fewer labelled queries: 99999999999" in capsys.readouterr().err
    write(desk / "six", agents=("a", "b", "c", "d", "e", "f")[:3])
    assert "six" in refused(capsys, "bench", "swap", "six", *quick, "--labels", "999999")


def test_folders_named_by_default_are_never_shared(desk, monkeypatch):
    monkeypatch.setattr(options.time, "strftime", lambda form: "20260101-000000")
    made = [options.new_folder("toy.jsonl") for _ in range(5)]
    assert len(set(made)) == 5
    assert all(path.is_dir() and path.parent.name == "runs" for path in made)


def test_json_has_no_infinity(capsys):
    options.print_json({"a": float("inf"), "b": [float("nan"), 1.5, (2.5,)], "c": {"d": True}})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5, [2.5]], "c": {"d": True}}


def test_an_interrupt_while_the_command_is_imported_is_one_line(desk):
    """The import of the command line is held up until the signal has come."""
    code = (
        "import sys, os, signal\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'coterie.cli.main': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from coterie.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "coterie: interrupted\n"
