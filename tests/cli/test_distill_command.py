"""`coterie distill`: what it refuses, in one line and leaving nothing behind, and what it says of a set."""

import json
import sys
from pathlib import Path

import pytest
import yaml

sys.path.append(str(Path(__file__).parents[1] / "learning"))
from recorded_layers import recipe, recorded

from coterie.cli.main import run
from coterie.learning.distillation import Distillation, settings_of, teacher_of
from coterie.learning.examples import gathered
from coterie.learning.teachers import Label
from coterie.team import Team


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("recorded") / "run")


def distil(runs, file, out, *more):
    return run(["distill", str(runs), "--team", str(file), "--out", str(out), "--no-cache", *more])


def changed(file, **parts):
    table = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(table | parts))
    return file


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--leave-out", "sum"], "is no domain of these runs; did you mean 'sums'?"),
        (
            ["--leave-out", "sums", "--leave-out", "products"],
            "nothing to learn from: 12 layers of a domain left out",
        ),
        (["--teacher", "godd"], "neither gold nor an agent of student; did you mean 'good'?"),
        (["--set", "learner.epochs=0"], "learner.epochs"),
        (["--set", "learner.batches=8"], "unknown key batches; did you mean 'batch'?"),
        (["--set", "learner.batch=3", "--set", "learner.micro_batch=2"], "no multiple of micro_batch"),
        (["--set", "learner.least=9", "--set", "learner.most=8"], "learner.least 9 is more than learner.most 8"),
        (["--set", "learner.least=500"], "24 proposals too short or too long"),
        (["--set", "learner={use: coevolve, tasks: {x: 1}}"], "its `learner` is for `coterie train`"),
        (["--set", "agents.2.role=solver"], "no agent with role reviewer"),
        (["--set", "agents.2.model=scripted:judge"], "only a local model can be trained"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_and_leaves_no_folder(tmp_path, runs, more, said, capsys):
    file = recipe(tmp_path, "nowhere/model")
    assert distil(runs, file, tmp_path / "out", *more) == 2
    error = capsys.readouterr().err
    assert said in error.replace("'batches'", "batches")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_not_finished_is_refused(tmp_path, runs, capsys):
    half = tmp_path / "half"
    half.mkdir()
    for name in ("run.json", "traces.jsonl"):
        (half / name).write_bytes((runs / name).read_bytes())
    assert distil(half, recipe(tmp_path, "nowhere"), tmp_path / "out") == 2
    assert "is not finished" in capsys.readouterr().err


def test_without_trl_it_says_which_extra_before_anybody_is_asked(tmp_path, runs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "coterie.learning.sft", raising=False)
    assert distil(runs, recipe(tmp_path, "nowhere"), tmp_path / "out") == 2
    assert "coterie[distill]" in capsys.readouterr().err
    assert not (tmp_path / "out" / "labels.jsonl").exists()


def test_train_says_who_distils(tmp_path, capsys):
    assert run(["train", str(recipe(tmp_path, "nowhere")), "--out", str(tmp_path / "out")]) == 2
    assert "coterie distill" in capsys.readouterr().err


# --- the set --------------------------------------------------------------------------------------------


class Wise:
    """A teacher who restates the gold answer in one example, is too long in one, and fails in none."""

    identity = "wise"

    def __init__(self):
        self.asked = 0

    async def label(self, example):
        self.asked += 1
        gold = example.query.reference["answers"][0]
        said = {1: f"It is {gold}.", 2: "long " * 999}.get(self.asked, "It fails.")
        return Label(scores=(9, 2), rationales=(said, "It fails."))


def opened(tmp_path, runs, teacher, resume=False):
    from coterie.storage.runs import Run

    team = Team.load(recipe(tmp_path, "nowhere"))
    [traces] = Run.load(runs).traces().values()
    material = gathered(traces, settings_of(team), team.seed)
    return Distillation.open(team, material, teacher, [], tmp_path / "out", resume)


async def test_rejected_labels_are_counted_and_teach_nothing(tmp_path, runs):
    made = opened(tmp_path, runs, Wise())
    lessons = await made.lessons(lambda row: True)
    assert len(lessons) == 10
    counts = made.rejected()
    assert counts["a rationale restates the gold answer"] == 1
    assert sum(counts.values()) == 2


async def test_a_label_is_asked_for_once(tmp_path, runs):
    """Killed while labelling, a run asks for the rest only; a torn last line is no label."""
    made, teacher = opened(tmp_path, runs, Wise()), Wise()
    await made.lessons(lambda row: True)
    made.close()
    labels, out = tmp_path / "out" / "labels.jsonl", tmp_path / "out"
    rows = labels.read_bytes().splitlines(keepends=True)
    labels.write_bytes(b"".join(rows[:5]) + rows[5][:20])
    (out / "examples.sha256").unlink()
    again = opened(tmp_path, runs, teacher, resume=True)
    await again.lessons(lambda row: True)
    assert teacher.asked == 7
    assert len(labels.read_text().splitlines()) == 12


async def test_the_sealed_set_has_no_gold_side(tmp_path, runs):
    """Prompts on disk are those that are served; nothing of the reference is in a row."""
    made = opened(tmp_path, runs, teacher_of("gold", Team.load(recipe(tmp_path / "t", "nowhere"))))
    await made.lessons(lambda row: True)
    rows = [json.loads(line) for line in (tmp_path / "out" / "examples.jsonl").read_text().splitlines()]
    assert len(rows) == 12
    assert all(set(row) == {"id", "domain", "layer", "prompt", "completion"} for row in rows)
    assert not any("answers" in json.dumps(row["prompt"]) for row in rows)
