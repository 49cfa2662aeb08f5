"""`agents` never loses an expert folder: whatever cuts a swap short, the old one or the new one is there."""

import json
from pathlib import Path

import pytest

from coterie.cli.main import run


@pytest.fixture
def neo(tmp_path: Path, monkeypatch, capsys) -> Path:
    """An expert folder with a file of the user's own in it."""
    monkeypatch.chdir(tmp_path)
    ask(capsys, "add", "neo", "--model", "scripted:x", "--instruction", "old")
    (tmp_path / "experts" / "neo" / "notes.txt").write_text("mine")
    return tmp_path / "experts" / "neo"


def ask(capsys, *arguments: str, code: int = 0):
    assert run(("agents", *arguments, *(["--no-check"] if arguments[0] != "remove" else []), "--json")) == code
    said = capsys.readouterr()
    return said.err if code else json.loads(said.out)


def instruction(folder: Path) -> str:
    return (folder / "agent.yaml").read_text().split("instruction: ")[1].strip()


def beside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir())


def test_each_verb_says_what_it_did(neo, capsys):
    swapped = ask(capsys, "swap", "neo", "--instruction", "new")
    assert swapped["name"] == "neo"
    assert swapped["folder"] == "experts/neo"
    assert swapped["revision"] != ask(capsys, "add", "trinity", "--model", "scripted:x")["revision"]
    assert ask(capsys, "remove", "neo") == {"folder": "experts/neo", "name": "neo", "removed": True}
    assert beside(neo) == ["trinity"]


def test_a_swap_keeps_what_else_is_in_the_folder(neo, capsys):
    """A model that lies in the expert folder has no other copy."""
    ask(capsys, "swap", "neo", "--instruction", "new")
    assert instruction(neo) == "new"
    assert (neo / "notes.txt").read_text() == "mine"
    assert beside(neo) == ["neo"]


def test_a_swap_that_fails_at_the_last_step_leaves_the_old_folder(neo, capsys, monkeypatch):
    rename = Path.rename

    def failing(self, target):
        if self.name == ".neo.new":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    said = ask(capsys, "swap", "neo", "--instruction", "new", code=2)
    assert "left as it was" in said
    assert "No space left" in said
    assert instruction(neo) == "old"
    assert (neo / "notes.txt").exists()
    assert beside(neo) == ["neo"]


def test_an_interrupted_swap_leaves_the_old_folder(neo, capsys, monkeypatch):
    rename = Path.rename

    def interrupted(self, target):
        if self.name == ".neo.new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    assert run(("agents", "swap", "neo", "--instruction", "new", "--no-check")) == 130
    assert instruction(neo) == "old"
    assert beside(neo) == ["neo"]


@pytest.mark.parametrize("command", [("swap", "neo", "--set", "sampling.temperature=0"), ("remove", "neo")])
def test_a_killed_swap_is_undone_by_the_next_command(neo, capsys, command):
    """Killed between the two renames: the only copy is `.neo.old`."""
    neo.rename(neo.with_name(".neo.old"))
    ask(capsys, *command)
    assert beside(neo) == (["neo"] if command[0] == "swap" else [])
    if command[0] == "swap":
        assert "instruction: old" in (neo / "agent.yaml").read_text()
        assert (neo / "notes.txt").exists()


def test_adding_does_not_hide_a_folder_that_a_killed_swap_set_aside(neo, capsys):
    neo.rename(neo.with_name(".neo.old"))
    assert "exists" in ask(capsys, "add", "neo", "--model", "scripted:y", code=2)
    assert instruction(neo) == "old"


def test_a_swap_killed_after_the_second_rename_stands(neo, capsys):
    old = neo.with_name(".neo.old")
    old.mkdir()
    (old / "agent.yaml").write_text("model: scripted:older")
    ask(capsys, "swap", "neo", "--set", "sampling.top_k=3")
    assert "instruction: old" in (neo / "agent.yaml").read_text()
    assert beside(neo) == ["neo"]


def test_what_cannot_be_loaded_changes_nothing(neo, capsys):
    assert run(("agents", "swap", "neo", "--model", "local:nowhere/at-all-x/y")) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert instruction(neo) == "old"
    assert beside(neo) == ["neo"]


@pytest.mark.parametrize("name", ["..", ".", ".neo.old", "", "a/b"])
def test_a_name_never_leads_out_of_the_folder(neo, capsys, name):
    """`remove ..` would delete the folder of all experts."""
    (neo.parent.parent / "agent.yaml").write_text("model: scripted:x")
    ask(capsys, "remove", name, code=2)
    assert instruction(neo) == "old"


def test_the_adapter_goes_along_and_is_replaced(neo, capsys, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"name": name}))
    ask(capsys, "swap", "neo", "--adapter", "one")
    ask(capsys, "swap", "neo", "--instruction", "new")
    assert "one" in (neo / "adapter" / "adapter_config.json").read_text()
    ask(capsys, "swap", "neo", "--adapter", "two")
    assert "two" in (neo / "adapter" / "adapter_config.json").read_text()
    assert ask(capsys, "swap", "neo", "--set", "adapter=null")["adapter"] == ""
    assert not (neo / "adapter").exists()
