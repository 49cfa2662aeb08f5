"""Run folders: what an evaluation leaves on disk, written so that a kill at any moment loses nothing finished.

run.json          what is run: resuming under another configuration is refused, naming the keys
traces.jsonl      one finished rollout a line, appended, without scores
decisions.jsonl   who was asked and what was answered, written when all rollouts are done ...
decisions.sha256  ... and hashed before the first grade
scores.jsonl      one verdict a graded text, appended
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from coterie.errors import ConfigError, DataError
from coterie.types import Query, Score, Trace, Turn

TRACE = TypeAdapter(Trace)
SCORE = TypeAdapter(Score)


@dataclass
class Run:
    """One run folder. Open for appending it is locked while it lives: a second process is refused."""

    path: Path
    config: Mapping[str, Any]
    scores: dict[str, Score] = field(default_factory=dict)
    lock: IO[str] | None = field(default=None, repr=False)

    @staticmethod
    def open(path: Path, config: Mapping[str, Any]) -> "Run":
        """Begin the run, or go on with it if its configuration is the same; grading errors are tried again.

        Nothing is written before the lock is held: a folder that another process writes keeps what it has.
        """
        file, lock = path / "run.json", _only_writer(path)
        if file.exists():
            _refuse_other(file, config)
        write_atomically(file, json.dumps(config, indent=2, ensure_ascii=False))
        for name in ("traces.jsonl", "scores.jsonl", "decisions.jsonl", "times.jsonl"):
            _drop_torn_tail(path / name)
        run = Run(path, config, lock=lock)._with_scores()
        run.scores = {key: score for key, score in run.scores.items() if score.verdict != "error"}
        return run

    @staticmethod
    def load(path: Path) -> "Run":
        """A run as it lies on disk, to be read."""
        file = path / "run.json"
        if not os.path.isfile(file):
            raise ConfigError(f"{path}: is no run folder, it has no run.json")
        return Run(path, _read_json(file))._with_scores()

    def _with_scores(self) -> "Run":
        file = self.path / "scores.jsonl"
        for number, line in enumerate(read_lines(file), 1):
            try:
                score = SCORE.validate_python(line["score"])
                self.scores[str(line["text"])] = score
            except (ValidationError, KeyError):
                raise DataError(f"{file}:{number}: is no verdict of this version") from None
            if score.value is not None and not 0.0 <= score.value <= 1.0:
                raise DataError(f"{file}:{number}: the value {score.value} is not between 0 and 1")
        return self

    def traces(self) -> dict[str, list[Trace]]:
        """Finished rollouts by recipe, each in the order of query id and sample, with scores where graded.

        A rollout that stands twice counts once, as it was written last.
        """
        file = self.path / "traces.jsonl"
        found: dict[str, dict[tuple[str, int], Trace]] = {}
        for number, line in enumerate(read_lines(file), 1):
            try:
                trace, recipe = TRACE.validate_python(line["trace"]), str(line["recipe"])
            except (ValidationError, KeyError):
                raise DataError(f"{file}:{number}: is no trace of this version") from None
            if trace.final is not None and not 0 <= trace.final < len(trace.turns):
                raise DataError(f"{file}:{number}: is settled by turn {trace.final}, which it does not have")
            found.setdefault(recipe, {})[trace.query.id, trace.sample] = self.scored(trace)
        return {name: [rows[key] for key in sorted(rows)] for name, rows in found.items()}

    def append(self, recipe: str, trace: Trace) -> None:
        """Add one finished rollout."""
        append_line(self.path / "traces.jsonl", {"recipe": recipe, "trace": TRACE.dump_python(trace, mode="json")})

    def forget_failures(self) -> int:
        """Take out the rollouts in which a call failed, so that they are solved again; how many they were.

        Their seal goes with them: this is for runs that train, not for those that are evidence.
        """
        file = self.path / "traces.jsonl"
        rows = list(read_lines(file))
        kept = [row for row in rows if not (isinstance(t := row.get("trace"), dict) and t.get("failures"))]
        if len(kept) < len(rows):
            write_atomically(file, "".join(json.dumps(row) + "\n" for row in kept))
            for name in ("decisions.jsonl", "decisions.sha256"):
                (self.path / name).unlink(missing_ok=True)
        return len(rows) - len(kept)

    def seal(self, traces: Mapping[str, Iterable[Trace]]) -> str:
        """Write and hash every decision before grading; raise ConfigError if a sealed one has changed."""
        rows = [_decision(name, trace) for name in sorted(traces) for trace in traces[name]]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        digest = hashlib.sha256(text.encode()).hexdigest()
        seal = self.path / "decisions.sha256"
        if seal.exists() and not seal.read_text(errors="replace").startswith(digest):
            raise ConfigError(f"{self.path}: traces.jsonl was changed after its decisions were sealed")
        write_atomically(self.path / "decisions.jsonl", text)
        write_atomically(seal, f"{digest}  decisions.jsonl\n")
        return digest

    def grade(self, query: Query, text: str, score: Score) -> None:
        """Add one verdict on one text."""
        key = text_key(query, text)
        self.scores[key] = score
        append_line(
            self.path / "scores.jsonl",
            {"text": key, "query": query.id, "score": SCORE.dump_python(score, mode="json")},
        )

    def scored(self, trace: Trace) -> Trace:
        """The trace with the verdicts that are known. Calls that failed are an error, a spent limit is not."""
        turns = tuple(replace(t, score=self._score(trace.query, t)) for t in trace.turns)
        if trace.final is not None:
            return replace(trace, turns=turns, score=turns[trace.final].score)
        failed = trace.stopped == "failed" or bool(trace.failures and not turns)
        score = Score(verdict="error" if failed else "fail", value=None if failed else 0.0, reason=_why(trace))
        return replace(trace, turns=turns, score=score)

    def _score(self, query: Query, turn: Turn) -> Score | None:
        return self.scores.get(text_key(query, turn.completion.text)) if turn.answers else None


def _only_writer(path: Path) -> IO[str]:
    """An open lock file in the folder, which is made; ConfigError where another process holds it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = open(path / ".lock", "w", encoding="utf-8")  # noqa: SIM115 - open as long as the run is
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(f"{path}: another run is writing here; wait for it or choose another folder") from None
    return file


