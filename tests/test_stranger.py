"""Two models behind HTTP, 200 questions of one's own, three commands: a routed team and a report."""

import json
import re
from collections import Counter

import pytest
import yaml

from coterie.cli.main import run
from coterie.tasks.catalog import load_task
from coterie.tasks.contamination import overlap
from stranger import down, rows, served, write_rows

TRAIN = ["train", "-r", "team.yaml", "--task", "mine.jsonl/train"]
EVAL = ["eval", "team.yaml", "--alone", "--task", "mine.jsonl/test"]
REPORT = ["report", "runs/first", "--out", "first.html"]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """The stranger's folder and servers."""
    monkeypatch.chdir(tmp_path)
    known = rows()
    write_rows(tmp_path / "mine.jsonl", known)
    with served(known) as upstream:
        recipe = {
            "name": "mine",
            "agents": [
                {"name": "llama", "model": "http:one/llama-3.2-3b", "price": {"prompt": 0.1, "completion": 0.1}},
                {"name": "qwen", "model": "http:two/qwen2.5:7b", "price": {"prompt": 0.3, "completion": 0.3}},
            ],
            "router": {"use": "forest", "weights": "router.safetensors"},
            "strategy": "single",
            "backends": {"http": {"endpoints": {name: {"base_url": upstream.base_url} for name in ("one", "two")}}},
        }
        (tmp_path / "team.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        yield upstream


def done(capsys, *words: str) -> str:
    """What a command prints; it has to succeed."""
    assert run(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_three_commands_lead_to_a_routed_team_and_a_report(desk, tmp_path, capsys):
    assert "fitted on " in done(capsys, *TRAIN)
    found = json.loads(done(capsys, *EVAL, "--out", "runs/first", "--json"))
    done(capsys, *REPORT)

    by_name = {row["name"]: row for row in found["rows"]}
    assert set(by_name) == {"mine", "llama alone", "qwen alone"}
    routed, *single = (by_name[name] for name in ("mine", "llama alone", "qwen alone"))
    assert all(row["accuracy"] < routed["accuracy"] - 0.15 for row in single)
    assert routed["errors"] == 0
    assert (routed["calls"], routed["agents"]) == (1, 1)
    page = (tmp_path / "first.html").read_text(encoding="utf-8")
    assert "llama alone" in page
    assert "Differences from the baseline" in page
    assert not re.search(r"""(?:src|href)=["']https?:""", page)


def test_the_routed_team_asks_whom_a_question_is_for_and_nobody_twice(desk, tmp_path, capsys):
    """Training asks each model each training question; afterwards one model is asked, and calls are kept."""
    done(capsys, *TRAIN)
    size = len(load_task("mine.jsonl/train").queries)
    assert Counter(seen.model for seen in desk.chats()) == {"llama-3.2-3b": size, "qwen2.5:7b": size}
    done(capsys, *TRAIN)
    assert desk.total() == 2 * size, "what was asked once is not asked again"
    question = "There are 5 boxes with 6 pens in each. How many pens are there?"
    routed = json.loads(done(capsys, "route", "-r", "team.yaml", question, "--task", "math", "--json"))
    assert routed["would_ask"] == ["llama"]
    assert desk.total() == 2 * size
    done(capsys, "ask", "-r", "team.yaml", question, "--task", "math")
    assert Counter(seen.model for seen in desk.chats()) == {"llama-3.2-3b": size + 1, "qwen2.5:7b": size}


def test_training_says_what_comes_next_and_it_works(desk, tmp_path, capsys):
    """The weights go where the recipe reads them; the next command is printed whole."""
    assert run(TRAIN) == 0
    said = capsys.readouterr()
    assert (tmp_path / "router.safetensors").is_file()
    [line] = [line for line in said.err.splitlines() if line.startswith("next: coterie ")]
    assert line.removeprefix("next: coterie ").split() == EVAL
    assert "to use them" not in said.err
    assert run([*TRAIN, "--out", "other.safetensors"]) == 0
    assert f"weights: {tmp_path / 'other.safetensors'}" in capsys.readouterr().err


def test_measuring_before_training_says_what_to_do_and_spoils_no_run(desk, tmp_path, capsys):
    evaluate = [*EVAL, "--out", "runs/first"]
    assert run(evaluate) == 2
    assert "router.safetensors: there is no such file; `coterie train` writes it" in capsys.readouterr().err
    assert desk.total() == 0
    done(capsys, *TRAIN)
    done(capsys, *evaluate)


def test_an_outage_in_training_is_told_and_mended_by_the_same_command(desk, tmp_path, capsys):
    """A call that failed teaches nothing, and is made again the next time; nothing else is."""
    up = dict(desk.scripts)
    desk.scripts["qwen2.5:7b"] = [down]
    size = len(load_task("mine.jsonl/train").queries)
    assert run(TRAIN) == 2
    [told] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("coterie:")]
    assert "agent 'qwen' answered nothing" in told
    assert not (tmp_path / "router.safetensors").exists()
    desk.scripts.update(up)
    assert run(TRAIN) == 0
    assert "warning" not in capsys.readouterr().err
    assert Counter(seen.model for seen in desk.chats()) == {"llama-3.2-3b": size, "qwen2.5:7b": 2 * size}


def test_more_rows_are_learned_from_without_asking_the_old_ones_again(desk, tmp_path, capsys):
    whole = rows()
    write_rows(tmp_path / "mine.jsonl", whole[:100])
    done(capsys, *TRAIN)
    write_rows(tmp_path / "mine.jsonl", whole)
    done(capsys, *TRAIN)
    assert desk.total() == 2 * len(load_task("mine.jsonl/train").queries)


def test_the_two_parts_of_a_file_share_no_question_and_lose_none(desk, tmp_path):
    train, test, whole = (load_task(f"mine.jsonl{part}").queries for part in ("/train", "/test", ""))
    assert not overlap(train, test).pairs
    assert sorted(q.id for q in (*train, *test)) == sorted(q.id for q in whole)
    assert 0.1 < len(test) / len(whole) < 0.3
    write_rows(tmp_path / "fewer.jsonl", rows()[:150])
    assert {q.text for q in load_task("fewer.jsonl/test").queries} <= {q.text for q in test}, "rows do not move"
    with_kind = load_task("mine.jsonl/test?ignore=domain").queries
    assert [q.text for q in with_kind] == [q.text for q in test]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mine.jsonl/tset", "unknown split 'tset'; did you mean 'test'?"),
        ("mine.jsonl/all", "unknown split 'all'; known: test, train"),
        ("one.jsonl/test", "holds no item for test"),
        ("none.jsonl/test", "none.jsonl: cannot be read"),
    ],
)
def test_a_part_that_is_not_there_is_one_line(desk, tmp_path, capsys, name, told):
    asked = {query.text for query in load_task("mine.jsonl/test").queries}
    other = next(row for row in rows() if not any(row["question"] in text for text in asked))
    write_rows(tmp_path / "one.jsonl", [other])
    assert run(["eval", "team.yaml", "--task", name]) == 2
    assert told in capsys.readouterr().err
