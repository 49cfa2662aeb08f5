"""Engines elsewhere are engines: the same bits, the same errors, and runs that outlive their workers."""

import io
import itertools
import math
import os
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_training import finish, last, rows, started
from tiny_team import LORA, OPTIMISER, engine, groups, save_base, snapshot

from coterie import errors
from coterie.errors import BackendError, ConfigError, CoterieError, DataError, MissingExtra, UserError
from coterie.learning import engines as engines_module
from coterie.learning.host import Host, fault, groups_of, groups_to, raised, received, serve
from coterie.learning.losses import Loss
from coterie.learning.remote import ProcessLink, RayLink, RemoteEngine, WorkerLost, shares
from coterie.learning.sampler import Ask
from coterie.learning.training import CHECKPOINTS, RESTARTS, Training
from coterie.learning.wire import LENGTH, pack, unpack
from coterie.types import Message, Sampling

HEAT = 0.7
KL = Loss(beta=0.1)
LINUX = Path("/proc/self/stat").exists()
SMALL = {"names": ("ann", "cyd"), "queries": 6, "practice": {"updates": 2, "group": 3}, "loss": {"beta": 0.0}}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Sums of several threads may round otherwise than those of one, which is what a worker has here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class NearLink:
    """A worker in this process, which dies at the `dying`-th message of a verb that all such links hear of."""

    def __init__(self, verb="", dying=()):
        self.host, self.verb, self.dying = Host(), verb, dying
        self.closed = self.dead = self.fell = False

    def call(self, buffer):
        if not self.dead and verb_of(buffer) == self.verb:
            self.dead = self.fell = next(self.dying)
        if self.dead or self.closed:
            raise WorkerLost("the worker process 1 has ended (code -9)")
        return self.host.answer(buffer)

    def close(self):
        self.closed = True
        if self.host.engine is not None:
            self.host.engine.close()
            self.host.engine = None


def remote(link, model, loss=KL):
    return RemoteEngine(link, model, LORA, OPTIMISER, loss, 64)


def asks():
    settings = Sampling(temperature=HEAT, max_tokens=8, top_p=0.9, stop=("77",))
    return [Ask(prompt=(1, 2, 3 + i), adapter=None, sampling=settings, seed=i) for i in range(5)]


def with_old(made, name, batch):
    return [replace(one, old=old) for one, old in zip(batch, made.log_probs(name, batch, HEAT), strict=True)]


def same_rows(mine, theirs):
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert [(x.dtype, x.tobytes()) for x in a] == [(y.dtype, y.tobytes()) for y in b]


def verb_of(buffer):
    return unpack(buffer)[0]["verb"]


# --- messages -----------------------------------------------------------------------------------------


def test_a_message_keeps_every_bit():
    facts = {"a": 0.1 + 0.2, "b": float("nan"), "c": [1, None, "\u00e9\ud800"], "d": 5e-324}
    arrays = {
        "half/x": np.array([1.5, -0.0], dtype=np.float16),
        "none": np.zeros(0, dtype=np.float32),
        "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "nan": np.array([math.nan, math.inf]),
    }
    about, found = unpack(pack(facts, arrays))
    assert math.isnan(about.pop("b"))
    assert about == {key: value for key, value in facts.items() if key != "b"}
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "damage", [b"", b"abc", b"\x02" + b"\0" * 7 + b"{}", b"\x04" + b"\0" * 7 + b"null", "torn"]
)
def test_what_is_no_message_is_told(damage):
    whole = pack({"verb": "counts"}, {"x": np.arange(4.0)})
    buffer = whole[:-8] if damage == "torn" else damage
    with pytest.raises(ValueError, match="no message of coterie"):
        unpack(buffer)
    assert "no message" in unpack(Host().answer(buffer))[0]["message"]


def test_groups_come_back_as_they_were():
    first, second = groups(2, size=3)
    first = replace(first, advantages=np.array([math.nan, 0.1, -0.2]), truncated=(True, False, True))
    second = replace(second, old=tuple(np.arange(len(ids), dtype=np.float32) for ids in second.completions))
    found = groups_of(*unpack(pack(*groups_to([first, second]))))
    for mine, theirs in zip(found, (first, second), strict=True):
        assert (mine.prompt, mine.completions, mine.truncated) == (
            theirs.prompt,
            theirs.completions,
            theirs.truncated,
        )
        assert mine.advantages.tobytes() == theirs.advantages.tobytes()
        assert (mine.old is None) == (theirs.old is None)
    same_rows([found[1].old], [second.old])


# --- errors -------------------------------------------------------------------------------------------

OWN = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CoterieError)]


