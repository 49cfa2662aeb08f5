"""A whole study over planted experts: the fitted router finds them, and no baseline sees the test answers."""

from dataclasses import replace

import pytest

from coterie.config import build
from coterie.errors import BackendError, DataError
from coterie.evaluation.floors import constant_team, echo_team, written
from coterie.evaluation.metrics import rows
from coterie.evaluation.study import BEST, collect, compare
from coterie.storage.cache import Cache
from coterie.strategies.vote import Vote
from coterie.tasks.extract import CONTRACTS
from coterie.tasks.task import Task
from coterie.types import Completion, Message, Query


def queries(first, n):
    made = []
    for i in range(first, first + n):
        kind = ("add", "double")[i % 2]
        text = f"Please add {i} and 3" if kind == "add" else f"Please double {i}"
        gold = i + 3 if kind == "add" else 2 * i
        made.append(
            Query(
                id=f"{kind}-{i}",
                messages=(Message(role="user", content=text),),
                task="math",
                contract="answer",
                reference={"answer": str(gold)},
                metadata={"domain": kind},
            )
        )
    return tuple(made)


def expert(agent, messages, seed):
    """`adder` adds, `doubler` doubles, each is wrong elsewhere."""
    words = messages[-1].content.split()
    adds = words[1] == "add"
    right = int(words[2]) + 3 if adds else 2 * int(words[2])
    knows = adds == (agent.name == "adder")
    return Completion(text=str(right if knows else right + 1 + seed % 5), prompt_tokens=8, completion_tokens=2)


def team_of(scripted_team, tmp_path):
    router = build("router", {"use": "familiarity", "encoder": {"use": "hashed"}})
    cache = Cache(tmp_path / "calls.sqlite")
    return scripted_team(
        {"adder": expert, "doubler": expert}, router=router, strategy=Vote(threshold=0.7), cache=cache, name="ours"
    )


async def test_the_fitted_router_beats_the_best_single_agent(scripted_team, tmp_path):
    team = team_of(scripted_team, tmp_path)
    train, test = Task(name="train", queries=queries(0, 60)), Task(name="test", queries=queries(100, 40))
    study = await compare(team, train, test, tmp_path / "study", lambda progress: None)
    found = {row.name: row for row in rows(study.traces, study.baseline)}
    assert found["ours"].accuracy > 0.9
    assert found["oracle"].accuracy == 1.0
    assert found[BEST].accuracy < 0.8
    assert found["best by domain"].accuracy == 1.0
    assert found["best constant"].tokens == 0
    assert len(found) >= 10
    assert (tmp_path / "study" / "router.safetensors").exists()
    again = await compare(team, train, test, tmp_path / "study", lambda progress: None)
    fixed = {name: [replace(t, seconds=0) for t in traces] for name, traces in study.traces.items()}
    assert {n: [replace(t, seconds=0) for t in traces] for n, traces in again.traces.items()} == fixed


async def test_outcomes_are_collected_from_every_agent(scripted_team, tmp_path):
    team = team_of(scripted_team, tmp_path)
    outcomes = await collect(team, Task(name="t", queries=queries(0, 10)), tmp_path / "c", lambda progress: None)
    assert outcomes.agents == ("adder", "doubler")
    assert outcomes.means() == {"adder": 0.5, "doubler": 0.5}
    assert outcomes.revisions == {name: team.pool[name].revision for name in outcomes.agents}


async def test_floors_answer_from_the_training_golds_and_the_question():
    train, test = queries(0, 4), queries(10, 2)
    constant = constant_team((*train, train[0]), test)
    echo = echo_team(test)
    assert [(await constant.solve(q)).answer for q in test] == ["3", "2"]
    assert [(await echo.solve(q)).answer for q in test] == ["3", "11"]


def test_an_answer_is_written_as_each_contract_reads_it():
    for name in ("boxed", "json", "answer", "text"):
        query = replace(queries(0, 1)[0], contract=name)
        assert CONTRACTS[name].extract(written(query, "42")) == "42"
    letter = replace(queries(0, 1)[0], contract="letter", task="choice")
    assert CONTRACTS["letter"].extract(written(letter, "B")) == "B"


async def test_an_agent_that_answers_nothing_is_named_with_the_reason(scripted_team, tmp_path):
    def dead(agent, messages, seed):
        return BackendError("no connection to its server")

    team = scripted_team({"ada": "4", "bob": dead})
    with pytest.raises(DataError, match=r"'bob' answered nothing \(no connection to its server\); mend it"):
        await collect(team, Task(name="sums", queries=queries(0, 6)), tmp_path / "run", lambda step: None)
