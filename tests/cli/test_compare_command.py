"""`coterie compare` and `coterie eval --samples` over real run folders; agents are scripted."""

import json
import re

import pytest

from coterie.cli.main import run

RECIPE = """
name: {name}
agents:
  - {{name: a, model: "scripted:a", price: {{prompt: 1.0, completion: 1.0}}}}
router: uniform
strategy: {{use: vote, threshold: 2.0}}
backends: {{scripted: {{rules: [{{contains: "{asked}", reply: "Answer: {reply}"}}, {{reply: "Answer: 0"}}]}}}}
contracts: {{math: text}}
"""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """Two recipes: `four` is right on one query, `none` on no one; runs of each, and of both together."""
    monkeypatch.chdir(tmp_path)
    for name, reply in (("four", "4"), ("none", "5")):
        (tmp_path / f"{name}.yaml").write_text(RECIPE.format(name=name, asked="2 + 2", reply=reply))
    rows = [
        {"id": f"toy-{n}", "source": "toy", "task": "math", "question": f"{n} + {n}?", "answer": str(2 * n)}
        for n in range(1, 7)
    ]
    (tmp_path / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def out(capsys, *arguments, code=0):
    assert run(arguments) == code, capsys.readouterr()
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


def evaluate(capsys, recipe, folder, *options):
    return out(capsys, "eval", recipe, "--task", "toy.jsonl", "--out", folder, "--json", *options)


def compare(capsys, *arguments):
    return json.loads(out(capsys, "compare", *arguments, "--json"))


def test_two_runs_are_compared_on_the_queries_they_share(desk, capsys):
    evaluate(capsys, "four.yaml", "one")
    evaluate(capsys, "none.yaml", "two", "--limit", "4")
    found = compare(capsys, "two", "one", "--by", "domain")
    [row] = found["comparisons"]
    assert (found["baseline"], row["name"]) == ("none", "four")
    assert (row["n"], row["wins"], row["losses"], row["ties"]) == (4, 1, 0, 3)
    assert row["points"] == 25.0
    assert (row["test"], row["p_value"]) == ("mcnemar", 1.0)
    assert row["dropped"] == {"one_side": 2, "other_question": 0, "no_verdict": 0}
    assert row["domains"][0]["n"] == 4
    assert row["over_seeds"] is None
    words = out(capsys, "compare", "two", "one")
    assert "+25.0" in words
    assert "only one side has" in words
    assert compare(capsys, "two", "one", "--baseline", "four")["comparisons"][0]["points"] == -25.0


def test_the_page_holds_the_comparison_and_the_runs(desk, capsys):
    evaluate(capsys, "four.yaml", "one")
    evaluate(capsys, "none.yaml", "two")
    out(capsys, "compare", "one", "two", "--out", "page.html")
    text = (desk / "page.html").read_text(encoding="utf-8")
    assert "Differences from the baseline" in text
    assert [text.count(f'id="run-{i}"') for i in range(4)] == [1, 1, 1, 0]
    assert not re.search(r"""(?:src|href)=["']https?:""", text)


def test_seeds_are_put_together(desk, capsys):
    for seed in range(3):
        for name in ("four", "none"):
            evaluate(capsys, f"{name}.yaml", f"{name}-{seed}", "--set", f"seed={seed}")
    runs = [f"{name}-{seed}" for name in ("none", "four") for seed in range(3)]
    found = compare(capsys, *runs)
    assert [recipe["replicates"] for recipe in found["recipes"]] == [["0", "1", "2"]] * 2
    [row] = found["comparisons"]
    assert row["over_seeds"]["test"] == "paired t"
    assert row["over_seeds"]["means"] == pytest.approx([1 / 6] * 3)
    assert row["over_seeds"]["p_value"] is None
    assert "no variation" in out(capsys, "compare", *runs)


def test_one_name_with_two_configurations_is_two_rows(desk, capsys):
    evaluate(capsys, "four.yaml", "old")
    evaluate(capsys, "four.yaml", "new", "--set", "agents.0.instruction=Be brief.")
    found = compare(capsys, "old", "new")
    assert found["baseline"] == "four @ old"
    assert [row["name"] for row in found["comparisons"]] == ["four @ new"]
    assert "choose one: four @ old; four @ new" in out(
        capsys, "compare", "old", "new", "--baseline", "four", code=2
    )


def test_samples_are_kept_apart_resumed_and_sealed(desk, capsys):
    """R22: every sample's decision is sealed before grading."""
    first = json.loads(evaluate(capsys, "four.yaml", "run", "--samples", "3"))
    [row] = first["rows"]
    assert (first["n"], row["n"], row["queries"], row["samples"]) == (6, 18, 6, 3)
    assert row["avg_at_k"] == row["accuracy"] == pytest.approx(1 / 6)
    assert row["pass_at_k"] == pytest.approx(1 / 6)
    traces = desk / "run" / "traces.jsonl"
    lines = traces.read_text().splitlines(keepends=True)
    kept = {(json.loads(line)["trace"]["query"]["id"], json.loads(line)["trace"]["sample"]) for line in lines}
    assert len(kept) == len(lines) == 18
    sealed = (desk / "run" / "decisions.jsonl").read_text().splitlines()
    assert len({(d["query"], d["sample"]) for d in map(json.loads, sealed)}) == 18
    traces.write_text("".join(lines[:7]))
    again = json.loads(evaluate(capsys, "four.yaml", "run", "--samples", "3"))
    assert again["rows"][0]["accuracy"] == row["accuracy"]
    assert len(traces.read_text().splitlines()) == 18
    assert "samples" in out(
        capsys, "eval", "four.yaml", "--task", "toy.jsonl", "--out", "run", "--samples", "2", code=2
    )
    assert "samples" in out(capsys, "eval", "four.yaml", "--task", "toy.jsonl", "--out", "run", code=2)


def test_pass_at_k_of_two_runs(desk, capsys):
    evaluate(capsys, "four.yaml", "one", "--samples", "2")
    evaluate(capsys, "none.yaml", "two", "--samples", "2")
    [row] = compare(capsys, "two", "one", "--k", "1,2")["comparisons"]
    assert [(p["k"], p["n"]) for p in row["pass_at_k"]] == [(1, 6), (2, 6)]
    assert [p["value"] for p in row["pass_at_k"]] == pytest.approx([1 / 6, 1 / 6])
    assert "pass@k" in out(capsys, "compare", "two", "one", "--k", "2")
    assert "avg@k" in out(capsys, "eval", "four.yaml", "--task", "toy.jsonl", "--out", "one", "--samples", "2")


def test_runs_of_other_tasks_share_nothing(desk, capsys):
    evaluate(capsys, "four.yaml", "one")
    text = (desk / "toy.jsonl").read_text()
    (desk / "toy.jsonl").write_text(text.replace("toy-", "other-"))
    evaluate(capsys, "none.yaml", "two")
    assert "shares a query" in out(capsys, "compare", "one", "two", code=2)
    (desk / "toy.jsonl").write_text(text.replace("? ", " again? ").replace("?", "? Well"))
    evaluate(capsys, "none.yaml", "three")
    assert "the same ids stand for other questions" in out(capsys, "compare", "one", "three", code=2)


def test_mistakes_are_one_line(desk, capsys):
    evaluate(capsys, "four.yaml", "one")
    for arguments in (
        ("one",),
        ("one", "one"),
        ("one", "nowhere"),
        ("one", "four.yaml"),
        ("one", "--k", "0"),
        ("one", "--k", "two"),
        ("one", "--by", "moon"),
        ("one", "--baseline", "zzz"),
        (),
    ):
        error = out(capsys, "compare", *arguments, code=2)
        assert len(error.strip().splitlines()) == 1, error
        assert "Traceback" not in error


def test_a_run_that_was_not_graded_has_nothing_to_compare(desk, capsys):
    evaluate(capsys, "four.yaml", "one")
    evaluate(capsys, "none.yaml", "two")
    (desk / "two" / "scores.jsonl").unlink()
    assert "was the run finished?" in out(capsys, "compare", "one", "two", code=2)
