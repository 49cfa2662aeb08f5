"""The router while agents learn: one AdamW step a round on the rewards of resolved tickets (Eqs. 26 and 27).

Owns heads and optimiser; who is asked is `allocation`'s business, which rewards belong together `ledger`'s.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from coterie.errors import ConfigError, Diverged, MissingExtra

try:
    import torch
except ImportError as error:
    raise MissingExtra("torch", "local") from error

from coterie.features.checks import AnyEncoder, identity_of
from coterie.learning.checkpoint import State, sound
from coterie.learning.scorers import Classifier, PushPull, Regression, Scorer
from coterie.records import Decay, Rate, Units
from coterie.routers.artefact import Artefact, fitted, key_of
from coterie.routers.familiarity import Familiarity
from coterie.routers.heads import Shape
from coterie.routers.headset import PARTS, HeadSet
from coterie.routers.learned_scores import NAME as LEARNED_SCORES
from coterie.routers.learned_scores import LearnedScores
from coterie.routers.push_pull import smallest_margin
from coterie.types import Count, Pool, Share, spec

log = logging.getLogger(__name__)
CHUNK = 64  # queries whose inner layers are held at a time
MOMENTS = ("exp_avg", "exp_avg_sq")


@spec
class RoutingUpdate:
    """How the router learns online. Defaults are the paper's, except `standardise`.

    `metric`: what is learnt; `regression` and `classifier` are the paper's ablations. `hidden` and `width` are
    the heads' sizes, `scale` and `margin` as in the familiarity router (`margin` None: no bound to the push).
    `clip` bounds the gradient's norm over all heads (C24). `standardise` brings each feature to mean 0 and
    deviation 1 over that many first training queries before the heads' LayerNorm, as the router fitted on
    recorded outcomes does [O]; 0 leaves features as they are, which is the paper.
    """

    metric: Literal["familiarity", "regression", "classifier"] = "familiarity"
    lr: Rate = 1e-4
    clip: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    weight_decay: Decay = 0.0
    betas: tuple[Share, Share] = (0.9, 0.95)
    hidden: Units = 512
    width: Units = 256
    scale: Annotated[float, Field(gt=0, le=1e6)] = 2.0
    margin: Annotated[float, Field(ge=0, le=1e6)] | None = 1.0
    standardise: Count = 256
    seed: int = 0

    def margin_warning(self, agents: int, tau: float) -> str | None:
        """Why the margin is too small for so many agents and this threshold, or None where it is not."""
        if self.metric != "familiarity" or self.margin is None:
            return None
        least = smallest_margin(agents, tau, self.scale)
        if self.margin >= least:
            return None
        more = " (more than 2, which no distance reaches)" if least > 2 else ""
        return (
            f"margin {self.margin:g} is below ln({agents}/{tau:g})/{self.scale:g} = {least:.3f}{more}:"
            f" {agents} agents that are pushed away from a query still reach tau together, so not all are asked"
        )


class RoutingLearner:
    """Heads of all agents in training.

    `agents` are stable names, one a lineage of revisions: targets and first weights hang on them alone. Columns
    of features and rewards are in the order of `agents`, which are sorted.
    """

    def __init__(
        self, agents: Sequence[str], features: int, settings: RoutingUpdate, sample: np.ndarray | None = None
    ) -> None:
        """Untrained heads for `features` numbers a query; `sample` (K, D) are those to standardise by.

        Raises: ConfigError where settings want a sample and there is none.
        """
        self.settings, self.agents = settings, tuple(sorted(agents))
        shape = Shape(features=features, hidden=settings.hidden, width=settings.width, seed=settings.seed)
        self.base = HeadSet.untrained(shape)
        if settings.standardise and sample is None:
            raise ConfigError("routing.standardise: needs features of the first queries; 0 leaves features alone")
        if settings.standardise and sample is not None:
            self.base = self.base.standardised(np.asarray(sample, dtype=np.float32))
        self.updates = self.skipped = 0
        self._place(self._scorer().fresh(self.agents), {})

    # --- asking and learning -------------------------------------------------------------------------

    def familiarity(self, features: np.ndarray) -> np.ndarray:
        """Scores of all agents on queries' features (B, D): (B, N), float64 in [0, 1].

        Raises: Diverged where they are no numbers.
        """
        with torch.no_grad():
            x = self._x(features)
            parts = [self.scorer.scores(self.parameters, x[i : i + CHUNK]) for i in range(0, max(1, len(x)), CHUNK)]
            return self._finite(torch.cat(parts).double()).numpy()

    def step(self, features: np.ndarray, rewards: np.ndarray, solo: np.ndarray) -> dict[str, float]:
        """One optimiser step on resolved queries: features (Q, D), rewards (Q, N) with NaN, `solo` (Q,).

        `solo` says which were routed to a single agent. A row with one reward of several routed agents says
        nothing and is left out (C14). No step is made where rewards give no direction, or where the gradient is
        no number; both are counted.

        Returns `pairs` learnt from, `left_out` rows, `loss`, `norm` of the gradient before clipping, `stepped`
        (0 or 1); for familiarity also pairs `pulled`, `pushed`, and `dormant` beyond the margin (C11).
        Raises: ValueError for a solo row with several rewards, Diverged where parameters are no numbers any more.
        """
        count = (~np.isnan(rewards)).sum(axis=1)
        if (solo & (count > 1)).any():
            raise ValueError("a query that one agent was routed to has rewards of several")
        alone = (count == 1) & ~solo
        told = (count > 0) & ~alone
        about = {"pairs": float(count[told].sum()), "left_out": float(alone.sum()), "stepped": 0.0}
        found = self.scorer.loss(self.parameters, self._x(features[told]), rewards[told]) if told.any() else None
        if found is None:
            return about
        loss, figures = found
        return {**about, **figures, "loss": float(loss.detach()), **self._descend(loss)}

    def _descend(self, loss: torch.Tensor) -> dict[str, float]:
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.clip))
        if not np.isfinite(norm):
            self.skipped += 1
            log.warning("router update skipped: its gradient is no number (%d so far)", self.skipped)
            return {"norm": norm, "stepped": 0.0}
        self.optimiser.step()
        self.updates += 1
        self._finite(torch.stack([tensor.detach().sum() for tensor in self.parameters.values()]))
        return {"norm": norm, "stepped": 1.0}

    def _finite(self, values: torch.Tensor) -> torch.Tensor:
        if not bool(values.isfinite().all()):
            raise Diverged("the router's numbers are none any more; lower routing.lr (critic.lr) and begin again")
        return values

    def _x(self, features: np.ndarray) -> torch.Tensor:
        return self.base.prepared(np.asarray(features, dtype=np.float32))

    def _scorer(self) -> Scorer:
        if self.settings.metric == "regression":
            return Regression(self.base.shape)
        if self.settings.metric == "classifier":
            return Classifier(self.base.shape)
        return PushPull(self.base, self.agents, self.settings.scale, self.settings.margin)

    def _place(
        self, parameters: Mapping[str, torch.Tensor], moments: Mapping[str, Mapping[str, torch.Tensor]]
    ) -> None:
        """Take up parameters, and the optimiser's moments by parameter (none: it has not stepped)."""
        self.scorer = self._scorer()
        # One order whatever a file's was: the gradient's norm is a sum, which rounds by order.
        self.parameters = {part: parameters[part].detach().clone().requires_grad_() for part in PARTS}
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(),
            lr=self.settings.lr,
            betas=self.settings.betas,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )
        for part, found in moments.items():
            self.optimiser.state[self.parameters[part]] = dict(found)

    # --- agents that leave ---------------------------------------------------------------------------

    def without(self, agent: str) -> None:
        """Let an agent go; the others go on as they were, moments and all."""
        kept = [i for i, name in enumerate(self.agents) if name != agent]
        if not kept or len(kept) == len(self.agents):
            raise ConfigError(f"routing: agent {agent!r} is unknown or the last one and cannot be removed")
        rows, moments = torch.tensor(kept), self._moments()
        parameters = {}
        for part, tensor in self.parameters.items():
            axis = self.scorer.axis(part)
            for key in MOMENTS if part in moments else ():
                moments[part][key] = _pick(moments[part][key], axis, rows)
            parameters[part] = _pick(tensor.detach(), axis, rows)
        self.agents = tuple(self.agents[i] for i in kept)
        self._place(parameters, moments)

    def _moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """The optimiser's state by parameter; empty before its first step."""
        state = self.optimiser.state
        return {part: dict(state[tensor]) for part, tensor in self.parameters.items() if tensor in state}

    # --- for a team ----------------------------------------------------------------------------------

    def headset(self, revisions: Mapping[str, str]) -> HeadSet:
        """The heads as they are now, filed under the agents' present `revisions` (by name).

        Targets stay those of the names. Agents of one revision are one agent under several names: the first
        one's head stands for all.
        Raises: ConfigError for a metric without heads, KeyError for an agent without a revision.
        """
        if self.settings.metric != "familiarity":
            raise ConfigError(f"routing: metric {self.settings.metric} has no heads for a familiarity router")
        filed: dict[str, list[int]] = {}
        for i, name in enumerate(self.agents):
            filed.setdefault(revisions[name] or name, []).append(i)
        first = [rows[0] for rows in filed.values()]
        return replace(
            self.base,
            names=tuple("+".join(self.agents[i] for i in rows) for rows in filed.values()),
            keys=tuple(filed),
            lineage=tuple(self.agents[i] for i in first),
            trained={part: tensor.detach()[first].clone() for part, tensor in self.parameters.items()},
        )

    def router(self, pool: Pool, encoder: AnyEncoder) -> Familiarity | LearnedScores:
        """A router for the pool's present revisions, as if it had been fitted: it can be saved.

        `encoder` must be the one whose features were learnt on. Raises: KeyError for an agent that has no revision.
        """
        keys = {name: key_of(pool[name]) for name in self.agents}
        settings = self.settings
        if settings.metric != "familiarity":
            return fitted(LearnedScores(encoder=encoder), "_known", self._artefact(keys, identity_of(encoder)))
        router = Familiarity(
            encoder=encoder,
            hidden=settings.hidden,
            width=settings.width,
            scale=settings.scale,
            margin=2.0 if settings.margin is None else settings.margin,
            standardise=bool(settings.standardise),
            lr=settings.lr,
            seed=settings.seed,
        )
        return fitted(router, "_trained", self.headset(keys))

    def _artefact(self, keys: Mapping[str, str], encoder: str) -> Artefact:
        """Networks of a metric without targets, with what their features are standardised by."""
        tensors = {**self.parameters, "centre": self.base.centre, "spread": self.base.spread}
        return Artefact(
            router=LEARNED_SCORES,
            names=self.agents,
            keys=tuple(keys[name] for name in self.agents),
            tensors={part: tensor.detach().numpy().copy() for part, tensor in tensors.items()},
            encoder=encoder,
            width=self.base.shape.features,
            notes={"metric": self.settings.metric},
        )

    # --- checkpoints ---------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that `load` needs to go on exactly so: plain JSON, and arrays, the moments among them."""
        arrays = {f"head.{part}": tensor.detach().numpy().copy() for part, tensor in self.parameters.items()}
        for part, kept in self._moments().items():
            arrays |= {f"{key}.{part}": kept[key].numpy().copy() for key in MOMENTS}
            arrays[f"step.{part}"] = kept["step"].numpy().reshape(1).copy()  # files keep no array of 0 dimensions
        shared = {**self.base.pair, "centre": self.base.centre, "spread": self.base.spread}
        arrays |= {f"shared.{part}": tensor.numpy().copy() for part, tensor in shared.items()}
        return {"agents": list(self.agents), "updates": self.updates, "skipped": self.skipped}, arrays

    def load(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state` of a learner with these settings; its agents come with it.

        Raises: DataError for an array that is not one of such a learner's.
        """

        def taken(name: str, shape: Sequence[int]) -> torch.Tensor:
            return torch.from_numpy(sound(arrays, name, shape).copy())

        agents = tuple(about["agents"])
        like = {
            part: _sized(tensor, self.scorer.axis(part), len(agents)) for part, tensor in self.parameters.items()
        }
        fixed = {**self.base.pair, "centre": self.base.centre, "spread": self.base.spread}
        shared = {part: taken(f"shared.{part}", tensor.shape) for part, tensor in fixed.items()}
        self.base = replace(
            self.base,
            pair={part: shared[part] for part in self.base.pair},
            centre=shared["centre"],
            spread=shared["spread"],
        )
        self.agents = agents
        self.updates, self.skipped = about["updates"], about["skipped"]
        moments = {
            part: {
                "step": taken(f"step.{part}", (1,)).reshape(()),
                **{key: taken(f"{key}.{part}", shape) for key in MOMENTS},
            }
            for part, shape in like.items()
            if f"step.{part}" in arrays
        }
        self._place({part: taken(f"head.{part}", shape) for part, shape in like.items()}, moments)


def _sized(tensor: torch.Tensor, axis: int | None, agents: int) -> list[int]:
    """The tensor's shape with so many agents."""
    return [agents if i == axis else size for i, size in enumerate(tensor.shape)]


def _pick(tensor: torch.Tensor, axis: int | None, rows: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if axis is None else tensor.index_select(axis, rows)
