"""What the documents say, done: commands run, recipes load, programs run, links and files are there.

Agents are scripted and features hashed here; what stands for the embedded model answers without it.
"""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml

from coterie.cli.main import run
from coterie.config import COMPONENTS, find
from coterie.outcomes import Outcomes
from coterie.storage.tables import write_table
from coterie.tasks.catalog import load_task
from coterie.tasks.contamination import question_and_options
from coterie.team import Team, recipe_file
from coterie.types import State
from documents import FENCE, ROOT, blocks, commands, lines, named, parse, pieces, resolved, without_code

GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [
    *GUIDES,
    ROOT / "CHANGELOG.md",
    *sorted(
        page for folder in ("guides", "reference", "results") for page in (ROOT / "docs" / folder).rglob("*.md")
    ),
]
HEAVY = {("models", "fetch"), ("demo",), ("data", "pin")}
"""Commands that bring or run the embedded model, or ask the hub: they are parsed and not run."""
MODELS = ("builtin:", "local:", "cera/", "moa/", "rem_moa/")
"""How arguments begin that name a real model, or a recipe over one."""
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
SHELL = {"make", "coterie", "source"}
ROWS = {"json", "csv", "toml"}
WALKS = sorted((ROOT / "docs" / "guides").glob("*.md"))
"""Guides that tests/test_guides.py follows from top to bottom; here it is looked at what is written in them."""


def guides_with(language: str) -> pytest.MarkDecorator:
    """Run for each guide that has a block of this language."""
    found = [path for path in GUIDES if f"```{language}\n" in path.read_text(encoding="utf-8")]
    assert found
    return pytest.mark.parametrize("path", found, ids=named)


each_guide = pytest.mark.parametrize("path", [*GUIDES, *WALKS], ids=named)
each_page = pytest.mark.parametrize("path", PAGES, ids=named)


# --- commands are there -------------------------------------------------------------------------------


@each_page
def test_every_command_line_is_accepted(path):
    for words in commands(path):
        try:
            parse(words)
        except click.ClickException as error:
            pytest.fail(f"{named(path)}: coterie {shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize(
    "line", ["evil", "train --tsk x", "eval -n 0 --task x", "data chekc x", "cache clear --no"]
)
def test_a_command_line_that_is_not_there_is_noticed(line):
    with pytest.raises(click.ClickException):
        parse(line.split())


