"""The call cache: what its keys tell apart, what it stores, and what it does when file, disk or process fail."""

import dataclasses
import logging
import multiprocessing
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.pool import revise
from coterie.storage import calls
from coterie.storage.cache import Cache, call_key, default_path
from coterie.types import Agent, Completion, Message, Price, Sampling, Tokens

AGENT = Agent(name="ada", model="http:m", revision="r1", instruction="Be brief.", adapter="a1")
ASKED = (Message(role="system", content="Be brief."), Message(role="user", content="2+2?"))
SAID = Completion(
    text="4 \ud800 é 🌍",  # a lone surrogate too: models that are cut inside a character give them
    finish="length",
    prompt_tokens=12,
    completion_tokens=3,
    seconds=0.1 + 0.2,
    tokens=Tokens(prompt=(1, 2), completion=(3, 4), logprobs=(-0.1, -1e-300)),
)
KEY = call_key(AGENT, ASKED, 7)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "calls.sqlite"


@pytest.fixture
def cache(path):
    cache = Cache(path)
    yield cache
    cache.close()


def keys(n, agent=AGENT):
    return [call_key(agent, ASKED, seed) for seed in range(n)]


def said(n):
    return Completion(text=f"answer {n} " + "x" * 500, completion_tokens=n)


def filled(path, n):
    cache = Cache(path)
    for i, key in enumerate(keys(n)):
        cache.put(key, said(i))
    cache.close()


