"""Rows of a hub repository at one commit, by the `datasets` library; the only module that knows it.

No code of a repository is ever run. Whatever the hub or the library complains about becomes one line.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from coterie.errors import DataError, MissingExtra
from coterie.tasks.benchmarks import Part
from coterie.tasks.columns import Row
from coterie.tasks.pins import COMMIT

PATIENCE = 10.0
BUSY = (408, 429, 500, 502, 503, 504)
NO_NETWORK = "the hub cannot be reached"


class Fetch(Protocol):
    """How rows are brought: of one part's split at a commit; `first` says that only the first ones are wanted."""

    def __call__(self, part: Part, split: str, revision: str, first: bool) -> Iterator[Row]: ...


def fetch(part: Part, split: str, revision: str, first: bool) -> Iterator[Row]:
    """The rows of the publisher's `split`, from the library's cache where the hub cannot be reached.

    `first`: stream them. DataError for a gated, absent or unreachable repository, split or configuration.
    """
    library = _library()
    with _told(part, library):
        online = _reachable(part.repo, revision)
        # not around the rows: parts take turns, and settings put back out of order would stay wrong
        with _quiet(library, online):
            rows = _opened(library, part, split, revision, first and online)
        yield from rows


def resolve(repo: str) -> str:
    """The commit of a repository's main branch. DataError where the hub cannot be asked."""
    import huggingface_hub

    try:
        found = huggingface_hub.HfApi().dataset_info(repo, timeout=PATIENCE).sha
    except _network_errors() as error:
        raise DataError(
            _reason(
                repo,
                error,
                "to say which commit is to be pinned; run `coterie data pin` once where there is a network",
            )
        ) from None
    if not found or not COMMIT.fullmatch(found):
        raise DataError(f"{repo}: the hub names no commit")
    return str(found)


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("datasets", "data") from error
    return datasets


def _network_errors() -> tuple[type[Exception], ...]:
    """What a look-up on the hub may raise; newer versions' transport errors are no OSErrors."""
    from huggingface_hub import errors

    transport = getattr(errors, "HTTPError", OSError)
    return (OSError, errors.HfHubHTTPError, *((transport,) if isinstance(transport, type) else ()))


def _reachable(repo: str, revision: str) -> bool:
    """One short question, so that a machine without network reads its cache at once, not after five retries."""
    if Path(repo).exists():
        return True
    import huggingface_hub

    try:
        huggingface_hub.HfApi().dataset_info(repo, revision=revision, timeout=PATIENCE)
    except huggingface_hub.errors.HfHubHTTPError as error:
        if error.response is None or error.response.status_code in BUSY:
            return False
        raise
    except _network_errors():
        return False
    return True


@contextmanager
def _quiet(library: Any, online: bool) -> Iterator[None]:
    """No progress bars and no chatter of retries; without network no tries at all."""
    import huggingface_hub

    constants, config = huggingface_hub.constants, library.config
    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    names = ("huggingface_hub", "datasets")
    levels = {name: logging.getLogger(name).level for name in names}
    bars = library.is_progress_bar_enabled()
    try:
        library.disable_progress_bars()
        for name in names:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if not online:
            constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if bars:
            library.enable_progress_bars()


@contextmanager
def _told(part: Part, library: Any) -> Iterator[None]:
    kinds = (library.exceptions.DatasetsError, *_network_errors(), ValueError, RuntimeError)
    try:
        yield
    except DataError:
        raise
    except kinds as error:
        raise DataError(_reason(_name(part), error, "and there is no copy in the cache; connect once")) from None


def _name(part: Part) -> str:
    return f"{part.repo} ({part.config})" if part.config else part.repo


def _reason(name: str, error: Exception, advice: str) -> str:
    """One line: what is wrong with the repository and what to do."""
    text = " ".join(str(error).split())
    status = getattr(getattr(error, "response", None), "status_code", None)
    kind = type(error).__name__
    if "gated" in text.lower() or kind == "GatedRepoError":
        return (
            f"{name} is gated: accept its terms on the hub's page, then log in (`hf auth login`, or set HF_TOKEN)"
        )
    if kind == "RevisionNotFoundError":
        return f"{name}: its pinned commit is gone; `coterie data pin` takes the present one"
    if kind in ("RepositoryNotFoundError", "DatasetNotFoundError") or status in (401, 404):
        return f"{name} is not on the hub, or hidden from you: log in (`hf auth login`), or check its name"
    offline = isinstance(error, ConnectionError) or kind in ("LocalEntryNotFoundError", "ConnectError", "HTTPError")
    if offline or "Timeout" in kind or "Network" in kind:
        return f"{name}: {NO_NETWORK} {advice}"
    return f"{name} cannot be loaded: {text[:300]}"


def _opened(library: Any, part: Part, split: str, revision: str, streaming: bool) -> Iterable[Row]:
    """The rows, ready to be read."""
    if part.files:
        return _files(part, split, revision)
    if library.config.HF_HUB_OFFLINE:
        _check_cache(library, part, revision)
    rows: Iterable[Row] = library.load_dataset(
        part.repo, part.config, split=split, revision=revision, streaming=streaming
    )
    return rows


def _check_cache(library: Any, part: Part, revision: str) -> None:
    """Without network the library takes whatever commit its cache has: only the pinned one will do."""
    held = str(library.load_dataset_builder(part.repo, part.config, revision=revision).hash)
    if COMMIT.fullmatch(held) and held != revision:
        raise DataError(f"{_name(part)}: the cache holds commit {held[:10]}, not {revision[:10]}; connect once")


def _files(part: Part, split: str, revision: str) -> Iterator[Row]:
    """The objects of JSON files, or the rows of Arrow files, by path; the files are there when this returns."""
    import huggingface_hub

    pattern = part.files.format(split=split)
    folder = Path(part.repo)
    if not folder.exists():
        allowed = pattern.replace("(", "?").replace(")", "?")
        found = huggingface_hub.snapshot_download(
            part.repo, repo_type="dataset", revision=revision, allow_patterns=allowed
        )
        folder = Path(found)
    paths = sorted(folder.glob(pattern))
    if not paths:
        raise DataError(
            f"{part.repo} has no file {pattern}: the data set changed upstream, pin the commit that worked"
        )
    return _read(paths)


def _read(paths: Sequence[Path]) -> Iterator[Row]:
    for path in paths:
        if path.suffix == ".arrow":
            yield from _library().Dataset.from_file(str(path))
        else:
            yield json.loads(path.read_text(encoding="utf-8"))
