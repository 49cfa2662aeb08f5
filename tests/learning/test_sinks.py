"""Dashboards beside the record: one step for all, keys by agent, and none of them can stop a run."""

import json
import math
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from coterie.errors import DataError, MissingExtra
from coterie.learning import sinks
from coterie.learning.sinks import About, check, flat, identity, opened

ROW = {
    "round": 7,
    "queries": 112,
    "reward": 0.25,
    "solved": None,
    "collapsed": False,
    "agents": {"ann": {"reward": 1.0, "updates": 5, "solved": None}, "bob": {"reward": 0.0, "updates": 3}},
    "router": {"loss": 0.5},
    "seconds": {"sample": 2.0},
}


def about(folder, rounds=0):
    return About(folder=folder, id="0123456789abcdef", config={"task": "t"}, rounds=rounds)


@pytest.fixture
def dashboards(monkeypatch):
    """Stand-ins for the three libraries, and what they were told."""
    told = SimpleNamespace(tensorboard=[], trackio=[], wandb=[], closed=[], made={})

    class Writer:
        def __init__(self, folder, **options):
            told.made["tensorboard"] = (folder, options)

        def add_scalar(self, key, value, step):
            told.tensorboard.append((step, key, value))

        def close(self):
            told.closed.append("tensorboard")

    board, tensorboard, trackio, wandb = (
        ModuleType(name) for name in ("torch.utils.tensorboard", "tensorboard", "trackio", "wandb")
    )
    board.SummaryWriter = Writer
    trackio.init = lambda **options: told.made.update(trackio=options)
    trackio.log = lambda values, step: told.trackio.append((step, values))
    trackio.finish = lambda: told.closed.append("trackio")
    run = SimpleNamespace(
        log=lambda values: told.wandb.append(values),
        finish=lambda: told.closed.append("wandb"),
        define_metric=lambda name, step_metric: told.made.update(step=(name, step_metric)),
    )
    wandb.init = lambda **options: told.made.update(wandb=options) or run
    for module in (board, tensorboard, trackio, wandb):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return told


def test_every_agent_has_keys_of_its_own_and_none_is_averaged():
    """Trap 64."""
    found = flat(ROW)
    assert found["agent/ann/reward"] == 1.0
    assert found["agent/bob/reward"] == 0.0
    assert {found["agent/ann/updates"], found["agent/bob/updates"]} == {5.0, 3.0}
    assert found["router/loss"] == 0.5
    assert found["seconds/sample"] == 2.0
    assert found["collapsed"] == 0.0
    assert not {"round", "solved", "agent/ann/solved"} & set(found)
    assert all(math.isfinite(value) for value in found.values())


def test_all_sinks_hear_of_both_agents_at_the_one_step_of_the_run(dashboards, tmp_path):
    """Trap 63: agents at 5 and 3 updates are both there, under the round's number."""
    with opened(list(sinks.SINKS), about(tmp_path), pytest.fail) as log:
        log.write(ROW)
        log.write({**ROW, "round": 8})
    steps = {step for step, _, _ in dashboards.tensorboard}
    assert steps == {7, 8} == {step for step, _ in dashboards.trackio} == {v["round"] for v in dashboards.wandb}
    at_7 = {key: value for step, key, value in dashboards.tensorboard if step == 7}
    assert at_7 == dashboards.trackio[0][1] == {k: v for k, v in dashboards.wandb[0].items() if k != "round"}
    assert (at_7["agent/ann/updates"], at_7["agent/bob/updates"]) == (5.0, 3.0)
    assert dashboards.made["step"] == ("*", "round")
    assert sorted(dashboards.closed) == ["tensorboard", "trackio", "wandb"]


def test_a_resumed_run_stays_the_same_one_and_forgets_rounds_that_are_made_again(dashboards, tmp_path):
    first = identity(tmp_path)
    assert identity(tmp_path) == first
    known = About(folder=tmp_path, id=first, config={}, rounds=12)
    with opened(list(sinks.SINKS), known, pytest.fail):
        pass
    assert dashboards.made["tensorboard"] == (str(tmp_path / "tensorboard"), {"purge_step": 13})
    assert dashboards.made["wandb"]["id"] == first
    assert dashboards.made["wandb"]["resume"] == dashboards.made["trackio"]["resume"] == "allow"
    (tmp_path / "logging.json").write_text("{")
    with pytest.raises(DataError, match=r"logging\.json"):
        identity(tmp_path)


@pytest.mark.parametrize("moment", ["open", "write", "close"])
def test_a_sink_that_fails_warns_once_and_the_others_go_on(dashboards, tmp_path, monkeypatch, moment):
    def broken(*given, **options):
        raise RuntimeError("no\nnetwork")

    name = {"open": "init", "write": "log", "close": "finish"}[moment]
    monkeypatch.setattr(sys.modules["trackio"], name, broken)
    said = []
    with opened(["trackio", "tensorboard"], about(tmp_path), said.append) as log:
        log.write(ROW)
        log.write({**ROW, "round": 8})
    assert len(said) == 1
    assert "trackio" in said[0]
    assert "no network" in said[0]
    assert {step for step, _, _ in dashboards.tensorboard} == {7, 8}
    assert "tensorboard" in dashboards.closed


def test_what_a_dashboard_prints_does_not_reach_standard_output(dashboards, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["trackio"], "init", lambda **options: print("welcome"))
    with opened(["trackio"], about(tmp_path), pytest.fail):
        pass
    said = capsys.readouterr()
    assert said.out == ""
    assert "welcome" in said.err


@pytest.mark.parametrize("name", list(sinks.SINKS))
def test_a_package_that_is_absent_is_named_with_its_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"{name} is not installed: pip install 'coterie\[logging\]'"):
        check([name])


def test_without_sinks_no_dashboard_is_imported(tmp_path):
    """A run that asks for none pays for none."""
    code = (
        "import sys, json; from pathlib import Path; from coterie.learning import sinks\n"
        f"row = json.loads({json.dumps(json.dumps(ROW))})\n"
        f"about = sinks.About(folder=Path({str(tmp_path)!r}), id='x', config={{}}, rounds=0)\n"
        "with sinks.opened([], about, print) as log: log.write(row)\n"
        "print(sorted(set(sys.modules) & {'wandb', 'trackio', 'tensorboard', 'torch'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
