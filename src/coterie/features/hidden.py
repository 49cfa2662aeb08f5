"""Hidden states of the frozen base model as features of a prompt: CERA-MoA's h(q).

Not a text embedding and not a generation: the forward ends at the deepest block that is asked for.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import ConfigError
from coterie.features.once import once
from coterie.types import Messages, spec

if TYPE_CHECKING:
    import torch

    from coterie.backends.base_model import Base


@spec
class Hidden:
    """The last prompt token's state after blocks floor(L/2) and floor(3L/4), joined (docs/methods.md C17, C18).

    The prompt is the exact one that an agent of this base sees (chat template, generation prefix, cut at the
    left to `max_prompt_tokens`), adapters off. `layers` are blocks, counted from 1, so that l is index l of
    transformers' `output_hidden_states`; None takes the paper's two. The states are the blocks' raw outputs:
    the final norm and the LM head are never computed.

    `batch` prompts go through the model together; None takes 8 on an accelerator and 1 on a CPU, where a
    batch saves little and single prompts make the features independent of their company to the last bit.
    `remember` vectors are kept in memory, keyed by a digest of base, layers and token ids.
    """

    model: str = "builtin:smollm2-135m"
    max_prompt_tokens: int = 800
    layers: tuple[int, ...] | None = None
    batch: int | None = None
    remember: int = 4096

    @property
    def identity(self) -> str:
        """What the features depend on; kept beside weights that were fitted on them."""
        layers = "default" if self.layers is None else "+".join(map(str, self.layers))
        return f"hidden:{self.model}:{layers}:{self.max_prompt_tokens}"

    def encode(self, prompts: Sequence[Messages]) -> np.ndarray:
        """Shape (len(prompts), len(layers) * H), float32. Loads the model at the first call; thread-safe.

        Raises: ConfigError for a layer that the model does not have; MissingExtra without torch.
        """
        states = self._states
        ids = [states.base.prompt_ids(messages, self.max_prompt_tokens) for messages in prompts]
        return states.of(ids)

    @once
    def _states(self) -> "States":
        from coterie.backends.base_model import base_model

        return States(base_model(self.model), self.layers, self.batch, self.remember)


class States:
    """States of one loaded base, each prompt computed once, also when several threads ask for it together."""

    def __init__(self, base: "Base", layers: tuple[int, ...] | None, batch: int | None, remember: int) -> None:
        self.base = base
        self.blocks = blocks_of(base.model)
        self.layers = layers_of(len(self.blocks), layers)
        self.batch = batch or (1 if str(base.device).startswith("cpu") else 8)
        self.cache = Recent(remember)
        self.salt = f"{base.digest}:{self.layers}:".encode()
        self.lock = Lock()

    def of(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """Shape (len(ids), len(layers) * H), float32."""
        keys = [sha256(self.salt + np.asarray(row, dtype=np.int64).tobytes()).digest() for row in ids]
        wanted = dict(zip(keys, ids, strict=True))
        found = self.cache.those_of(wanted)
        if len(found) < len(wanted):
            # Whoever waits here finds the vectors of the one before in the cache.
            with self.lock:
                found |= self.cache.those_of(wanted)
                found |= self._computed({key: row for key, row in wanted.items() if key not in found})
        rows = [found[key] for key in keys]
        return np.stack(rows) if rows else np.zeros((0, self._width()), dtype=np.float32)

    def _computed(self, wanted: Mapping[bytes, Sequence[int]]) -> dict[bytes, np.ndarray]:
        """By length, so that a batch holds little padding; vectors enter the cache batch by batch."""
        order = sorted(wanted, key=lambda key: (len(wanted[key]), key))
        made: dict[bytes, np.ndarray] = {}
        for start in range(0, len(order), self.batch):
            keys = order[start : start + self.batch]
            rows = dict(zip(keys, self._forward([wanted[key] for key in keys]), strict=True))
            self.cache.add(rows)
            made |= rows
        return made

    def _forward(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """One batch: (B, len(layers) * H)."""
        import torch

        base = self.base
        with base.without_adapters(), torch.inference_mode():
            tokens, ends = padded(ids, base.device)
            states = last_states(base.model, self.blocks, self.layers, tokens, ends)
        return np.asarray(states.float().cpu().numpy())

    def _width(self) -> int:
        return len(self.layers) * int(self.base.model.config.get_text_config().hidden_size)


class Recent:
    """A bounded store of vectors that forgets what was asked for longest ago."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self.lock = Lock()

    def those_of(self, keys: Iterable[bytes]) -> dict[bytes, np.ndarray]:
        """What is known of `keys`."""
        with self.lock:
            known = [key for key in keys if key in self.rows]
            for key in known:
                self.rows.move_to_end(key)
            return {key: self.rows[key] for key in known}

    def add(self, rows: Mapping[bytes, np.ndarray]) -> None:
        """Keep `rows`, at the cost of the oldest."""
        with self.lock:
            self.rows.update(rows)
            while len(self.rows) > self.size:
                self.rows.popitem(last=False)


