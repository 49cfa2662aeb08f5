"""Which commit of a hub repository is loaded: the lock file's, else the table's, else the branch's, then locked.

`coterie-data.lock` lies in the working folder, for a pin belongs to an experiment as a lock file to a program; the
environment variable COTERIE_DATA_LOCK names another place. Loads no data.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from coterie.errors import DataError
from coterie.storage.runs import write_atomically

LOCK = "coterie-data.lock"
VARIABLE = "COTERIE_DATA_LOCK"
COMMIT = re.compile(r"[0-9a-f]{40}")

Resolve = Callable[[str], str]
"""Repository -> commit of its main branch; DataError where the hub does not say."""


def lock_file() -> Path:
    """Where pins are kept."""
    return Path(os.environ.get(VARIABLE) or LOCK).expanduser()


def read_lock(path: Path) -> dict[str, str]:
    """Commits by repository; empty where there is no file. DataError for a damaged one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["revisions"]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(COMMIT.fullmatch(str(commit)) for commit in found.values()):
        raise DataError(f"{path}: is damaged; delete it, or bring it back from version control")
    return found


def write_lock(path: Path, revisions: Mapping[str, str]) -> None:
    """Put these pins into the lock file, beside those that it has."""
    merged = dict(sorted((read_lock(path) | dict(revisions)).items()))
    write_atomically(path, json.dumps({"revisions": merged}, indent=2) + "\n")


def pinned(repo: str, revision: str | None) -> str | None:
    """The commit that is loaded: the lock file's, else `revision`, else None."""
    return read_lock(lock_file()).get(repo) or revision


def revision_of(repo: str, revision: str | None, resolve: Resolve) -> str:
    """The commit to load; what is pinned nowhere is asked from the hub once and locked."""
    known = pinned(repo, revision)
    if known is None:
        known = resolve(repo)
        write_lock(lock_file(), {repo: known})
    return known
