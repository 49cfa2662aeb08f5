"""Learned depth: a logistic rule that ends the layers where the answer is likely as good as the last one would be.

It reads turns and reviews alone, so that a rollout and a finished trace show it the same. It stands in a recipe,
and is learned by `evaluation.learned_depth`.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Protocol

from coterie.errors import ConfigError
from coterie.rollout import Rollout
from coterie.strategies.reviewer import BEST, NEUTRAL
from coterie.types import STRICT, Exit, Finite, Pool, Reader, Review, Size, Turn, record


@record
class Weights:
    """One weight for each fact about a layer, all from 0 to 1.

    `depth` is 1 - 1/layer; `agreement` the share of its proposals that give its commonest answer; `kept` whether
    that was the commonest answer of the layer before; `best` the memory's best score and `mean` the layer's own, in
    tenths, neutral where nothing was reviewed. Without answers that can be compared agreement and kept are 0.
    """

    __pydantic_config__ = STRICT
    depth: Finite = 0.0
    agreement: Finite = 0.0
    kept: Finite = 0.0
    best: Finite = 0.0
    mean: Finite = 0.0


FACTS = tuple(field.name for field in fields(Weights))


@record
class DepthRule:
    """Layers end where sigmoid(bias + weights . facts) reaches `threshold`.

    What it was learned from: `queries` swept to `layers` by `pool`, the revisions of its agents. Cross-validated,
    it answered `accuracy` of them right after `depth` layers a query, where all layers answered `full`.
    """

    __pydantic_config__ = STRICT
    weights: Weights
    bias: Finite
    threshold: Finite
    layers: Size
    queries: Size
    accuracy: Finite
    full: Finite
    depth: Finite
    pool: Mapping[str, str]

    def stops(self, facts: Mapping[str, float]) -> bool:
        """Whether the answer after a layer with these facts is likely as good as the last layer's."""
        total = self.bias + sum(getattr(self.weights, name) * facts[name] for name in FACTS)
        return 1 / (1 + math.exp(-min(max(total, -500.0), 500.0))) >= self.threshold

    def check(self, pool: Pool) -> None:
        """Raises: ConfigError where an agent of the pool was added, removed or changed since."""
        now = {name: agent.revision for name, agent in pool.items()}
        differing = sorted(name for name in now.keys() | self.pool.keys() if now.get(name) != self.pool.get(name))
        if differing:
            raise ConfigError(
                f"strategy.depth: was learned with another pool (differs: {', '.join(differing)}); sweep the depths"
                " again (`every_layer`) and learn it with `coterie layers RUN --learn-depth RECIPE`"
            )


class Ending(Protocol):
    """A mixture's settings of when it ends: those of `rem_moa`."""

    @property
    def layers(self) -> int: ...

    @property
    def every_layer(self) -> bool: ...

    @property
    def agreement(self) -> float | None: ...

    @property
    def depth(self) -> DepthRule | None: ...

    @property
    def shadow(self) -> bool: ...


def check_ends(ending: Ending, pool: Pool) -> None:
    """ConfigError for settings that say nothing together, or a rule that is not for this pool and this depth."""
    if ending.depth is not None and ending.agreement is not None:
        raise ConfigError("strategy: agreement and depth both end the layers; set one of them")
    if ending.shadow and ending.depth is None and ending.agreement is None:
        raise ConfigError("strategy: shadow notes what `agreement` or `depth` would have stopped; set one of them")
    if ending.depth is None:
        return
    if ending.shadow and not ending.every_layer:
        raise ConfigError("strategy: to note what `depth` would have answered, shadow needs every_layer: true")
    if ending.layers > ending.depth.layers:
        raise ConfigError(
            f"strategy.depth: was learned on {ending.depth.layers} layers, and the strategy has {ending.layers}"
        )
    ending.depth.check(pool)


def note_ends(rollout: Rollout, layer: int, answer: Turn, swept: bool, enough: bool) -> None:
    """Note that there is an answer after this layer: as one of a depth sweep, and where the rule would end."""
    if swept:
        rollout.exits.append(Exit(layer=layer, turn=answer.index, why="depth"))
    if enough:
        rollout.exits.append(Exit(layer=layer, turn=answer.index, why="learned"))


async def deep_enough(rollout: Rollout, layer: int, rule: DepthRule | None) -> bool:
    """Whether the rule, if there is one, would end the rollout with this layer."""
    if rule is None:
        return False
    return rule.stops(await asyncio.to_thread(facts, rollout.turns, rollout.reviews, layer, rollout.reader))


def facts(turns: Sequence[Turn], reviews: Sequence[Review], layer: int, reader: Reader) -> dict[str, float]:
    """What is known when a layer has ended, by the names of `Weights`, which says what they are."""
    now, share = _commonest(turns, layer, reader)
    before, _ = _commonest(turns, layer - 1, reader)
    scores = [entry.score for entry in reviews if entry.layer <= layer]
    own = [entry.score for entry in reviews if entry.layer == layer]
    return {
        "depth": 1 - 1 / layer,
        "agreement": share,
        "kept": float(now is not None and before is not None and (now == before or reader.same(now, before))),
        "best": max(scores, default=NEUTRAL) / BEST,
        "mean": (sum(own) / len(own) if own else NEUTRAL) / BEST,
    }


def _commonest(turns: Sequence[Turn], layer: int, reader: Reader) -> tuple[str | None, float]:
    """A layer's commonest answer, the earliest of equals, and the share of its proposals that give it."""
    proposed = [turn.answer for turn in turns if turn.part == "proposer" and turn.layer == layer]
    answers = [] if reader.open_ended else [answer for answer in proposed if answer is not None]
    best: tuple[str | None, int] = (None, 0)
    for one in dict.fromkeys(answers):
        alike = sum(one == other or reader.same(one, other) for other in answers)
        best = (one, alike) if alike > best[1] else best
    return best[0], best[1] / max(1, len(proposed))