def layers_of(depth: int, layers: tuple[int, ...] | None) -> tuple[int, ...]:
    """The blocks that are read, counted from 1: `layers`, by default floor(L/2) and floor(3L/4) of L = `depth`."""
    chosen = (max(1, depth // 2), max(1, 3 * depth // 4)) if layers is None else layers
    if not chosen:
        raise ConfigError("encoder hidden: layers: name at least one block, or leave it out")
    wrong = [layer for layer in chosen if not 1 <= layer <= depth]
    if wrong:
        raise ConfigError(
            f"encoder hidden: layers: there is no block {wrong[0]}; the model has blocks 1 to {depth}"
        )
    return chosen


def blocks_of(model: Any) -> Any:
    """The list of decoder blocks, wherever the model's family keeps it."""
    import torch

    depth = model.config.get_text_config().num_hidden_layers
    for _, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == depth:
            return module
    raise ConfigError(f"encoder hidden: {type(model).__name__} has no list of {depth} blocks to read states from")


def padded(ids: Sequence[Sequence[int]], device: Any) -> "tuple[torch.Tensor, torch.Tensor]":
    """Token ids (B, T) and the index of each row's last token (B,).

    Filled up at the right: in a causal model no token sees what follows it, so no row depends on its padding
    and neither a mask nor positions are needed.
    """
    import torch

    rows = [torch.tensor(row, dtype=torch.long) for row in ids]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # (B, T)
    return tokens.to(device), torch.tensor([len(row) - 1 for row in ids], device=device)


class _Reached(Exception):
    """The deepest block has been computed: the rest of the forward is not wanted."""


def last_states(
    model: Any, blocks: Any, layers: tuple[int, ...], tokens: "torch.Tensor", ends: "torch.Tensor"
) -> "torch.Tensor":
    """Outputs of `layers` at the token index `ends` of each row: (B, len(layers) * H).

    The model's own forward runs, so that masks and positions are right for every family; it is left by an
    exception when the deepest block is done.
    """
    import torch

    rows = torch.arange(len(tokens), device=tokens.device)
    caught: dict[int, torch.Tensor] = {}
    with _watching(blocks, layers, caught):
        try:
            model(input_ids=tokens, use_cache=False)
        except _Reached:
            pass
    return torch.cat([caught[layer][rows, ends] for layer in layers], dim=-1)


@contextmanager
def _watching(blocks: Any, layers: tuple[int, ...], caught: "dict[int, torch.Tensor]") -> Iterator[None]:
    thread, deepest = get_ident(), max(layers)

    def catch(layer: int, module: Any, given: Any, output: Any) -> None:
        # Hooks belong to the module: another thread's forward on the same model must run through.
        if get_ident() != thread:
            return
        caught[layer] = output[0] if isinstance(output, tuple) else output
        if layer == deepest:
            raise _Reached

    hooks = [blocks[layer - 1].register_forward_hook(partial(catch, layer)) for layer in set(layers)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
