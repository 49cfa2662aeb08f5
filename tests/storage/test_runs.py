"""Run folders: nothing finished is lost, nothing half written is read, nothing sealed changes."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from coterie.errors import ConfigError, DataError
from coterie.storage.runs import Run, text_key, write_atomically
from coterie.types import Completion, Failure, Message, Query, Routing, Score, Tokens, Trace, Turn

QUERY = Query(id="q1", messages=(Message(role="user", content="2+2?"),), task="math", reference={"answer": "4"})


def trace(text="4", **changes):
    completion = Completion(text=text, tokens=Tokens(prompt=(1, 2), completion=(3,), logprobs=(-0.5,)))
    turn = Turn(
        index=0, agent="a", role="solver", revision="r", messages=QUERY.messages, completion=completion, answer=text
    )
    routing = Routing(weights={"a": 1.0}, scores={"a": 0.4}, info={"distance": {"a": 0.3}})
    base = Trace(query=QUERY, revisions={"a": "r"}, turns=(turn,), routings=(routing,), final=0, seconds=1.5)
    return replace(base, **changes)


def test_a_trace_survives_the_disk(tmp_path):
    run = Run.open(tmp_path / "run", {"task": "t"})
    run.append("vote", trace("half \ud800 and ∑\u2028"))
    [found] = Run.load(tmp_path / "run").traces()["vote"]
    assert found == trace("half \ud800 and ∑\u2028")


def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path):
    """R17: a kill in the middle of a write costs that line only."""
    run = Run.open(tmp_path, {"task": "t"})
    run.append("vote", trace())
    with open(tmp_path / "traces.jsonl", "ab") as file:
        file.write(b'{"recipe": "vote", "trace": {"que')
    assert len(Run.load(tmp_path).traces()["vote"]) == 1
    again = Run.open(tmp_path, {"task": "t"})
    again.append("vote", trace(sample=1))
    assert len(again.traces()["vote"]) == 2


def test_damage_elsewhere_is_named(tmp_path):
    run = Run.open(tmp_path, {"task": "t"})
    (tmp_path / "traces.jsonl").write_text("not json\n")
    with pytest.raises(DataError, match=r"traces\.jsonl:1: is not JSON"):
        run.traces()
    (tmp_path / "traces.jsonl").write_text('{"recipe": "x", "trace": {}}\n')
    with pytest.raises(DataError, match=r"traces\.jsonl:1: is no trace"):
        run.traces()


def test_resuming_under_another_configuration_is_refused(tmp_path):
    Run.open(tmp_path, {"task": "t", "recipes": {"a": {"n": 1}}})
    Run.open(tmp_path, {"task": "t", "recipes": {"a": {"n": 1}}})
    with pytest.raises(ConfigError, match=r"differs: recipes\.a\.n, seed"):
        Run.open(tmp_path, {"task": "t", "recipes": {"a": {"n": 2}}, "seed": 1})
    with pytest.raises(ConfigError, match="is no run folder"):
        Run.load(tmp_path / "none")


def test_decisions_are_sealed_before_grading(tmp_path):
    """R22: what was decided cannot be altered once it has been sealed."""
    run = Run.open(tmp_path, {"task": "t"})
    digest = run.seal({"vote": [trace()]})
    assert (tmp_path / "decisions.sha256").read_text().startswith(digest)
    assert run.seal({"vote": [trace()]}) == digest
    row = json.loads((tmp_path / "decisions.jsonl").read_text())
    assert row["asked"] == ["a"]
    with pytest.raises(ConfigError, match="changed after its decisions were sealed"):
        run.seal({"vote": [trace("5")]})


def test_verdicts_hang_on_the_query_and_the_text(tmp_path):
    run = Run.open(tmp_path, {"task": "t"})
    run.grade(QUERY, "4", Score(verdict="pass", value=1.0, answer="4"))
    run.append("vote", trace())
    run.append("vote", trace("5", sample=1))
    graded, ungraded = Run.load(tmp_path).traces()["vote"]
    assert graded.score.correct is True
    assert graded.turns[0].score.correct is True
    assert ungraded.score is None
    other = replace(QUERY, reference={"answer": "5"})
    assert text_key(QUERY, "4") != text_key(other, "4")


def test_a_grading_error_is_tried_again_on_resume(tmp_path):
    run = Run.open(tmp_path, {"task": "t"})
    run.grade(QUERY, "4", Score(verdict="error", value=None, reason="sandbox"))
    assert Run.load(tmp_path).scores
    assert not Run.open(tmp_path, {"task": "t"}).scores


def test_failed_calls_are_an_error_and_a_spent_limit_is_wrong(tmp_path):
    run = Run.open(tmp_path, {"task": "t"})
    failure = Failure(agent="a", kind="Overloaded", message="busy")
    failed = run.scored(trace(turns=(), final=None, stopped="failed", failures=(failure,)))
    assert failed.score.verdict == "error"
    assert failed.score.value is None
    assert "a: Overloaded: busy" in failed.score.reason
    spent = run.scored(trace(turns=(), final=None, stopped="budget"))
    assert spent.score.verdict == "fail"


def test_rollouts_with_failed_calls_can_be_forgotten(tmp_path):
    """Training asks them again; whatever else was answered is kept as it was, and can be sealed again."""
    run = Run.open(tmp_path, {"task": "t"})
    failure = Failure(agent="b", kind="Unreachable", message="refused")
    for one in (trace("half \ud800"), trace(sample=1, failures=(failure,)), trace(sample=2, turns=(), final=None)):
        run.append("vote", one)
    run.seal(run.traces())
    assert run.forget_failures() == 1
    assert [found.sample for found in run.traces()["vote"]] == [0, 2]
    assert run.traces()["vote"][0].text == "half \ud800"
    run.append("vote", trace("5", sample=1))
    run.seal(run.traces())
    assert run.forget_failures() == 0
    assert (tmp_path / "decisions.sha256").is_file()


def test_what_is_no_regular_file_is_never_replaced(tmp_path):
    """A rename over a device would make it a file for everybody."""
    device = tmp_path / "device"
    os.mkfifo(device)
    with pytest.raises(ConfigError, match="is not a regular file"):
        write_atomically(device, "text")
    assert device.is_fifo()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("traces.jsonl", "5\n"),
        ("traces.jsonl", "[" * 100_000 + "\n"),
        ("traces.jsonl", '{"trace": {}}\n'),
        ("scores.jsonl", "{}\n"),
        ("scores.jsonl", '{"text": "k", "score": {"verdict": "maybe", "value": 1}}\n'),
        ("scores.jsonl", '{"text": "k", "score": {"verdict": "pass", "value": NaN}}\n'),
        ("run.json", "{}"),
        ("run.json", "[1]"),
    ],
)
def test_a_damaged_run_is_named_in_one_line(tmp_path, name, text):
    Run.open(tmp_path / "run", {"task": "t"}).append("vote", trace())
    (tmp_path / "run" / name).write_text(text)
    with pytest.raises((ConfigError, DataError), match=name) as caught:
        Run.load(tmp_path / "run").traces()
    assert "\n" not in str(caught.value)


def test_a_trace_settled_by_a_turn_it_lacks_is_named(tmp_path):
    run = Run.open(tmp_path, {"task": "t"})
    run.append("vote", trace(final=7))
    with pytest.raises(DataError, match="settled by turn 7"):
        run.traces()


def test_a_rollout_that_stands_twice_counts_once(tmp_path):
    run = Run.open(tmp_path, {"task": "t"})
    for text in ("4", "5"):
        run.append("vote", trace(text))
    [found] = run.traces()["vote"]
    assert found.answer == "5"


def test_a_second_process_is_refused(tmp_path):
    run = Run.open(tmp_path, {"task": "t"})
    code = "import sys, pathlib, coterie.storage.runs as r; r.Run.open(pathlib.Path(sys.argv[1]), {'task': 't'})"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "another run is writing here" in done.stderr
    assert run.path == tmp_path


def test_a_folder_that_another_process_holds_is_not_written_to(tmp_path):
    """The lock comes before run.json: the one that holds it may be about to write its own."""
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        other.stdout.readline()
        with pytest.raises(ConfigError, match="another run is writing here"):
            Run.open(tmp_path, {"task": "t"})
        other.communicate("\n")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    Run.open(tmp_path, {"task": "t"})


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/run: cannot be written"):
        Run.open(tmp_path / "file" / "run", {"task": "t"})
