"""What an outage left of a run: queries without an answer because calls failed. Counts them, words them, and takes
them out so that they are asked again; a seal that stood before is kept beside the new one.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from coterie.errors import ConfigError
from coterie.evaluation.metrics import Traces, outcome
from coterie.storage.runs import TRACE, Run, read_lines, write_atomically
from coterie.types import Trace, record

DECISIONS, SEAL = "decisions.jsonl", "decisions.sha256"
NAMED = 3


@record
class Outage:
    """`failed` of `total` rollouts have no answer because calls failed; the commonest of `kinds` is first."""

    failed: int
    total: int
    kinds: tuple[tuple[str, int], ...]

    def words(self) -> str:
        """How many failed, and of what: `3 of 8 queries failed (Unreachable 3)`."""
        named = ", ".join(f"{kind} {count}" for kind, count in self.kinds[:NAMED])
        return f"{self.failed} of {self.total} queries failed{f' ({named})' if named else ''}"


def outage(traces: Traces) -> Outage:
    """What failed among the traces of a run, all recipes together; a kind counts once a rollout."""
    every = [trace for rows in traces.values() for trace in rows]
    failed = [trace for trace in every if unanswered(trace)]
    kinds = Counter(kind for trace in failed for kind in {failure.kind for failure in trace.failures})
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    return Outage(failed=len(failed), total=len(every), kinds=tuple(ordered))


def unanswered(trace: Trace) -> bool:
    """Nobody answered because calls failed. Such a trace is never graded, so asking again chooses no verdict."""
    return trace.final is None and outcome(trace) == "error"


def forget(run: Run) -> int:
    """Take out the unanswered rollouts, so that they are asked again; how many they were.

    Decisions that were sealed stay as `decisions-N.jsonl`, and `sealed` puts their digest below the new one.
    Raises: ConfigError where sealed decisions have changed since.
    """
    file = run.path / "traces.jsonl"
    rows = list(read_lines(file))
    kept = [row for row in rows if not _unanswered(row)]
    if len(kept) < len(rows):
        _put_aside(run)
        write_atomically(file, "".join(json.dumps(row) + "\n" for row in kept))
    return len(rows) - len(kept)


def _unanswered(row: Mapping[str, object]) -> bool:
    try:
        return unanswered(TRACE.validate_python(row.get("trace")))
    except ValidationError:
        return False  # whoever reads the traces says what is wrong with it


def _put_aside(run: Run) -> None:
    """Give sealed decisions a number. The seal goes last: killed before, it is done again."""
    decisions, seal = run.path / DECISIONS, run.path / SEAL
    if not seal.exists():
        return
    old = decisions.read_bytes() if decisions.exists() else b""
    digest = hashlib.sha256(old).hexdigest()
    if not seal.read_text(errors="replace").startswith(digest):
        raise ConfigError(f"{decisions}: was changed after it was sealed")
    known = _earlier(run)
    if digest not in (before for before, _ in known):
        name = f"decisions-{len(known) + 1}.jsonl"
        write_atomically(run.path / name, old.decode())
        write_atomically(run.path / name.replace(".jsonl", ".sha256"), f"{digest}  {name}\n")
    seal.unlink()


def _earlier(run: Run) -> list[tuple[str, str]]:
    """Digest and file of the decisions that earlier seals stood for, oldest first."""
    found: list[tuple[str, str]] = []
    while (file := run.path / f"decisions-{len(found) + 1}.sha256").is_file():
        digest = file.read_text(errors="replace").split(" ")[0]
        found.append((digest, file.name.replace(".sha256", ".jsonl")))
    return found


def sealed(run: Run, traces: Mapping[str, Sequence[Trace]]) -> None:
    """Seal the run's decisions; the seal names those that stood before a retry, newest first, below its own."""
    digest = run.seal(traces)
    lines = [(digest, DECISIONS), *reversed(_earlier(run))]
    if len(lines) > 1:
        write_atomically(run.path / SEAL, "".join(f"{found}  {name}\n" for found, name in lines))
