"""Exact resume in settings beside the default ones, and of the real command after `kill -9` at random moments."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import yaml
from test_training import cut_back, finish, last, rows
from tiny_team import engine, recipe, shaken

from coterie.learning.checkpoint import newest, rounds
from coterie.learning.training import METRICS, Training
from coterie.team import Team

NAMES = ("ann", "cyd")
PAIR = {"names": NAMES, "queries": 12, "batch": 3}
BEGUN = {"sampling": {"max_tokens": 4}, "loss": {"beta": 0.5}, "reference": "initial", "practice": {"updates": 2}}
SEVEN = {"batch": 7, "queries": 28}
KINDS = {
    "beta": {"loss": {"beta": 0.3}},
    "initial": BEGUN,
    "refill": {
        **SEVEN,
        "allocation": {"micro_batch": 3},
        "practice": {"filter_groups": True, "refill": 3, "group": 3},
        "rewards": {"eta": 0.0},
    },
    "step": {
        **SEVEN,
        "names": ("ann", "bob", "cyd"),
        "sync": "step",
        "allocation": {"top_k": 2, "micro_batch": 3},
    },
    "hidden": {},
    "classifier": {"routing": {"metric": "classifier"}},
}


def opened(folder, tiny, kind, resume=False, seed=3):
    """A run of this kind; `initial` begins with adapters that do something, `hidden` reads the model's states."""
    settings = [f"seed={seed}"]
    given = PAIR | KINDS[kind]
    if kind == "hidden":
        given["router"] = {"encoder": {"use": "hidden", "model": tiny}}
    if kind == "initial":
        settings += [f"agents.{i}.adapter={folder.parent / name}" for i, name in enumerate(NAMES)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(folder, tiny, **given)))
    return Training.open(Team.load(folder / "recipe.yaml", settings), folder / "run", resume)


@pytest.fixture(params=KINDS)
def straight(request, tiny, base, tmp_path):
    """A folder with a whole run, and its kind."""
    if request.param == "initial":
        made = engine(base, *NAMES)
        for number, name in enumerate(NAMES):
            shaken(made, name, number)
            made.write(name, tmp_path / name)
        made.close()
    assert finish(opened(tmp_path / "straight", tiny, request.param))
    assert len(rows(tmp_path / "straight")) == 4
    return tmp_path / "straight", request.param


def test_resumed_is_straight_bit_for_bit_in_every_setting(straight, tiny, tmp_path):
    """#21: with KL, a reference of its own, refills, tickets compared as they come, states of the model."""
    whole, kind = straight
    for number in (1, 3):
        folder = tmp_path / f"after-{number}"
        cut_back(whole, folder, number)
        training = opened(folder, tiny, kind, resume=True)
        assert training.course.rounds == number
        assert finish(training)
        assert rows(folder) == rows(whole)
        assert last(folder) == last(whole)
    _matters(rows(whole), kind)
    assert finish(opened(tmp_path / "cold", tiny, kind, seed=4))
    assert last(tmp_path / "cold") != last(whole)


def _matters(record, kind):
    """What the setting brings has been at work in the straight run, before and after a cut."""
    for part in (record[:2], record[2:]):
        told = [agent for row in part for agent in row["agents"].values()]
        if kind in ("beta", "initial"):
            assert max(agent.get("kl_mean", 0.0) for agent in told) > 1e-9
        if kind == "refill":
            assert any(agent["taken"] % 3 for agent in told), "micro-batches alone are threes"
        if kind == "step":
            assert any(row["ledger"]["open"] for row in part)
            assert part[-1]["ledger"]["alone"] > 0, "its agents practised in different rounds"
        if kind in ("step", "hidden", "classifier"):
            assert any(row["router"]["stepped"] for row in part)


# --- kill -9 ------------------------------------------------------------------------------------------

KILLS, MANY = 20, 200
LONG_RUN = {**PAIR, "queries": 3 * MANY, "keep": 2}
"""Two hundred rounds of some hundredths of a second: a kill comes some rounds after the last one."""


