"""Run folders: what an evaluation leaves on disk, written so that a kill at any moment loses nothing finished.

run.json          what is run: resuming under another configuration is refused, naming the keys
traces.jsonl      one finished rollout a line, appended, without scores
decisions.jsonl   who was asked and what was answered, written when all rollouts are done ...
decisions.sha256  ... and hashed before the first grade
scores.jsonl      one verdict a graded text, appended
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coterie.errors import ConfigError, DataError
from coterie.types import Query, Score, Trace, Turn

TRACE = TypeAdapter(Trace)
SCORE = TypeAdapter(Score)


@dataclass
class Run:
    """One run folder, open for appending. Not for several writers at once."""

    path: Path
    config: Mapping[str, Any]
    scores: dict[str, Score] = field(default_factory=dict)

    @staticmethod
    def open(path: Path, config: Mapping[str, Any]) -> "Run":
        """Begin the run, or go on with it if its configuration is the same; grading errors are tried again."""
        file = path / "run.json"
        if file.exists():
            _refuse_other(file, config)
        write_atomically(file, json.dumps(config, indent=2, ensure_ascii=False))
        for name in ("traces.jsonl", "scores.jsonl"):
            _drop_torn_tail(path / name)
        run = Run(path, config)._with_scores()
        run.scores = {key: score for key, score in run.scores.items() if score.verdict != "error"}
        return run

    @staticmethod
    def load(path: Path) -> "Run":
        """A run as it lies on disk, to be read."""
        file = path / "run.json"
        if not file.is_file():
            raise ConfigError(f"{path}: is no run folder, it has no run.json")
        return Run(path, _read_json(file))._with_scores()

    def _with_scores(self) -> "Run":
        for line in _lines(self.path / "scores.jsonl"):
            self.scores[line["text"]] = SCORE.validate_python(line["score"])
        return self

    def traces(self) -> dict[str, list[Trace]]:
        """Finished rollouts by recipe, each in the order of query id and sample, with scores where graded."""
        found: dict[str, list[Trace]] = {}
        for number, line in enumerate(_lines(self.path / "traces.jsonl"), 1):
            try:
                trace = TRACE.validate_python(line["trace"])
            except (ValidationError, KeyError):
                raise DataError(f"{self.path / 'traces.jsonl'}:{number}: is no trace of this version") from None
            found.setdefault(line["recipe"], []).append(self.scored(trace))
        return {name: sorted(rows, key=lambda t: (t.query.id, t.sample)) for name, rows in found.items()}

    def append(self, recipe: str, trace: Trace) -> None:
        """Add one finished rollout."""
        _append(self.path / "traces.jsonl", {"recipe": recipe, "trace": TRACE.dump_python(trace, mode="json")})

    def seal(self, traces: Mapping[str, Iterable[Trace]]) -> str:
        """Write and hash every decision before grading; raise ConfigError if a sealed one has changed."""
        rows = [_decision(name, trace) for name in sorted(traces) for trace in traces[name]]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        digest = hashlib.sha256(text.encode()).hexdigest()
        seal = self.path / "decisions.sha256"
        if seal.exists() and seal.read_text().split()[0] != digest:
            raise ConfigError(f"{self.path}: traces.jsonl was changed after its decisions were sealed")
        write_atomically(self.path / "decisions.jsonl", text)
        write_atomically(seal, f"{digest}  decisions.jsonl\n")
        return digest

    def grade(self, query: Query, text: str, score: Score) -> None:
        """Add one verdict on one text."""
        key = text_key(query, text)
        self.scores[key] = score
        _append(
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
        return self.scores.get(text_key(query, turn.completion.text))


def text_key(query: Query, text: str) -> str:
    """What a verdict hangs on: the query with its gold side, and the text."""
    facts = json.dumps([query.id, query.task, query.contract, query.reference], sort_keys=True, default=str)
    return hashlib.sha256(f"{facts}\0{text}".encode(errors="surrogatepass")).hexdigest()[:24]


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing, making its folder; ConfigError where it cannot be written.

    What is no regular file (a device, a folder) is never replaced.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is not a regular file")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
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


def _append(path: Path, row: Mapping[str, Any]) -> None:
    """One line in one write to a file opened for appending: a kill leaves a whole line or a torn last one."""
    line = (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", errors="surrogatepass")
    with open(path, "ab", buffering=0) as file:
        file.write(line)


def _drop_torn_tail(path: Path) -> None:
    if not path.exists():
        return
    with open(path, "rb+") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="surrogatepass") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                raise DataError(f"{path}:{number}: is not JSON") from None
