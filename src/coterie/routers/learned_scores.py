"""The routers of CERA-MoA's two ablations, as training left them: asked here, they learn in `learning/routing`."""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

import numpy as np

from coterie.errors import ConfigError
from coterie.features.checks import AnyEncoder, identity_of
from coterie.features.hidden import Hidden
from coterie.features.once import once
from coterie.routers.artefact import Artefact, features_of, in_pool, read, routed
from coterie.types import Pool, Query, Routing, State, spec

NAME = "learned_scores"


@spec
class LearnedScores:
    """Scores that were learned online in place of familiarity (CERA-MoA's ablations; docs/methods.md).

    Under `learner.routing.metric: regression` an agent's score is the reward that its network expects, under
    `classifier` its share of the reward. Only `coterie train` makes such weights; there is nothing to fit here.
    """

    encoder: AnyEncoder = field(default_factory=Hidden)
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Scores in [0, 1]. Raises: ConfigError without weights, or with those of other revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Scores in [0, 1], 0 for an agent that was not there in training: (len(queries), A)."""
        import torch

        from coterie.routers.heads import normalised, scored

        known = self._known
        features = features_of(self.encoder, [query.messages for query in queries], NAME, known.width)
        heads = {part: torch.from_numpy(array) for part, array in known.tensors.items()}
        try:
            with torch.no_grad():
                x = normalised((torch.from_numpy(features) - heads["centre"]) / heads["spread"])
                table = scored(known.notes["metric"], heads, x).double().numpy()
        except (KeyError, RuntimeError) as error:
            raise ConfigError(f"{self.weights}: is damaged, its networks cannot be run ({error})") from None
        return in_pool(known, table, pool)

    def save(self, path: str | Path) -> None:
        """Write what was learned."""
        self._known.save(path)

    @once
    def _known(self) -> Artefact:
        return read(NAME, self.weights, identity_of(self.encoder))
