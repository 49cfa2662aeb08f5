"""LoRA adapters over one frozen model: read PEFT folders, add each row's own product to the linear layers.

PEFT's mixed batches take about twice as long a step on a CPU and rewrite the model's modules; here forward hooks
add the products, so that the base stays exactly what it was. Imports torch.
"""

import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from coterie.errors import UserError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# What a PEFT configuration may ask for beyond plain LoRA; ignoring one would give other answers without a word.
UNSUPPORTED = (
    "use_dora",
    "use_qalora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "layer_replication",
)
Pair = tuple[torch.Tensor, torch.Tensor]  # A (r, in), B (out, r) times the scale


def adapter_digest(folder: Path) -> str:
    """Content identity of an adapter folder: its configuration and its weights, nothing else.

    Raises: UserError when a file is missing.
    """
    total = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        try:
            total.update((folder / name).read_bytes())
        except OSError as error:
            raise UserError(f"adapter {folder}: cannot read {name} ({error.strerror or error})") from error
    return total.hexdigest()[:32]


class Adapters:
    """The adapters loaded over one model, by content digest. Not thread-safe: the base's lock guards it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        self._device = next(model.parameters()).device
        self._pairs: dict[str, dict[str, Pair]] = defaultdict(dict)  # module name -> digest -> pair
        self._holders: Counter[str] = Counter()
        self._hooks: dict[str, Any] = {}
        self._plan: list[tuple[str, Any]] = []
        self._fixed = False

    def __contains__(self, key: str) -> bool:
        return self._holders[key] > 0

    def load(self, folder: Path) -> str:
        """Load a PEFT LoRA folder, once per content, and hold it until `drop`. Returns its digest.

        Raises: UserError when it is not plain LoRA, or does not fit the model; nothing is loaded then.
        """
        key = adapter_digest(folder)
        if key not in self:
            for name, pair in self._read(folder).items():
                self._install(name, key, pair)
        self._holders[key] += 1
        return key

    def put(self, key: str, pairs: Mapping[str, Pair]) -> None:
        """Hold tensors under a name of one's own, in place of what it held before; `drop` lets go of them.

        `pairs` are by name of a linear layer. What carries a gradient carries it through every forward.
        """
        for name, pair in pairs.items():
            self._install(name, key, pair)
        self._holders[key] = 1

    def linear(self, targets: Sequence[str]) -> dict[str, torch.nn.Linear]:
        """The model's linear layers whose names end in one of `targets`, by name."""
        return {name: layer for name, layer in self._modules.items() if name.rpartition(".")[2] in targets}

    def drop(self, key: str) -> None:
        """Undo one `load`; the adapter's memory is freed with the last."""
        self._holders[key] -= 1
        if self._holders[key] > 0:
            return
        del self._holders[key]
        for name, pairs in self._pairs.items():
            pairs.pop(key, None)
            if not pairs and name in self._hooks:
                self._hooks.pop(name).remove()

    def loaded(self) -> list[str]:
        """Digests of what is loaded."""
        return sorted(+self._holders)

    def bytes_of(self, key: str) -> int:
        """Memory that an adapter's tensors take."""
        pairs = [p[key] for p in self._pairs.values() if key in p]
        return sum(t.numel() * t.element_size() for pair in pairs for t in pair)

    @contextmanager
    def rows(self, keys: Sequence[str | None], *, fixed: bool = False) -> Iterator[None]:
        """Inside, row i of every batch goes through adapter `keys[i]` (None: the base alone).

        `fixed` computes each product over all rows, so that no shape depends on who shares the batch.
        """
        if missing := {key for key in keys if key is not None and key not in self}:
            raise KeyError(f"adapter {missing.pop()} is not loaded")
        before = self._plan, self._fixed
        self._plan, self._fixed = _plan(keys, fixed, self._device), fixed
        try:
            yield
        finally:
            self._plan, self._fixed = before

    def _install(self, name: str, key: str, pair: Pair) -> None:
        self._pairs[name][key] = pair
        if name not in self._hooks:
            self._hooks[name] = self._modules[name].register_forward_hook(self._hook(self._pairs[name]))

    def _hook(self, pairs: Mapping[str, Pair]) -> Any:
        def add(module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            for key, rows in self._plan:
                if (pair := pairs.get(key)) is None:
                    continue
                if rows is None:
                    output += _product(args[0], pair)
                elif self._fixed:
                    output += torch.where(rows, _product(args[0], pair), 0.0)
                else:
                    output[rows] += _product(args[0][rows], pair)

        return add

    def _read(self, folder: Path) -> dict[str, Pair]:
        config = _config(folder)
        try:
            tensors = load_file(folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise UserError(f"adapter {folder}: {WEIGHTS} cannot be read ({error})") from error
        halves: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            found = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", name)
            if found is None or found[1] not in self._modules:
                raise UserError(f"adapter {folder}: the model has no linear layer for {name}")
            halves[found[1]][found[2]] = tensor
        if not halves:
            raise UserError(f"adapter {folder}: {WEIGHTS} holds no LoRA weights")
        return {name: self._pair(folder, name, half, config) for name, half in halves.items()}

    def _pair(self, folder: Path, name: str, half: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> Pair:
        weight = self._modules[name].weight
        out, width = self._modules[name].out_features, self._modules[name].in_features
        down, up = half.get("A"), half.get("B")
        if down is None or up is None:
            raise UserError(f"adapter {folder}: {name} has only one half of its LoRA pair")
        rank = _matching(config.get("rank_pattern"), name, config["r"])
        if down.shape != (rank, width) or up.shape != (out, rank):
            raise UserError(
                f"adapter {folder}: {name} has shapes {tuple(down.shape)} and {tuple(up.shape)}, "
                f"rank {rank} on this model needs {(rank, width)} and {(out, rank)}"
            )
        alpha = _matching(config.get("alpha_pattern"), name, config["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        # A copy: what safetensors gives is a window on the whole file, which would stay in memory with it.
        kept = down.to(weight.device, weight.dtype, copy=True)
        return kept, (up.float() * scale).to(weight.device, weight.dtype)


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text())
        kind, known = config["peft_type"], {"r": config["r"], "lora_alpha": config["lora_alpha"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"adapter {folder}: {CONFIG} is not a PEFT LoRA configuration ({error!r})") from error
    if kind != "LORA":
        raise UserError(f"adapter {folder}: {kind} adapters are not supported, only LORA")
    if not all(isinstance(v, int | float) and v > 0 for v in known.values()):
        raise UserError(f"adapter {folder}: r and lora_alpha must be positive numbers, not {known}")
    asked = [name for name in UNSUPPORTED if config.get(name)]
    if config.get("bias", "none") != "none":
        asked.append("bias")
    if asked:
        raise UserError(f"adapter {folder}: only plain LoRA is supported, not {', '.join(asked)}")
    return dict(config)


def _matching(pattern: Mapping[str, Any] | None, name: str, default: Any) -> Any:
    """PEFT's rank_pattern and alpha_pattern: the first key that the end of the module's name matches."""
    for key, value in (pattern or {}).items():
        if re.match(rf"(.*\.)?({key})$", name):
            return value
    return default


def _product(x: torch.Tensor, pair: Pair) -> torch.Tensor:
    """x (..., in) through both halves: (..., out)."""
    linear = torch.nn.functional.linear
    return linear(linear(x, pair[0]), pair[1])


def _plan(keys: Sequence[str | None], fixed: bool, device: torch.device) -> list[tuple[str, Any]]:
    """Which rows each adapter serves: None for all, a slice where they lie together, else indices or a mask."""
    places: dict[str, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        if key is not None:
            places[key].append(row)
    return [(key, _rows(rows, len(keys), fixed, device)) for key, rows in places.items()]


def _rows(rows: list[int], count: int, fixed: bool, device: torch.device) -> Any:
    if fixed:
        mask = torch.zeros(count, 1, 1, dtype=torch.bool)
        mask[rows] = True
        return mask.to(device)
    if len(rows) == count:
        return None
    if rows[-1] - rows[0] + 1 == len(rows):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)
