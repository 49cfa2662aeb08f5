"""What tasks there are: kinds of items, benchmarks and generators by name, and the grading of a text.

A kind says how items are read and graded; a task is a tuple of queries. Nothing is run or routed here.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

from coterie.config import nearest
from coterie.errors import ConfigError, CoterieError, MissingExtra, UserError
from coterie.storage import tables
from coterie.tasks import choice, code, generated, hub, instruction, math, operands, qa
from coterie.tasks.benchmarks import BENCHMARKS
from coterie.tasks.contamination import is_test
from coterie.tasks.extract import CONTRACTS
from coterie.tasks.items import TASKS, Item
from coterie.tasks.prompts import CONTRACTS_OF, to_query
from coterie.tasks.rows import AS_IT_IS, TABLES, Reading, read_rows
from coterie.tasks.task import Kind, Task, Verify
from coterie.types import Query, Reader, Score

log = logging.getLogger(__name__)
DATA_FOLDER = "COTERIE_DATA"
GENERATED = "reasoning_gym:"
RECORDED = "replay:"
GENERATED_SIZE = 100
SPLITS = ("test", "train")
INFRASTRUCTURE = (CoterieError, OSError, EOFError, MemoryError, RuntimeError)
MALFORMED = (LookupError, TypeError, ValueError, AttributeError)


# --- kinds --------------------------------------------------------------------------------------------


def _no_reference(answer: str | None, text: str, reference: Mapping[str, Any]) -> Score:
    return Score(verdict="error", value=None, answer=answer, reason="no reference: open text is not graded")


def _kind(name: str, verify: Verify, same: Any, open_ended: bool = False) -> Kind:
    return Kind(contract=CONTRACTS_OF[name], verify=verify, same=same, open_ended=open_ended)


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "chat": _kind("chat", _no_reference, instruction.same),
        "choice": _kind("choice", choice.verify, choice.same),
        "code_function": _kind("code_function", code.verify_function, instruction.same, open_ended=True),
        "code_stdio": _kind("code_stdio", code.verify_stdio, instruction.same, open_ended=True),
        "instruction": _kind("instruction", instruction.verify, instruction.same, open_ended=True),
        "math": _kind("math", math.verify, math.same),
        "qa": _kind("qa", qa.verify, qa.same),
        "recorded": _kind("recorded", tables.verify_recorded, str.__eq__, open_ended=True),
        "reasoning_gym": _kind("reasoning_gym", generated.verify, generated.same),
    }
)
"""The built-in kinds. Code and instructions have no answer to vote on (CERA-MoA asks one agent), nor has chat
under its usual contract, `raw`."""


def find_kind(name: str) -> Kind:
    """A built-in kind, else the one that an entry point of group `coterie.task` loads to.

    A built-in name cannot be taken by a plugin. ConfigError for an unknown name or a plugin that is no Kind.
    """
    if name in KINDS:
        return KINDS[name]
    for point in entry_points(group="coterie.task", name=name):
        kind = point.load()
        if not isinstance(kind, Kind):
            raise ConfigError(f"plugin {point.value!r} is {type(kind).__name__}, not a Kind of task")
        return kind
    raise ConfigError(f"unknown kind of task {name!r}{nearest(name, kind_names())}")


def kind_names() -> list[str]:
    """All kinds, built-in and installed."""
    return sorted({*KINDS, *(point.name for point in entry_points(group="coterie.task"))})


def file_kinds() -> tuple[str, ...]:
    """The kinds that a row of a file may be of."""
    return tuple(sorted({*TASKS, *kind_names()} - {"reasoning_gym"}))


# --- reading and grading ------------------------------------------------------------------------------


def reader_of(query: Query) -> Reader:
    """How answers to a query are taken out and compared. ConfigError for an unknown kind or contract."""
    kind = find_kind(query.task)
    if query.contract not in CONTRACTS:
        raise ConfigError(f"unknown contract {query.contract!r}{nearest(query.contract, CONTRACTS)}")
    open_ended = kind.open_ended or query.contract == "raw"  # whole texts have nothing to be compared by
    contract = CONTRACTS[query.contract]
    return Reader(
        extract=contract.extract,
        same=kind.same,
        open_ended=open_ended,
        stop=contract.stop,
        max_tokens=contract.max_tokens,
    )


def verify(text: str, query: Query) -> Score:
    """The verdict on a whole completion: read by the query's contract, graded by its kind.

    `error`, never `fail`, where the query has no reference, the reference is malformed, or the verifier
    cannot work (missing extra, broken sandbox). ConfigError for an unknown kind or contract.
    """
    answer = reader_of(query).extract(text)
    if query.reference is None:
        return _no_reference(answer, text, {})
    try:
        return find_kind(query.task).verify(answer, text, query.reference)
    except INFRASTRUCTURE as error:
        reason = str(error) or type(error).__name__
    except MALFORMED as error:
        reason = f"the verifier failed: {type(error).__name__}: {error}"
        log.warning("%s, item %s: %s", query.task, query.id, " ".join(reason.split()))
        log.debug("there", exc_info=True)
    return Score(verdict="error", value=None, answer=answer, reason=reason)


def query_of(
    text: str,
    task: str = "chat",
    *,
    contract: str | None = None,
    gold: str | None = None,
    choices: Sequence[str] = (),
    id: str = "",
) -> Query:
    """A text as a query of a kind. `gold` is the answer (math, choice, qa) or the tests (code_function).

    ConfigError for an unknown kind or contract, or a kind whose gold is more than one text.
    """
    if gold is not None and task in ("chat", "code_stdio", "instruction", "reasoning_gym"):
        raise ConfigError(f"an item of kind {task} is not graded by one text: give it in a file")
    item = Item.model_construct(
        id=id or sha256(text.encode(errors="surrogatepass")).hexdigest()[:16],
        source="ask",
        task=task,
        question=text,
        answer=gold,
        choices=list(choices) or None,
        tests=[gold] if task == "code_function" and gold is not None else None,
    )
    query = to_query(item, contract or find_kind(task).contract)
    reference = None if gold is None else query.reference
    return replace(query, reference=reference, metadata={"source": "ask", "domain": task})


# --- tasks by name ------------------------------------------------------------------------------------


def load_task(
    name: str,
    *,
    limit: int | None = None,
    seed: int = 0,
    contracts: Mapping[str, str] = MappingProxyType({}),
) -> Task:
    """The queries of a file, a benchmark or a generator.

    `name` is a path of a JSONL or CSV file, with `?kind=qa&answer=gold&ignore=notes` if wanted (`rows`), or
    `mine.jsonl/train` and `mine.jsonl/test` for its two parts (four fifths and one, by the digest of the question),
    `replay:FOLDER` (the queries of a recorded table), `hub:gsm8k` or `hub:gsm8k/train` (a published benchmark),
    `gsm8k` or `gsm8k/train` (a folder below the one that the environment variable COTERIE_DATA names; test by
    default), or `reasoning_gym:lcm`, with `/train` and parameters if wanted
    (`reasoning_gym:chain_sum/train?min_terms=2&max_terms=2`), or `operands:larger` (made questions about two
    numbers; `operands:red+blue/train?high=15` asks by several rules in turn, from 1 to 15). `limit`
    takes the first N in file order; a generator makes N (100 by default), fewer where it has no more, from
    `seed`. Train and test of a generator never share a question. `contracts` overrides the usual contract by
    kind. UserError or one of its kinds, in one line, for whatever is not there.
    """
    _check(limit, contracts)
    if name.startswith(RECORDED):
        queries = tables.queries_of(tables.read_table(Path(name.removeprefix(RECORDED))))
        return Task(name=name, queries=queries[:limit])
    if name.startswith(GENERATED):
        return Task(name=name, queries=_generated(name, limit or GENERATED_SIZE, seed, contracts))
    if name.startswith(operands.PREFIX):
        return Task(name=name, queries=_queries(_operands(name, limit, seed), contracts))
    if name.startswith(hub.PREFIX):
        loaded = hub.load(name, limit)
        if loaded.skipped:
            log.warning("%s: %s", name, loaded.remark())
        return Task(name=name, queries=_queries(loaded.items, contracts))
    path, reading, split = _file(name)
    items = read_rows(path, file_kinds(), reading)
    items = [item for item in items if not split or is_test(to_query(item)) == (split == "test")][:limit]
    if not items:
        part = f" for {split}, which is {'a fifth' if split == 'test' else 'four fifths'} of many" if split else ""
        raise UserError(f"{path}: holds no item{part}")
    return Task(name=_title(name.partition("?")[0], path), queries=_queries(items, contracts))


def _queries(items: Sequence[Item], contracts: Mapping[str, str]) -> tuple[Query, ...]:
    """The items as queries, each kind under its contract."""
    usual = {kind: contracts.get(kind) or find_kind(kind).contract for kind in {item.task for item in items}}
    return tuple(to_query(item, usual[item.task]) for item in items)


def _file(name: str) -> tuple[Path, Reading, str]:
    """The path of a task's name, how its rows are to be read, and which part of them is wanted ("": all)."""
    target, sign, parameters = name.partition("?")
    if not sign or Path(name).is_file():
        path, split = _part(name)
        return path, AS_IT_IS, split
    given = _parameters(name, parameters, many=("ignore",))
    kind = next((value for key, value in given if key == "kind"), None)
    ignore = tuple(value for key, value in given if key == "ignore")
    columns = {key: value for key, value in given if key not in ("kind", "ignore")}
    path, split = _part(target)
    return path, Reading(kind=kind, columns=columns, ignore=ignore), split


