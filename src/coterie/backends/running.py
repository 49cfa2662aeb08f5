"""The running batch of one base model: requests join it at any step, each row samples alone, finished rows leave.

Synchronous and single-threaded: `local` feeds it from a queue. Imports torch.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers.cache_utils import Cache

from coterie.backends.base_model import Base
from coterie.backends.constrained import Held
from coterie.backends.decode import FIXED, GROW, Decoder, Slots, batches
from coterie.backends.sampling import Settings, choose, entropies, generator, log_probs
from coterie.errors import BackendError, MalformedAnswer
from coterie.types import Completion, Sampling, Tokens

IDLE_BYTES = 256 << 20


@dataclass(eq=False, slots=True)
class Row:
    """One request in the batch: what was asked and what has been said so far; `held` to a schema, if to any."""

    ids: list[int]
    adapter: str | None
    sampling: Sampling
    seed: int
    held: Held | None = None
    out: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    chance: torch.Generator | None = None
    finish: Literal["stop", "length"] | None = None
    error: Exception | None = None

    @property
    def position(self) -> int:
        """The column of the token that is fed next."""
        return len(self.ids) - 1 + len(self.out)

    @property
    def token(self) -> int:
        return self.out[-1] if self.out else self.ids[-1]

    @property
    def room(self) -> int:
        """Columns that the row may come to need."""
        return len(self.ids) + self.sampling.max_tokens

    @property
    def done(self) -> bool:
        return self.finish is not None or self.error is not None


class Running:
    """Up to `max_batch` rows that decode together.

    `deterministic`: every forward has the same shape whoever is in the batch (prompts alone, `max_batch` rows with
    dummies, columns in whole blocks), so that a row's arithmetic never changes.
    """

    def __init__(
        self, base: Base, max_batch: int, *, deterministic: bool = False, tokens: bool = False, cache_gib: float = 4
    ) -> None:
        self.base, self.max_batch, self.deterministic, self.tokens = base, max_batch, deterministic, tokens
        self.decoder = Decoder(base.model)
        self.slots = Slots(self.decoder.layers)
        self.cache_bytes = cache_gib * 2**30
        self.rows: list[Row | None] = [None] * max_batch if deterministic else []
        self._settings: Settings | None = None
        self._seats = 0
        self._idle = generator(0, base.device)  # dummies are greedy and never draw from it

    @property
    def active(self) -> list[Row]:
        return [row for row in self.rows if row is not None]

    def fits(self, row: Row, others: Sequence[Row] = ()) -> bool:
        """Whether a row finds a slot and memory beside the running ones and `others`; an empty batch takes any."""
        rows = [*self.active, *others, row]
        if len(rows) == 1:
            return True
        count = self.max_batch if self.deterministic else len(rows)
        needed = count * max(r.room for r in rows) * self.decoder.column_bytes
        return len(rows) <= self.max_batch and needed <= self.cache_bytes

    def admit(self, rows: Iterable[Row]) -> None:
        """Bring rows in: each different prompt is prefilled once. A row whose prefill fails gets its error."""
        same: dict[tuple[str | None, tuple[int, ...]], list[Row]] = {}
        for row in rows:
            same.setdefault((row.adapter, tuple(row.ids)), []).append(row)
        self._seats = len(self.active) + sum(map(len, same.values()))
        fresh = [group for key, group in same.items() if not self._copied(key, group)]
        for batch in self._prefills(fresh):
            self._prefill(batch)

    def step(self) -> list[Row]:
        """One token for every row. Returns the rows that ended and have left the batch."""
        rows = self.rows
        picks, *told = self._next(rows)
        for row, pick, logprob, entropy in zip(rows, picks, *told, strict=True):
            if row is not None:
                self._accept(row, pick, logprob, entropy)
        ended = [row for row in self.active if row.done]
        self.remove(ended)
        return ended

    def remove(self, rows: Iterable[Row]) -> None:
        """Take rows out; the last ones move into the gaps, except where slots are fixed."""
        for row in rows:
            if row not in self.rows:
                continue
            place = self.rows.index(row)
            if row.error is not None:
                self.slots.wipe(place)
            if self.deterministic:
                self.rows[place] = None
                continue
            last = self.rows.pop()
            if last is not row and last is not None:
                self.slots.put(place, self.slots, len(self.rows), last.position)
                self.rows[place] = last
        self._settings = None
        if not self.active and self.slots.rows * self.slots.columns * self.decoder.column_bytes > IDLE_BYTES:
            self.slots = Slots(self.decoder.layers)

    def clear(self) -> None:
        """Everybody out, and a fresh cache: the state after a failed step is not to be trusted."""
        self.rows = [None] * self.max_batch if self.deterministic else []
        self.slots, self._settings = Slots(self.decoder.layers), None

    def completion(self, row: Row, seconds: float) -> Completion:
        """What a finished row said, cut before its first stop text."""
        kept = Tokens(prompt=tuple(row.ids), completion=tuple(row.out), logprobs=tuple(row.logprobs))
        return Completion(
            text=cut(self._text(row), row.sampling.stop)[0],
            finish=row.finish or "length",
            prompt_tokens=len(row.ids),
            completion_tokens=len(row.out),
            seconds=seconds,
            tokens=kept if self.tokens else None,
        )

    # --- joining -------------------------------------------------------------------------------------

    def _copied(self, key: tuple[str | None, tuple[int, ...]], group: list[Row]) -> bool:
        """Take the prefill from a running row of the same prompt and adapter, if there is one."""
        for place, other in enumerate(self.rows):
            if other is not None and (other.adapter, tuple(other.ids)) == key:
                for row in group:
                    self._seat(row, self.slots, place)
                return True
        return False

    def _prefills(self, groups: list[list[Row]]) -> list[list[list[Row]]]:
        """Which prompts are prefilled in one pass; those of one adapter lie together."""
        if self.deterministic:
            return [[group] for group in groups]
        chosen = batches([len(group[0].ids) for group in groups])
        return [sorted((groups[i] for i in batch), key=lambda g: g[0].adapter or "") for batch in chosen]

    def _prefill(self, groups: list[list[Row]]) -> None:
        """All but the last token of each prompt: that one is the first to be fed by `step`."""
        keys = [group[0].adapter for group in groups]
        prompts = [group[0].ids[:-1] or group[0].ids for group in groups]
        try:
            with self.base.lock, self.base.adapters.rows(keys, fixed=self.deterministic):
                cache = self.decoder.prefill(prompts)
            for index, group in enumerate(groups):
                for row in group:
                    self._seat(row, cache, index)
        except FAULTS as error:
            self._prefill_apart(groups, error)

    def _prefill_apart(self, groups: list[list[Row]], error: Exception) -> None:
        """One prompt's failure is not its neighbours'."""
        seated = set(map(id, self.active))
        left = [[row for row in group if id(row) not in seated] for group in groups]
        left = [group for group in left if group]
        if len(groups) > 1:
            for group in left:
                self._prefill([group])
            return
        for row in left[0] if left else ():
            row.error = error

    def _seat(self, row: Row, source: Cache, index: int) -> None:
        row.chance = generator(row.seed, self.base.device)
        place = self.rows.index(None) if self.deterministic else len(self.rows)
        # Doubling keeps the copies of a batch that others join one by one few.
        count = min(max(self._seats, 1 << place.bit_length()), self.max_batch)
        self.slots.reserve(
            self.max_batch if self.deterministic else count,
            len(row.ids),
            source,
            FIXED if self.deterministic else GROW,
        )
        self.slots.put(place, source, index, len(row.ids) - 1)
        if self.deterministic:
            self.rows[place] = row
        else:
            self.rows.append(row)
        self._settings = None

    # --- stepping ------------------------------------------------------------------------------------

    def _next(self, rows: Sequence[Row | None]) -> tuple[list[int], list[float], list[float]]:
        """Sampled ids and, where asked, log-probabilities and entropies, a slot each (dummies get junk)."""
        places = [row.position if row else 0 for row in rows]
        columns = max(places) + 1
        if self.deterministic:
            columns = -(-columns // FIXED) * FIXED
        self.slots.reserve(len(rows), columns, None, FIXED if self.deterministic else GROW)
        keys = [row.adapter if row else None for row in rows]
        with self.base.lock, self.base.adapters.rows(keys, fixed=self.deterministic):
            logits = self.decoder.step(self.slots, [row.token if row else 0 for row in rows], places, columns)
        return self._sample(rows, logits)

    @torch.inference_mode()
    def _sample(
        self, rows: Sequence[Row | None], logits: torch.Tensor
    ) -> tuple[list[int], list[float], list[float]]:
        if self._settings is None:
            self._settings = Settings.of([row.sampling if row else GREEDY for row in rows], logits.device)
        chance = [row.chance if row and row.chance else self._idle for row in rows]
        logits = self._sound(rows, logits)
        # One by one where it must be exact: vector code treats the ends of a block otherwise than its middle.
        each = range(len(rows)) if self.deterministic else ()
        parts: list[Any] = [torch.tensor([i], device=logits.device) for i in each] or [slice(None)]
        lots = [[one] for one in chance] if self.deterministic else [chance]
        # Told is what the model thinks, as where a sample is cut by top-p: a mask changes the draw alone.
        drawn = _masked(rows, logits)
        picks = [choose(drawn[i], self._settings.take(i), of) for i, of in zip(parts, lots, strict=True)]
        if not self.tokens:
            return torch.cat(picks).tolist(), [0.0] * len(rows), [0.0] * len(rows)
        kept = [log_probs(logits[i], ids) for i, ids in zip(parts, picks, strict=True)]
        return torch.cat(picks).tolist(), torch.cat(kept).tolist(), entropies(logits).tolist()

    def _sound(self, rows: Sequence[Row | None], logits: torch.Tensor) -> torch.Tensor:
        """Logits without NaN and infinity; a row that had any ends in an error."""
        broken = (~logits.isfinite()).any(dim=-1)
        if not broken.any():
            return logits
        for row, bad in zip(rows, broken.tolist(), strict=True):
            if row is not None and bad:
                row.error = MalformedAnswer("the model's logits are not finite")
        return logits.nan_to_num()

    def _accept(self, row: Row, pick: int, logprob: float, entropy: float) -> None:
        if row.error is not None:
            return
        row.out.append(pick)
        row.logprobs.append(logprob)
        row.entropies.append(entropy)
        if pick in self.base.eos_ids or self._stopped(row) or _complete(row, pick):
            row.finish = "stop"
        elif len(row.out) >= row.sampling.max_tokens:
            row.finish = "length"

    def _stopped(self, row: Row) -> bool:
        """Whether the text holds a stop text; only its end is looked at until something is there."""
        if not row.sampling.stop:
            return False
        # A character takes at most four byte tokens.
        window = 4 * max(map(len, row.sampling.stop)) + 4
        end = self.base.text_of(row.out[-window:])
        return cut(end, row.sampling.stop)[1] and cut(self._text(row), row.sampling.stop)[1]

    def _text(self, row: Row) -> str:
        ended = bool(row.out) and row.out[-1] in self.base.eos_ids
        return self.base.text_of(row.out[:-1] if ended else row.out)


def _masked(rows: Sequence[Row | None], logits: torch.Tensor) -> torch.Tensor:
    """Logits to draw from, (n, V): -inf where a row's schema forbids a token. Other rows are as they were.

    A row whose grammar cannot go on gets its error; what it draws is thrown away.
    """
    held = [(place, row, row.held) for place, row in enumerate(rows) if row is not None and row.held is not None]
    drawn = logits.clone() if held else logits
    for place, row, grammar in held:
        try:
            allowed = torch.from_numpy(grammar.allowed(logits.shape[1])).to(logits.device)
            drawn[place].masked_fill_(~allowed, -torch.inf)
        except BackendError as error:
            row.error = row.error or error
    return drawn


def _complete(row: Row, pick: int) -> bool:
    """Whether the token, which is written, completes what the row's schema asks for."""
    try:
        return row.held is not None and row.held.take(pick)
    except BackendError as error:
        row.error = error
        return False


GREEDY = Sampling(temperature=0.0)
# What torch, transformers and tokenizers raise on bad weights, shapes or memory: a request's failure, not ours.
FAULTS = (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, MemoryError, OSError)


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first of the stop texts, and whether one was there."""
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def one_thread() -> None:
    """Let the calling thread compute on one core, and leave all other threads as they were.

    CPU attention gives each of its threads a differently aligned buffer, and with it other last bits.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # The call also sets what threads that are new to torch start with; a thread of its own puts that back.
    restorer = threading.Thread(target=torch.set_num_threads, args=(before,))
    restorer.start()
    restorer.join()
