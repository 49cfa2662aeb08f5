"""Every command line verb on small input; mistakes are one line and exit code 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.cli.main import run

RECIPE = """
name: toy
agents:
  - {name: a, model: "scripted:a", price: {prompt: 1.0, completion: 1.0}}
  - {name: b, model: "scripted:b", price: {prompt: 1.0, completion: 1.0}}
router: uniform
strategy: {use: vote, threshold: 2.0}
backends: {scripted: {rules: [{reply: "Answer: 4"}]}}
contracts: {math: text, chat: text}
"""
ITEM = {
    "source": "toy", "task": "math", "choices": None, "context": None, "tests": None, "fn_name": None,
    "instruction_id_list": None, "instruction_kwargs": None, "meta": {},
}  # fmt: skip


@pytest.fixture
def toy(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(RECIPE)
    rows = [{"id": f"toy-{n}", "question": f"{n} + {n}?", "answer": str(2 * n), **ITEM} for n in range(1, 5)]
    keys = ("id", "source", "task", "question", "answer", "choices", "context", "tests", "fn_name")
    rows = [{**{k: row[k] for k in keys}, **row} for row in rows]
    (tmp_path / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def out(capsys, *arguments: str, code: int = 0):
    assert run(arguments) == code, capsys.readouterr()
    return capsys.readouterr().out


def test_ask_prints_the_promised_object(toy, capsys):
    found = json.loads(out(capsys, "ask", "-r", "toy.yaml", "What is 2 + 2?", "--json"))
    assert found["answer"] == "4"
    assert {agent["name"] for agent in found["agents"]} == {"a", "b"}
    assert set(found["agents"][0]) >= {"name", "familiarity", "answer", "tokens"}
    assert isinstance(found["seconds"], float)
    words = out(capsys, "ask", "-r", "toy.yaml", "What is 2 + 2?", "--explain")
    for word in ("weight", "Settled by", "asked", "Answer: 4", "2 of 2 said '4'"):
        assert word in words
    assert out(capsys, "ask", "-r", "toy.yaml", "What", "is", "it?").strip() == "Answer: 4"


def test_route_asks_nobody(toy, capsys):
    found = json.loads(out(capsys, "route", "-r", "toy.yaml", "2 + 2?", "--json"))
    assert {a["name"] for a in found["agents"]} == {"a", "b"}
    assert sorted(found["would_ask"]) == ["a", "b"]
    assert "familiarity" in out(capsys, "route", "-r", "toy.yaml", "2 + 2?")


def test_eval_prints_rows_writes_a_run_and_resumes(toy, capsys):
    first = json.loads(out(capsys, "eval", "toy.yaml", "--task", "toy.jsonl", "--out", "run", "--json"))
    assert first["n"] == 4
    [row] = first["rows"]
    keys = {
        "name",
        "accuracy",
        "ci",
        "p_value",
        "tokens",
        "cost_usd",
        "calls",
        "agents",
        "errors",
        "p50_s",
        "p95_s",
    }
    assert keys <= set(row)
    assert row["accuracy"] == 0.25
    assert len((toy / "run" / "traces.jsonl").read_text().splitlines()) == 4
    again = json.loads(out(capsys, "eval", "toy.yaml", "--task", "toy.jsonl", "--out", "run", "--json"))
    assert again["rows"][0]["accuracy"] == 0.25
    assert len((toy / "run" / "traces.jsonl").read_text().splitlines()) == 4
    assert "toy" in out(capsys, "eval", "toy.yaml", "--task", "toy.jsonl", "--limit", "2")
    assert "toy.html" in out(capsys, "report", "run", "--out", "toy.html")
    assert "<html" in (toy / "toy.html").read_text()


def test_train_then_use_the_router(toy, capsys):
    learned = RECIPE.replace("router: uniform", "router: {use: familiarity, encoder: {use: hashed}}")
    (toy / "learned.yaml").write_text(learned)
    found = json.loads(
        out(capsys, "train", "-r", "learned.yaml", "--task", "toy.jsonl", "--out", "r.safetensors", "--json")
    )
    assert found["queries"] == 4
    out(capsys, "eval", "toy.yaml", "--task", "toy.jsonl", "--out", "run", "--json")
    out(capsys, "train", "-r", "learned.yaml", "--run", "run", "--out", "s.safetensors")
    found = json.loads(
        out(capsys, "route", "-r", "learned.yaml", "--set", "router.weights=r.safetensors", "2?", "--json")
    )
    assert all(0 < a["familiarity"] <= 1 for a in found["agents"])


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        (("--task", "math", "--gold", "1/2", "--text", "so \\boxed{0.5}"), "pass"),
        (("--task", "math", "--gold", "72", "--text", "7.2"), "fail"),
        (("--task", "choice", "--gold", "B", "--choice", "x", "--choice", "y", "--text", "ANSWER: B"), "pass"),
        (("--task", "qa", "--gold", "Paris", "--text", "Answer: paris."), "pass"),
    ],
)
def test_verify_grades_one_text(capsys, arguments, verdict):
    found = json.loads(out(capsys, "verify", *arguments, "--json"))
    assert found["verdict"] == verdict
    assert {"verdict", "answer", "reason"} <= set(found)


def test_agents_are_added_swapped_listed_and_removed(toy, capsys):
    out(capsys, "agents", "add", "neo", "--model", "scripted:x", "--instruction", "Be kind.", "--no-check")
    [first] = json.loads(out(capsys, "agents", "list", "--experts", "experts", "--json"))["agents"]
    out(capsys, "agents", "swap", "neo", "--set", "sampling.temperature=0", "--no-check")
    [second] = json.loads(out(capsys, "agents", "list", "--experts", "experts", "--json"))["agents"]
    assert first["revision"] != second["revision"]
    assert out(capsys, "agents", "list", "--experts", "experts")
    out(capsys, "agents", "remove", "neo")
    assert not (toy / "experts" / "neo").exists()


def test_the_rest_of_the_verbs(toy, capsys):
    assert json.loads(out(capsys, "data", "check", "toy.jsonl", "--json"))["files"]
    assert json.loads(out(capsys, "data", "list", "--json"))["tasks"]
    assert "entries" in json.loads(out(capsys, "cache", "stats", "--json"))
    out(capsys, "data", "check", "toy.yaml", code=2)
    out(capsys, "cache", "clear", "--yes")
    out(capsys, "config", "check")
    out(capsys, "config", "check", "toy.yaml", "--json")
    assert "python" in json.loads(out(capsys, "doctor", "--json"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", "-r", "none.yaml", "hi"),
        ("ask", "-r", "toy.yaml", " "),
        ("ask",),
        ("ask", "-r", "toy.yaml", "--set", "strategy.treshold=1", "hi"),
        ("ask", "-r", "toy.yaml", "--task", "maths", "hi"),
        ("eval", "toy.yaml", "--task", "none.jsonl"),
        ("eval", "toy.yaml", "toy.yaml", "--task", "toy.jsonl"),
        ("eval", "toy.yaml", "--task", "toy.jsonl", "--limit", "0"),
        ("eval", "toy.yaml", "--task", "toy.jsonl", "--contract", "math"),
        ("eval", "toy.yaml", "--task", "toy.jsonl", "--contract", "math=bogus"),
        ("eval", "toy.yaml", "--task", "toy.jsonl", "--baseline", "zzz"),
        ("train", "-r", "toy.yaml", "--task", "toy.jsonl"),
        ("train", "-r", "toy.yaml"),
        ("report", "nowhere"),
        ("verify", "--text", "4"),
        ("verify", "--task", "mathh", "--gold", "4", "--text", "4"),
        ("agents", "remove", "nobody"),
        ("agents", "add", "../x", "--model", "scripted:x"),
        ("agents", "add", "x"),
        ("config", "check", "toy.jsonl"),
        ("cache", "clean"),
        ("frobnicate",),
    ],
)
def test_a_mistake_is_one_line_and_code_two(toy, capsys, arguments):
    assert run(arguments) == 2
    found = capsys.readouterr()
    assert len(found.err.strip().splitlines()) == 1, found.err
    assert "Traceback" not in found.err


def test_a_bug_shows_its_traceback(toy, capsys, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("bug")

    monkeypatch.setattr("coterie.team.Team.load", broken)
    assert run(("ask", "hi")) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_console_script_runs():
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "--version"], capture_output=True, text=True, check=True
    )
    assert "coterie" in done.stdout