def text_key(query: Query, text: str) -> str:
    """What a verdict hangs on: the query with its gold side, and the text."""
    facts = json.dumps([query.id, query.task, query.contract, query.reference], sort_keys=True, default=str)
    return hashlib.sha256(f"{facts}\0{text}".encode(errors="surrogatepass")).hexdigest()[:24]


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing, making its folder; ConfigError where file or text cannot be written.

    What is no regular file (a device, a folder) is never replaced.
    """
    # not by pathlib, which raises for a name that is too long or a folder that may not be entered
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError(f"{path}: is not a regular file")
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):x}"
        raise ConfigError(f"{path}: cannot be written ({half} in it is half of a character)") from None
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("task"), str):
        raise ConfigError(f"{file}: is damaged, it holds no run's configuration")
    return found


def _why(trace: Trace) -> str:
    reasons = "; ".join(f"{f.agent}: {f.kind}: {f.message}" for f in trace.failures)
    return f"no answer ({trace.stopped}){': ' * bool(reasons)}{reasons}"


def _decision(recipe: str, trace: Trace) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "query": trace.query.id,
        "sample": trace.sample,
        "weights": [dict(routing.weights) for routing in trace.routings],
        "asked": [turn.agent for turn in trace.turns],
        "failed": [failure.agent for failure in trace.failures],
        "final": trace.final,
        "text": text_key(trace.query, trace.text),
    }


def _refuse_other(file: Path, config: Mapping[str, Any]) -> None:
    old = _flat(_read_json(file))
    new = _flat(json.loads(json.dumps(config)))
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if keys:
        more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
        raise ConfigError(
            f"{file.parent}: was run under another configuration (differs: {', '.join(keys[:5])}{more});"
            " resume with the same one or choose another folder"
        )


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{path}.{key}".lstrip(".")).items()}
    return {path: value}


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """One line in one write to a file opened for appending: a kill leaves a whole line or a torn last one."""
    line = (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", errors="surrogatepass")
    try:
        with open(path, "ab", buffering=0) as file:
            written = file.write(line)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None
    if written != len(line):
        raise ConfigError(f"{path}: cannot be written (no space left); with space it goes on from here")


def _drop_torn_tail(path: Path) -> None:
    if not path.exists():
        return
    with open(path, "rb+") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file; a torn last line is no line."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    for number, line in enumerate(lines, 1):
        yield _row(line, f"{path}:{number}")


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8", errors="surrogatepass"))
    except (ValueError, RecursionError):
        raise DataError(f"{where}: is not JSON") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: is not a JSON object")
    return found
