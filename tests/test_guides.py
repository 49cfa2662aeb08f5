"""Each guide done from top to bottom in its own folder: files are written, packages installed, commands run.

A block that follows a line that ends in "`NAME`:" is that file. Servers are an upstream in a thread, `pip` puts the
package's entry points on the path, `pytest` is the contract tests of this checkout.
"""

import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import yaml

from coterie.cli.main import run
from coterie.config import find
from coterie.evaluation import compared, table
from coterie.evaluation.replay import page as replay_page
from coterie.tasks.catalog import load_task
from coterie.team import Team
from documents import FENCE, ROOT, Piece, lines
from stranger import rows, said, served, write_rows

FOLDER = ROOT / "docs" / "guides"
GUIDES = sorted(FOLDER.glob("*.md"))
FILE = re.compile(r"`([\w.-]+\.\w+)`[^`]*:\s*\Z")
MODULES = ("my_routers", "second_opinion", "clock")


@dataclass(frozen=True)
class Step:
    """A block of a guide, and the file that it is (empty: none)."""

    piece: Piece
    file: str


def steps(path: Path) -> Iterator[Step]:
    text = path.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        if found[3] is None:
            before = text[: found.start()].rstrip().rsplit("\n\n", 1)[-1]
            name = FILE.search(before)
            written = name is not None and found[1] not in ("", "bash")
            yield Step(Piece(found[1], found[2]), name[1] if name and written else "")