def python(code, *args, **options):
    """A process of its own that has this checkout's package."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


# --- keys --------------------------------------------------------------------------------------------


def other(value):
    """A value of the same kind that is not `value`."""
    if isinstance(value, Sampling | Message | Price):
        raise TypeError("mutate its fields one by one")
    if isinstance(value, str):
        return value + "'"
    if isinstance(value, tuple):
        return (*value, "more")
    return "set" if value is None else value + 1


def mutations():
    sampling = AGENT.sampling
    yield "sampling.schema", replace(AGENT, sampling=replace(sampling, schema='{"type": "null"}'))
    for f in (f for f in dataclasses.fields(Sampling) if f.name != "schema"):
        yield (
            f"sampling.{f.name}",
            replace(AGENT, sampling=replace(sampling, **{f.name: other(getattr(sampling, f.name))})),
        )
    for f in dataclasses.fields(Agent):
        if f.name != "sampling" and f.name not in calls.NEUTRAL:
            yield f.name, replace(AGENT, **{f.name: other(getattr(AGENT, f.name))})


@pytest.mark.parametrize(("field", "agent"), mutations(), ids=lambda v: v if isinstance(v, str) else "")
def test_a_change_of_any_field_of_the_agent_misses(cache, field, agent):
    """B67, B69: model, revision, prompt, adapter and each sampling parameter are in the key."""
    cache.put(KEY, SAID)
    assert cache.get(call_key(agent, ASKED, 7)) is None
    assert cache.get(call_key(AGENT, ASKED, 7)) == SAID


@pytest.mark.parametrize(
    "messages",
    [
        ASKED[1:],
        ASKED[::-1],
        (*ASKED, Message(role="assistant", content="")),
        (replace(ASKED[0], content="Be brief. "), ASKED[1]),
        (replace(ASKED[0], role="user"), ASKED[1]),
        (ASKED[0], replace(ASKED[1], content="2+2 ?")),
        (),
    ],
)
def test_a_change_of_any_message_misses(cache, messages):
    """B67: role, content, number and order of the messages are in the key."""
    cache.put(KEY, SAID)
    assert cache.get(call_key(AGENT, messages, 7)) is None


def test_another_seed_or_format_misses(cache, monkeypatch):
    cache.put(KEY, SAID)
    assert cache.get(call_key(AGENT, ASKED, 8)) is None
    monkeypatch.setattr(calls, "FORMAT", calls.FORMAT + 1)
    assert cache.get(call_key(AGENT, ASKED, 7)) is None


def test_a_field_that_sampling_gets_later_is_in_the_key():
    """B67: nobody has to remember the cache when a sampling parameter is added."""
    later = dataclasses.make_dataclass(
        "Later", [("min_p", float, 0.0)], bases=(Sampling,), frozen=True, kw_only=True
    )
    first, second = (call_key(replace(AGENT, sampling=later(min_p=p)), ASKED, 7) for p in (0.0, 0.1))
    assert first.digest != second.digest


def test_keys_of_calls_without_a_schema_are_those_of_before_there_were_any():
    """The digests were written down before `schema` was a setting."""
    agent = Agent(name="a", model="m:x", revision="r")
    asked = (Message(role="user", content="hi"),)
    assert str(call_key(agent, asked, 3)) == "258413b5da17a3a76ef6aebfc12d33c646a2962b73e9116cb996c61c7e6a6042"
    assert revise(agent).revision == "675cf81faa4c913a"


def test_what_no_backend_reads_does_not_miss():
    agent = replace(AGENT, price=Price(prompt=1.0, completion=2.0), domains=("math",), folder="/elsewhere")
    assert call_key(agent, ASKED, 7) == KEY
    assert set(calls.NEUTRAL) == {"price", "domains", "folder"}


def test_text_that_looks_like_structure_keeps_its_place():
    """Two messages never give the key of one message that contains them."""
    one = (Message(role="user", content='a"},{"content":"b'),)
    two = (Message(role="user", content="a"), Message(role="user", content="b"))
    assert call_key(AGENT, one, 7).digest != call_key(AGENT, two, 7).digest


# --- what is stored ----------------------------------------------------------------------------------


def test_a_hit_is_the_stored_record_bit_for_bit(cache, path):
    """B76: the whole record comes back, token ids and log-probabilities included, to any cache on the file."""
    assert cache.get(KEY) is None
    cache.put(KEY, SAID)
    again = Cache(path)
    for found in (cache.get(KEY), again.get(KEY)):
        assert found == SAID
        assert isinstance(found.tokens.logprobs, tuple)
    again.close()


@pytest.mark.parametrize("text", ["", " \n\t", "\u00a0"])
def test_blank_text_cut_at_the_limit_is_no_success(cache, text):
    """B15, B70: a budget spent on thinking is asked for again."""
    cache.put(KEY, Completion(text=text, finish="length", completion_tokens=512))
    assert cache.get(KEY) is None
    assert cache.stats().entries == 0


def test_a_model_that_ends_at_once_has_answered(cache):
    """A local model's empty completion is its outcome; asking again with the same seed gives it again."""
    cache.put(KEY, Completion(text="", finish="stop"))
    assert cache.get(KEY) == Completion(text="", finish="stop")


def test_an_unknown_ending_is_no_success(cache):
    """B70: a filtered or otherwise broken-off answer is not replayed."""
    cache.put(KEY, replace(SAID, finish="content_filter"))
    assert cache.get(KEY) is None


def test_text_cut_at_the_limit_is_an_outcome(cache):
    cache.put(KEY, Completion(text="It is", finish="length"))
    assert cache.get(KEY).finish == "length"


def test_the_first_record_stays_unless_a_later_one_has_tokens(cache):
    plain = replace(SAID, tokens=None)
    cache.put(KEY, plain)
    cache.put(KEY, replace(plain, text="other"))
    assert cache.get(KEY) == plain
    cache.put(KEY, SAID)
    cache.put(KEY, plain)
    assert cache.get(KEY) == SAID
    assert cache.stats().entries == 1


def test_nothing_is_opened_before_the_first_use(path):
    cache = Cache(path)
    assert cache.stats().entries == 0
    assert cache.clear() == 0
    assert not path.parent.exists()


# --- counting and clearing ---------------------------------------------------------------------------