def _part(name: str) -> tuple[Path, str]:
    """`mine.jsonl/train` as the file and its part; what has a split of its own is left to `_path`."""
    file, _, split = name.rpartition("/")
    if Path(name).exists() or not _is_file(file):
        return _path(name), ""
    if split not in SPLITS:
        raise UserError(f"{name}: unknown split {split!r}{nearest(split, SPLITS)}")
    return _path(file), split


def known_tasks() -> list[str]:
    """Every name that `load_task` takes, but for files: benchmarks in COTERIE_DATA, the hub's, then generators."""
    found = [f"{file.parent.name}{'/train' * (file.stem == 'train')}" for file in _benchmarks()]
    try:
        names = generated.datasets()
    except MissingExtra:
        names = []
    published = [f"{hub.PREFIX}{name}" for name in sorted(BENCHMARKS)]
    made = [f"{operands.PREFIX}{domain}" for domain in sorted(operands.DOMAINS)]
    return sorted(found) + published + made + [f"{GENERATED}{dataset}" for dataset in names]


def _check(limit: int | None, contracts: Mapping[str, str]) -> None:
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, not {limit}")
    for kind, contract in contracts.items():
        find_kind(kind)
        if contract not in CONTRACTS:
            raise ConfigError(f"contract of {kind}: unknown contract {contract!r}{nearest(contract, CONTRACTS)}")