@dataclass
class Desk:
    """Where a guide is followed: a folder, a server, and what the commands printed."""

    folder: Path
    server: str
    patch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    told: dict[str, str] = field(default_factory=dict)
    last: str = ""
    tested: int = 0

    def follow(self, step: Step) -> None:
        language, text = step.piece.language, step.piece.text
        if step.file:
            self.write(step.file, text)
        elif language == "bash":
            self.last = "".join(self.command(words) for words in lines(step.piece))
        elif language == "python":
            exec(compile(text, "guide", "exec"), {"__name__": "__main__"})
            printed = self.capsys.readouterr().out
            assert ("print(" in text) <= bool(printed.strip())
        else:
            assert language == "", f"a block of {language} is no file"
            assert [line for line in text.splitlines() if line not in self.last.splitlines()] == []

    def write(self, name: str, text: str) -> None:
        more = _pairs if "larger" in text else MORE.get(name, lambda: "")
        whole = re.sub(r"http://localhost:\d+/v1", self.server, text) + more()
        (self.folder / name).write_text(whole, encoding="utf-8")

    def command(self, words: list[str]) -> str:
        if words[0] == "pip":
            assert words[1:] == ["install", "-e", "."]
            return self.install()
        if words[0] == "pytest":
            return self.contract(words[1:])
        assert words[0] == "coterie"
        assert run(words[1:]) == 0, f"{' '.join(words)}: {self.capsys.readouterr().err}"
        out = self.capsys.readouterr().out
        self.told[" ".join(words[1:])] = out
        assert out.strip(), words
        return out

    def install(self) -> str:
        """What `pip install -e .` leaves: a description with the entry points, and the folder on the path."""
        project = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["dependencies"] == ["coterie"]
        info = self.folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
        groups = project["entry-points"].items()
        parts = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups]
        (info / "entry_points.txt").write_text("\n".join(parts))
        self.patch.syspath_prepend(str(self.folder))
        return ""

    def last_of(self, verb: str) -> str:
        """What the last command of this name printed."""
        return [out for words, out in self.told.items() if words.split()[0] == verb][-1]

    def contract(self, words: list[str]) -> str:
        place, *rest = words
        assert (ROOT / place).is_file()
        environment = os.environ | {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", place, *rest]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:]
        self.tested = int(re.findall(r"(\d+) passed", done.stdout)[-1])
        return done.stdout


# --- what a reader has, and a guide only begins -------------------------------------------------------


def _rows() -> str:
    """The rows of `mine.jsonl` beside the two that the guide shows."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(198))


def log(seed: int, size: int = 150) -> list[list[str]]:
    """A log in which the small model is as good as the large one on git, and mostly wrong on leases."""
    random, found = Random(seed), []
    for n in range(size):
        number = random.randrange(10_000)
        git = n % 2 == 0
        text = f"How do I undo commit {number} in git?" if git else f"Is clause {number} of this lease binding?"
        large = random.random() < 0.9
        small = large if git else random.random() < 0.2
        team = "dev" if git else "legal"
        found.append([text, "small", str(int(small)), "0.0001", team])
        found.append([text, "large", str(int(large)), "0.0020", team])
    return found


def _log() -> str:
    return "".join(",".join(row) + "\n" for row in log(1))


MORE: dict[str, Callable[[], str]] = {"mine.jsonl": _rows, "september.csv": _log}


def _pairs() -> str:
    """More questions about two numbers, of the two kinds that the guide shows."""
    asked = {
        "larger": ("Which is larger: {} or {}?", max),
        "first": ("Which is named first: {} or {}?", lambda a, b: a),
    }
    rows = [
        {"question": ask.format(a, b), "answer": rule(a, b), "domain": name}
        for name, (ask, rule) in asked.items()
        for a in range(1, 6)
        for b in range(6, 10)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_log(path: Path, seed: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["prompt", "model", "thumbs", "dollars", "team"], *log(seed)])


def scripted(folder: Path) -> None:
    """A team of two scripted agents, one good at sums, one at words, that fails now and then."""
    known = rows(60)
    write_rows(folder / "mine.jsonl", known)
    names = {"one": "llama", "two": "qwen"}
    rules = [
        {"agent": name, "contains": row["question"], "reply": said(model, row["question"], known)}
        for name, model in names.items()
        for row in known
    ]
    rules.insert(0, {"contains": known[0]["question"], "fault": "error", "reply": "the server is down"})
    prices = {"one": {"prompt": 1, "completion": 1}, "two": {"prompt": 2, "completion": 2}}
    recipe = {
        "name": "both",
        "agents": [{"name": name, "model": f"scripted:{name}", "price": price} for name, price in prices.items()],
        "strategy": {"use": "single", "fallbacks": 0},
        "backends": {"scripted": {"rules": rules}},
    }
    (folder / "team.yaml").write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")


def given(name: str, folder: Path) -> None:
    """What a reader brings to a guide."""
    if name == "own-logs.md":
        write_log(folder / "october.csv", 2)
    elif name == "write-a-task.md":
        agents = [{"name": "ada", "model": "scripted:ada"}]
        rules = {"scripted": {"rules": [{"reply": "Answer: 3 pm"}]}}
        (folder / "team.yaml").write_text(yaml.safe_dump({"agents": agents, "backends": rules}))
    elif name == "mix-models.md":
        write_rows(folder / "mine.jsonl", rows(60))
    elif name in ("write-a-router.md", "write-a-strategy.md"):
        write_rows(folder / "mine.jsonl", rows(20))
    elif name == "read-a-report.md":
        scripted(folder)
        command = ["eval", "team.yaml", "--alone", "--task", "mine.jsonl", "--samples", "2", "--out", "runs/first"]
        assert run(command) == 0


@contextmanager
def reader() -> Iterator[str]:
    """The servers that recipes name."""
    with served([*rows(198), {"question": "There are 5 boxes with 6 pens", "answer": 30}]) as upstream:
        yield upstream.base_url


# --- what has to be true in the end -------------------------------------------------------------------


def own_models(desk: Desk) -> None:
    rows_of = {row.split("│")[1].strip(): row for row in desk.last_of("eval").splitlines() if "│" in row}
    accuracy = {name: float(row.split("│")[2].strip(" %")) for name, row in rows_of.items()}
    assert accuracy["mine"] > max(accuracy["llama alone"], accuracy["qwen alone"]) + 15
    assert "30" in desk.last_of("ask")


def mixed_models(desk: Desk) -> None:
    """A sweep of three layers, the calls of each depth. This server writes no review: each is asked for twice."""
    told = desk.last_of("layers")
    assert "answers by depth" in told
    calls = [[cell.strip() for cell in row.split("│")] for row in told.splitlines() if row.count("│") > 5]
    assert [row[5] for row in calls[-3:]] == ["6", "11", "16"]
    table = [row for row in desk.last_of("eval").splitlines() if "│" in row]
    assert all(any(name in row for row in table) for name in ("deep", "flat"))
    assert "Layers of deep" in Path("deep.html").read_text(encoding="utf-8")


def own_logs(desk: Desk) -> None:
    choice = json.loads(Path("choice.json").read_text())
    assert choice["cost_usd_per_1k"] < 1.6, "leases cost, git does not"
    [asked] = [line for line in desk.last_of("route").splitlines() if "yes" in line]
    assert "small" in asked


def a_router(desk: Desk) -> None:
    [asked] = [line for line in desk.last_of("route").splitlines() if "yes" in line]
    assert "writer" in asked
    assert desk.tested >= 10
    assert find("router", "by_length").__name__ == "ByLength"


def a_strategy(desk: Desk) -> None:
    assert Team.load("team.yaml").ask("What is 2 + 2?", "math").answer == "4"
    assert desk.tested >= 3


def a_task(desk: Desk) -> None:
    assert [query.task for query in load_task("meetings.jsonl").queries] == ["clock", "clock"]
    assert "50.0 %" in desk.last_of("eval")
    assert desk.tested >= 1


def test_the_printed_questions_have_two_parts(tmp_path: Path) -> None:
    """Who copies the guide to the letter can train and measure."""
    text = (FOLDER / "train-agents.md").read_text(encoding="utf-8")
    [printed] = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mine.jsonl").write_text(printed)
    for part in ("train", "test"):
        assert len(load_task(f"{tmp_path}/mine.jsonl/{part}").queries) == 2


def a_report(desk: Desk) -> None:
    """Every card, tile and column of a page is explained."""
    text = (FOLDER / "read-a-report.md").read_text(encoding="utf-8")
    flat = re.sub(r"[*_]", "", text)
    missing = [title for title in {*cards(), *columns()} if title not in flat]
    assert not missing
    for page in ("first.html", "compared.html"):
        shown = re.findall(r"<h2>(.*?)</h2>", Path(page).read_text(encoding="utf-8"))
        assert len(shown) >= 4
        assert set(shown) <= cards()


def trained_agents(desk: Desk) -> None:
    """The run used its budget up, its team answers, and PEFT can read the adapters."""
    rounds = [json.loads(line) for line in Path("runs/mine/metrics.jsonl").read_text().splitlines()]
    assert rounds[-1]["completions"] == 64
    assert "mine, trained" in desk.last_of("eval")
    assert {path.parent.name for path in Path("adapters").glob("*/adapter_config.json")} == {"a", "b"}
    page = Path("training.html").read_text(encoding="utf-8")
    assert [word for word in ("larger", "first", "familiarity") if word not in page.casefold()] == []
    assert "fam" in desk.last_of("ask")


def cards() -> set[str]:
    """Titles of all cards and tiles, from the code that makes them."""
    folder = ROOT / "src" / "coterie" / "evaluation"
    found = set(re.findall(r"<h2>(.*?)</h2>", (folder / "run.html").read_text(encoding="utf-8")))
    for name in ("forest.py", "replay/page.py", "report.py"):
        source = (folder / name).read_text(encoding="utf-8")
        found |= set(re.findall(r'(?:Card\(\s*title=|_tile\()"([^"]+)"', source))
    assert len(found) >= 15
    return found


def columns() -> set[str]:
    """Titles of all columns that say something beside a name."""
    found = {c.title for c in (*table.COLUMNS, *table.SAMPLED, *compared.COLUMNS)}
    return found | {*compared.SEED_TITLES, *compared.PASS_TITLES, *replay_page.TITLES}


ENDS: dict[str, Callable[[Desk], None]] = {
    "mix-models.md": mixed_models,
    "own-logs.md": own_logs,
    "own-models.md": own_models,
    "read-a-report.md": a_report,
    "train-agents.md": trained_agents,
    "write-a-router.md": a_router,
    "write-a-strategy.md": a_strategy,
    "write-a-task.md": a_task,
}


def test_every_guide_is_known_here():
    assert [path.name for path in GUIDES] == sorted(ENDS)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_a_guide_leads_where_it_says(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVER_KEY", "not a secret")
    given(path.name, tmp_path)
    capsys.readouterr()
    with reader() as server:
        desk = Desk(tmp_path, server, monkeypatch, capsys)
        for step in steps(path):
            desk.follow(step)
        ENDS[path.name](desk)
    for name in MODULES:
        sys.modules.pop(name, None)
