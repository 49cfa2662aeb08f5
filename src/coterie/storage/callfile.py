"""The SQLite file of the call cache: opening, schema, setting a bad one aside, what an error means.

It knows bytes under keys; what they say is not its business. Not for network file systems that several machines
write to: SQLite's write-ahead log needs shared memory.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from coterie.storage.calls import FORMAT

try:
    import fcntl
except ImportError:  # Windows: SQLite's own locks remain, only two first openings at once are unguarded
    fcntl = None  # type: ignore[assignment]

GET = "SELECT sum, body FROM calls WHERE key = ?"
PUT = """
INSERT INTO calls (key, agent, model, revision, created, traced, sum, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET traced = excluded.traced, sum = excluded.sum, body = excluded.body
WHERE excluded.traced > calls.traced"""
COUNT = """
SELECT agent, model, revision, count(*), total(length(body)) FROM calls GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""
CLEAR = """
DELETE FROM calls WHERE agent = coalesce(?, agent) AND model = coalesce(?, model)
AND revision = coalesce(?, revision)"""
_SCHEMA = """
CREATE TABLE calls (
  key BLOB PRIMARY KEY, agent TEXT NOT NULL, model TEXT NOT NULL, revision TEXT NOT NULL, created REAL NOT NULL,
  traced INTEGER NOT NULL, sum INTEGER NOT NULL, body BLOB NOT NULL
)"""
_COLUMNS = ["key", "agent", "model", "revision", "created", "traced", "sum", "body"]
_MARK = 0x436F7465
_LOG = logging.getLogger("coterie.storage.cache")

Fault = Literal["damaged", "busy", "unusable"]


class Damaged(Exception):
    """The file is not, or no longer, a cache of this version."""


class Handle:
    """One connection and the lock that lets one thread use it at a time."""

    def __init__(self, path: Path, timeout: float) -> None:
        self.lock = threading.Lock()
        self.connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)

    def close(self) -> None:
        with self.lock:
            self.connection.close()


class CallFile:
    """An opened file. Reading and writing have a connection each, so that no read waits for a writer."""

    def __init__(self, path: Path, timeout: float) -> None:
        self.reader, self.writer = Handle(path, timeout), Handle(path, timeout)
        try:
            _prepare(self.writer.connection)
            self.path, self.inode = path, path.stat().st_ino
        except (sqlite3.Error, OSError, Damaged):
            self.close()
            raise

    def in_place(self) -> bool:
        """Whether the path still names this file, not another or none."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


def open_file(path: Path, timeout: float) -> CallFile:
    """The file at `path`, made if need be; one that is no cache of this version is set aside first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        try:
            return CallFile(path, timeout)
        except (sqlite3.Error, Damaged) as error:
            if fault_of(error) != "damaged":
                raise
            _rename(path, str(error))
            return CallFile(path, timeout)


def set_aside(file: CallFile, why: str) -> None:
    """Rename a file, unless another process has done so already."""
    with _alone(file.path):
        if file.in_place():
            _rename(file.path, why)


def aside_names(path: Path) -> tuple[str, ...]:
    """Names of the files that were once set aside from `path`, oldest first."""
    folder = path.parent
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    return tuple(n for n in names if n.startswith(f"{path.name}.aside-") and not n.endswith(("-wal", "-shm")))


def shrink(connection: sqlite3.Connection) -> None:
    """Give the room of deleted entries back to the disk, unless others are using the file."""
    with suppress(sqlite3.OperationalError):
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def fault_of(error: Exception) -> Fault:
    """What an error of SQLite means for the file; an error that is none of SQLite's own is a bug and goes on."""
    if isinstance(error, Damaged):
        return "damaged"
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        raise error
    damaged, busy = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB), (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    # the low byte is the kind, the rest the detail
    kind = code & 0xFF
    return "damaged" if kind in damaged else "busy" if kind in busy else "unusable"


def _prepare(connection: sqlite3.Connection) -> None:
    """Create the schema in an empty file, or make sure that it is this version's."""
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_SCHEMA)
        connection.execute(f"PRAGMA application_id = {_MARK}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    columns = [row[1] for row in connection.execute("PRAGMA table_info(calls)")]
    if found != [_MARK, FORMAT] or columns != _COLUMNS:
        raise Damaged(f"not a call cache of version {FORMAT}")
    # only now, for it changes the file. A commit under WAL at NORMAL survives the death of the process; the last
    # ones before a power cut may be lost
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from opening or renaming the file meanwhile."""
    with path.with_name(path.name + ".lock").open("a") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _rename(path: Path, why: str) -> None:
    stamp = f"{time.strftime('%Y%m%dT%H%M%S')}-{time.time_ns() % 10**9:09d}"
    aside = path.with_name(f"{path.name}.aside-{stamp}")
    # the log goes first: left beside a new file it would be replayed into it
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    _LOG.warning("call cache %s: %s; set aside as %s, a new one is begun", path, why, aside.name)