def crossed(error):
    """The error as it comes out at the other end of a link."""

    class Broken:
        def counts(self, name):
            raise error

    host = Host()
    host.engine = Broken()
    return raised(unpack(host.answer(pack({"verb": "counts", "name": "a"})))[0])


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_an_error_crosses_with_its_class_and_words(kind):
    """The exit code depends on it: what the user can mend is said in one line."""
    error = MissingExtra("peft", "local") if kind is MissingExtra else kind("it is broken")
    found = crossed(error)
    assert type(found) is kind
    assert str(found) == str(error)


def test_an_error_of_a_backend_keeps_what_it_says_about_itself():
    error = BackendError("busy", again=True, retry_after=2.5)
    error.completion_tokens = 7
    found = crossed(error)
    assert (found.again, found.retry_after, found.completion_tokens) == (True, 2.5, 7)


def test_an_error_of_another_library_is_told_with_its_class():
    class Special(DataError):
        pass

    assert type(crossed(Special("line 3"))) is DataError
    for error in (KeyError("ann"), ZeroDivisionError("by 0"), RuntimeError("out of memory"), TypeError("no")):
        found = crossed(error)
        assert type(found) is CoterieError
        assert str(found) == f"{type(error).__name__}: {error}"


def test_a_verb_before_open_and_one_that_is_none_are_answers():
    told = [unpack(Host().answer(pack({"verb": verb, "name": "a"})))[0] for verb in ("counts", "fly")]
    assert ["no engine is open" in told[0]["message"], "fly" in told[1]["message"]] == [True, True]
    assert "KeyError" in told[1]["error"]
    assert type(raised(fault(UserError("x")))) is UserError


def test_a_worker_that_cannot_open_its_model_is_ended(tmp_path):
    link = NearLink()
    with pytest.raises(UserError):
        remote(link, str(tmp_path / "nothing"))
    assert link.closed


# --- the process --------------------------------------------------------------------------------------


def framed(message):
    return len(message).to_bytes(LENGTH, "little") + message


def test_half_a_message_is_the_end():
    whole = framed(b"abcdef")
    assert received(io.BytesIO(whole)) == b"abcdef"
    assert [received(io.BytesIO(whole[:n])) for n in range(len(whole))] == [b""] * len(whole)


def test_a_worker_serves_until_nobody_writes_or_nobody_reads():
    asked = framed(pack({"verb": "counts", "name": "a"}))
    for reader_is_there in (True, False):
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        os.write(ours_out, asked + asked + asked[:-1])
        os.close(ours_out)
        if not reader_is_there:
            os.close(ours_in)
        serve(theirs_in, theirs_out)
        if reader_is_there:
            with open(ours_in, "rb") as answers:
                told = [unpack(received(answers))[0]["message"] for _ in range(2)]
                assert told == ["ValueError: no engine is open yet"] * 2
                assert answers.read() == b""


@pytest.fixture(scope="module")
def far(tiny):
    """The tiny Llama in a worker process."""
    made = remote(ProcessLink(1), tiny)
    yield made
    made.close()
    assert made.link.process.poll() is not None


def test_every_verb_of_a_worker_is_the_engines_bit_for_bit(base, far, tmp_path):
    near = engine(base, loss=KL)
    for each in (near, far):
        each.add("a", 100, reference="initial")
        each.add("b", 101)
    messages = (Message(role="user", content="Say an odd number."),)
    assert far.context == near.context
    assert far.prompt_ids(messages, 20) == near.prompt_ids(messages, 20)
    for turn in range(3):
        assert far.sample("a", asks()) == near.sample("a", asks())
        batch = groups(3, seed=turn)
        same_rows(far.log_probs("a", batch, HEAT), near.log_probs("a", batch, HEAT))
        steps = []
        for each in (near, far):
            each.forward_backward("a", batch, HEAT)
            steps.append([each.optim_step("a")])
            each.forward_backward("a", with_old(each, "a", groups(2, seed=9 + turn)), HEAT)
            steps[-1].append(each.optim_step("a"))
        assert steps[0] == steps[1]
        assert [step.outcome for step in steps[0]] == ["done", "done"]
        assert far.counts("a") == near.counts("a") == (2 * turn + 2, 0)
    assert far.optim_step("b") == near.optim_step("b")
    for name in ("a", "b"):
        assert snapshot(far, name) == snapshot(near, name)
    for each in (near, far):
        each.load("b", *each.state("a"))
    assert snapshot(far, "b") == snapshot(near, "b")
    assert far.sample("b", asks()) == near.sample("b", asks()) == near.sample("a", asks())
    written(near, far, tmp_path)
    for each in (near, far):
        for name in ("a", "b", "c"):
            each.remove(name)


def written(near, far, folder):
    """Adapters written here and there are one, and each is read by the other."""
    far.write("a", folder / "far")
    near.write("a", folder / "near")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (folder / "far" / name).read_bytes() == (folder / "near" / name).read_bytes()
    near.add("c", 0, folder / "far")
    far.add("c", 0, folder / "near")
    assert snapshot(near, "c") == snapshot(far, "c")
    assert snapshot(near, "c")[1].keys() == {key for key in snapshot(near, "a")[1] if key.startswith("weights/")}


def test_an_error_leaves_the_worker_at_work(far):
    far.add("a", 1)
    with pytest.raises(ConfigError, match="agent a: is there already"):
        far.add("a", 1)
    with pytest.raises(CoterieError, match="KeyError: 'nobody'"):
        far.counts("nobody")
    assert far.counts("a") == (0, 0)
    far.remove("a")


def alive(pid):
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not LINUX, reason="looks into /proc")
def test_a_worker_ends_when_its_run_is_killed():
    """kill -9 of the run: its worker reads the end of the pipe, and no process is left."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child only starts a program
        run = os.fork()
    if run == 0:
        try:
            link = ProcessLink(1)
            link.call(pack({"verb": "counts", "name": "a"}))
            os.write(theirs, str(link.process.pid).encode())
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(theirs)
    with open(ours) as told:
        worker = int(os.read(told.fileno(), 20))
    assert alive(worker)
    os.kill(run, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]) == -signal.SIGKILL
    for _ in range(600):
        if not alive(worker):
            break
        time.sleep(0.1)
    assert not alive(worker)


# --- runs ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("other") / "llama", seed=5)


@pytest.fixture(scope="module")
def straight(tiny, tmp_path_factory):
    """A run of two rounds in this process."""
    folder = tmp_path_factory.mktemp("straight") / "it"
    assert finish(started(folder, tiny, cluster="here", **SMALL))
    assert len(rows(folder)) == 2
    return folder


def alike(folder, straight):
    assert rows(folder) == rows(straight)
    assert last(folder) == last(straight)


def test_two_bases_in_workers_learn_what_they_learn_here(tiny, other, tmp_path):
    options = SMALL | {"models": {"cyd": other}}
    for place in ("here", "processes"):
        training = started(tmp_path / place, tiny, cluster=place, **options)
        kinds = {type(one).__name__ for one in training.course.engines.values()}
        assert kinds == {"Engine" if place == "here" else "RemoteEngine"}
        assert len({id(one) for one in training.course.engines.values()}) == 2
        assert finish(training)
    alike(tmp_path / "processes", tmp_path / "here")


def test_what_stops_a_run_does_not_reach_its_workers():
    """Ctrl-C signals a whole group, and asks for the round to be finished: that needs the workers."""
    link = ProcessLink(1)
    try:
        assert os.getpgid(link.process.pid) != os.getpgrp()
    finally:
        link.close()


def test_a_killed_worker_is_replaced_in_the_middle_of_a_round(straight, tiny, tmp_path, monkeypatch, caplog):
    """kill -9: the run goes on from its last checkpoint and ends as if nothing had been."""
    turns, links, original = itertools.count(), [], ProcessLink.call

    def call(self, buffer):
        if self not in links:
            links.append(self)
        if verb_of(buffer) == "optim_step" and next(turns) == 1:
            os.kill(self.process.pid, signal.SIGKILL)
        return original(self, buffer)

    monkeypatch.setattr(ProcessLink, "call", call)
    assert finish(started(tmp_path / "it", tiny, cluster="processes", **SMALL))
    alike(tmp_path / "it", straight)
    assert [link.process.returncode for link in links] == [-signal.SIGKILL] * 2
    assert next(turns) > 2
    assert f"the worker process {links[0].process.pid} has ended (code -9): going on from round" in caplog.text


def near_links(monkeypatch, verb, dying):
    """Runs get workers in this process; a list of those that were opened."""
    made = []

    def link(place, count):
        made.append(NearLink(verb, dying))
        return made[-1]

    monkeypatch.setattr(engines_module, "_link", link)
    return made


@pytest.mark.parametrize(
    ("verb", "turn"),
    [
        *(("sample", 2), ("optim_step", 1), ("counts", 3), ("state", 3)),
        *(("open", 1), ("add", 3), ("load", 1), ("write", 1)),
    ],
)
def test_a_worker_may_be_lost_at_any_verb(straight, tiny, tmp_path, monkeypatch, verb, turn):
    """In a round, while a checkpoint is saved, while new workers are opened, while the team is written."""
    made = near_links(monkeypatch, verb, (n == turn for n in itertools.count()))
    training = started(tmp_path / "it", tiny, cluster="processes", **SMALL)

    def watch(row):
        made[0].dead = verb in ("open", "add", "load")  # these come again only after another loss
        return True

    assert training.advance(watch)
    before = len(made)
    training.export()
    training.close()
    alike(tmp_path / "it", straight)
    assert sum(link.fell for link in made) == 1
    assert before == {"open": 3, "add": 3, "load": 3, "write": 1}.get(verb, 2)
    assert len(made) == before + (verb == "write")
    assert all(link.closed for link in made)


def test_a_worker_that_is_always_lost_ends_the_run_in_one_clear_line(straight, tiny, tmp_path, monkeypatch):
    made = near_links(monkeypatch, "optim_step", itertools.chain([False], itertools.repeat(True)))
    training = started(tmp_path / "it", tiny, cluster="processes", **SMALL)
    with pytest.raises(
        WorkerLost, match=rf"ended \(code -9\), {RESTARTS} times after round \d: .*--resume"
    ) as caught:
        finish(training)
    assert "\n" not in str(caught.value)
    assert len(made) == RESTARTS
    assert all(link.closed for link in made)
    monkeypatch.undo()
    near_links(monkeypatch, "", ())
    assert finish(started(tmp_path / "it", tiny, cluster="processes", resume=True, **SMALL))
    alike(tmp_path / "it", straight)


def test_losses_far_apart_do_not_add_up(straight, tiny, tmp_path, monkeypatch):
    """Once after every checkpoint is no standstill, however often in all."""
    turns = itertools.cycle([False, False, True])
    made = near_links(monkeypatch, "state", turns)
    assert finish(started(tmp_path / "it", tiny, cluster="processes", **SMALL))
    alike(tmp_path / "it", straight)
    assert len(made) > 2


def test_a_run_that_cannot_be_resumed_ends_its_workers(straight, tiny, tmp_path, monkeypatch):
    made = near_links(monkeypatch, "", ())
    finish(started(tmp_path / "it", tiny, cluster="processes", **SMALL))
    (tmp_path / "it" / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(DataError, match="has 0 rounds"):
        started(tmp_path / "it", tiny, cluster="processes", resume=True, **SMALL)
    assert len(made) == 2
    assert all(link.closed for link in made)


# --- a cluster ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "workers", "threads", "wanted"),
    [
        ([(8, 0)], 2, 16, (4, 0.0)),
        ([(8, 0)], 2, 3, (3, 0.0)),
        ([(4, 0), (4, 0)], 2, 16, (4, 0.0)),
        ([(6, 0), (2, 0)], 3, 16, (2, 0.0)),
        ([(1, 0)], 3, 16, (0, 0.0)),
        ([(16, 1)], 3, 16, (5, 0.3333)),
        ([(16, 2)], 3, 16, (5, 0.5)),
        ([(16, 4)], 2, 16, (8, 1.0)),
        ([(32, 0), (4, 2)], 2, 16, (2, 1.0)),
        ([(8, 1), (8, 1)], 2, 16, (8, 1.0)),
    ],
)
def test_every_actor_has_a_place_and_a_share_of_a_gpu(nodes, workers, threads, wanted):
    """An actor that asks for no GPU is given none; one that asks for more cores than a node has waits for ever."""
    cores, gpus = shares(nodes, workers, threads)
    assert (cores, gpus) == wanted
    if cores:
        places = [min(c // cores, int(g / gpus + 1e-6) if gpus else workers) for c, g in nodes]
        assert sum(places) >= workers


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"coterie\[cluster\]"):
        RayLink(1)


def test_an_engine_in_a_ray_actor_is_the_engine(base, tiny, tmp_path):
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'coterie[cluster]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        near, made = engine(base, "a", loss=KL), remote(RayLink(64, 2), tiny)
        made.add("a", 100)
        assert made.sample("a", asks()) == near.sample("a", asks())
        for each in (near, made):
            each.forward_backward("a", groups(), HEAT)
        assert made.optim_step("a") == near.optim_step("a")
        assert snapshot(made, "a") == snapshot(near, "a")
        with pytest.raises(ConfigError, match="is there already"):
            made.add("a", 100)
        ray.kill(made.link._actor)
        with pytest.raises(WorkerLost, match="a Ray actor is gone"):
            made.counts("a")
        made.close()
    finally:
        ray.shutdown()


def test_workers_lost_after_ever_newer_checkpoints_are_no_endless_row(tmp_path):
    """Also where a damaged checkpoint of a later round lies about: what counts is where the run went on from."""
    folder = tmp_path / CHECKPOINTS
    folder.mkdir()
    (folder / "round-00000020.safetensors").write_bytes(b"torn")
    training = Training(SimpleNamespace(path=tmp_path), None, None)
    for training.kept in (12, 14, 16, 18):
        training._count(WorkerLost("a worker ended"))
    for _ in range(RESTARTS - 2):
        training._count(WorkerLost("a worker ended"))
    with pytest.raises(WorkerLost, match="after round 18"):
        training._count(WorkerLost("a worker ended"))