def targets() -> dict[str, str]:
    """Makefile targets with their recipes."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return {m[1]: m[2] for m in re.finditer(r"^([\w./]+):(?!=).*\n((?:\t.*\n?)*)", text, re.MULTILINE)}


@each_page
def test_every_make_target_is_there(path):
    spans = [p.text for p in pieces(path) if p.language in ("span", "bash")]
    wanted = {name for text in spans for name in re.findall(r"(?m)^(?:[A-Z]+=\S+ )?make ([a-z][\w-]*)", text)}
    assert wanted <= targets().keys()


def test_the_makefile_calls_commands_that_are_there():
    called = [line for recipe in targets().values() for line in re.findall(r"\$\(BIN\)/coterie (.*)", recipe)]
    assert len(called) >= 2
    for line in called:
        parse(shlex.split(re.sub(r"\$\((\w+)\)", r"\1", line)))


@each_guide
def test_every_block_is_of_a_kind_that_is_tested(path):
    for block in blocks(path):
        more, shell = (ROWS, SHELL | {"pip", "pytest"}) if path in WALKS else (set(), SHELL)
        assert block.language in {"bash", "yaml", "python", ""} | more, block.text
        if block.language == "bash":
            assert {words[0] for words in lines(block)} <= shell, block.text


def test_the_readme_is_short_and_names_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert re.search(r"^make demo\b", text, re.MULTILINE)
    assert re.search(r"^make test\b", text, re.MULTILINE)


# --- links and files are there ------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ +(.*)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@each_page
def test_every_relative_link_leads_somewhere(path):
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)", without_code(path)):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        file = path.parent / place if place else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@each_page
def test_every_file_that_is_named_is_there(path):
    for piece in pieces(path):
        for place in re.findall(r"(?<![\w/.])(?:src|tests|docs|benchmarks)/[\w./-]*\w", piece.text):
            assert list(ROOT.glob(place)), place


@each_guide
def test_nothing_is_left_to_be_filled_in(path):
    assert not re.search(r"^[A-Z]{4,}$|\b(?:TODO|FIXME|TBD|XXX)\b", without_code(path), re.MULTILINE)


def test_the_flow_is_drawn_alike_wherever_it_is_drawn():
    drawn = [
        b.text for name in ("README.md", "docs/architecture.md") for b in blocks(ROOT / name) if "──►" in b.text
    ]
    assert len(drawn) == 2
    assert drawn[0] == drawn[1]


LISTED = re.compile(r"  (?:(?P<folder>\w+)/ {1,8}(?! )| {10,})?(?P<names>\S+(?: \S+)*)(?: {2,}.*)?")


def test_the_files_of_the_readme_are_there():
    """Each name in the list below `src/coterie/` is a module or folder of the folder that its line is about."""
    [listing] = [b.text for b in blocks(ROOT / "README.md") if b.text.startswith("src/coterie/")]
    top, seen = ROOT / "src" / "coterie", 0
    folder = top
    for line in (line for line in listing.splitlines() if line.startswith("  ")):
        found = LISTED.fullmatch(line)
        assert found, line
        folder = top / found["folder"] if found["folder"] else folder
        at_top = found["folder"] is None and line[2] != " "
        for word in found["names"].split():
            pattern = word if word.endswith(("/", ".py")) else f"{word}.py"
            assert list((top if at_top else folder).glob(pattern)), f"{word} in {line!r}"
            seen += 1
    assert seen > 60


def test_the_table_of_parts_names_every_built_in_one():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for kind, known in COMPONENTS.items():
        [row] = re.findall(rf"^\| {kind.capitalize()} \|.*\|(.*)\|$", text, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", row)) == set(known)


# --- a desk to work at --------------------------------------------------------------------------------

SUMS = [(f"Add {n} to {n + 1}.", 2 * n + 1) for n in range(2, 26)]
ITEMS = [
    (f"item-{n}", *item) for n, item in enumerate([*SUMS, *((f"Double the number {n}?", 2 * n) for n in range(24))])
]
FALLBACK = {"reply": "Answer: 56"}


def is_right(place: int, question: str) -> bool:
    """The first agent of a team can add, the second can double, others can do nothing."""
    return place < 2 and question.startswith(("Add", "Double")[place])


def scripted(table: dict[str, Any]) -> dict[str, Any]:
    """The recipe with scripted agents in place of models, and with features that need no model."""
    given = table.get("agents", [{"name": "one"}, {"name": "two"}])
    agents = [{**agent, "model": f"scripted:{agent['name']}"} for agent in given]
    router = table.get("router", "uniform")
    router = {"use": router} if isinstance(router, str) else dict(router)
    if "encoder" in find("router", router["use"]).__dataclass_fields__:
        router["encoder"] = {"use": "hashed"}
    rules = [
        {"contains": question, "agent": agent["name"], "reply": f"Answer: \\boxed{{{answer}}}"}
        for place, agent in enumerate(agents)
        for _, question, answer in ITEMS
        if is_right(place, question)
    ]
    backends = {"scripted": {"rules": [*rules, FALLBACK]}}
    return {**table, "agents": agents, "router": router, "backends": backends}


def write_scripted(path: Path, table: dict[str, Any]) -> Team:
    """The recipe's stand-in at `path`, with the adapter folders that it names beside it."""
    for agent in table.get("agents", []):
        if adapter := agent.get("adapter"):
            (path.parent / adapter).mkdir(parents=True, exist_ok=True)
            (path.parent / adapter / "adapter_config.json").write_text("{}")
    path.write_text(yaml.safe_dump(scripted(table), allow_unicode=True), encoding="utf-8")
    return Team.load(path)


