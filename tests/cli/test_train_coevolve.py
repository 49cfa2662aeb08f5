"""`train` on a recipe with a learner: runs that end, stop, go on, are refused; what `agents export` makes of them.

The agents are tiny random models; what they learn is nothing, how a run is kept is all of it.
"""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from rich.console import Console  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from coterie.cli import board as boards  # noqa: E402
from coterie.cli import demo  # noqa: E402
from coterie.cli.board import Board, Budget, alarms  # noqa: E402
from coterie.cli.main import run  # noqa: E402
from coterie.evaluation import demo as demo_study  # noqa: E402
from coterie.team import Team  # noqa: E402

QUERIES = 24
NOWHERE = [part for i in range(2) for part in ("--set", f"agents.{i}.model=local:./none")]


def recipe(model: str) -> dict:
    """Two agents over one base, six rounds of four queries. Stop texts make lengths differ, and so rewards."""
    sampling = {"temperature": 1.0, "max_tokens": 6, "stop": list("abcdefghijklmnopqrst")}
    agents = [{"name": name, "model": f"local:{model}", "sampling": sampling} for name in ("ann", "bob")]
    learner = {
        "use": "coevolve",
        "tasks": {"items.jsonl": None},
        "batch": 4,
        "queries": QUERIES,
        "practice": {"group": 2},
        "rewards": {"gamma": 0.2},
        "allocation": {"micro_batch": 2, "window": 8},
        "lora": {"rank": 2, "alpha": 4},
        "optimiser": {"lr": 0.01, "warmup": 0},
        "routing": {"standardise": 4},
    }
    router = {"use": "familiarity", "encoder": {"use": "hashed"}, "hidden": 8, "width": 4}
    return {
        "name": "tiny",
        "agents": agents,
        "router": router,
        "strategy": "vote",
        "contracts": {"qa": "text"},
        "learner": learner,
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(Path(__file__).parents[1] / "backends"), *sys.path])
        from tiny_models import save
    return save(tmp_path_factory.mktemp("tiny"))


def furnish(folder: Path, model: str) -> None:
    """The recipe and its training items, in a folder."""
    rows = [{"id": f"q{n}", "task": "qa", "question": f"Name {n}?", "answer": f"n{n}"} for n in range(1, 13)]
    rows = [{**row, "source": ("odd", "even")[n % 2]} for n, row in enumerate(rows)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "r.yaml").write_text(yaml.safe_dump(recipe(model)))


@pytest.fixture
def desk(tmp_path, model, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    furnish(tmp_path, model)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory, model) -> Path:
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    furnish(folder, model)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["train", "r.yaml", "--out", "run", "--no-cache", "--json"]) == 0
    return folder / "run"


def said(capsys, *arguments: str, code: int = 0):
    assert run(arguments) == code, capsys.readouterr()
    return capsys.readouterr()


