"""Generated items: reasoning-gym's data sets as queries, graded by their own scorers. Holds no generator."""

import functools
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import count, islice
from typing import Any

from coterie.config import nearest
from coterie.errors import MissingExtra, UserError
from coterie.tasks.data import prompt
from coterie.tasks.guard import COMPARED, REGRADED, unfit
from coterie.tasks.worker import Crew, Unanswered, children, kept
from coterie.types import Query, Score, draw

SOLVED = 0.999
PATIENCE = 400
CHUNK, PORTION = 100, 5
WALL = 20.0  # seconds that a scorer in a child may take for one answer
MAKING = 300.0  # seconds that a child may take for CHUNK questions
FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)

TUPLES = frozenset({"arc_agi", "rearc"})


# --- making queries -----------------------------------------------------------------------------------


def reasoning_gym_queries(
    dataset: str,
    size: int,
    seed: int,
    config: Mapping[str, Any] | None = None,
    contract: str = "answer",
) -> tuple[Query, ...]:
    """`size` queries of one data set, no question twice.

    Equal arguments give equal queries; different seeds give different streams (reasoning-gym itself makes
    item i of seed s from s + i, so that neighbouring seeds share almost all items). UserError for an unknown
    data set or option, or where there are fewer different questions; MissingExtra without the package.
    """
    found = tuple(islice(stream(dataset, seed, config or {}, contract), size))
    if len(found) < size:
        raise UserError(_too_small(dataset, len(found), size))
    return found


def disjoint_split(
    dataset: str,
    train: int,
    test: int,
    seed: int,
    config: Mapping[str, Any] | None = None,
    contract: str = "answer",
) -> tuple[tuple[Query, ...], tuple[Query, ...]]:
    """`train` and `test` queries of one data set that share no question, and none of which occurs twice.

    Several data sets have small pools (lcm 78, products 99, count_bits 8 by default): UserError where train
    and test do not fit together into what there is.
    """
    found = reasoning_gym_queries(dataset, train + test, seed, config, contract)
    return found[:train], found[train:]


def split_of(query_id: str) -> str:
    """`train` or `test`: a third of all questions is test, whatever seed, size or parameters made them."""
    return "test" if draw(0, "split", query_id) % 3 == 0 else "train"


def datasets() -> list[str]:
    """Names of all data sets that can be generated."""
    return sorted(_registry().keys() - {"composite"})


def _too_small(dataset: str, found: int, wanted: int) -> str:
    return (
        f"reasoning_gym:{dataset} has only about {found} different questions with these parameters, {wanted} are"
        " needed: ask for fewer, or widen the parameters"
    )


def stream(dataset: str, seed: int, config: Mapping[str, Any], contract: str) -> Iterator[Query]:
    """Different queries without end, or until draws bring nothing new: PATIENCE and 4 for each one found.

    With that patience the last of n equally likely questions is missed with probability e^-4 at most.
    """
    seen: set[str] = set()
    repeated = 0
    for entry in _entries(dataset, seed, config):
        query = _query(dataset, entry, config, contract)
        repeated = repeated + 1 if query.id in seen else 0
        if repeated > PATIENCE + 4 * len(seen):
            return
        if not repeated:
            seen.add(query.id)
            yield query