def write_items(path: Path, start: int) -> None:
    """Half of the items, of both sorts."""
    blank = dict.fromkeys(("choices", "context", "tests", "fn_name", "instruction_id_list", "instruction_kwargs"))
    rows = [
        {"id": name, "source": "desk", "task": "math", "question": question, "answer": str(answer), **blank}
        | {"meta": {"subtask": question.split()[0]}}
        for name, question, answer in ITEMS[start::2]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def recorded(team: Team) -> Outcomes:
    """What the agents of a scripted team score on the training items, without asking them."""
    queries = load_task("train.jsonl", contracts=team.contracts).queries
    names = tuple(team.pool)
    scores = np.array([[is_right(i, q.text) for i in range(len(names))] for q in queries], dtype=float)
    used = np.full_like(scores, 20.0)
    revisions = {name: agent.revision for name, agent in team.pool.items()}
    return Outcomes(
        queries=queries, agents=names, scores=scores, tokens=used, costs=used / 1e6, revisions=revisions
    )


def recipes_in(path: Path) -> list[dict[str, Any]]:
    return [yaml.safe_load(block.text) for block in blocks(path) if block.language == "yaml"]


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """A folder with every file that the documents' commands name, but for what these commands write."""
    monkeypatch.chdir(tmp_path)
    built_in = yaml.safe_load(recipe_file("builtin").read_text(encoding="utf-8"))
    team = write_scripted(tmp_path / "builtin", built_in)  # a file is taken before a built-in recipe
    write_items(tmp_path / "train.jsonl", 0)
    write_items(tmp_path / "test.jsonl", 1)
    demo = tmp_path / "runs" / "demo"
    demo.mkdir(parents=True)
    write_scripted(
        demo / "team.yaml", built_in | {"router": {**built_in["router"], "weights": "router.safetensors"}}
    )
    team.router.fit(recorded(team)).save(demo / "router.safetensors")
    mine = write_scripted(tmp_path / "team.yaml", recipes_in(ROOT / "docs" / "quickstart.md")[0])
    write_table(tmp_path / "outcomes" / "zeroeval", recorded(mine), mine.pool, asked=question_and_options)
    return tmp_path


def is_light(words: Sequence[str]) -> bool:
    """Whether a command line can be run here: it is complete, holds no placeholder and brings no model."""
    command, _, rest = resolved(words)
    if any(tuple(words[: len(heavy)]) == heavy for heavy in HEAVY):
        return False
    if any(word.startswith(MODELS) or PLACEHOLDER.search(word) for word in words):
        return False
    return bool(rest) or not (isinstance(command, click.Group) or any(p.required for p in command.params))


@guides_with("bash")
def test_every_light_command_line_runs(path, desk, capsys):
    for words in filter(is_light, commands(path)):
        assert run(words) == 0, f"coterie {shlex.join(words)}: {capsys.readouterr()}"
        assert capsys.readouterr().out.strip(), words


@guides_with("yaml")
def test_every_recipe_loads(path, desk):
    for number, table in enumerate(recipes_in(path)):
        team = write_scripted(desk / f"recipe-{number}.yaml", table)
        assert set(team.pool) == {agent["name"] for agent in table["agents"]}
        assert team.config["router"]["use"] == scripted(table)["router"]["use"]


@guides_with("python")
def test_every_program_runs(path, desk, capsys):
    for block in (block for block in blocks(path) if block.language == "python"):
        exec(compile(block.text, named(path), "exec"), {"__name__": "__main__"})
        assert ("print(" in block.text) <= bool(capsys.readouterr().out.strip())


# --- the quickstart, step by step ---------------------------------------------------------------------


def familiarities(questions: str) -> dict[str, float]:
    """Mean familiarity of each agent of `team.yaml`, as it is now on disk, with the test items of one sort."""
    team = Team.load("team.yaml")
    queries = [q for q in load_task("test.jsonl", contracts=team.contracts).queries if q.text.startswith(questions)]
    routings = [team.router.route(State(query, team.pool)) for query in queries]
    return {name: float(np.mean([r.score(name) for r in routings])) for name in team.pool}


def test_the_quickstart_leads_from_a_recipe_without_weights_to_a_report(desk, capsys):
    """Its own command lines, in its order: check the data, ask everybody, fit, compare, report."""
    steps = [w for w in commands(ROOT / "docs" / "quickstart.md") if len(w) > 2 and "--table" not in w]
    check, train, compare, report = (
        next(words for words in steps if words[0] == verb) for verb in ("data", "train", "eval", "report")
    )
    assert steps.index(check) < steps.index(train) < steps.index(compare) < steps.index(report)
    assert {"-r", "--task", "--out"} <= set(train)
    assert not (desk / "router.safetensors").exists()
    assert Team.load("team.yaml").config["router"]["weights"] == "router.safetensors"

    assert run(check) == 0
    assert capsys.readouterr().out.count("no problem") == 2
    assert run(train) == 0, capsys.readouterr().err
    assert "fitted on 24 queries" in capsys.readouterr().out
    adds, doubles = familiarities("Add"), familiarities("Double")
    assert adds["small"] > adds["tuned"]
    assert doubles["tuned"] > doubles["small"]

    assert run([*compare, "--json"]) == 0, capsys.readouterr().err
    first = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in first["rows"]}
    assert set(rows) == {"my team", "familiarity vote"}
    assert first["n"] == 24
    assert rows["my team"]["accuracy"] == 1.0
    assert run([*compare, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == first["rows"], "the same command goes on"

    assert run(report) == 0
    page = (desk / report[report.index("--out") + 1]).read_text(encoding="utf-8")
    assert "my team" in page
    assert not re.search(r"""(?:src|href)=["']https?:""", page)


def test_recorded_outcomes_fit_and_are_replayed_as_the_quickstart_says(desk, capsys):
    """The team's agents are the table's; FOLDER and NAME stand for what a user has."""
    [replay] = [w for w in commands(ROOT / "docs" / "quickstart.md") if any("replay:FOLDER" in word for word in w)]
    folder = "outcomes/zeroeval"
    agents = [{"name": name, "model": f"replay:{folder}#{name}"} for name in Team.load("team.yaml").pool]
    router = {"use": "familiarity", "encoder": "hashed", "weights": "router.safetensors"}
    recipe = {"agents": agents, "router": router, "strategy": {"use": "single"}}
    (desk / "team.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert run(["train", "-r", "team.yaml", "--table", folder]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run([*(word.replace("FOLDER", folder) for word in replay), "--json"]) == 0, capsys.readouterr().err
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert (row["accuracy"], row["errors"]) == (1.0, 0)