def test_stats_count_by_agent_revision(cache):
    newer = replace(AGENT, revision="r2")
    for agent, n in ((AGENT, 3), (newer, 2)):
        for key in keys(n, agent):
            cache.put(key, SAID)
            cache.get(key)
    cache.get(call_key(AGENT, (), 0))
    stats = cache.stats()
    assert [(a.agent, a.model, a.revision, a.entries) for a in stats.agents] == [
        ("ada", "http:m", "r1", 3),
        ("ada", "http:m", "r2", 2),
    ]
    assert (stats.entries, stats.hits, stats.misses) == (5, 5, 1)
    assert stats.agents[0].bytes == 3 * len(calls.encode(SAID))
    assert stats.bytes > sum(a.bytes for a in stats.agents)
    assert (stats.fault, stats.set_aside) == ("", ())


def test_clear_forgets_what_matches_and_frees_the_disk(cache):
    newer = replace(AGENT, revision="r2")
    for agent in (AGENT, newer):
        for i, key in enumerate(keys(300, agent)):
            cache.put(key, said(i))
    before = cache.stats().bytes
    assert cache.clear(agent="nobody") == 0
    assert cache.clear(agent="ada", revision="r1") == 300
    assert cache.get(keys(1)[0]) is None
    assert cache.get(keys(1, newer)[0]) == said(0)
    assert cache.stats().bytes < before * 0.7
    assert cache.clear(model="http:m") == 300
    assert cache.stats().entries == 0


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"COTERIE_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own/calls.sqlite"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/coterie/calls.sqlite"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": ""}, "/home/ada/.cache/coterie/calls.sqlite"),
    ],
)
def test_default_path(monkeypatch, env, expected):
    for name in ("COTERIE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert default_path() == Path(expected)


# --- threads and processes ---------------------------------------------------------------------------


def test_threads_share_one_cache(cache):
    """R1: every thread finds what it and the others stored, and no count is lost."""
    wrong = []

    def work(start):
        for i in range(start, start + 40):
            cache.put(keys(i + 1)[i], said(i))
            if cache.get(keys(i + 1)[i]) != said(i):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 0, 20, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = cache.stats()
    assert wrong == []
    assert (stats.entries, stats.hits, stats.misses) == (80, 160, 0)


WRITER = """
    import sys
    from coterie.storage.cache import Cache, call_key
    from coterie.types import Agent, Completion, Message
    path, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cache = Cache(path)
    agent = Agent(name="ada", model="http:m", revision="r1", instruction="Be brief.", adapter="a1")
    asked = (Message(role="system", content="Be brief."), Message(role="user", content="2+2?"))
    for i in range(first, last):
        text = f"answer {i} " + "x" * 500
        cache.put(call_key(agent, asked, i), Completion(text=text, completion_tokens=i))
        print(i, flush=True)
"""


def test_processes_write_at_once_from_an_absent_file(path, cache):
    """Four processes meet at the creation of the file and write overlapping ranges; nothing is lost or refused."""
    workers = [python(WRITER, path, first, first + 100) for first in (0, 50, 100, 150)]
    for worker in workers:
        _, complaints = worker.communicate(timeout=120)
        assert (worker.returncode, complaints) == (0, "")
    assert cache.stats().entries == 250
    assert [cache.get(key) for key in keys(250)] == [said(i) for i in range(250)]


def test_a_put_that_returned_survives_kill(path):
    """R17: whatever the killed process had reported as stored is there, and the file is sound."""
    worker = python(WRITER, path, 0, 100_000)
    seen = [int(worker.stdout.readline()) for _ in range(200)]
    worker.send_signal(signal.SIGKILL)
    rest = worker.stdout.read().splitlines(keepends=True)  # not `communicate`, which skips what is buffered here
    seen += [int(line) for line in rest if line.endswith("\n")]  # the kill may tear the last line
    worker.communicate(timeout=60)
    cache = Cache(path)
    assert worker.returncode == -signal.SIGKILL
    assert [cache.get(key) for key in keys(len(seen))] == [said(i) for i in seen]
    assert cache.stats().set_aside == ()
    cache.close()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def _in_child(cache, outcome):
    found = cache.get(KEY)
    cache.put(keys(1)[0], said(0))
    outcome.put((found, cache.stats().hits))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_a_forked_child_uses_a_connection_of_its_own(cache):
    cache.put(KEY, SAID)
    context = multiprocessing.get_context("fork")
    outcome = context.Queue()
    child = context.Process(target=_in_child, args=(cache, outcome))
    child.start()
    assert outcome.get(timeout=60) == (SAID, 1)
    child.join(60)
    assert cache.get(keys(1)[0]) == said(0)
    assert cache.get(KEY) == SAID


def test_a_writer_that_holds_the_file_too_long_costs_the_entry_only(path, caplog):
    cache = Cache(path, timeout=0.05)
    cache.put(KEY, SAID)
    hog = sqlite3.connect(path, isolation_level=None)
    hog.execute("BEGIN IMMEDIATE")
    for key in keys(3):
        cache.put(key, said(1))
    assert cache.get(KEY) == SAID
    assert len(caplog.records) == 1
    hog.execute("ROLLBACK")
    hog.close()
    cache.put(keys(1)[0], said(1))
    assert cache.get(keys(1)[0]) == said(1)
    cache.close()


# --- bad files ---------------------------------------------------------------------------------------


@contextmanager
def opened(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


def aside(path):
    return [p for p in path.parent.iterdir() if ".aside-" in p.name and not p.name.endswith(("-wal", "-shm"))]


def foreign(path):
    with opened(path) as db:
        db.execute("CREATE TABLE mine (x)")


def newer(path):
    filled(path, 1)
    with opened(path) as db:
        db.execute("PRAGMA user_version = 99")


def maimed(path):
    filled(path, 1)
    with opened(path) as db:
        db.execute("ALTER TABLE calls DROP COLUMN traced")
        db.execute("ALTER TABLE calls RENAME COLUMN body TO text")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"no database at all " * 500),
        lambda path: path.write_bytes(b"short"),
        foreign,
        newer,
        maimed,
    ],
    ids=["garbage", "short", "foreign", "newer", "maimed"],
)
def test_a_file_that_is_no_cache_is_set_aside_and_named(path, cache, caplog, spoil):
    path.parent.mkdir(parents=True)
    spoil(path)
    content = path.read_bytes()
    cache.put(KEY, SAID)
    assert cache.get(KEY) == SAID
    [kept] = aside(path)
    assert kept.read_bytes() == content
    assert cache.stats().set_aside == (kept.name,)
    assert [kept.name in r.getMessage() for r in caplog.records] == [True]