def train(folder, *settings):
    """The command as a user starts it, or goes on with it once its folder holds a run."""
    words = [sys.executable, "-m", "coterie", "train", "recipe.yaml", "--out", "run", "--no-cache", "--json"]
    words += ["--resume"] if (folder / "run" / "run.json").is_file() else []
    words += [part for setting in settings for part in ("--set", setting)]
    with open(folder / "said", "a") as said:
        pipes = {"stdout": said, "stderr": said, "start_new_session": True}
        return subprocess.Popen(words, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)


def ended(folder, *settings):
    """Whether the command goes on to the end; what it said where it does not."""
    return train(folder, *settings).wait() == 0 or (folder / "said").read_text()


def recorded_rounds(folder):
    record = folder / "run" / METRICS
    return record.read_bytes().count(b"\n") if record.exists() else 0


def drafts(folder):
    """What saves have begun and not ended."""
    return set((folder / "run" / "checkpoints").glob(".round-*"))


def wait_for(child, there):
    while child.poll() is None and not there():
        time.sleep(0.0002)


def kill_at(folder, moment, opening, pace, chance):
    """Start, kill -9: while it is opened, some rounds later, or as soon as a save has begun."""
    before, torn = recorded_rounds(folder), drafts(folder)
    child = train(folder)
    if moment % 4 == 0:
        time.sleep(chance.uniform(0, opening))
    elif moment % 4 == 3:
        wait_for(child, lambda: recorded_rounds(folder) > before and drafts(folder) - torn)
    else:
        wait_for(child, lambda: recorded_rounds(folder) > before)
        time.sleep(chance.uniform(0, 3 * pace))
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "it had ended before it was killed"
    return len(drafts(folder) - torn), recorded_rounds(folder)


def outcome(folder):
    """All that a run ends with, by file: record without times, newest checkpoint, the team's weights and recipe."""
    team = sorted(path for path in (folder / "run" / "team").rglob("*") if path.is_file())
    kept = {str(path.relative_to(folder)): path.read_bytes() for path in team}
    return kept | {"record": json.dumps(rows(folder)).encode(), "checkpoint": last(folder)}


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_nothing(tiny, tmp_path):
    """Shows 5: resumed after each, the real command ends with the adapters, moments, heads, buffers and record of
    one that nothing interrupted, bit for bit; with another seed it does not."""
    for name in ("whole", "killed", "cold"):
        (tmp_path / name).mkdir()
        table = recipe(tmp_path, tiny, **LONG_RUN)
        (tmp_path / name / "recipe.yaml").write_text(yaml.safe_dump(table))
    began, child = time.monotonic(), train(tmp_path / "whole")
    wait_for(child, lambda: recorded_rounds(tmp_path / "whole"))
    opening, chance = time.monotonic() - began, random.Random(KILLS)
    assert child.wait() == 0, (tmp_path / "whole" / "said").read_text()
    pace = (time.monotonic() - began - opening) / MANY
    ends = [kill_at(tmp_path / "killed", moment, opening, pace, chance) for moment in range(KILLS)]
    assert any(left for left, _ in ends), "no kill fell into a save"
    assert len({number for _, number in ends}) > KILLS // 2
    assert ended(tmp_path / "killed") is True
    assert ended(tmp_path / "cold", "seed=4") is True
    whole, killed, cold = (outcome(tmp_path / name) for name in ("whole", "killed", "cold"))
    assert len(json.loads(whole["record"])) == MANY
    assert killed == whole
    assert all(cold[part] != whole[part] for part in whole if not part.endswith((".yaml", ".json")))
    for name in ("whole", "killed"):
        folder = tmp_path / name / "run" / "checkpoints"
        assert [number for number, _ in rounds(folder)] == [MANY - 1, MANY]
        assert not drafts(tmp_path / name)
        assert newest(folder).parts["run"][0]["updates"] > MANY
