"""First process in the sandbox: starts the judge or the solution as its child and outlives all that this leaves.

It ends, with everything below it, when its child ends or the control socket closes. In a process namespace
it is process 1, so the kernel ends the rest; elsewhere it adopts orphans and kills until there is none.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import time

from . import candidate, guard, judge, wire

TYPE_CHECKING = False  # importing typing takes longer than all the rest of this process's start
if TYPE_CHECKING:
    from typing import Any

KILL = 9
PATIENCE = 5.0  # seconds


def main() -> None:
    """argv: control fd, job fd, where the job begins in it, link fd, verdict fd (-1: none), work folder."""
    control, source, start, link, verdict = map(int, sys.argv[1:6])
    job = wire.decode(read(source, start))
    os.close(source)
    alone = os.getpid() == 1
    if not alone:
        adopt_orphans()
    child = os.fork()
    if child == 0:
        sys.exit(enter(job, control, link, verdict, alone))
    silence(True)  # a file here could be reached through /proc by a child of the same user; sockets can't
    for fd in (link, verdict):
        close(fd)
    code = wait(child, control)
    if not alone:
        clean(job["user"])
        remove(job["folder"])
    os._exit(code)


def read(fd: int, start: int) -> bytes:
    os.lseek(fd, start, os.SEEK_SET)
    parts = []
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def adopt_orphans() -> None:
    from . import kernel

    kernel.prctl(kernel.SUBREAPER, 1)
    kernel.prctl(kernel.DUMPABLE, 0)  # else a process of the same user could open our descriptors


def enter(job: dict[str, Any], control: int, link: int, verdict: int, alone: bool) -> int:
    """Confine this process, say so on `control`, and play the role."""
    os.setsid()
    os.chdir(job["folder"])
    confine(job, alone)
    silence(job["role"] != "program")
    os.write(control, b"r")
    os.close(control)
    if job["role"] == "judge":
        return judge.judge(job, link, verdict)
    if job["role"] == "serve":
        return candidate.serve(job["code"], job["prefix"], job["function"], link)
    return candidate.program(job["code"])


def confine(job: dict[str, Any], alone: bool) -> None:
    for name, value in job["limits"].items():
        bound(getattr(resource, name, None), value)
    if not alone:
        from . import kernel

        kernel.prctl(kernel.NO_NEW_PRIVS, 1)
        if job["user"]:
            kernel.unshare(kernel.NEWNET | kernel.NEWIPC)
            kernel.become(job["user"], job["reading"])
        if job["role"] != "judge":
            guard.install(job["folder"])
    elif job["user"]:
        os.setgroups([])
        os.setresgid(job["user"], job["user"], job["user"])
        os.setresuid(job["user"], job["user"], job["user"])


def bound(kind: int | None, value: int) -> None:
    """Lower a limit; one that is lower already stays."""
    if kind is None:
        return
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def silence(everything: bool) -> None:
    """Errors go nowhere; of a function's process nothing comes out but its answers."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2) if everything else (2,):
        os.dup2(null, fd)
    os.close(null)


def wait(child: int, control: int) -> int:
    """The child's exit status (128 + signal), or 124 when control closed first."""
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(control, select.POLLIN)
    ready = [fd for fd, _ in poll.poll()]
    if ended not in ready:
        return 124
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def clean(user: int) -> None:
    """Kill and reap until this process has no descendant left."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        kill_user(user) if user else kill_below(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def remove(folder: str) -> None:
    """Also here, for the case that the library was killed."""
    try:
        os.rmdir(folder)
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def kill_user(user: int) -> None:
    """One call that no fork can outrun: every process of a user that nobody else uses."""
    killer = os.fork()
    if killer == 0:
        try:
            os.setresuid(user, user, user)
            os.kill(-1, KILL)
        finally:
            os._exit(0)
    os.waitpid(killer, 0)


def kill_below(top: int) -> None:
    """Every descendant: forbidden to fork first, then killed."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        parents[int(name)] = parent(name)
    below = {top}
    while new := {p for p, q in parents.items() if q in below} - below:
        below |= new
    for pid in below - {top}:
        strike(pid)


def parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return -1


def strike(pid: int) -> None:
    try:
        resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))
    except OSError:
        pass
    try:
        os.kill(pid, KILL)
    except OSError:
        pass
