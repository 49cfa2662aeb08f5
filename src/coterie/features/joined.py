"""Several encoders side by side: their vectors joined into one."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.features.checks import AnyEncoder, identity_of
from coterie.types import Messages, spec


@spec
class Joined:
    """The vectors of `encoders`, one after the other."""

    encoders: Annotated[tuple[AnyEncoder, ...], Field(min_length=1)]

    @property
    def identity(self) -> str:
        """What the features depend on; kept beside weights that were fitted on them."""
        return "+".join(identity_of(encoder) for encoder in self.encoders)

    def encode(self, prompts: Sequence[Messages]) -> np.ndarray:
        """Shape (len(prompts), D1 + D2 + ...), float32."""
        return np.concatenate([encoder.encode(prompts) for encoder in self.encoders], axis=1, dtype=np.float32)
