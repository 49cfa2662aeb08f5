"""One frozen base model per name and process, shared by agents and features: weights, tokenizer, lock, adapters.

Loads only safetensors and GGUF, runs no remote code. It neither samples nor queues: `local` does. Imports torch.
"""

import hashlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.backends import builtin, chat
from coterie.backends.constrained import Grammars
from coterie.backends.turns import Turns
from coterie.errors import MissingExtra, UserError
from coterie.types import Messages

try:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from coterie.backends.lora import Adapters
except ImportError as error:
    raise MissingExtra(str(error.name or "transformers"), "local") from error

# Only what is loaded from here counts towards the content identity of a folder.
CONTENT = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


@dataclass(eq=False)
class Base:
    """A loaded model in eval mode, no parameter of which requires a gradient; fp32 on a CPU, bf16 on a GPU.

    `lock` is held for every forward, adapter load and adapter drop. `digest` is the identity of the content.
    `eos_ids` are all ids that end a turn: of the generation config, the tokenizer and the chat template; `grammars`
    hold completions to a schema.
    """

    name: str
    model: Any
    tokenizer: Any
    digest: str
    lock: Turns = field(default_factory=Turns, repr=False)

    def __post_init__(self) -> None:
        self.adapters = Adapters(self.model)
        self.device: torch.device = self.model.device
        self.context = _context(self.model, self.tokenizer)
        self.eos_ids = chat.end_ids(self.model, self.tokenizer)
        self._tokenizing = threading.Lock()
        self.grammars = Grammars(self.tokenizer, self.eos_ids, self._tokenizing)

    @property
    def layers(self) -> Any:
        """The decoder blocks, in order."""
        return self.model.get_decoder().layers

    def prompt_ids(self, messages: Messages, limit: int) -> list[int]:
        """The prompt's token ids, at most `limit`: the left part is cut.

        Chat template applied, thinking off, a final assistant message continued. Thread-safe.

        Raises: UserError when the template refuses the messages.
        """
        with self._tokenizing:
            return chat.prompt_ids(self.tokenizer, messages)[-limit:]

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of completion ids, special tokens left out. Thread-safe."""
        with self._tokenizing:
            text: str = self.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return text

    @contextmanager
    def without_adapters(self) -> Iterator[None]:
        """The bare base, alone: holds the lock, and no adapter takes part in what runs inside."""
        with self.lock, self.adapters.rows([]):
            yield


_LOADED: "weakref.WeakValueDictionary[str, Base]" = weakref.WeakValueDictionary()
_LOADING = threading.Lock()


def base_model(name: str) -> Base:
    """The one copy of a model in this process; it lives as long as somebody holds it. Threads wait for one load.

    `name`: `builtin:smollm2-135m` (fetched if absent), a local folder, a `.gguf` file, or a Hugging Face id,
    optionally `id@revision`.

    Raises: UserError when there is no such model, or it cannot be loaded.
    """
    key = _canonical(name)
    with _LOADING:
        base = _LOADED.get(key)
        if base is None:
            base = _LOADED[key] = _load(key, name)
        return base


def _canonical(name: str) -> str:
    path = Path(name).expanduser()
    if name.startswith("builtin:") or not path.exists():
        return name
    return str(path.resolve())


def _load(key: str, name: str) -> Base:
    place, options = _source(key)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    try:
        with builtin.quiet():
            tokenizer = AutoTokenizer.from_pretrained(place, **options)
            model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, use_safetensors=True, **options)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise UserError(f"cannot load the model {name!r}: {_line(error)}") from error
    model = model.to(device).eval().requires_grad_(False)
    return Base(name=name, model=model, tokenizer=tokenizer, digest=_digest(key, place, model))


def _source(key: str) -> tuple[str, dict[str, Any]]:
    """Where transformers finds the model, and with which arguments."""
    if key.startswith("builtin:"):
        if key != f"builtin:{builtin.NAME}":
            raise UserError(f"no embedded model is called {key!r}; there is builtin:{builtin.NAME}")
        return str(builtin.fetch()), {"local_files_only": True}
    path = Path(key)
    if path.is_file() and path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name, "local_files_only": True}
    if path.is_file() and path.suffix != ".gguf":
        raise UserError(f"cannot load the model {key!r}: is a file; a model is a folder or a .gguf file")
    if path.is_dir():
        return key, {"local_files_only": True}
    if key.startswith((".", "/", "~")) or path.suffix == ".gguf":
        raise UserError(f"cannot load the model {key!r}: there is no such file or folder")
    repository, _, revision = key.partition("@")
    return repository, {"revision": revision or "main"}


def _line(error: Exception) -> str:
    """The first sentence of a library's message, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _digest(key: str, place: str, model: Any) -> str:
    if key.startswith("builtin:"):
        return builtin.SHA256[:32]
    if commit := getattr(model.config, "_commit_hash", None):
        return str(commit)
    path = Path(key)
    if path.is_file():
        return builtin.digest(path)[:32]
    files = sorted({f for pattern in CONTENT for f in Path(place).glob(pattern)})
    listing = "".join(f"{f.name}:{builtin.digest(f)}\n" for f in files)
    return hashlib.sha256(listing.encode()).hexdigest()[:32]


def _context(model: Any, tokenizer: Any) -> int:
    """Tokens that a prompt and its completion may have together."""
    config = model.config.get_text_config()
    stated = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    # Tokenizers state an astronomic number where they know no limit.
    known = [int(n) for n in stated if n and n < 10**8]
    return known[0] if known else 2048