def _folder() -> Path | None:
    return Path(os.environ[DATA_FOLDER]).expanduser() if os.environ.get(DATA_FOLDER) else None


def _benchmarks() -> list[Path]:
    folder = _folder()
    return sorted(file for split in SPLITS for file in folder.glob(f"*/{split}.jsonl")) if folder else []


def _is_file(name: str) -> bool:
    return name.endswith((".jsonl", ".json", *TABLES)) or Path(name).is_file()


def _path(name: str) -> Path:
    if _is_file(name):
        return Path(name).expanduser()
    benchmark, _, split = name.partition("/")
    folder = _folder()
    if folder is None:
        raise UserError(
            f"unknown task {name!r}: give a .jsonl file (or .csv), {hub.PREFIX}NAME or {GENERATED}NAME, or set"
            f" {DATA_FOLDER} to the folder of the benchmarks"
        )
    path = folder / benchmark / f"{split or 'test'}.jsonl"
    if not path.is_file():
        known = [f"{file.parent.name}/{file.stem}" for file in _benchmarks()]
        known = sorted({file.split("/")[0] for file in known} if not split else known)
        raise UserError(f"unknown task {name!r} (a .jsonl file works too){nearest(name, known)}")
    return path


def _title(name: str, path: Path) -> str:
    return "/".join(filter(None, (path.parent.name, path.stem))) if path == Path(name).expanduser() else name


def _generated(name: str, size: int, seed: int, contracts: Mapping[str, str]) -> tuple[Query, ...]:
    target, _, parameters = name.removeprefix(GENERATED).partition("?")
    dataset, _, split = target.partition("/")
    if split not in ("", *SPLITS):
        raise UserError(f"{name}: unknown split {split!r}{nearest(split, SPLITS)}")
    config = {key: _value(text) for key, text in _parameters(name, parameters)}
    contract = contracts.get("reasoning_gym") or KINDS["reasoning_gym"].contract
    stream = generated.stream(dataset, seed, config, contract)
    found = tuple(islice((query for query in stream if generated.split_of(query.id) == (split or "test")), size))
    if not found:
        raise UserError(f"{name}: there is no question in this split; widen the parameters")
    return found


def _operands(name: str, limit: int | None, seed: int) -> Sequence[Item]:
    target, _, parameters = name.removeprefix(operands.PREFIX).partition("?")
    domains, _, split = target.partition("/")
    if split not in ("", *SPLITS):
        raise UserError(f"{name}: unknown split {split!r}{nearest(split, SPLITS)}")
    given = {key: _value(text) for key, text in _parameters(name, parameters)}
    if unknown := sorted(given.keys() - {"low", "high"}):
        raise UserError(f"{name}: unknown parameter {unknown[0]!r}{nearest(unknown[0], ('low', 'high'))}")
    rules = domains.split("+")
    if twice := sorted({rule for rule in rules if rule in operands.DOMAINS and rules.count(rule) > 1}):
        raise UserError(f"{name}: names {twice[0]!r} twice")
    streams = [operands.items(rule, split or "test", seed, **given) for rule in rules]
    found = list(islice((item for turn in zip(*streams, strict=True) for item in turn), limit))
    if not found:
        raise UserError(f"{name}: there is no pair in this split; widen low and high")
    return found


def _parameters(name: str, text: str, many: Sequence[str] = ()) -> list[tuple[str, str]]:
    """What stands behind a task's `?`. UserError for a key that stands twice, but for `many`."""
    given = parse_qsl(text, keep_blank_values=True)
    keys = [key for key, _ in given if key not in many]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UserError(f"{name}: says {twice!r} twice")
    return given


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
