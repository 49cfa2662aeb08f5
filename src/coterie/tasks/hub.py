"""Items of a published benchmark by name: `hub:gsm8k`, `hub:mmlu_pro/validation`, `hub:bbh:navigate/test`.

What is loaded is one commit (`pins`), brought by `download`, mapped by `columns`. Rows that cannot be graded are
counted by reason, never silently dropped.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from coterie.config import nearest
from coterie.errors import DataError, UserError
from coterie.tasks import download
from coterie.tasks.benchmarks import ABSENT, BENCHMARKS, Benchmark, Part
from coterie.tasks.columns import Row, Unsupported
from coterie.tasks.contamination import is_test
from coterie.tasks.download import Fetch
from coterie.tasks.items import Item
from coterie.tasks.pins import Resolve, revision_of
from coterie.tasks.prompts import to_query
from coterie.types import record

PREFIX = "hub:"
WHOLE = "all"


@record
class Loaded:
    """Items in order, the rows left out by reason, and the commit of each repository."""

    items: tuple[Item, ...]
    skipped: Mapping[str, int]
    revisions: Mapping[str, str]

    def remark(self) -> str:
        """What was left out in one line, empty where nothing was."""
        reasons = ", ".join(f"{count} × {reason}" for reason, count in sorted(self.skipped.items()))
        return f"left out: {reasons}" if reasons else ""


@record
class Wanted:
    """A task name, read: the benchmark, its parts, our split."""

    name: str
    benchmark: Benchmark
    parts: tuple[Part, ...]
    split: str

    @property
    def published(self) -> str:
        """The publisher's name of the split."""
        return self.benchmark.splits["test" if self.split == WHOLE else self.split]


def load(
    name: str, limit: int | None = None, *, fetch: Fetch | None = None, resolve: Resolve | None = None
) -> Loaded:
    """The items of `hub:NAME[:PART][/SPLIT]` (test by default), the first `limit` where it is given.

    Parts take turns, so that the first items are of all parts. UserError for an unknown name, DataError where the
    data cannot be had or its columns are not those that are known.
    """
    wanted, revisions = read_name(name), {}
    for part in wanted.parts:
        revisions[part.repo] = revision_of(part.repo, part.revision, resolve or download.resolve)
    skipped: Counter[str] = Counter()
    first = limit is not None and wanted.benchmark.large
    streams = [
        _items(
            wanted, part, (fetch or download.fetch)(part, wanted.published, revisions[part.repo], first), skipped
        )
        for part in wanted.parts
    ]
    items: list[Item] = []
    seen: set[str] = set()
    for item in _in_turns(streams):
        if item.id in seen:
            skipped["an id that is there twice"] += 1
            continue
        seen.add(item.id)
        items.append(item)
        if len(items) == limit:
            break
    if not items:
        raise DataError(f"{name}: no row can be used ({', '.join(skipped) or 'there are none'})")
    return Loaded(items=tuple(items), skipped=dict(skipped), revisions=revisions)


def read_name(name: str) -> Wanted:
    """A name as the benchmark, parts and split that it means; UserError with the nearest name."""
    target, _, split = name.removeprefix(PREFIX).partition("/")
    title, _, label = target.partition(":")
    if title in ABSENT:
        raise UserError(f"{PREFIX}{title}: {ABSENT[title]}")
    if title not in BENCHMARKS:
        raise UserError(f"unknown benchmark {PREFIX}{title}{nearest(title, BENCHMARKS)}")
    benchmark = BENCHMARKS[title]
    splits = [*benchmark.splits, *([WHOLE] if benchmark.parted else [])]
    if split and split not in splits:
        raise UserError(f"{name}: unknown split {split!r} (there are {', '.join(splits)}){nearest(split, splits)}")
    parts = tuple(part for part in benchmark.parts if label in ("", part.label))
    if not parts:
        known = [part.label for part in benchmark.parts if part.label]
        raise UserError(f"{name}: unknown part {label!r}{nearest(label, known)}")
    return Wanted(name=title, benchmark=benchmark, parts=parts, split=split or "test")


def _in_turns(streams: Sequence[Iterator[Item]]) -> Iterator[Item]:
    """One of each stream in turn until all are at their end."""
    waiting = list(streams)
    while waiting:
        for stream in list(waiting):
            item = next(stream, None)
            if item is None:
                waiting.remove(stream)
            else:
                yield item


def _items(wanted: Wanted, part: Part, rows: Iterator[Row], skipped: Counter[str]) -> Iterator[Item]:
    number = -1
    for row in rows:
        with _columns(wanted, part, row):
            singles = wanted.benchmark.expand(row)
        for single in singles:
            number += 1
            try:
                item = _item(wanted, part, single, number)
            except Unsupported as reason:
                skipped[str(reason)] += 1
                continue
            if item is not None and _on_side(wanted, item):
                yield item


def _item(wanted: Wanted, part: Part, row: Row, number: int) -> Item | None:
    """The row as an item, None where it is not part of the benchmark; Unsupported where it cannot be graded."""
    with _columns(wanted, part, row):
        if not wanted.benchmark.keep(row):
            return None
        fields = wanted.benchmark.mapper(row)
        own = fields.pop("id", "")
        meta = fields.setdefault("meta", {})
        if part.label:
            meta.setdefault("subtask", part.label)
        name = "-".join(filter(None, (wanted.name, part.label, own or f"{wanted.published}-{number}")))
        return Item.model_validate({"id": name, "source": wanted.name, **fields})


def _on_side(wanted: Wanted, item: Item) -> bool:
    """Whether the item belongs to the split that is wanted, where the split is ours."""
    if not wanted.benchmark.parted or wanted.split == WHOLE:
        return True
    return is_test(to_query(item)) == (wanted.split == "test")


@contextmanager
def _columns(wanted: Wanted, part: Part, row: Row) -> Iterator[None]:
    """A row that is not as the mapper knows it: the data set changed upstream, which the caller can pin away."""
    advice = "the data set changed upstream; pin the commit that worked (coterie-data.lock)"
    try:
        yield
    except Unsupported:
        raise
    except KeyError as error:
        there = ", ".join(sorted(map(str, row)))
        raise DataError(
            f"{PREFIX}{wanted.name}: {part.repo} has no column {error} (it has {there}): {advice}"
        ) from None
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{PREFIX}{wanted.name}: a row of {part.repo} is not as expected ({reason}): {advice}"
        ) from None
