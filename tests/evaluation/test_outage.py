"""An outage leaves queries without an answer: they are counted, asked again, and the seal tells both times."""

import hashlib

import pytest

from coterie.errors import ConfigError, Unreachable
from coterie.evaluation.evaluate import Entry, evaluate, run_config
from coterie.evaluation.outage import forget, outage
from coterie.storage.runs import Run
from coterie.tasks.task import Task
from coterie.types import Message, Query

QUERIES = tuple(
    Query(
        id=f"q{i}",
        messages=(Message(role="user", content=f"{i} + {i}?"),),
        task="math",
        contract="answer",
        reference={"answer": str(2 * i)},
    )
    for i in range(6)
)
TASK = Task(name="double", queries=QUERIES)


def flaky(down):
    def answer(agent, messages, seed):
        number = int(messages[-1].content.split()[0])
        if number in down:
            raise Unreachable("refused")
        return str(2 * number)

    return answer


async def solved(folder, entry, again=False):
    run = Run.open(folder, run_config(TASK, [entry], None))
    dropped = forget(run) if again else 0
    return await evaluate([entry], run), dropped


def entry_of(scripted_team, down):
    return Entry(team=scripted_team({"a": flaky(down)}, name="one"), queries=QUERIES)


async def test_an_outage_is_counted_and_asked_again_under_a_seal_that_tells_it(scripted_team, tmp_path):
    traces, _ = await solved(tmp_path, entry_of(scripted_team, {2, 4}))
    found = outage(traces)
    assert (found.failed, found.total, found.kinds) == (2, 6, (("Unreachable", 2),))
    assert found.words() == "2 of 6 queries failed (Unreachable 2)"
    first = (tmp_path / "decisions.sha256").read_text().split()[0]
    mended = entry_of(scripted_team, set())
    traces, dropped = await solved(tmp_path, mended, again=True)
    assert dropped == 2
    assert len(mended.team.backends.of(mended.team.pool["a"]).calls) == 2
    assert outage(traces).failed == 0
    assert all(trace.score.correct for trace in traces["one"])
    lines = [line.split("  ") for line in (tmp_path / "decisions.sha256").read_text().splitlines()]
    assert [name for _, name in lines] == ["decisions.jsonl", "decisions-1.jsonl"]
    assert lines[1][0] == first
    for digest, name in lines:
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    await solved(tmp_path, entry_of(scripted_team, set()))  # a plain resume keeps what the seal says
    assert len((tmp_path / "decisions.sha256").read_text().splitlines()) == 2


async def test_nothing_failed_leaves_the_seal_alone(scripted_team, tmp_path):
    await solved(tmp_path, entry_of(scripted_team, set()))
    before = (tmp_path / "decisions.sha256").read_bytes()
    _, dropped = await solved(tmp_path, entry_of(scripted_team, set()), again=True)
    assert dropped == 0
    assert (tmp_path / "decisions.sha256").read_bytes() == before
    assert not (tmp_path / "decisions-1.jsonl").exists()


async def test_sealed_decisions_that_were_changed_are_not_put_aside(scripted_team, tmp_path):
    entry = entry_of(scripted_team, {1})
    await solved(tmp_path, entry)
    with open(tmp_path / "decisions.jsonl", "a") as file:
        file.write("{}\n")
    with pytest.raises(ConfigError, match="changed after it was sealed"):
        forget(Run.open(tmp_path, run_config(TASK, [entry], None)))
    assert not (tmp_path / "decisions-1.jsonl").exists()