def test_damage_met_in_a_later_read_is_set_aside(path, caplog):
    """A page in the middle is overwritten: the file opens well and fails only when that page is read."""
    filled(path, 400)
    with path.open("r+b") as file:
        for page in range(40, 60):
            file.seek(4096 * page)
            file.write(b"\xff" * 4096)
    cache = Cache(path)
    assert cache.get(keys(1)[0]) == said(0)
    found = [cache.get(key) for key in keys(400)]
    assert all(f in (None, said(i)) for i, f in enumerate(found))
    assert found.count(None) > 0
    assert len(aside(path)) == 1
    assert len(caplog.records) == 1
    cache.put(KEY, SAID)
    assert cache.get(KEY) == SAID
    assert cache.stats().set_aside == (aside(path)[0].name,)
    cache.close()


def test_a_changed_record_is_not_served(path):
    """One letter of a stored answer flips on the disk, which SQLite does not notice."""
    filled(path, 20)
    raw = path.read_bytes()
    assert raw.count(b"answer 7 ") == 1
    path.write_bytes(raw.replace(b"answer 7 ", b"answer 8 "))
    cache = Cache(path)
    assert cache.get(keys(8)[7]) is None
    assert len(aside(path)) == 1
    cache.close()


def test_a_truncated_file_is_set_aside(path):
    filled(path, 300)
    with path.open("r+b") as file:
        file.truncate(4096 * 20 + 100)
    cache = Cache(path)
    found = [cache.get(key) for key in keys(300)]
    assert all(f in (None, said(i)) for i, f in enumerate(found))
    assert len(aside(path)) == 1
    cache.put(KEY, SAID)
    assert cache.get(KEY) == SAID
    cache.close()


