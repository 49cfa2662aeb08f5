"""`coterie simulate`: what it prints, keeps and goes on with; mistakes are one line and exit code 2."""

import json

import pytest

pytest.importorskip("torch")

from coterie.cli.main import run
from coterie.learning import simulate

QUICK = [
    "-n",
    "320",
    "--set",
    "points=4",
    "--set",
    "test=50",
    "--set",
    "routing.hidden=16",
    "--set",
    "routing.width=8",
]


def command(*words):
    return run(["simulate", *QUICK, *words])


def test_a_page_and_every_run_are_written(tmp_path, capsys):
    assert command("--seeds", "2", "--out", str(tmp_path)) == 0
    printed = capsys.readouterr()
    assert "4 agents, 4 domains, 320 queries, 2 seeds" in printed.out
    assert "activation: " in printed.out
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 7
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "nan" not in page.lower().split("<script")[0].split("</style>")[1]
    kept = json.loads((tmp_path / "default-1.json").read_text(encoding="utf-8"))
    assert kept["seed"] == 1
    assert kept["settings"]["queries"] == 320


def test_finished_runs_are_taken_as_they_are_and_others_made_again(tmp_path, monkeypatch):
    assert command("--seeds", "2", "--out", str(tmp_path)) == 0
    made = []
    real = simulate.simulate

    def counted(settings, seed, watch):
        made.append(seed)
        return real(settings, seed, watch)

    monkeypatch.setattr(simulate, "simulate", counted)
    (tmp_path / "default-1.json").write_text("{", encoding="utf-8")
    assert command("--seeds", "3", "--out", str(tmp_path)) == 0
    assert made == [1, 2]
    assert command("--seeds", "1", "--out", str(tmp_path), "--set", "allocation.tau=0.8") == 0
    assert made == [1, 2, 0]


def test_json_is_all_of_it(capsys):
    assert command("--seeds", "1", "--agents", "3", "--domains", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    [only] = found["runs"]["default"]
    assert only["points"][0]["agents"] == 3.0
    assert only["settings"]["world"]["domains"] == 2
    assert found["signs"][0]["name"] == "activation"


def test_mechanisms_run_variants_beside_the_default(tmp_path, capsys):
    words = ["--mechanisms", "--variant", "no margin", "--variant", "classifier", "--seeds", "1", "--out"]
    assert command(*words, str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "no margin: " in printed
    assert "classifier: " in printed
    assert {path.name for path in tmp_path.glob("*.json")} == {
        "default-0.json",
        "no-margin-0.json",
        "classifier-0.json",
    }
    assert "Metric: agents a query" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "routing.margn=2"], "did you mean 'margin'"),
        (["--set", "allocation.tau=0"], "tau"),
        (["--set", "allocation.capacity=4"], "capacity (4) is below micro_batch (16)"),
        (["--set", "routing.lr=1e30"], "routing.lr"),
        (["--set", "routing.metric=classifier", "--set", "routing.weight_decay=1e30"], "routing.weight_decay"),
        (["--out", ""], "is empty"),
        (["--variant", "no margin"], "--mechanisms"),
        (["--mechanisms", "--variant", "no margn"], "did you mean 'no margin'"),
    ],
)
def test_mistakes_are_one_line(words, told, capsys):
    assert command("--seeds", "1", *words) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_an_interruption_keeps_what_is_finished(tmp_path, monkeypatch, capsys):
    real = simulate.simulate

    def stopped(settings, seed, watch):
        if seed == 1:
            raise KeyboardInterrupt
        return real(settings, seed, watch)

    monkeypatch.setattr(simulate, "simulate", stopped)
    assert command("--seeds", "2", "--out", str(tmp_path)) == 130
    assert "same --out goes on" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["default-0.json"]


def test_settings_that_cannot_work_are_told(capsys):
    assert command("--seeds", "1", "--set", "routing.scale=1") == 0
    assert "default: margin 1 is below" in capsys.readouterr().err
