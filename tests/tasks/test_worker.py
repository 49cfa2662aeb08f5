"""Named functions in child processes: replies, clocks, deaths."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from coterie.tasks.worker import Crew, Unanswered, kept

WORK = """
import os, time

def work():
    return lambda verb, value: {
        "double": lambda: [value, value],
        "sleep": lambda: time.sleep(value),
        "die": lambda: os._exit(value),
        "pid": os.getpid,
        "talk": lambda: print(value) or value,
    }[verb]()

def broken():
    raise ImportError("no such library")
"""


@pytest.fixture
def crew(tmp_path, monkeypatch):
    (tmp_path / "some_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    found = Crew("some_work:work", 2, 20.0)
    yield found
    found.close()


def test_no_child_before_the_first_question_and_one_for_many(crew):
    assert not crew.alive
    assert crew.ask("double", {"a": "é\ud800"}) == [{"a": "é\ud800"}] * 2
    pid = crew.ask("pid", 0)
    assert pid == crew.ask("pid", 0) != os.getpid()
    assert len(crew.alive) == len(crew.idle) == 1


def test_what_stops_its_owner_does_not_reach_a_child(crew):
    """Ctrl-C, and `timeout`, signal a whole group: the question in hand would have no answer."""
    assert os.getpgid(crew.ask("pid", 0)) != os.getpgrp()


def test_what_the_work_prints_is_not_taken_for_a_reply(crew):
    assert crew.ask("talk", "true") == "true"
    assert crew.ask("double", 1) == [1, 1]


def test_time_runs_out_and_the_child_with_it(crew):
    assert crew.ask("double", 1) == [1, 1]
    (child,) = crew.alive
    crew.wall = 0.2
    with pytest.raises(Unanswered, match=r"no decision within 0\.2 s"):
        crew.ask("sleep", 60)
    assert child.process.poll() is not None
    assert not crew.alive
    crew.wall = 20.0
    assert crew.ask("double", 2) == [2, 2]


@pytest.mark.parametrize("question", [("die", 3), ("none", 0)])
def test_work_that_kills_its_child_is_asked_twice_and_given_up(crew, question):
    with pytest.raises(Unanswered, match="the checking process died"):
        crew.ask(*question)
    assert not crew.alive
    assert crew.ask("double", 1) == [1, 1]


def test_work_that_cannot_begin_is_no_answer(crew):
    crew.work = "some_work:broken"
    with pytest.raises(Unanswered):
        crew.ask("double", 1)


def test_a_question_that_is_no_json_starts_no_child(crew):
    with pytest.raises(TypeError):
        crew.ask("double", object())
    assert not crew.alive


def test_threads_share_the_children(crew):
    with ThreadPoolExecutor(6) as threads:
        pids = set(threads.map(lambda _: crew.ask("pid", 0), range(12)))
    assert 1 <= len(pids) <= 2


def test_a_fork_starts_its_own(crew):
    kept(crew)
    pid = crew.ask("pid", 0)
    child = os.fork()
    if child == 0:
        other = crew.ask("pid", 0)
        crew.close()
        os._exit(0 if other != pid else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert crew.ask("pid", 0) == pid
