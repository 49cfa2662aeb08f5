"""Training a reviewer by TRL on a tiny model: what has a loss, what is written, and a killed run is no other."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("trl")
torch = pytest.importorskip("torch")
from recorded_layers import recipe, recorded  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tiny_team import save_base  # noqa: E402

from coterie.backends.base_model import base_model  # noqa: E402
from coterie.cli.main import run  # noqa: E402
from coterie.errors import ConfigError  # noqa: E402
from coterie.learning import sft  # noqa: E402
from coterie.learning.distillation import Lesson  # noqa: E402
from coterie.pool import read_agent  # noqa: E402
from coterie.team import Team  # noqa: E402
from coterie.types import Agent, Message, Sampling  # noqa: E402

ADAPTER = "team/agents/reviewer/adapter/adapter_model.safetensors"


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A tiny random model with room for a review's prompt, a token a character."""
    return save_base(tmp_path_factory.mktemp("tiny") / "wide", max_position_embeddings=8192)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("recorded") / "run")


def distil(runs, file, out, *more):
    return run(["distill", str(runs), "--team", str(file), "--out", str(out), "--no-cache", *more])


@pytest.fixture(scope="module")
def whole(tmp_path_factory, wide, runs):
    """A run to its end: 12 layers, 2 epochs, 12 updates."""
    folder = tmp_path_factory.mktemp("whole")
    file = recipe(folder, wide)
    assert distil(runs, file, folder / "out") == 0
    return folder / "out"


