"""Prefill and decode over a rectangular key-value cache whose rows are requests.

Row i is left-aligned: token t of request i lies in column t. A decode step writes each row's new column, so that
requests of any length share a batch without padding inside a row. Knows nothing of requests. Imports torch.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin

from coterie.errors import UserError

GROW = 128
# CPU attention walks the keys in blocks of 512: whole masked blocks add exactly nothing to a row.
FIXED = 512
PREFILL_TOKENS = 2048
LEAST_FILL = 0.7


FULL, SLIDING = "full_attention", "sliding_attention"


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, (rows, heads, columns, width), with room to spare."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.index: tuple[torch.Tensor, torch.Tensor] | None = None
        self.columns = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: `Slots.reserve` made the room."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one new column a row, give back the columns in use. States are (n, heads, 1, width)."""
        assert self.index is not None
        assert self.keys is not None
        assert self.values is not None
        rows, columns = self.index
        self.keys[rows, :, columns] = key_states[:, :, 0]
        self.values[rows, :, columns] = value_states[:, :, 0]
        count = len(rows)
        return self.keys[:count, :, : self.columns], self.values[:count, :, : self.columns]

    def get_seq_length(self) -> int:
        return self.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns, 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1


class Slots(Cache):  # type: ignore[misc]
    """The cache of a running batch: `rows` slots by `columns` tokens, grown in chunks, moved when rows end."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[SlotLayer() for _ in range(layers)])
        self.rows = self.columns = 0

    @torch.inference_mode()
    def reserve(self, rows: int, columns: int, like: Cache | None, step: int = GROW) -> None:
        """Make room for `rows` slots of `columns` tokens; `like` gives heads, width, type and device."""
        if rows <= self.rows and columns <= self.columns:
            return
        rows, columns = max(rows, self.rows), max(-(-columns // step) * step, self.columns)
        for i, layer in enumerate(self.layers):
            source = like.layers[i] if like is not None else layer
            layer.keys = _grown(layer.keys, source.keys, rows, columns)
            layer.values = _grown(layer.values, source.values, rows, columns)
        self.rows, self.columns = rows, columns

    @torch.inference_mode()
    def put(self, row: int, source: Cache, index: int, length: int) -> None:
        """Copy the first `length` columns of row `index` of another cache (or of this one) into slot `row`."""
        for mine, other in zip(self.layers, source.layers, strict=True):
            mine.keys[row, :, :length] = other.keys[index, :, :length]
            mine.values[row, :, :length] = other.values[index, :, :length]

    @torch.inference_mode()
    def wipe(self, row: int) -> None:
        """Forget a slot's content: NaN left there would reach the next row through the mask."""
        for layer in self.layers:
            layer.keys[row], layer.values[row] = 0.0, 0.0

    def aim(self, index: tuple[torch.Tensor, torch.Tensor], columns: int) -> None:
        """The next forward writes at `index` (rows, columns) and reads the first `columns` columns."""
        for layer in self.layers:
            layer.index, layer.columns = index, columns


def _grown(old: torch.Tensor | None, like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    new = like.new_zeros((rows, like.shape[1], columns, like.shape[3]))
    if old is not None:
        new[: old.shape[0], :, : old.shape[2]] = old
    return new


class Decoder:
    """One model's forward passes: prefill of prompts, one step of a batch."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = model.device
        config = model.config.get_text_config()
        self.layers: int = config.num_hidden_layers
        self.window, self.kinds = _attention(config)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.column_bytes: int = 2 * self.layers * heads * width * model.dtype.itemsize
        # transformers 5.2x renamed the argument.
        known = inspect.signature(type(model).forward).parameters
        self.cache_name = "cache" if "cache" in known else "past_key_values"

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> DynamicCache:
        """Keys and values of several prompts (each at least one token); columns past a prompt's end are junk.

        Right padding with causal attention: a prompt never sees what follows it. Long prompts go in pieces, and
        the head is never computed.
        """
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)  # (m, T)
        for i, prompt in enumerate(prompts):
            ids[i, : len(prompt)] = torch.tensor(prompt)
        cache = DynamicCache()
        body = self.model.get_decoder()
        piece = max(PREFILL_TOKENS // len(prompts), 1)
        for start in range(0, width, piece):
            part = ids[:, start : start + piece].to(self.device)
            body(input_ids=part, use_cache=True, **{self.cache_name: cache})
        return cache

    @torch.inference_mode()
    def step(self, slots: Slots, tokens: Sequence[int], positions: Sequence[int], columns: int) -> torch.Tensor:
        """Feed one token a row at its position; float32 logits (n, V). `columns` of the cache are read."""
        place = torch.tensor(positions, device=self.device)  # (n,)
        slots.aim((torch.arange(len(tokens), device=self.device), place), columns)
        out = self.model(
            input_ids=torch.tensor(tokens, device=self.device)[:, None],
            position_ids=place[:, None],
            attention_mask=self._mask(place, columns),
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_name: slots},
        )
        logits: torch.Tensor = out.logits[:, -1].float()
        return logits

    def _mask(self, place: torch.Tensor, columns: int) -> Any:
        """What a row may read: columns up to its own; (n, 1, 1, columns) additive, one for each kind of layer."""
        column = torch.arange(columns, device=self.device)
        seen = column <= place[:, None]  # (n, columns)
        near = seen & (column > place[:, None] - self.window)
        masks = {kind: self._additive(near if kind == SLIDING else seen) for kind in self.kinds}
        return masks if len(masks) > 1 else masks.popitem()[1]

    def _additive(self, seen: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=self.device)
        return mask.masked_fill_(~seen, torch.finfo(self.model.dtype).min)[:, None, None]


def _attention(config: Any) -> tuple[int, set[str]]:
    """The sliding window and the kinds of attention layers that a model has."""
    window = getattr(config, "sliding_window", None) or 0
    if not getattr(config, "use_sliding_window", True):
        window = 0
    kinds = set(getattr(config, "layer_types", None) or [SLIDING if window else FULL])
    if kinds - {FULL, SLIDING}:
        raise UserError(
            f"{config.model_type} models are not supported: they have {', '.join(sorted(kinds))} layers"
        )
    return window, kinds


def batches(lengths: Sequence[int]) -> list[list[int]]:
    """Prompts that go through one prefill together: alike in length, so that little of it is padding."""
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        longest = lengths[groups[-1][0]] if groups else 0
        fits = groups and (len(groups[-1]) + 1) * longest <= PREFILL_TOKENS and lengths[i] >= LEAST_FILL * longest
        if fits:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups
