"""Works off (contender, seed) jobs, in this process or spread over workers; what is decided is the same.

Every process computes with one thread: sums over several threads can differ in their last digits, and processes
would take the cores from each other. Workers are spawned: a fork of a process with threads can hang.
"""

import importlib
import os
import pickle
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask

from coterie.errors import UserError
from coterie.evaluation.replay.contenders import Contender, Features
from coterie.evaluation.replay.decide import Decision, Plan, Task, decide
from coterie.evaluation.replay.material import Material
from coterie.types import record

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
MOST = 8
"""Workers at most, unless more are asked for: each holds the table and its features, up to 1.5 GB."""
SMALL = 20_000
"""Questions times jobs that one process works off in about ten seconds."""


@record
class Job:
    """One contender under one seed."""

    contender: Contender
    task: Task


@record
class Work:
    """All that a worker needs to know."""

    jobs: tuple[Job, ...]
    material: Material
    encoder: str
    plan: Plan

    def decide(self, place: int, features: Features) -> Decision:
        """The decision of one job."""
        job = self.jobs[place]
        return decide(job.contender, job.task, self.material, features, self.plan)


def default_workers(questions: int, jobs: int) -> int:
    """One a core; one where starting more would take longer than they save."""
    return 1 if questions * jobs < SMALL else min(len(os.sched_getaffinity(0)), MOST)


def decided(work: Work, features: Features, workers: int) -> Generator[Decision, None, None]:
    """The decisions, in the order of the jobs whatever the number of workers. Close it to end the workers.

    Raises: UserError of one line where a worker ended or could not decide.
    """
    workers = min(workers, len(work.jobs))
    with one_thread():
        if workers < 2:
            yield from (work.decide(place, features) for place in range(len(work.jobs)))
            return
        with _hired(work, workers) as crew:
            yield from _in_order(crew, len(work.jobs))


@contextmanager
def one_thread() -> Iterator[None]:
    """Numerical libraries, of this process and of those it starts, compute with one thread."""
    known = {name: os.environ.get(name) for name in THREADS}
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else len(os.sched_getaffinity(0))
    os.environ.update(dict.fromkeys(THREADS, "1"))
    pools = importlib.import_module("threadpoolctl").threadpool_limits(1) if find_spec("threadpoolctl") else None
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        for name, value in known.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        if pools is not None:
            pools.restore_original_limits()
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(threads)


# --- the process that hands out -----------------------------------------------------------------------


@record
class Worker:
    """A process and this end of the pipe to it."""

    process: BaseProcess
    pipe: Connection


@contextmanager
def _hired(work: Work, workers: int) -> Iterator[list[Worker]]:
    """Workers that know the work; they are ended, whatever happens."""
    crew: list[Worker] = []
    # A Ctrl-C reaches the whole terminal; workers leave it to this process, from their first moment on.
    resource_tracker.ensure_running()
    mask = pthread_sigmask(SIG_BLOCK, {SIGINT})
    try:
        try:
            crew.extend(_started() for _ in range(workers))
        finally:
            pthread_sigmask(SIG_SETMASK, mask)
        knowledge = pickle.dumps(work)
        for worker in crew:
            with _noticed(worker):
                worker.pipe.send_bytes(knowledge)
        yield crew
    finally:
        for worker in crew:
            worker.process.terminate()
        for worker in crew:
            worker.process.join()
            worker.pipe.close()


def _started() -> Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return Worker(process=process, pipe=ours)


def _in_order(crew: list[Worker], jobs: int) -> Iterator[Decision]:
    """Hand out the jobs in their order and pass on what comes back in that order, too."""
    left, ready = iter(range(jobs)), dict[int, Decision]()
    for worker in crew:
        _ask(worker, left)
    for place in range(jobs):
        while place not in ready:
            for worker in _answering(crew):
                number, decision = _answer(worker)
                ready[number] = decision
                _ask(worker, left)
        yield ready.pop(place)


def _ask(worker: Worker, left: Iterator[int]) -> None:
    place = next(left, None)
    if place is not None:
        with _noticed(worker):
            worker.pipe.send(place)


def _answering(crew: list[Worker]) -> list[Worker]:
    """Those that have an answer, or have ended; waits for the first."""
    open_pipes = wait([worker.pipe for worker in crew])
    return [worker for worker in crew if worker.pipe in open_pipes]


def _answer(worker: Worker) -> tuple[int, Decision]:
    with _noticed(worker):
        place, found = worker.pipe.recv()
        if isinstance(found, Decision):
            return place, found
        raise UserError(found)


@contextmanager
def _noticed(worker: Worker) -> Iterator[None]:
    """A worker that is gone is one clear line."""
    try:
        yield
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"was killed by signal {-code}; out of memory?" if code < 0 else f"ended with exit code {code}"
        raise UserError(
            f"a process that decides {how}: what is decided is kept, and the same --out goes on from there;"
            " --jobs 1 needs the least memory"
        ) from None


# --- a worker -----------------------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """The life of a worker: learn the work, decide what is asked for until it is ended."""
    threading.Thread(target=_follow, daemon=True).start()
    work: Work = pickle.loads(pipe.recv_bytes())
    features = Features.opened(work.encoder)
    with suppress(EOFError):
        while True:
            place = pipe.recv()
            pipe.send((place, _told(work, place, features)))


def _told(work: Work, place: int, features: Features) -> Decision | str:
    """A decision, or the line that says why there is none."""
    try:
        return work.decide(place, features)
    except UserError as error:
        return str(error)


def _follow() -> None:
    """End with the process that started this one, even where that was killed."""
    if parent := parent_process():
        parent.join()
        os._exit(1)
