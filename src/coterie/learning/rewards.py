"""Rewards of sampled completions: the verifier's score, less what an overlong completion loses.

A verifier that fails gives no reward at all (NaN): an error is never a wrong answer. Trains nothing.
"""

from collections.abc import Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from numbers import Real
from queue import Empty, SimpleQueue
from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.config import shown
from coterie.tasks.catalog import verify
from coterie.tasks.reward import length_penalty
from coterie.types import Query, Score, Share, record, spec

WORKERS = 4


@spec
class Rewards:
    """How verdicts become rewards (CERA-MoA Eq. 28; gamma and eta by docs/methods.md C23).

    `strict` rewards solved items only; otherwise a verifier's partial score counts (tests passed, constraints met).
    `gamma` is the share of the token limit up to which length costs nothing, `eta` what the limit itself costs.
    `parsable` is added where the completion has an answer that can be read but does not solve the item [O]: a small
    model that never answers in the asked form has nothing to learn from otherwise.
    `patience`: where no verifier has been heard of for so many seconds, what is still open has no verdict.
    """

    strict: bool = False
    gamma: Share = 0.8
    eta: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    parsable: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    patience: Annotated[float, Field(gt=0, le=1e6)] = 300.0


@record
class Graded:
    """Rewards of G completions of one query: `raw` (G,) as verified, `shaped` (G,) as learned from.

    NaN: no verdict. `solved` (G,) is 1 where the item counts as solved, which is what accuracy means.
    """

    raw: np.ndarray
    shaped: np.ndarray
    solved: np.ndarray
    reasons: tuple[str, ...] = ()

    @property
    def errors(self) -> int:
        """Completions without a verdict."""
        return int(np.isnan(self.raw).sum())

    @property
    def mean(self) -> float:
        """Mean shaped reward of those with a verdict, NaN where there is none: what the router hears."""
        return float(np.nanmean(self.shaped)) if self.errors < len(self.raw) else float("nan")


@record
class Said:
    """Completions of one query: their texts, their lengths in tokens, the most tokens one may have."""

    query: Query
    texts: Sequence[str]
    lengths: Sequence[int]
    limit: int


def grade(items: Sequence[Said], rewards: Rewards) -> list[Graded]:
    """Verify the completions of each query. Verifiers run side by side; no result depends on their order."""
    flat = [(text, item.query) for item in items for text in item.texts]
    scores = iter(verdicts(flat, rewards.patience))
    return [_graded([next(scores) for _ in item.texts], item.lengths, item.limit, rewards) for item in items]


def verdicts(pairs: Sequence[tuple[str, Query]], patience: float) -> list[Score]:
    """Verdicts on texts, in the order of `pairs`, whatever the verifiers do.

    `patience` seconds without a word from any of them end it. One that hangs keeps its thread, which no exit waits
    for.
    """
    heard: SimpleQueue[tuple[int, object]] = SimpleQueue()
    found: dict[int, object] = {}
    pool = ThreadPool(WORKERS)
    for place, pair in enumerate(pairs):
        told = partial(_put, heard, place)
        pool.apply_async(_verdict, pair, callback=told, error_callback=told)
    try:
        while len(found) < len(pairs):
            place, said = heard.get(timeout=patience)
            found[place] = said
    except Empty:
        pass
    pool.terminate()
    silence = Score(verdict="error", value=None, reason=f"the verifier gave no verdict in {patience:g} seconds")
    return [_sound(found.get(place, silence)) for place in range(len(pairs))]


def _verdict(text: str, query: Query) -> Score:
    """The verdict. What else a plugin raises reaches `heard`, an exit would end the thread without a word."""
    try:
        return verify(text, query)
    except SystemExit as error:
        return _sound(error)


def _put(heard: "SimpleQueue[tuple[int, object]]", place: int, said: object) -> None:
    heard.put((place, said))


def _sound(said: object) -> Score:
    """The verdict; one of a plugin that raised, or that is none, is an error as any other."""
    if isinstance(said, BaseException):
        return Score(verdict="error", value=None, reason=f"the verifier raised {type(said).__name__}: {said}")
    if not isinstance(said, Score):
        return Score(verdict="error", value=None, reason=f"the verifier gave a {type(said).__name__}, no verdict")
    judged = isinstance(said.value, Real) and 0.0 <= said.value <= 1.0  # NaN is not
    # A fail may be worth 1: all words of the gold in another order have an F1 of 1.
    whole = {"pass": judged, "fail": judged, "error": said.value is None}
    texts = isinstance(said.answer, str | None) and isinstance(said.reason, str)
    if not (texts and isinstance(said.verdict, str) and whole.get(said.verdict)):
        told = f"{shown(said.verdict)}, value {shown(said.value)}, answer {shown(said.answer)}"
        return Score(verdict="error", value=None, reason=f"the verifier's verdict is none: {told}")
    return said


def _graded(scores: Sequence[Score], lengths: Sequence[int], limit: int, rewards: Rewards) -> Graded:
    solved = np.array([np.nan if s.correct is None else float(s.correct) for s in scores])
    value = np.array([np.nan if s.value is None else s.value for s in scores])
    value = solved if rewards.strict else value
    read = np.array([rewards.parsable * bool(s.answer and s.answer.strip()) for s in scores])
    lost = np.array([length_penalty(n, limit, gamma=rewards.gamma, eta=rewards.eta) for n in lengths])
    shaped = np.where(value > 0, value, value + read) - lost
    return Graded(
        raw=value, shaped=shaped, solved=solved, reasons=tuple(s.reason for s in scores if s.value is None)
    )
