"""`coterie data`: what each command prints, writes and refuses; mistakes are one line and exit code 2."""

import json

import click
import pytest

from coterie.cli.data import data, recorded
from coterie.cli.main import run
from coterie.storage.tablefile import read_table
from coterie.tasks import download
from coterie.tasks.benchmarks import BENCHMARKS
from coterie.tasks.rows import read_rows
from coterie.types import Price

HEAD = "a" * 40
RECIPE = """
name: toy
agents:
  - {name: a, model: "scripted:a", price: {prompt: 1.0, completion: 1.0}}
  - {name: b, model: "scripted:b", price: {prompt: 1.0, completion: 1.0}}
router: uniform
strategy: {use: vote, threshold: 2.0}
backends: {scripted: {rules: [{reply: "Answer: 4"}]}}
contracts: {math: text}
"""
ROUTED = {
    "task_name": "gsm8k", "query": "2 + 2?", "metric": "GSM8K", "gt": "4", "model_name": "small", "response": "4",
    "performance": 1.0, "token_num": 12, "response_time": 1.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def out(capsys, *arguments, code=0):
    assert run([str(argument) for argument in arguments]) == code, capsys.readouterr()
    return capsys.readouterr().out


def refused(capsys, *arguments):
    """The one line that the command ends with."""
    assert run([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("coterie: ")
    assert error.count("\n") == 1
    return error


# --- tasks --------------------------------------------------------------------------------------------


def test_list_names_tasks_and_says_where_benchmarks_lie(capsys):
    assert "hub:gsm8k" in json.loads(out(capsys, "data", "list", "--json"))["tasks"]
    found = {row["name"]: row for row in json.loads(out(capsys, "data", "list", "--hub", "--json"))["benchmarks"]}
    assert len(found) == len(BENCHMARKS)
    assert found["hub:newsqa"]["revisions"] == {"lucadiliello/newsqa": None}
    assert len(found["hub:bbh"]["parts"]) == 27
    words = out(capsys, "data", "list", "--hub")
    assert "hub:gsm8k: math, test/train, openai/gsm8k@740312add8; MIT" in words
    assert "not pinned yet" in words
    assert "hub:hellaswag: choice, test/train (test is the publisher's validation), Rowan" in words
    assert "test/train (parts of the publisher's train)" in words
    assert found["hub:hellaswag"]["published"] == {"test": "validation", "train": "train"}


def test_check_names_every_problem_of_tables_and_lines(capsys, desk):
    (desk / "mine.csv").write_text("question,gold,note\n1?,1,x\n1?,1,y\n")
    found = out(capsys, "data", "check", "mine.csv", "--column", "answer=gold", "--ignore", "note", code=2)
    assert "mine.csv:3: mine-" in found
    assert "the question is already in mine.csv:2" in found
    report = json.loads(out(capsys, "data", "check", "mine.csv", "--json", code=2))["files"][0]
    assert len(report["problems"]) == 2
    assert "--column answer=gold" in report["problems"][0]["message"]
    assert "expected OURS=THEIRS" in refused(capsys, "data", "check", "mine.csv", "--column", "gold")
    assert "cannot be read" in refused(capsys, "data", "check", "none.jsonl")


def test_check_loads_a_benchmark_and_says_what_is_left_out(capsys, monkeypatch):
    rows = [{"question": "1 + 1?", "answer": "#### 2"}, {"question": "?", "answer": "2"}]
    monkeypatch.setattr(download, "fetch", lambda part, split, revision, first: iter(rows))
    words = out(capsys, "data", "check", "hub:gsm8k")
    assert words.splitlines() == ["1 files, 1 items (math 1): no problem", "left out: 1 × no #### in the answer"]


def test_convert_writes_whole_items(capsys, desk):
    (desk / "mine.csv").write_text("question,answer\nWho?,Ada\n")
    assert "wrote 1 items to out.jsonl" in out(
        capsys, "data", "convert", "mine.csv", "--kind", "qa", "-o", "out.jsonl"
    )
    (item,) = read_rows(desk / "out.jsonl")
    assert (item.task, item.answer, item.source) == ("qa", "Ada", "mine")
    assert "the kind of task is not clear" in refused(capsys, "data", "convert", "mine.csv", "-o", "other.jsonl")
    assert not (desk / "other.jsonl").exists()


def test_verify_takes_an_item_of_a_table(capsys, desk):
    (desk / "mine.csv").write_text("question,answer\n1?,1\n")
    assert out(capsys, "verify", "--item", "mine.csv", "--text", "\\boxed{1}").startswith("pass")


def test_pin_writes_the_lock_file_and_keeps_what_it_got(capsys, monkeypatch, desk):
    def resolve(repo):
        if repo == "allenai/RLVR-IFeval":
            raise download.DataError(f"{repo} is not on the hub")
        return HEAD

    monkeypatch.setattr(download, "resolve", resolve)
    assert f"openai/gsm8k: {HEAD}" in out(capsys, "data", "pin", "gsm8k", "hub:newsqa")
    assert run(["data", "pin", "rlvr_ifeval", "trivia_qa", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert list(found["pinned"]) == ["mandarjoshi/trivia_qa"]
    assert "is not on the hub" in found["failed"]["allenai/RLVR-IFeval"]
    locked = json.loads((desk / "coterie-data.lock").read_text())["revisions"]
    assert set(locked) == {"openai/gsm8k", "lucadiliello/newsqa", "mandarjoshi/trivia_qa"}
    assert f"hub:gsm8k: math, test/train, openai/gsm8k@{HEAD[:10]}" in out(capsys, "data", "list", "--hub")
    out(capsys, "data", "pin", "gsm8k", "--commit", "b" * 40)
    assert json.loads((desk / "coterie-data.lock").read_text())["revisions"]["openai/gsm8k"] == "b" * 40
    assert "did you mean 'gsm8k'" in refused(capsys, "data", "pin", "gsm")
    assert "--commit needs" in refused(capsys, "data", "pin", "agieval", "--commit", "b" * 40)


def test_without_network_pinning_ends_at_once(capsys, monkeypatch):
    asked = []

    def resolve(repo):
        asked.append(repo)
        raise download.DataError(f"{repo}: {download.NO_NETWORK} and it is pinned nowhere")

    monkeypatch.setattr(download, "resolve", resolve)
    assert "the hub cannot be reached" in refused(capsys, "data", "pin")
    assert len(asked) == 1


# --- outcomes -----------------------------------------------------------------------------------------


def test_import_counts_what_is_missing_and_writes_the_table(capsys, desk):
    """R23: an outage is left out and counted."""
    failed = {"response": "ERROR: timeout", "response_time": 0, "performance": 0.0, "query": "3 + 3?"}
    lines(desk / "rows.jsonl", ROUTED, ROUTED | {"model_name": "large"}, ROUTED | failed)
    (desk / "prices.yaml").write_text(
        "small: {prompt: 0, completion: 0.5}\nlarge: {input_price: 2, output_price: 4}\n"
    )
    command = ("data", "import", "llmrouter", "rows.jsonl", "--out", "table", "--prices", "prices.yaml")
    words = out(capsys, *command)
    assert "2 queries, 2 agents, 2 outcomes from 3 rows" in words
    assert "missing: small: 1 × failed call" in words
    table = read_table(desk / "table")
    assert [(model.price.prompt, model.price.completion) for model in table.models] == [(0, 0.5), (2, 4)]
    assert "table holds a table" in refused(capsys, *command)
    found = json.loads(out(capsys, "data", "import", "llmrouter", "rows.jsonl", "--out", "other", "--json"))
    assert found["missing"] == [{"agent": "small", "reason": "failed call", "count": 1}]
    assert (found["queries"], found["agents"], found["outcomes"], found["rows"]) == (2, ["small", "large"], 2, 3)


def test_an_agent_without_most_of_its_outcomes_ends_the_import(capsys, desk):
    """R24: a grader that fails on everything is no evidence against the agent."""
    broken = [ROUTED | {"query": f"{n}?", "performance": None} for n in range(3)]
    lines(desk / "rows.jsonl", ROUTED, *broken)
    command = ("data", "import", "llmrouter", "rows.jsonl", "--out", "table")
    assert "agent 'small' lacks 3 of 4 outcomes (3 × no score): a broken grader or an outage?" in refused(
        capsys, *command
    )
    assert not (desk / "table").exists()
    assert "1 outcomes" in out(capsys, *command, "--allow-missing")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("excel", "rows.jsonl"), "'excel' is not one of"),
        (("llmrouter", "none.jsonl"), "none.jsonl: cannot be read"),
        (("llmrouter", "rows.jsonl", "--prices", "prices.yaml"), "prices: no row is of agent 'nobody'"),
        (("llmrouter", "rows.jsonl", "--prices", "bad.yaml"), "bad.yaml: small"),
        (("log", "rows.jsonl"), "rows.jsonl:1: unknown column 'task_name'"),
    ],
)
def test_a_wrong_import_is_one_line_and_writes_nothing(capsys, desk, arguments, said):
    lines(desk / "rows.jsonl", ROUTED)
    (desk / "prices.yaml").write_text("nobody: {prompt: 1, completion: 1}")
    (desk / "bad.yaml").write_text("small: {prompt: 1, complete: 1}")
    assert said in refused(capsys, "data", "import", *arguments, "--out", "table")
    assert not (desk / "table").exists()


def test_an_own_log_trains_a_router(capsys, desk):
    """A stranger's path: a log of scores becomes a table, and a team of its agents is fitted on it."""
    rows = ["query,agent,score,cost"]
    rows += [
        f"add {n} and {n},a,1,0.1\nadd {n} and {n},b,0,0.1\ndouble {n},a,0,0.1\ndouble {n},b,1,0.1"
        for n in range(20)
    ]
    (desk / "log.csv").write_text("\n".join(rows) + "\n")
    assert "40 queries, 2 agents, 80 outcomes" in out(capsys, "data", "import", "log", "log.csv", "--out", "mine")
    (desk / "team.yaml").write_text(
        "agents: [{name: a, model: 'replay:mine#a'}, {name: b, model: 'replay:mine#b'}]\n"
        "router: {use: knn, encoder: {use: hashed}}\nstrategy: single\n"
    )
    found = json.loads(
        out(capsys, "train", "-r", "team.yaml", "--table", "mine", "--out", "r.safetensors", "--json")
    )
    assert found["queries"] == 40
    assert found["agents"] == {"a": 0.5, "b": 0.5}


def test_a_run_becomes_a_table_and_a_prediction_file(capsys, desk):
    (desk / "toy.yaml").write_text(RECIPE)
    lines(
        desk / "toy.jsonl", *({"question": f"{n} + {n}?", "answer": 2 * n, "id": f"toy_{n}"} for n in range(1, 5))
    )
    out(capsys, "eval", "toy.yaml", "--task", "toy.jsonl", "--out", "run", "--no-cache", "--json")
    words = out(capsys, "data", "outcomes", "run", "--out", "table")
    assert words.startswith("4 queries, 2 agents, 8 outcomes; wrote table")
    table = read_table(desk / "table")
    assert sorted(table.agents) == ["a", "b"]
    assert table.scores.sum() == 2
    assert (table.completion_tokens > 0).all()
    assert [(model.base_model, model.price.prompt, model.price_source) for model in table.models] == [
        ("scripted:a", 1.0, "recipe"),
        ("scripted:b", 1.0, "recipe"),
    ]
    assert [item.question for item in table.items] == [f"{n} + {n}?" for n in range(1, 5)]
    assert "holds a table" in refused(capsys, "data", "outcomes", "run", "--out", "table")
    assert "has no recipe 'tooy'; did you mean 'toy'" in refused(
        capsys, "data", "outcomes", "run", "-o", "t", "--recipe", "tooy"
    )
    out(capsys, "data", "export", "routerarena", "run", "--out", "p.json")
    rows = json.loads((desk / "p.json").read_text())
    assert [row["global index"] for row in rows] == ["toy_1", "toy_2", "toy_3", "toy_4"]
    assert [row["accuracy"] for row in rows] == [0.0, 1.0, 0.0, 0.0]
    found = json.loads(
        out(capsys, "data", "export", "routerarena", "table", "-o", "q.json", "--agent", "a", "--json")
    )
    assert found["entries"] == 8
    assert "say with --agent" in refused(capsys, "data", "export", "routerarena", "table", "-o", "q.json")
    assert "is no run folder" in refused(capsys, "data", "export", "routerarena", "nothing", "-o", "q.json")
    imported = out(capsys, "data", "import", "routerarena", "q.json", "--out", "again")
    assert "4 queries, 2 agents, 8 outcomes" in imported


BROKEN = RECIPE.replace(
    'rules: [{reply: "Answer: 4"}]',
    "rules: [{agent: a, contains: '1 + 1', reply: 'Answer: 4'}, {agent: b, reply: 'Answer: 4'}]",
)


def test_an_agent_whose_calls_failed_ends_the_export(capsys, desk):
    """R24: failed calls leave no turn, and are missing all the same."""
    (desk / "toy.yaml").write_text(BROKEN)
    lines(desk / "toy.jsonl", *({"question": f"{n} + {n}?", "answer": 2 * n, "id": f"toy_{n}"} for n in (1, 2, 3)))
    run(["eval", "toy.yaml", "--task", "toy.jsonl", "--out", "run", "--no-cache", "--json"])
    capsys.readouterr()
    command = ("data", "outcomes", "run", "--out")
    assert "agent 'a' lacks 2 of 3 outcomes (2 × failed call): a broken grader" in refused(
        capsys, *command, "table"
    )
    assert not (desk / "table").exists()
    words = out(capsys, *command, "table", "--allow-missing")
    assert words.splitlines() == [
        "3 queries, 2 agents, 4 outcomes; wrote table",
        "missing: a: 2 × failed call",
    ]
    found = json.loads(out(capsys, *command, "again", "--allow-missing", "--json"))
    assert found["missing"] == [{"agent": "a", "reason": "failed call", "count": 2}]


def test_an_agent_that_two_recipes_price_apart_has_no_price():
    def priced(*prices):
        agents = [{"name": "a", "model": "scripted:a", "price": {"prompt": p, "completion": p}} for p in prices]
        return {"config": {"agents": agents}}

    config = {"recipes": {"x": priced(1.0), "y": priced(2.0)}}
    assert recorded(config, "y")["a"].price == Price(prompt=2.0, completion=2.0)
    assert recorded(config, None)["a"].price == Price()


def test_every_command_and_option_explains_itself():
    assert set(data.commands) == {"list", "check", "convert", "pin", "import", "outcomes", "export"}
    for name, command in data.commands.items():
        assert command.help, name
        assert {"--json"} <= {text for parameter in command.params for text in parameter.opts}
        assert not [p.name for p in command.params if isinstance(p, click.Option) and not p.help]


# --- what is written where ----------------------------------------------------------------------------


def test_convert_never_overwrites_what_it_reads(capsys, desk):
    lines(desk / "mine.jsonl", {"question": "1 + 1?", "answer": 2})
    (desk / "link.jsonl").symlink_to("mine.jsonl")
    before = (desk / "mine.jsonl").read_bytes()
    for name in ("mine.jsonl", "./mine.jsonl", "link.jsonl"):
        assert "is the file that is read" in refused(capsys, "data", "convert", "mine.jsonl", "--out", name)
    for name in ("mine.csv", "mine", "mine.json"):
        assert "ends in .jsonl" in refused(capsys, "data", "convert", "mine.jsonl", "--out", name)
    assert (desk / "mine.jsonl").read_bytes() == before
    assert sorted(path.name for path in desk.iterdir()) == ["link.jsonl", "mine.jsonl"]


def test_a_file_without_a_row_is_said_so(capsys, desk):
    (desk / "mine.csv").write_text("question,answer\n", encoding="utf-8")
    (desk / "log.csv").write_text("query,agent,score\n", encoding="utf-8")
    assert "mine.csv: holds no row" in refused(capsys, "data", "convert", "mine.csv", "-o", "out.jsonl")
    assert "log.csv: holds no row" in refused(capsys, "data", "import", "log", "log.csv", "-o", "table")
    assert "0 items" in out(capsys, "data", "check", "mine.csv")
    assert sorted(path.name for path in desk.iterdir()) == ["log.csv", "mine.csv"]


def test_an_imported_question_with_a_carriage_return_is_read_again(capsys, desk):
    (desk / "log.csv").write_bytes(b'query,agent,score\n"q1\rz",a,1\n"q2",a,1\n')
    out(capsys, "data", "import", "log", "log.csv", "-o", "table")
    assert [item.question for item in read_table("table").items] == ["q1\rz", "q2"]


@pytest.mark.parametrize("command", [("convert", "-o", "out.jsonl"), ("import", "log", "-o", "table")])
def test_half_a_character_is_refused_before_anything_is_written(capsys, desk, command):
    lines(desk / "mine.jsonl", {"question": "\ud800", "query": "\ud800", "agent": "a", "score": 1})
    assert "mine.jsonl:1: " in refused(capsys, "data", *command, "mine.jsonl")
    assert [path.name for path in desk.iterdir()] == ["mine.jsonl"]


def test_a_name_that_no_disk_takes_is_one_line(capsys, desk):
    long = "x" * 300
    (desk / "log.csv").write_text("query,agent,score\nq,a,1\n", encoding="utf-8")
    lines(desk / "mine.jsonl", {"question": "1 + 1?", "answer": 2})
    assert "too long" in refused(capsys, "data", "import", "log", "log.csv", "-o", long)
    assert "too long" in refused(capsys, "data", "convert", "mine.jsonl", "-o", f"{long}.jsonl")
    out(capsys, "data", "import", "log", "log.csv", "-o", "table")
    assert "too long" in refused(capsys, "data", "export", "routerarena", "table", "-o", f"{long}.json")
    for command in (("check",), ("convert", "-o", "out.jsonl"), ("import", "log", "-o", "other")):
        refused(capsys, "data", *command, f"{long}.jsonl")
    for command in ("outcomes", "export"):
        form = ("routerarena",) if command == "export" else ()
        refused(capsys, "data", command, *form, long, "-o", "new")
