"""Replays whose decisions are made by several processes: the same bytes, and nobody is left when one dies."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from replayed import ASKED, FAST, items_of, material_of, quiet, table_of, written

from coterie.errors import UserError
from coterie.evaluation.replay.contenders import Contender
from coterie.evaluation.replay.jobs import default_workers, one_thread
from coterie.evaluation.replay.run import replay, targets_of

SIZE = 120
FILES = ("decisions.jsonl", "decisions.sha256")


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    return material_of(tmp_path_factory.mktemp("jobs") / "table", table_of(items_of(SIZE)))


@pytest.fixture(scope="module")
def asked(material):
    return replace(ASKED, targets=targets_of(material, None, None))


@pytest.fixture(scope="module")
def alone(asked, material, tmp_path_factory):
    """What one process leaves."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    replay(asked, material, folder, quiet)
    return left(folder)


def left(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


class Stopped(Exception):
    """A stop between two decisions."""


def at_step(number, do):
    """A watch that does something before the decision of that number."""
    steps = [0]

    def watch(step):
        if ", seed " in step.phase:
            if steps[0] == number:
                do()
            steps[0] += 1

    return watch


def stop():
    raise Stopped


def shoot():
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGKILL)


@pytest.mark.parametrize("workers", [2, 9])
def test_the_decisions_and_their_seal_do_not_hang_on_the_number_of_workers(
    asked, material, alone, tmp_path, workers
):
    found = replay(replace(asked, workers=workers), material, tmp_path / "run", quiet)
    assert left(tmp_path / "run") == alone
    assert not multiprocessing.active_children()
    assert all(one.seconds > 0 for one in found.rows if one.validation is not None), "times stand beside"


@pytest.mark.parametrize("then", [1, 2])
def test_a_replay_with_workers_that_was_stopped_goes_on_with_any_number(asked, material, alone, tmp_path, then):
    with pytest.raises(Stopped):
        replay(replace(asked, workers=2), material, tmp_path / "run", at_step(2, stop))
    assert not multiprocessing.active_children(), "workers end with the replay"
    kept = (tmp_path / "run" / "decisions.jsonl").read_bytes()
    assert kept
    assert alone["decisions.jsonl"].startswith(kept)
    replay(replace(asked, workers=then), material, tmp_path / "run", quiet)
    assert left(tmp_path / "run") == alone


def test_a_worker_that_is_killed_is_one_line_and_the_rest_goes_on(asked, material, alone, tmp_path):
    many = replace(asked, workers=2)
    with pytest.raises(UserError, match="killed by signal 9") as caught:
        replay(many, material, tmp_path / "run", at_step(1, shoot))
    assert "\n" not in str(caught.value)
    assert not multiprocessing.active_children()
    assert not (tmp_path / "run" / "decisions.sha256").exists()
    replay(many, material, tmp_path / "run", quiet)
    assert left(tmp_path / "run") == alone


def test_what_a_worker_refuses_is_said_in_the_words_of_one_process(asked, material, tmp_path):
    wrong = (*FAST[:1], Contender(name="wrong", candidates=({"use": "knn", "k": 0},)))
    lines = []
    for workers in (1, 2):
        with pytest.raises(UserError) as caught:
            replay(replace(asked, contenders=wrong, workers=workers), material, tmp_path / str(workers), quiet)
        lines.append(str(caught.value))
    assert lines[0] == lines[1]
    assert "\n" not in lines[0]
    assert not multiprocessing.active_children()


def test_one_thread_is_for_the_while_only():
    torch = pytest.importorskip("torch")
    before, environment = torch.get_num_threads(), dict(os.environ)
    with one_thread():
        assert torch.get_num_threads() == 1
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert torch.get_num_threads() == before
    assert dict(os.environ) == environment


def test_small_tables_start_no_workers():
    assert default_workers(500, 10) == 1
    assert default_workers(10_000, 70) == min(8, len(os.sched_getaffinity(0)))


# --- from outside -------------------------------------------------------------------------------------


def started(folder):
    """A replay of the command line with two workers, in a process group of its own."""
    written(folder / "table", table_of(items_of(1500)))
    command = ["bench", "replay", str(folder / "table"), "--router", "kNN,forest", "--encoder", "hashed"]
    command += ["--jobs", "2", "--seeds", "40", "--out", str(folder / "run")]
    environment = {**os.environ, "COTERIE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(what, seconds=120.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def nobody(group):
    """Whether no process of the group is alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("kind", ["interrupted", "killed"])
def test_an_end_from_outside_leaves_no_process_and_whole_decisions(tmp_path, kind):
    process = started(tmp_path)
    file = tmp_path / "run" / "decisions.jsonl"
    wait_for(lambda: process.poll() is not None or (file.exists() and b'"kNN"' in file.read_bytes()))
    assert process.poll() is None, process.stderr.read()
    if kind == "interrupted":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert "Traceback" not in errors
        assert errors.splitlines()[-1] == (
            "coterie: interrupted; what was finished is kept: the same --out goes on from there"
            " (train, distill: with --resume)"
        )
    else:
        process.kill()
        process.communicate(timeout=60)
    wait_for(lambda: nobody(process.pid))
    rows = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    assert rows
    assert rows[0]["contender"] == "best single"
