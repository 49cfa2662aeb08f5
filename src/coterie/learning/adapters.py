"""Trainable LoRA adapters over one frozen base: made, laid over the base for a forward, written, read.

An adapter's tensors belong to its agent and to nobody else: no module of the base is ever changed. Imports torch.
"""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from coterie.errors import ConfigError, MissingExtra, UserError
from coterie.storage.runs import write_atomically
from coterie.types import draw, spec

try:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    from coterie.backends.base_model import Base
    from coterie.backends.lora import CONFIG, UNSUPPORTED, WEIGHTS, Pair
except ImportError as error:
    raise MissingExtra(str(error.name or "torch"), "local") from error

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PATTERNS = ("use_rslora", "rank_pattern", "alpha_pattern")
Weights = dict[str, torch.Tensor]
"""`<module>.A` (r, in) and `<module>.B` (out, r) of every adapted layer, float32, requiring gradients."""


@spec
class Lora:
    """The shape of an agent's adapter (CERA-MoA Table 5: r 16, alpha 32, all seven projections).

    The paper trains with a dropout of 0.05. Here there is none: dropped units differ between the pass that gives
    the old and the one that gives the new log-probabilities, so that with several updates a batch the ratio is
    noise (docs/methods.md C30).
    """

    rank: Annotated[int, Field(ge=1, le=4096)] = 16
    alpha: Annotated[float, Field(gt=0, le=1e4)] = 32.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = PROJECTIONS

    def __post_init__(self) -> None:
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError("targets: one is named twice")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def fresh(base: Base, lora: Lora, seed: int) -> Weights:
    """A new adapter, which changes nothing yet: A uniform in +-1/sqrt(in) as PEFT draws it, B zero.

    Every layer draws from its own seed: an agent's start depends on its seed, not on how many others there are.
    Raises: ConfigError where the base has none of the targets, or one is the language-model head.
    """
    found = base.adapters.linear(lora.targets)
    if any(layer is base.model.get_output_embeddings() for layer in found.values()):
        raise ConfigError("lora.targets: the language-model head cannot be adapted")
    if missing := sorted(set(lora.targets) - {name.rpartition(".")[2] for name in found}):
        raise ConfigError(f"lora.targets: {base.name} has no linear layer {missing[0]!r}")
    weights: Weights = {}
    for name, layer in found.items():
        source = np.random.default_rng(draw(seed, "lora", name))
        bound = 1 / math.sqrt(layer.in_features)
        down = source.uniform(-bound, bound, (lora.rank, layer.in_features)).astype(np.float32)
        weights[f"{name}.A"] = torch.from_numpy(down).to(base.device).requires_grad_()
        weights[f"{name}.B"] = torch.zeros(layer.out_features, lora.rank, device=base.device, requires_grad=True)
    return weights


def pairs(weights: Mapping[str, torch.Tensor], lora: Lora, kind: torch.dtype) -> dict[str, Pair]:
    """The adapter as the base's hooks read it, in the base's type `kind`; gradients flow back to `weights`."""
    names = [name.removesuffix(".A") for name in weights if name.endswith(".A")]
    return {name: (weights[f"{name}.A"].to(kind), (weights[f"{name}.B"] * lora.scale).to(kind)) for name in names}


def count(base: Base, lora: Lora) -> int:
    """Trainable numbers: r (in + out), summed over the adapted layers."""
    layers = base.adapters.linear(lora.targets).values()
    return sum(lora.rank * (layer.in_features + layer.out_features) for layer in layers)


# --- PEFT folders ------------------------------------------------------------------------------------


def write(folder: Path, weights: Mapping[str, torch.Tensor], lora: Lora, model: str) -> None:
    """A plain PEFT folder, which `peft` and every server with LoRA support read.

    Raises: ConfigError where it cannot be written; one that was there before is then still whole.
    """
    named = {_peft_name(name): tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    config = {**_shape(lora), "base_model_name_or_path": model, "target_modules": list(lora.targets)}
    draft = folder / f".{WEIGHTS}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(named, draft, metadata={"format": "pt"})
        draft.chmod(0o644)
        draft.replace(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise ConfigError(f"adapter {folder}: cannot be written ({reason})") from None
    write_atomically(folder / CONFIG, json.dumps(config, indent=2))


def _shape(lora: Lora) -> dict[str, Any]:
    """What a PEFT configuration says of an adapter's function, beside where it sits."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }


def read(folder: Path, base: Base, lora: Lora) -> Weights:
    """The trainable tensors of a PEFT folder of this very shape.

    Raises: UserError where a file is missing or damaged, has numbers that are none, or it is no plain LoRA with the
    layers, rank and alpha of `lora` on this base.
    """
    _check(folder, lora)
    try:
        stored = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"adapter {folder}: cannot read {WEIGHTS} ({reason})") from None
    named = {_own_name(name): tensor for name, tensor in stored.items()}
    weights = fresh(base, lora, 0)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in named.items()}:
        raise UserError(f"adapter {folder}: its layers or rank are not those of the recipe's lora settings")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in named.values()):
        raise UserError(f"adapter {folder}: holds numbers that are none (NaN or infinite)")
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(named[name])
    return weights


def _check(folder: Path, lora: Lora) -> None:
    """Refuse a folder whose tensors mean another function than `lora` makes of them."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        same = {key: config.get(key) for key in ("peft_type", "r", "lora_alpha")}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"adapter {folder}: {CONFIG} is not a PEFT LoRA configuration ({error!r})") from None
    wanted = {key: _shape(lora)[key] for key in same}
    if same != wanted:
        raise UserError(f"adapter {folder}: has {same}, the recipe's lora settings mean {wanted}")
    more = [key for key in (*UNSUPPORTED, *PATTERNS) if config.get(key)]
    if config.get("bias", "none") != "none":
        more.append("bias")
    if more:
        raise UserError(f"adapter {folder}: only plain LoRA can go on learning, not {', '.join(more)}")


def _peft_name(name: str) -> str:
    module, _, half = name.rpartition(".")
    return f"base_model.model.{module}.lora_{half}.weight"


def _own_name(name: str) -> str:
    found = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", name)
    return f"{found[1]}.{found[2]}" if found else name