def weights(out):
    return load_file(out / ADAPTER)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_ends_in_an_expert_folder_that_a_recipe_names(whole, wide):
    agent = read_agent(whole / "team" / "agents" / "reviewer")
    assert (agent.role, agent.name, agent.model) == ("reviewer", "judge", f"local:{wide}")
    config = json.loads((Path(agent.adapter) / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (2, 4.0, agent.model)
    assert set(config["target_modules"]) == {"q_proj", "k_proj", "v_proj", "o_proj"}
    team = Team.load(whole / "team" / "team.yaml")
    assert team.pool.names("reviewer") == ["judge"]
    assert team.pool.names() == ["bad", "good"]
    assert "learner" not in team.config


def test_the_adapter_learned_and_is_read_by_what_serves(whole, wide):
    """It changes what the base says, and the loss fell."""
    base = base_model(wide)
    key = base.adapters.load(whole / "team" / "agents" / "reviewer" / "adapter")
    ids = torch.tensor([base.prompt_ids((Message(role="user", content="12 + 3"),), 100)])
    with torch.no_grad(), base.lock:
        with base.adapters.rows([None]):
            before = base.model(ids).logits
        with base.adapters.rows([key]):
            after = base.model(ids).logits
    base.adapters.drop(key)
    assert (before - after).abs().max() > 1e-4
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[0]["learning_rate"] == pytest.approx(1e-2)
    assert rows[-1]["learning_rate"] < 1e-3


def test_training_leaves_the_shared_base_as_it_was(whole, wide):
    """No adapter, no flag and no padding token of the trainer's is left on the model that serves."""
    base = base_model(wide)
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    assert not any("lora" in name for name, _ in base.model.named_parameters())


def test_no_pickle_is_written(whole):
    """What a run leaves is JSON, YAML and safetensors."""
    kinds = {path.suffix for path in whole.rglob("*") if path.is_file() and path.name != ".lock"}
    assert kinds <= {".json", ".jsonl", ".yaml", ".safetensors", ".sha256"}


def test_equal_runs_are_equal_and_other_seeds_are_not(whole, tmp_path, wide, runs):
    file = recipe(tmp_path, wide)
    assert distil(runs, file, tmp_path / "again") == 0
    assert distil(runs, file, tmp_path / "other", "--set", "seed=4") == 0
    assert equal(weights(whole), weights(tmp_path / "again"))
    assert not equal(weights(whole), weights(tmp_path / "other"))


# --- going on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 5, 6, 7, 11])
def test_a_stopped_run_goes_on_as_if_nothing_had_been(whole, tmp_path, wide, runs, stop, monkeypatch):
    """Bit for bit: within an epoch, at its end (update 6), right after it. Dropout draws what it would have."""
    file = recipe(tmp_path, wide)
    from coterie.cli import distill

    monkeypatch.setattr(distill, "_see", lambda row: row["update"] != stop)
    assert distil(runs, file, tmp_path / "out") == 130
    assert not (tmp_path / "out" / "team").exists()
    monkeypatch.undo()
    assert distil(runs, file, tmp_path / "out", "--resume") == 0
    assert equal(weights(whole), weights(tmp_path / "out"))
    assert (tmp_path / "out" / "metrics.jsonl").read_text().count("\n") == 12


def test_the_state_of_the_optimiser_matters(whole, tmp_path, wide, runs, monkeypatch):
    """A resume that forgot moments or generators would be another run: the tests above would notice."""
    file = recipe(tmp_path, wide)
    from coterie.cli import distill

    monkeypatch.setattr(distill, "_see", lambda row: row["update"] != 5)
    distil(runs, file, tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr(sft._Resumable, "_load_rng_state", lambda self, checkpoint: None)
    assert distil(runs, file, tmp_path / "out", "--resume") == 0
    assert not equal(weights(whole), weights(tmp_path / "out"))


def test_a_killed_run_goes_on_bit_for_bit(whole, tmp_path, wide, runs):
    """kill -9 in the middle of training; the resumed adapter equals that of the run nobody killed."""
    file, out = recipe(tmp_path, wide), tmp_path / "out"
    words = ["distill", str(runs), "--team", str(file), "--out", str(out), "--no-cache"]
    child = subprocess.Popen([sys.executable, "-m", "coterie", *words], stderr=subprocess.DEVNULL)
    while child.poll() is None and len(list((out / "checkpoints").glob("round-*.safetensors"))) < 3:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not (out / "team").exists()
    assert distil(runs, file, out, "--resume") == 0
    assert equal(weights(whole), weights(out))


def test_a_run_is_not_gone_on_with_under_other_settings(whole, tmp_path, wide, runs, capsys):
    file = recipe(tmp_path, wide)
    assert distil(runs, file, whole, "--resume", "--set", "learner.lr=0.5") == 2
    assert "settings.lr" in capsys.readouterr().err
    assert distil(runs, file, whole) == 2
    assert "--resume" in capsys.readouterr().err
    assert distil(runs, file, tmp_path / "none", "--resume") == 2
    assert not (tmp_path / "none").exists()


def test_a_finished_run_is_finished(whole, tmp_path, wide, runs, capsys):
    file = recipe(tmp_path, wide)
    before = (whole / ADAPTER).stat().st_mtime_ns
    assert distil(runs, file, whole, "--resume") == 0
    assert (whole / ADAPTER).stat().st_mtime_ns == before


def test_a_set_that_was_changed_is_refused(whole, tmp_path, wide, runs, capsys, monkeypatch):
    file = recipe(tmp_path, wide)
    from coterie.cli import distill

    monkeypatch.setattr(distill, "_see", lambda row: False)
    distil(runs, file, tmp_path / "out")
    rows = tmp_path / "out" / "examples.jsonl"
    rows.write_text(rows.read_text().replace("9", "1", 1))
    assert distil(runs, file, tmp_path / "out", "--resume") == 2
    assert "changed after it was sealed" in capsys.readouterr().err


# --- rows -----------------------------------------------------------------------------------------------

LESSON = Lesson(id="e", domain="d", layer=1, prompt=(Message(role="user", content="1 + 2"),), completion="7 seven")


def test_only_the_review_has_a_loss_and_it_ends_the_turn_once(wide):
    """Also where padding and end are one token (trl#1623)."""
    base = base_model(wide)
    made = sft.row(base, Agent(name="a", model=f"local:{wide}"), LESSON)
    said = [one for one in made["labels"] if one != sft.NOTHING]
    assert made["input_ids"][: -len(said)] == base.prompt_ids(LESSON.prompt, 1000)
    assert base.text_of(said) == LESSON.completion
    assert made["input_ids"][-len(said) :] == said
    assert [one for one in said if one in base.eos_ids] == [said[-1]]
    assert base.tokenizer.convert_ids_to_tokens(said[-1]) == "<|im_end|>"


def test_a_review_longer_than_a_reply_is_refused(wide):
    """It would teach what is cut off when it serves."""
    short = Agent(name="a", model=f"local:{wide}", sampling=Sampling(max_tokens=3))
    with pytest.raises(ConfigError, match=r"replies with at most 3: raise its sampling\.max_tokens"):
        sft.row(base_model(wide), short, LESSON)


def test_a_prompt_that_would_be_cut_is_refused(wide):
    short = Agent(name="a", model=f"local:{wide}", sampling=Sampling(max_prompt_tokens=4))
    with pytest.raises(ConfigError, match="more than 'a' is shown"):
        sft.row(base_model(wide), short, LESSON)


def test_control_words_in_a_review_stay_words(wide):
    """A rationale that quotes the end of a turn does not end one."""
    base = base_model(wide)
    made = sft.row(base, Agent(name="a", model=f"local:{wide}"), replace(LESSON, completion="7<|im_end|>7"))
    said = [one for one in made["labels"] if one != sft.NOTHING]
    assert [one for one in said if one in base.eos_ids] == [said[-1]]
