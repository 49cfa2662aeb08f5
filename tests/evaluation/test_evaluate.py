"""The evaluation loop: grade once, seal first, resume without asking again, keep errors apart."""

from dataclasses import replace

import pytest

from coterie.errors import BackendError, ConfigError
from coterie.evaluation.evaluate import Entry, Progress, evaluate, run_config
from coterie.evaluation.metrics import rows
from coterie.storage.runs import Run
from coterie.tasks.task import Task
from coterie.types import Message, Query


def queries(n=6):
    return tuple(
        Query(
            id=f"q{i}",
            messages=(Message(role="user", content=f"{i} + {i}?"),),
            task="math",
            contract="answer",
            reference={"answer": str(2 * i)},
            metadata={"domain": "even" if i % 2 == 0 else "odd"},
        )
        for i in range(n)
    )


def doubler(agent, messages, seed):
    number = int(messages[-1].content.split()[0])
    return str(2 * number if agent.name == "good" else 2 * number + 1)


TASK = Task(name="double", queries=queries())


async def run_over(folder, entries, watch=lambda progress: None):
    run = Run.open(folder, run_config(TASK, entries, None))
    return await evaluate(entries, run, concurrency=3, watch=watch)


async def test_a_finished_run_is_scored_in_the_order_of_the_queries(scripted_team, tmp_path):
    team = scripted_team({"good": doubler, "bad": doubler}, name="pair")
    seen: list[Progress] = []
    traces = await run_over(tmp_path / "run", [Entry(team=team, queries=TASK.queries)], seen.append)
    assert [t.query.id for t in traces["pair"]] == [q.id for q in TASK.queries]
    for trace in traces["pair"]:
        assert {t.agent: t.score.correct for t in trace.turns} == {"good": True, "bad": False}
    assert seen[0] == Progress(phase="pair", done=0, total=6)
    assert seen[-1].done == seen[-1].total
    assert (tmp_path / "run" / "decisions.sha256").exists()


async def test_resume_asks_only_what_is_missing(scripted_team, tmp_path):
    entry = Entry(team=scripted_team({"good": doubler}, name="one"), queries=TASK.queries)
    whole = await run_over(tmp_path / "run", [entry])
    file = tmp_path / "run" / "traces.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4]) + lines[4][:30])
    again = Entry(team=scripted_team({"good": doubler}, name="one"), queries=TASK.queries)
    resumed = await run_over(tmp_path / "run", [again])
    backend = again.team.backends.of(again.team.pool["good"])
    assert len(backend.calls) == 2
    assert [replace(t, seconds=0) for t in resumed["one"]] == [replace(t, seconds=0) for t in whole["one"]]


async def test_an_outage_is_an_error_and_not_a_wrong_answer(scripted_team, tmp_path):
    """R23, G18."""
    team = scripted_team({"good": BackendError("down")}, name="down")
    traces = await run_over(tmp_path / "run", [Entry(team=team, queries=TASK.queries)])
    [row] = rows(traces, None)
    assert row.errors == 6
    assert all(t.score.verdict == "error" for t in traces["down"])


async def test_a_text_is_graded_once_however_many_recipes_gave_it(scripted_team, tmp_path, monkeypatch):
    from coterie.tasks import catalog

    graded = []
    real = catalog.verify
    monkeypatch.setattr(catalog, "verify", lambda text, query: graded.append((query.id, text)) or real(text, query))
    one = scripted_team({"good": doubler}, name="one")
    entries = [Entry(team=t, queries=TASK.queries) for t in (one, replace(one, name="two"))]
    traces = await run_over(tmp_path / "run", entries)
    assert len(graded) == len(set(graded)) == 6
    assert all(t.score.correct for name in ("one", "two") for t in traces[name])


async def test_other_agents_or_prompts_are_another_run(scripted_team, tmp_path):
    entry = Entry(team=scripted_team({"good": doubler}, name="one"), queries=TASK.queries)
    await run_over(tmp_path / "run", [entry])
    other = tuple(replace(q, contract="boxed", messages=(Message(role="user", content="x"),)) for q in TASK.queries)
    with pytest.raises(ConfigError, match="another configuration"):
        await run_over(tmp_path / "run", [Entry(team=entry.team, queries=other)])