def _entries(dataset: str, seed: int, config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Entries without end, in chunks: some data sets make all `size` of theirs when they are made.

    They are made in a child process without hash randomisation: some generators draw from sets.
    """
    _registry()
    for chunk in count():
        # Some generators hand the seed to numpy, which takes 32 bits; seed + index stays below that.
        start = draw(seed, "reasoning_gym", dataset, chunk) % 2**31
        for first in range(0, CHUNK, PORTION):
            yield from _asked(dataset, config, start, first)


def _asked(dataset: str, config: Mapping[str, Any], start: int, first: int) -> list[Mapping[str, Any]]:
    """PORTION entries from the child. Raises UserError for what is wrong with the request."""
    try:
        made, reason = makers().ask(dataset, dict(config), start, first)
    except Unanswered as error:
        raise UserError(f"reasoning_gym:{dataset}: no questions could be made: {error}") from None
    except TypeError:
        raise UserError(f"reasoning_gym:{dataset}: parameters {dict(config)} are no JSON") from None
    if made is None:
        raise UserError(reason)
    return list(made)


@functools.cache
def makers() -> Crew:
    """The child of this process that makes questions."""
    return kept(Crew("coterie.tasks.generated:maker", 1, MAKING))


def maker() -> Callable[..., tuple[Any, str]]:
    """The work of that child."""
    _registry()
    return _made


def _made(dataset: str, config: Mapping[str, Any], start: int, first: int) -> tuple[Any, str]:
    """PORTION entries as plain JSON, or None and what is wrong with the request."""
    try:
        source = _source(dataset, json.dumps(config, sort_keys=True), start)
        return json.loads(json.dumps([source[first + i] for i in range(PORTION)], default=str)), ""
    except UserError as error:
        return None, str(error)


@functools.lru_cache(maxsize=1)
def _source(dataset: str, config: str, start: int) -> Any:
    return _dataset(dataset, json.loads(config), size=CHUNK, seed=start)


def _query(dataset: str, entry: Mapping[str, Any], config: Mapping[str, Any], contract: str) -> Query:
    question = str(entry["question"])
    digest = hashlib.sha256(question.encode()).hexdigest()[:16]
    return Query(
        id=f"{dataset}-{digest}",
        messages=prompt(question, contract),
        task="reasoning_gym",
        contract=contract,
        reference={"answer": entry["answer"], "dataset": dataset, "config": dict(config), "entry": entry},
        metadata={"source": "reasoning_gym", "domain": dataset},
    )


def _registry() -> Mapping[str, tuple[type, type]]:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise MissingExtra("reasoning-gym", "tasks") from None
    import reasoning_gym  # noqa: F401  (fills the registry)

    return DATASETS  # type: ignore[no-any-return]


def _dataset(name: str, config: Mapping[str, Any], size: int, seed: int) -> Any:
    known = _registry()
    if name not in known or name == "composite":
        raise UserError(f"unknown data set reasoning_gym:{name}{nearest(name, datasets())}")
    make, settings = known[name]
    names = {field.name for field in fields(settings)} - {"size", "seed"}
    if wrong := sorted(config.keys() - names):
        raise UserError(f"reasoning_gym:{name}: unknown parameter {wrong[0]!r}{nearest(wrong[0], names)}")
    # Some of them print what goes wrong, into whatever stdout is being used for.
    vars(sys.modules[make.__module__])["print"] = functools.partial(print, file=_Nowhere())
    try:
        return make(config=settings(**config, size=size, seed=seed))
    except FAULTS as error:
        raise UserError(f"reasoning_gym:{name}: parameters {dict(config)} do not fit: {error}") from None


class _Nowhere:
    """A file that forgets."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


# --- grading ------------------------------------------------------------------------------------------


def verify(answer: str | None, text: str, reference: Mapping[str, Any]) -> Score:
    """The data set's own score in [0, 1]; `pass` from 0.999 on. Equal text passes without it.

    `reference` is {"answer", "dataset", "config", "entry"}. Answers that a scorer would run as code, and that
    are not plain data or plain algebra, are wrong and never reach it; a few data sets are graded in `guard`.
    Scorers that only compare text run here, all others in a child process of `scorers`. A scorer that fails on
    every answer or takes more than WALL seconds, or an unknown data set, is an `error`.
    """
    dataset, entry = str(reference.get("dataset")), reference.get("entry")
    if not isinstance(entry, Mapping):
        return Score(verdict="error", value=None, answer=answer, reason="the reference holds no entry")
    if answer is None or not answer.strip():
        return Score(verdict="fail", value=0.0, reason="no answer")
    gold = reference.get("answer")
    if isinstance(gold, str) and answer.strip() == gold.strip():
        return Score(verdict="pass", value=1.0, answer=answer)
    if reason := unfit(dataset, answer):
        return Score(verdict="fail", value=0.0, answer=answer, reason=reason)
    if rule := REGRADED.get(dataset):
        right = rule(answer, entry)
        return Score(verdict="pass" if right else "fail", value=float(right), answer=answer)
    value, reason = _scored(dataset, answer, reference)
    if value is None:
        return Score(verdict="error", value=None, answer=answer, reason=reason)
    return Score(verdict="pass" if value >= SOLVED else "fail", value=value, answer=answer, reason=reason)


Scored = tuple[float | None, str]
"""A score in [0, 1], or None with the reason why there is none."""


def _scored(dataset: str, answer: str, reference: Mapping[str, Any]) -> Scored:
    config, gold, entry = reference.get("config") or {}, reference.get("answer"), reference["entry"]
    try:
        if compares(dataset):
            return _score(dataset, config, answer, gold, entry)
        value, reason = scorers().ask(dataset, config, answer, gold, entry)
    except (MissingExtra, Unanswered, TypeError) as error:
        return None, str(error)
    return value, reason


def compares(dataset: str) -> bool:
    """Whether the scorer only compares texts or numbers, in time linear in the answer.

    Those are the data sets that keep reasoning-gym's default scorer (is it the gold, does it hold the gold) and
    those of `guard.COMPARED`. An unknown data set counts as one: its error needs no child. Raises: MissingExtra.
    """
    registry = _registry()
    if dataset in COMPARED or dataset not in registry:
        return True
    from reasoning_gym.dataset import ProceduralDataset

    scorer: Any = registry[dataset][0]
    return bool(scorer.score_answer is ProceduralDataset.score_answer)


@functools.cache
def scorers() -> Crew:
    """The children of this process that score what may hang: simplifying, searching, simulating, parsing."""
    return kept(Crew("coterie.tasks.generated:scorer", children(), WALL))


def scorer() -> Callable[..., Scored]:
    """The work of those children."""
    _registry()
    return _score


def _score(dataset: str, config: Mapping[str, Any], answer: str, gold: Any, entry: Mapping[str, Any]) -> Scored:
    try:
        scorer = _scorer(dataset, json.dumps(config, sort_keys=True))
    except (UserError, TypeError) as error:
        return None, str(error)
    return _judged(scorer, answer, gold, _frozen(entry) if dataset in TUPLES else entry)


def _judged(scorer: Any, answer: str, gold: Any, entry: Any) -> Scored:
    try:
        value = float(scorer.score_answer(answer, entry))
    except FAULTS as error:
        reason = f"the scorer fails: {type(error).__name__}: {error}"
        if _runs(scorer, gold if isinstance(gold, str) else "?", entry):
            # It can score this item, so it is this answer's form that it cannot take.
            return 0.0, f"not in the asked form ({reason})"
        return None, reason
    if math.isnan(value):
        return None, "the scorer gave no number"
    return min(max(value, 0.0), 1.0), ""


def _runs(scorer: Any, text: str, entry: Any) -> bool:
    try:
        scorer.score_answer(text, entry)
    except FAULTS:
        return False
    return True


@functools.lru_cache(maxsize=256)
def _scorer(dataset: str, config: str) -> Any:
    # Scorers read their data set's configuration (puzzle24: the allowed numbers).
    return _dataset(dataset, json.loads(config), size=1, seed=0)


def _frozen(value: Any) -> Any:
    """Lists as tuples again, for the data sets whose scorer compares with tuples."""
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return {key: _frozen(item) for key, item in value.items()} if isinstance(value, dict) else value


def same(a: str, b: str) -> bool:
    """Whether two answers are one, apart from white space."""
    return a.split() == b.split()
