"""Tiny random models of several families, and a base around one, for tests of hidden states."""

from contextlib import contextmanager
from threading import RLock

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = ("llama", "qwen3", "phi3", "gemma2", "gemma3_text", "mistral")


def tiny_model(family="llama"):
    """A model with six blocks and random weights that are large enough for its states to depend on the prompt."""
    torch.manual_seed(0)
    more = {"sliding_window": 4} if family in ("gemma2", "gemma3_text", "mistral") else {}
    config = AutoConfig.for_model(family, **SIZES, **more)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                weight.mul_(10)
    return model.requires_grad_(False)


class TinyBase:
    """Speaks the contract of a loaded base: prompts are characters."""

    def __init__(self, family="llama"):
        self.model = tiny_model(family)
        self.digest = f"tiny-{family}"
        self.device = torch.device("cpu")
        self.lock = RLock()
        self.forwards = 0
        self.bare = False
        self.model.register_forward_pre_hook(self._count)

    def _count(self, module, given):
        self.forwards += 1
        assert self.bare, "a forward of features ran with adapters on"

    def prompt_ids(self, messages, limit):
        text = "".join(f"{m.role[0]}{m.content}" for m in messages) + ":"
        return [3 + ord(c) % 61 for c in text][-limit:]

    @contextmanager
    def without_adapters(self):
        with self.lock:
            self.bare = True
            try:
                yield
            finally:
                self.bare = False
