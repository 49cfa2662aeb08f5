"""`kill -9` in the middle of an evaluation with the embedded model: resumed, it ends as if nothing had happened."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.model
RECIPE = """
name: pair
agents:
  - {name: plain, model: "builtin:smollm2-135m", sampling: {temperature: 0.0, max_tokens: 12}}
  - {name: warm, model: "builtin:smollm2-135m", sampling: {temperature: 0.8, max_tokens: 12}}
router: uniform
strategy: {use: vote, threshold: 2.0}
backends: {local: {deterministic: true, max_batch: 4}}
contracts: {reasoning_gym: answer}
"""
TIMINGS = {"seconds"}


def command(folder: Path) -> list[str]:
    task = "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=2"
    recipe = str(folder.parent / "pair.yaml")
    parts = [
        "eval",
        recipe,
        "--task",
        task,
        "--limit",
        "24",
        "--out",
        str(folder / "run"),
        "--concurrency",
        "3",
        "--json",
    ]
    return [sys.executable, "-m", "coterie", *parts]


def environment(folder: Path) -> dict[str, str]:
    """Each evaluation has its own call cache; the fetched model is shared."""
    folder.mkdir(exist_ok=True)
    if not (folder / "models").exists():
        (folder / "models").symlink_to(Path(os.environ["COTERIE_CACHE"]) / "models")
    return {**os.environ, "COTERIE_CACHE": str(folder), "OMP_NUM_THREADS": "1"}


def finish(folder: Path) -> None:
    subprocess.run(command(folder), env=environment(folder), check=True, capture_output=True)


def without_timings(value):
    if isinstance(value, dict):
        return {k: without_timings(v) for k, v in value.items() if k not in TIMINGS}
    return [without_timings(v) for v in value] if isinstance(value, list) else value


def lines(folder: Path) -> list[str]:
    rows = [json.loads(line) for line in (folder / "run" / "traces.jsonl").read_text().splitlines()]
    return sorted(json.dumps(without_timings(row), sort_keys=True) for row in rows)


def stored(folder: Path) -> dict[bytes, float]:
    """When each finished call was stored: a call made again would be stored again, or never miss."""
    with sqlite3.connect(folder / "calls.sqlite") as connection:
        return dict(connection.execute("select key, created from calls").fetchall())


def kill_at_random(folder: Path, seconds: float) -> dict[bytes, float]:
    process = subprocess.Popen(
        command(folder),
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return stored(folder) if (folder / "calls.sqlite").exists() else {}


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_killed_evaluation_ends_as_if_it_had_not_been(tmp_path, kills):
    (tmp_path / "pair.yaml").write_text(RECIPE)
    start = time.monotonic()
    finish(tmp_path / "whole")
    whole = time.monotonic() - start
    draws = random.Random(kills)
    before: dict[bytes, float] = {}
    for _ in range(kills):
        now = kill_at_random(tmp_path / "killed", draws.uniform(0.3, 0.95) * whole)
        assert before.items() <= now.items(), "a finished call was lost or made again"
        before = now
    finish(tmp_path / "killed")
    assert before.items() <= stored(tmp_path / "killed").items()
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    for name in ("decisions.jsonl", "decisions.sha256"):
        assert (tmp_path / "killed" / "run" / name).read_text() == (tmp_path / "whole" / "run" / name).read_text()
    assert len(stored(tmp_path / "killed")) == 48
