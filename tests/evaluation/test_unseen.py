"""What a test asks never enters training: in a study, in outcomes that were recorded, and on the command line."""

import json
from dataclasses import replace

import numpy as np
import pytest
from test_study import queries, team_of

from coterie.cli.main import run
from coterie.errors import DataError
from coterie.evaluation.study import compare, unseen, unseen_outcomes
from coterie.outcomes import Outcomes
from coterie.storage.runs import Run
from coterie.tasks.task import Task


def shouted(query):
    """The same question under another id, in capitals and for another contract."""
    message = replace(query.messages[0], content=query.messages[0].content.upper() + "!")
    return replace(query, id=f"again-{query.id}", messages=(message,), contract="raw")


async def test_a_study_trains_on_nothing_that_its_test_asks(scripted_team, tmp_path):
    test = queries(100, 10)
    train = (*queries(0, 20), *map(shouted, test[:4]))
    steps = []
    folder = tmp_path / "study"
    await compare(
        team_of(scripted_team, tmp_path),
        Task(name="a", queries=train),
        Task(name="b", queries=test),
        folder,
        steps.append,
    )
    asked = {trace.query.id for rows in Run.load(folder / "train").traces().values() for trace in rows}
    assert asked == {query.id for query in queries(0, 20)}
    (told,) = [step for step in steps if "left out of training" in step.phase]
    assert (told.done, told.total) == (4, 24)


def test_a_training_task_that_is_all_test_is_an_error():
    test = queries(0, 3)
    with pytest.raises(DataError, match="a: every question is in the test task as well"):
        unseen(Task(name="a", queries=tuple(map(shouted, test))), test)
    task, left_out = unseen(Task(name="a", queries=queries(5, 2)), test)
    assert (len(task.queries), left_out) == (2, 0)


def test_recorded_outcomes_lose_the_rows_of_the_test():
    asked = queries(0, 4)
    table = np.arange(8.0).reshape(4, 2) / 8
    outcomes = Outcomes(
        queries=asked, agents=("a", "b"), scores=table, tokens=table, costs=table, revisions={"a": "1", "b": "2"}
    )
    kept, left_out = unseen_outcomes(outcomes, [shouted(asked[1])])
    assert left_out == 1
    assert [query.id for query in kept.queries] == [asked[i].id for i in (0, 2, 3)]
    assert kept.scores.tolist() == table[[0, 2, 3]].tolist()
    with pytest.raises(DataError, match="every recorded question"):
        unseen_outcomes(outcomes, asked)


RECIPE = """
name: toy
agents: [{name: a, model: "scripted:a"}, {name: b, model: "scripted:b"}]
router: {use: knn, encoder: {use: hashed}}
strategy: single
backends: {scripted: {rules: [{reply: "Answer: 4"}]}}
contracts: {math: text}
"""


def test_train_leaves_out_what_the_test_asks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(RECIPE)
    for name, first in (("train", 1), ("test", 4)):
        rows = [{"question": f"{n} + {n}?", "answer": 2 * n} for n in range(first, first + 6)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["train", "-r", "toy.yaml", "--task", "train.jsonl", "--test", "test.jsonl", "--no-cache", "--json"]
    assert run(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["queries"], found["left_out"]) == (3, 3)
    assert run([*command[:5], "--test", "train.jsonl", "--no-cache"]) == 2
    assert "every question is in the test task as well" in capsys.readouterr().err