def test_two_caches_that_meet_the_same_damage_set_one_file_aside(path):
    """The second must not rename the new file of the first."""
    filled(path, 20)
    first, second = Cache(path), Cache(path)
    assert first.get(keys(1)[0]) == second.get(keys(1)[0]) == said(0)
    with opened(path) as db:
        db.execute("UPDATE calls SET sum = sum + 1")
    assert first.get(keys(1)[0]) is None
    first.put(KEY, SAID)
    assert second.get(keys(2)[1]) is None
    assert second.get(KEY) == SAID
    assert len(aside(path)) == 1
    first.close()
    second.close()


def test_a_file_that_was_taken_away_is_begun_anew(path, cache):
    cache.put(KEY, SAID)
    assert cache.get(KEY) == SAID
    for file in list(path.parent.iterdir()):
        file.unlink()
    path.parent.rmdir()
    cache.put(keys(1)[0], said(0))
    assert cache.get(keys(1)[0]) == said(0)
    assert path.exists()


def test_a_record_of_another_version_is_a_miss(path, cache):
    cache.put(KEY, SAID)
    body = calls.encode(SAID).replace(b'"estimated"', b'"guessed"')
    with opened(path) as db:
        sum_ = calls.checksum(bytes.fromhex(KEY.digest), body)
        db.execute("UPDATE calls SET body = ?, sum = ?", (body, sum_))
    assert cache.get(KEY) is None
    assert aside(path) == []


# --- no room, no permission --------------------------------------------------------------------------


def test_without_a_usable_folder_the_run_goes_on_with_one_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "calls.sqlite")
    for key in keys(5):
        cache.put(key, SAID)
        assert cache.get(key) is None
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert cache.stats().fault


READ_ONLY = """
    import os, sys
    from coterie.storage.cache import Cache, call_key
    from coterie.types import Agent, Completion
    if os.getuid() == 0:
        os.setuid(65534)
    key = call_key(Agent(name="a", model="m"), (), 0)
    cache = Cache(sys.argv[1])
    for _ in range(3):
        cache.put(key, Completion(text="x"))
        print(cache.get(key))
    print(bool(cache.stats().fault))
"""


def test_in_a_read_only_folder_the_run_goes_on_with_one_warning(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    worker = python(READ_ONLY, folder / "calls.sqlite")
    out, complaints = worker.communicate(timeout=60)
    assert (worker.returncode, out.split()) == (0, ["None", "None", "None", "True"])
    assert complaints.count("going on without it") == 1


FULL = """
    import resource, signal, sys
    from coterie.storage.cache import Cache, call_key
    from coterie.types import Agent, Completion
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    agent = Agent(name="a", model="m")
    cache = Cache(sys.argv[1])
    stored = []
    for i in range(400):
        cache.put(call_key(agent, (), i), Completion(text=f"{i} " + "x" * 2000))
    found = [cache.get(call_key(agent, (), i)) for i in range(400)]
    kept = [i for i, f in enumerate(found) if f]
    assert kept == list(range(len(kept))) and all(found[i].text == f"{i} " + "x" * 2000 for i in kept)
    print(len(kept), bool(cache.stats().fault))
"""


def test_on_a_full_disk_reads_go_on_and_writes_stop_with_one_warning(path):
    """The kernel refuses to let the files grow, as a full disk does; what was stored before stays readable."""
    worker = python(FULL, path)
    out, complaints = worker.communicate(timeout=60)
    assert worker.returncode == 0, complaints
    kept, fault = out.split()
    assert 20 < int(kept) < 400
    assert fault == "True"
    assert complaints.count("going on without it") == 1


def test_the_package_opens_no_cache_on_import():
    code = "import sys, coterie.storage.cache; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    )
