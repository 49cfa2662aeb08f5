"""Content-addressed cache of finished calls: one SQLite file that threads and processes share.

The key is a digest of the whole request, the value the whole Completion: a rerun is free and a resume exact.
Nothing is ever found by likeness. A cache that cannot be used costs time and one warning, never a run.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from coterie.storage.callfile import (
    CLEAR,
    COUNT,
    GET,
    PUT,
    CallFile,
    Damaged,
    aside_names,
    fault_of,
    open_file,
    set_aside,
    shrink,
)
from coterie.storage.calls import CallKey, call_key, checksum, complete, decode, encode
from coterie.storage.paths import cache_folder
from coterie.types import Completion, record

__all__ = ["AgentCalls", "Cache", "CacheStats", "CallKey", "call_key", "default_path"]

T = TypeVar("T")
_TRIES = 3
_LOG = logging.getLogger(__name__)


def default_path() -> Path:
    """The file of finished calls in `cache_folder`."""
    return cache_folder() / "calls.sqlite"


@record
class AgentCalls:
    """What the cache holds of one revision of an agent; `bytes` counts the stored records."""

    agent: str
    model: str
    revision: str
    entries: int
    bytes: int


@record
class CacheStats:
    """`hits` and `misses` are of this process; `bytes` is the file's size with its log.

    `set_aside` names damaged or foreign files that were renamed; `fault` says why the cache is not in use, if so.
    """

    path: str
    entries: int
    bytes: int
    hits: int
    misses: int
    agents: tuple[AgentCalls, ...] = ()
    set_aside: tuple[str, ...] = ()
    fault: str = ""


class Cache:
    """Completions by request. Opens its file at first use; every method is thread-safe and blocks.

    No method raises for what is wrong with the file: a damaged one is renamed and begun anew, and where it cannot
    be written (disk full, read-only folder) calls are simply made again. Either is logged once and in `stats`.
    """

    def __init__(self, path: Path | str, *, timeout: float = 5.0) -> None:
        """`timeout` is how many seconds to wait for another process that is writing."""
        self.path = Path(path)
        self.timeout = timeout
        self._orphans: list[CallFile | None] = []
        self._begin()

    def get(self, key: CallKey) -> Completion | None:
        """The completion that was stored for this very request, exactly as it was, or None."""
        address = bytes.fromhex(key.digest)
        found = self._attempt(lambda connection: _read(connection, address))
        with self._state:
            self._hits += found is not None
            self._misses += found is None
        return found

    def put(self, key: CallKey, completion: Completion) -> None:
        """Store a complete success (`calls.complete`); once this returns it survives a kill of the process.

        What is there already stays, unless only the new record has token ids.
        """
        if self._unwritable or not complete(completion):
            return
        address, body = bytes.fromhex(key.digest), encode(completion)
        about = (key.agent, key.model, key.revision, time.time(), completion.tokens is not None)
        row = (address, *about, checksum(address, body), body)
        self._attempt(lambda connection: connection.execute(PUT, row), write=True)

    def stats(self) -> CacheStats:
        """What the file holds by agent revision, and how this process has used it."""
        agents = self._agents()
        files = [self.path, self.path.with_name(self.path.name + "-wal")]
        return CacheStats(
            path=str(self.path),
            entries=sum(a.entries for a in agents),
            bytes=sum(map(_size, files)),
            hits=self._hits,
            misses=self._misses,
            agents=agents,
            set_aside=aside_names(self.path),
            fault=self._unusable or self._unwritable,
        )

    def clear(self, *, agent: str | None = None, model: str | None = None, revision: str | None = None) -> int:
        """Forget the entries that match everything given (nothing given: all); returns how many."""
        if not self.path.exists():
            return 0
        wanted = (agent, model, revision)
        gone = self._attempt(lambda connection: connection.execute(CLEAR, wanted).rowcount, write=True)
        if gone:
            self._attempt(shrink, write=True)
        return gone or 0

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._state:
            self._retire()

    def _begin(self) -> None:
        self._state = threading.RLock()
        self._file: CallFile | None = None
        self._pid = os.getpid()
        self._hits = self._misses = 0
        self._unusable = self._unwritable = self._waited = ""

    def _agents(self) -> tuple[AgentCalls, ...]:
        rows = (
            self._attempt(lambda connection: connection.execute(COUNT).fetchall()) if self.path.exists() else None
        )
        return tuple(
            AgentCalls(agent=agent, model=model, revision=revision, entries=entries, bytes=int(size))
            for agent, model, revision, entries, size in rows or []
        )

    def _attempt(self, action: Callable[[sqlite3.Connection], T], *, write: bool = False) -> T | None:
        """Run one action on the file, again after a fault that could be mended; None where it cannot be run."""
        for _ in range(_TRIES):
            file = self._opened()
            if file is None:
                break
            handle = file.writer if write else file.reader
            try:
                with handle.lock:
                    return action(handle.connection)
            except (sqlite3.Error, Damaged) as error:
                if not self._mend(file, error, write):
                    break
        return None

    def _opened(self) -> CallFile | None:
        if self._pid != os.getpid():
            # no connection may cross a fork; kept rather than closed, which would drop the parent's locks
            self._orphans.append(self._file)
            self._begin()
        with self._state:
            if self._file is not None and not self._file.in_place():
                # deleted, or set aside by another process: SQLite would go on writing where nobody looks
                self._retire()
            if self._file is None and not self._unusable:
                try:
                    self._file = open_file(self.path, self.timeout)
                except (OSError, sqlite3.Error, Damaged) as error:
                    self._unusable = self._warned(error)
            return self._file

    def _mend(self, file: CallFile, error: Exception, write: bool) -> bool:
        """Do about a fault what can be done; True where another try is worth it."""
        with self._state:
            if self._file is not file:
                return True
            fault = fault_of(error)
            if fault == "damaged" or not file.in_place():
                self._replace(file, str(error))
                return True
            if fault == "busy":
                self._waited = self._waited or self._warned(error)
            elif write:
                self._unwritable = self._unwritable or self._warned(error)
            else:
                self._unusable = self._warned(error)
                self._retire()
            return False

    def _replace(self, file: CallFile, damage: str) -> None:
        """Let go of a file that is damaged or no longer in its place; the next use opens another."""
        self._retire()
        try:
            if file.in_place():
                set_aside(file, damage)
        except OSError as refused:
            self._unusable = self._warned(refused)

    def _retire(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _warned(self, error: Exception) -> str:
        _LOG.warning("call cache %s: %s; going on without it", self.path, error)
        return str(error)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # absent, or gone meanwhile: the log goes when the last process closes the file
        return 0


def _read(connection: sqlite3.Connection, address: bytes) -> Completion | None:
    row = connection.execute(GET, (address,)).fetchone()
    if row is None:
        return None
    # SQLite notices damage to its own structure, not to what is stored in it
    if row[0] != checksum(address, row[1]):
        raise Damaged("a record fails its checksum")
    return decode(row[1])