def rows(folder: Path) -> list[dict]:
    """The record without the times, which alone may differ between equal runs."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found]


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """What a run ended with: its last checkpoint, its team."""
    files = [*sorted((folder / "team").rglob("*.safetensors")), max((folder / "checkpoints").iterdir())]
    found = {f"{file.relative_to(folder)}:{k}": v for file in files for k, v in load_file(file).items()}
    assert found
    return found


def equal(one: Path, other: Path) -> bool:
    first, second = tensors(one), tensors(other)
    return first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)


def stop_after(monkeypatch, number: int, *signals: signal.Signals) -> None:
    """Send signals to this process when that round is shown."""
    take = Board.take

    def taken(self, row):
        if row["round"] == number:
            for one in signals:
                signal.raise_signal(one)
        return take(self, row)

    monkeypatch.setattr(Board, "take", taken)


# --- a run --------------------------------------------------------------------------------------------


def test_a_run_keeps_a_record_a_checkpoint_and_a_team_that_routes(whole, monkeypatch, capsys):
    monkeypatch.chdir(whole.parent)
    assert [row["queries"] for row in rows(whole)] == [4, 8, 12, 16, 20, 24]
    assert len(list((whole / "checkpoints").iterdir())) == 1
    team = Team.load(whole / "team" / "team.yaml")
    assert team.name == "tiny, trained"
    assert team.pool.names() == ["ann", "bob"]
    found = json.loads(said(capsys, "route", "-r", "run/team/team.yaml", "Name 3?", "--json").out)
    assert all(0 < agent["familiarity"] < 1 for agent in found["agents"])


def test_what_is_said_is_how_it_goes_and_what_to_do_next(desk, capsys):
    told = said(capsys, "train", "r.yaml", "--out", "run", "--set", "learner.queries=4")
    assert "finished after round 1: 4 queries" in told.out
    assert "team: run/team/team.yaml" in told.out
    for words in (
        "round 1, queries 4/4",
        "ann: familiarity 0.",
        "warning: loss: sequence ratio with token mean",
        "coterie eval r.yaml run/team/team.yaml --task",
        "coterie report run",
    ):
        assert told.err.count(words) == 1, words
    again = said(capsys, "train", "r.yaml", "--out", "run", "--set", "learner.queries=4", "--resume", "--json")
    found = json.loads(again.out)
    assert (found["finished"], found["rounds"], found["resume"]) == (True, 1, None)
    assert len(rows(desk / "run")) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_goes_on_by_the_command_it_prints_and_ends_as_if_never_stopped(
    desk, whole, number, capsys, monkeypatch
):
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        stop_after(patch, 2, number)
        told = said(capsys, "train", "r.yaml", "--out", "run", "--json", code=130)
    assert signal.getsignal(number) is before
    found = json.loads(told.out)
    assert (found["finished"], found["rounds"]) == (False, 2)
    assert f"to go on: {found['resume']}" in told.err
    assert Team.load(found["team"]).pool.names() == ["ann", "bob"]
    command, *arguments = shlex.split(found["resume"])
    assert command == "coterie"
    told = said(capsys, *arguments)
    assert "goes on after round 2" in told.err
    assert rows(desk / "run") == rows(whole)
    assert equal(desk / "run", whole)


def test_the_second_signal_ends_at_once_and_the_run_goes_on_from_its_last_checkpoint(
    desk, whole, capsys, monkeypatch
):
    with monkeypatch.context() as patch:
        stop_after(patch, 4, signal.SIGINT, signal.SIGINT)
        told = said(capsys, "train", "r.yaml", "--out", "run", "--set", "learner.checkpoint_every=3", code=130)
    again = "coterie train r.yaml --out run --resume --set learner.checkpoint_every=3"
    assert f"to go on: {again}" in told.err
    assert "interrupted" in told.err
    assert not (desk / "run" / "team").exists()
    assert len(rows(desk / "run")) == 4  # the fourth round is recorded, but no checkpoint has it
    assert "goes on after round 3" in said(capsys, *shlex.split(again)[1:]).err
    assert rows(desk / "run") == rows(whole)
    assert equal(desk / "run", whole)


def test_a_folder_that_another_process_writes_is_left_alone(desk, whole, capsys):
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True);"
        " sys.stdin.read()"
    )
    (desk / "run").mkdir()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, str(desk / "run" / ".lock")], **pipes) as other:
        assert other.stdout.readline() == "held\n"
        told = said(capsys, "train", "r.yaml", "--out", "run", code=2)
        other.communicate("")
    assert "another run is writing here" in told.err
    assert [path.name for path in (desk / "run").iterdir()] == [".lock"]


def test_of_folders_that_were_not_there_nothing_is_left_where_a_run_cannot_begin(desk, capsys):
    (desk / "mine").mkdir()
    for out in ("mine", "mine/new/deep"):
        said(capsys, "train", "r.yaml", "--out", out, *NOWHERE, code=2)
    assert not list((desk / "mine").iterdir())


@pytest.mark.parametrize("metric", ["regression", "classifier"])
def test_what_an_ablation_learned_is_a_team_that_routes(desk, capsys, metric):
    settings = ("--set", "learner.queries=8", "--set", f"learner.routing.metric={metric}")
    told = said(capsys, "train", "r.yaml", "--out", "run", *settings)
    assert "team: run/team/team.yaml" in told.out
    table = yaml.safe_load((desk / "run" / "team" / "team.yaml").read_text())["router"]
    assert table == {"use": "learned_scores", "encoder": {"use": "hashed"}, "weights": "router.safetensors"}
    team = Team.load(desk / "run" / "team" / "team.yaml")
    found = json.loads(said(capsys, "route", "-r", "run/team/team.yaml", "Name 3?", "--json").out)
    assert len({agent["weight"] for agent in found["agents"]}) == len(team.pool) == 2
    assert "learns nothing" in said(capsys, "train", "run/team/team.yaml", "--task", "items.jsonl", code=2).err


def test_a_published_loss_is_chosen_by_its_name(desk, capsys):
    settings = ("--set", "learner.queries=4", "--set", "learner.loss=dapo", "--set", "learner.loss.beta=0.5")
    told = said(capsys, "train", "r.yaml", "--out", "run", *settings)
    assert "sequence ratio" not in told.err  # what is said of the paper's loss
    assert "kl_mean" in rows(desk / "run")[0]["agents"]["ann"]


def test_truncated_sampling_is_told_once(desk, capsys):
    """The paper's own; tokens then come from another distribution than the one that the loss weighs them by."""
    settings = ("--set", "learner.queries=4", "--set", "agents.1.sampling.top_p=0.9")
    told = said(capsys, "train", "r.yaml", "--out", "run", *settings)
    assert told.err.count("warning: bob: sampling.top_p 0.9, top_k 0: tokens are drawn from the cut") == 1


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("r.yaml", "--task", "items.jsonl"), "learner=null"),
        (("r.yaml", "--limit", "3"), "--limit"),
        (("r.yaml", "-r", "r.yaml"), "two recipes"),
        (("r.yaml", "--resume"), "--out"),
        (("r.yaml", "--resume", "--out", "none"), "holds no run"),
        (("r.yaml", "--out", "items.jsonl"), "no folder"),
        (("r.yaml", "--out", ""), "is empty"),
        (("r.yaml", "--out", "."), "begins in an empty folder"),
        (("r.yaml", "--out", "x" * 300), "cannot be written"),
        (("r.yaml", "--out", "run", "--set", "agents.0.model=local:r.yaml"), "is a file; a model is a folder"),
        (("r.yaml", "--out", "run", "--set", "router.hidden=100000000"), "router.hidden"),
        (("r.yaml", "--out", "run", "--set", "learner.batsh=3"), "did you mean 'batch'"),
        (("r.yaml", "--out", "run", *NOWHERE), "no such file or folder"),
        (("r.yaml", "--out", "run", "--set", "router=uniform"), "familiarity"),
        (("r.yaml", "--set", "learner=null"), "one source of outcomes"),
        (("r.yaml", "--set", "learner=null", "--resume"), "`learner`"),
        (("builtin", "--log", "wandb"), "`learner`"),
        (("r.yaml", "--out", "run", "--set", "learner.tasks={none.jsonl: null}"), "none.jsonl"),
        (("r.yaml", "--out", "run", "--set", "learner.loss=gsop"), "did you mean 'gspo'"),
        (("r.yaml", "--out", "run", "--set", "learner.queries=true"), "true and false are no numbers"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_run(desk, capsys, arguments, words):
    told = said(capsys, "train", *arguments, code=2)
    assert words in told.err
    assert told.err.strip().splitlines()[-1].startswith("coterie: ")
    assert "Traceback" not in told.err
    assert not (desk / "run").exists()
    assert not (desk / "runs").exists()


def test_where_no_folder_can_be_made_one_line_says_how_to_name_one(desk, capsys):
    (desk / "runs").write_text("somebody's")
    assert "name a folder by --out" in said(capsys, "train", "r.yaml", code=2).err


def test_a_terminal_that_hangs_up_ends_the_run_after_its_round(desk, monkeypatch, capsys):
    """What it has to say has nowhere to go, and ends nothing unsaved; under `nohup` nothing is heard of it."""
    stop_after(monkeypatch, 2, signal.SIGHUP)
    told = json.loads(said(capsys, "train", "r.yaml", "--out", "run", "--json", code=130).out)
    assert (told["rounds"], told["finished"]) == (2, False)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        said(capsys, "train", "r.yaml", "--out", "other")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(rows(desk / "other")) == 6


def test_a_run_is_not_begun_twice_nor_gone_on_with_otherwise(desk, whole, capsys):
    folder = str(whole)
    assert "holds a run already" in said(capsys, "train", "r.yaml", "--out", folder, code=2).err
    told = said(capsys, "train", "r.yaml", "--out", folder, "--resume", "--set", "learner.batch=2", code=2)
    assert "recipe.learner.batch" in told.err
    assert len(rows(whole)) == 6


def test_without_its_learner_a_recipe_fits_its_router_as_ever(desk, capsys):
    table = {**recipe("unused"), "learner": None, "backends": {"scripted": {"rules": [{"reply": "n3"}]}}}
    table["agents"] = [{"name": name, "model": f"scripted:{name}"} for name in ("ann", "bob")]
    (desk / "fit.yaml").write_text(yaml.safe_dump(table))
    fit = ("train", "fit.yaml", "--task", "items.jsonl", "--out")
    found = json.loads(said(capsys, *fit, "w.safetensors", "--json").out)
    assert found["queries"] == 12
    assert (desk / "w.safetensors").is_file()
    (desk / "folder").mkdir()
    told = said(capsys, *fit, "folder", code=2)
    assert "is a folder" in told.err


# --- dashboards ---------------------------------------------------------------------------------------


def test_a_dashboard_hears_of_every_round_and_cannot_stop_the_run(desk, capsys, monkeypatch):
    """Traps 63 and 64 through the whole command."""
    heard: list[tuple[int, dict]] = []
    trackio = ModuleType("trackio")
    trackio.init = lambda **options: None

    def log(values, step):
        if step == 3:
            raise RuntimeError("gone")
        heard.append((step, values))

    trackio.log, trackio.finish = log, lambda: None
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    told = said(capsys, "train", "r.yaml", "--out", "run", "--log", "trackio")
    assert [step for step, _ in heard] == [1, 2]
    assert {"agent/ann/familiarity", "agent/bob/familiarity", "reward"} <= set(heard[0][1])
    assert told.err.count("trackio failed and is left out") == 1
    assert len(rows(desk / "run")) == 6


def test_a_dashboard_that_is_not_installed_is_noticed_before_anything_is_made(desk, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    told = said(capsys, "train", "r.yaml", "--out", "run", "--log", "wandb", code=2)
    assert "coterie[logging]" in told.err
    assert not (desk / "run").exists()


# --- the board ----------------------------------------------------------------------------------------


def row(number: int, **parts) -> dict:
    own = {"familiarity": 0.5, "updates": number, "depth": 1, "reward": 0.25, "share": 0.5, "starved": False}
    whole = {
        "round": number,
        "queries": 10 * number,
        "updates": number,
        "tokens": 100 * number,
        "reward": 0.25,
        "solved": 0.5,
        "active": 1.5,
        "zero_variance": 0.1,
        "errors": 0,
        "collapsed": False,
        "agents": {"ann": {**own, "skipped": 0}, "[red]bob": {**own, "skipped": 0}},
    }
    return {**whole, **parts}


def board_at(times: list[float], **start) -> Board:
    budget = Budget(used={"queries": 0, "updates": 0, "tokens": 0, **start}, most={"queries": 100, "updates": 1000})
    return Board(["ann", "[red]bob"], budget, now=iter(times).__next__)


def test_time_left_and_speed_are_those_of_this_session():
    """A run that is gone on with has used up most of its budget before its first round here."""
    board = board_at([0.0, 10.0, 20.0], queries=80, tokens=800)
    board.take(row(9))
    assert board.left() == pytest.approx(10.0)  # half of what was left took ten seconds
    assert board.speed() == pytest.approx(10.0)
    board.take(row(10))
    assert board.left() == 0.0
    assert "queries 100/100" in board.line()


def test_an_agent_that_did_not_practise_keeps_its_last_known_reward():
    board = board_at([0.0, 1.0, 2.0])
    board.take(row(1))
    later = row(2)
    later["agents"]["ann"] |= {"reward": None, "familiarity": 0.75}
    board.take(later)
    assert "ann: familiarity 0.750, updates 2, buffer 1, reward 0.250" in board.line()


def test_an_agent_that_left_is_no_longer_shown():
    board = board_at([0.0, 1.0, 2.0])
    board.take(row(1))
    alone = row(2)
    del alone["agents"]["[red]bob"]
    board.take(alone)
    assert "bob" not in board.line()


def test_the_live_table_shows_all_figures_whatever_the_names():
    board = board_at([0.0, 1.0, *[2.0] * 10])
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(board.drawn())
    board.take(row(1))
    console.print(board.drawn())
    text = console.export_text()
    for words in ("first round", "[red]bob", "0.500", "50.0 %", "zero variance", "tokens/s 50", "left 18 s"):
        assert words in text, words


def test_each_alarm_is_said_once():
    board = board_at([float(i) for i in range(9)])
    bad = row(1, collapsed=True, errors=3)
    bad["agents"]["ann"] |= {"share": 0.97, "skipped": 1}
    bad["agents"]["[red]bob"] |= {"share": 0.03, "starved": True}
    first = board.take(bad)
    assert len(first) == 4
    assert any("collapse: ann has 97.0 %" in words for words in first)
    assert not board.take({**bad, "round": 2})
    assert not alarms(row(3))


@pytest.mark.parametrize(("seconds", "words"), [(42.4, "42 s"), (185, "3 min 05 s"), (7500, "2 h 05 min")])
def test_times_are_read_at_a_glance(seconds, words):
    assert boards.span(seconds) == words


# --- agents export ------------------------------------------------------------------------------------


def test_an_export_holds_the_trained_tensors_and_peft_loads_it(desk, whole, model, capsys):
    from transformers import AutoModelForCausalLM

    found = json.loads(said(capsys, "agents", "export", str(whole), "--out", "out", "--json").out)
    assert [agent["folder"] for agent in found["agents"]] == ["out/ann", "out/bob"]
    assert sorted(path.name for path in (desk / "out" / "ann").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    [checkpoint] = (whole / "checkpoints").iterdir()
    kept = [array for key, array in load_file(checkpoint).items() if "weights/" in key]
    base = AutoModelForCausalLM.from_pretrained(model)
    for name in ("ann", "bob"):
        loaded = peft.PeftModel.from_pretrained(base, desk / "out" / name, adapter_name=name)
        own = {key: value.numpy() for key, value in loaded.named_parameters() if f".{name}." in key}
        assert len(own) == len(kept) // 2
        assert all(any(np.array_equal(value, array) for array in kept) for value in own.values())
        assert any(np.abs(value).max() > 0 for key, value in own.items() if "lora_B" in key)


def test_an_export_of_the_team_is_that_of_the_run_and_again_is_no_change(desk, whole, capsys):
    said(capsys, "agents", "export", str(whole), "--out", "out")
    for source in (whole, whole / "team", whole / "team" / "team.yaml"):
        found = json.loads(said(capsys, "agents", "export", str(source), "--out", "out", "--json").out)
        assert [agent["written"] for agent in found["agents"]] == [False, False]
    said(capsys, "agents", "export", str(whole), "--out", "one", "--agent", "bob")
    assert [path.name for path in (desk / "one").iterdir()] == ["bob"]


def test_an_export_overwrites_nothing_else_and_is_all_or_nothing(desk, whole, capsys):
    (desk / "out" / "bob").mkdir(parents=True)
    (desk / "out" / "bob" / "adapter_model.safetensors").write_text("mine")
    told = said(capsys, "agents", "export", str(whole), "--out", "out", code=2)
    assert "out/bob: holds something else" in told.err
    assert (desk / "out" / "bob" / "adapter_model.safetensors").read_text() == "mine"
    assert [path.name for path in (desk / "out").iterdir()] == ["bob"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("RUN", "--agent", "bop"), "did you mean 'bob'"),
        (("r.yaml",), "has an adapter"),
        (("r.yaml", "--agent", "ann"), "'ann' has no adapter"),
        (("none",), "no training run"),
        ((".",), "no training run"),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(desk, whole, capsys, arguments, words):
    arguments = [str(whole) if word == "RUN" else word for word in arguments]
    assert words in said(capsys, "agents", "export", *arguments, "--out", "out", code=2).err
    assert not (desk / "out").exists()


# --- the page -----------------------------------------------------------------------------------------


def test_the_report_of_a_training_run_is_its_course_and_a_map_of_its_queries(whole, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(whole.parent)
    page = tmp_path / "page.html"
    said(capsys, "report", "run", "--out", str(page), "--states", "12")
    text = page.read_text()
    for words in ("Familiarity by agent", "Updates by agent", "Routed states", "6 rounds, 24 queries"):
        assert words in text, words
    for arguments in (("run", "--before", "run"), ("run", "run", "--states", "12"), ("r.yaml", "--states", "12")):
        assert said(capsys, "report", *arguments, "--out", "no.html", code=2).err.startswith("coterie: ")
    assert not Path("no.html").exists()


def test_the_report_compares_before_and_after_by_domain(desk, whole, capsys, tmp_path):
    team = str(whole / "team" / "team.yaml")
    said(capsys, "eval", "r.yaml", team, "--task", "items.jsonl", "--out", "both", "--no-cache")
    said(capsys, "report", str(whole), "--before", "both", "--after", "both", "--out", "page.html")
    text = (desk / "page.html").read_text()
    assert "Capability by domain, before and after" in text
    for words in ("odd", "even", "ann", "bob"):
        assert f">{words}<" in text, words


# --- the demonstration --------------------------------------------------------------------------------


def test_the_demonstration_compares_trains_and_measures_and_is_finished_once(desk, monkeypatch, capsys):
    table = recipe(yaml.safe_load((desk / "r.yaml").read_text())["agents"][0]["model"].removeprefix("local:"))
    table["learner"]["tasks"] = {"items.jsonl/train": None}
    (desk / "r.yaml").write_text(yaml.safe_dump(table))
    monkeypatch.setattr(demo, "BUILTIN_RECIPE", "r.yaml")
    monkeypatch.setattr(demo_study, "LEARNS", "r.yaml")
    asked = ["demo", "--train", "4", "--test", "4", "--completions", "8", "--out", "demo", "--json"]
    first = json.loads(said(capsys, *asked).out)
    assert {"best single", "oracle"} <= {row["name"] for row in first["rows"]}
    assert [row["name"] for row in first["coevolution"]["rows"]] == ["before", "after"]
    assert first["coevolution"]["task"] == "items.jsonl/test"
    rounds = rows(desk / "demo" / "coevolution-8")
    assert rounds[-1]["completions"] == 8
    page = (desk / "demo" / "report.html").read_text(encoding="utf-8")
    assert "best single" in page
    assert "Capability" in page
    again = json.loads(said(capsys, *asked).out)
    assert again == first
    assert rows(desk / "demo" / "coevolution-8") == rounds
