"""Agents of a trained pool swapped for agents that it never saw: a few labels against a full retrain."""

import numpy as np

from coterie.errors import DataError
from coterie.evaluation.evaluate import Progress, Watch
from coterie.evaluation.replay.contenders import Contender, Features, made
from coterie.evaluation.replay.material import Material, narrowed, picks
from coterie.outcomes import Outcomes
from coterie.routers.extended import Extended
from coterie.types import draw, record

LABELS = 64


@record
class Swap:
    """One swap: who left, who came, and the mean test score of each way of coping with it, in [0, 1].

    `retrained`: the router fitted anew on all training outcomes of the new pool. `extended`: the old router, and
    the newcomers fitted on `labels` labelled queries, those that `spread` names.
    `ignored`: the old router, newcomers never asked.
    """

    seed: int
    left: tuple[str, ...]
    came: tuple[str, ...]
    labels: int
    retrained: float
    extended: float
    ignored: float

    @property
    def loss(self) -> float:
        """Points lost against the full retrain."""
        return 100 * (self.retrained - self.extended)


def swaps(
    contender: Contender, material: Material, features: Features, seeds: int, watch: Watch, labels: int = LABELS
) -> list[Swap]:
    """A swap a seed: two random agents leave, two that the router never saw come."""
    if len(material.pool) < 6:
        raise DataError(f"{material.name}: swapping two agents needs six of them, it has {len(material.pool)}")
    split = material.split(0)
    if labels > (most := len(split.train) + len(split.validation)):
        raise DataError(f"{material.name}: has {most} queries outside the test part, too few for {labels} labels")
    found = []
    for seed in range(seeds):
        watch(Progress(phase=f"swap {seed}", done=seed, total=seeds))
        found.append(_swap(contender, material, features, seed, labels))
    watch(Progress(phase="swaps", done=seeds, total=seeds))
    return found


def _swap(contender: Contender, material: Material, features: Features, seed: int, labels: int) -> Swap:
    names = material.pool.names()
    drawn = np.random.default_rng(draw(seed, "swap")).permutation(len(names))[:4].tolist()
    left, came = tuple(names[i] for i in drawn[:2]), tuple(names[i] for i in drawn[2:])
    split = material.split(seed)
    train = material.outcomes.take([*split.train, *split.validation])
    test = material.outcomes.take(split.test)
    table = contender.candidates[0]
    old = made(table, features, seed).fit(_of(train, [name for name in names if name not in came]))
    around = Extended(router=old)
    few = train.take(around.spread(train.queries, labels, seed))
    extended = around.fit(_of(few, [name for name in names if name not in left]))
    stays = [name for name in names if name not in left]
    retrained = made(table, features, seed).fit(_of(train, stays))
    after = _of(test, stays)
    return Swap(
        seed=seed,
        left=left,
        came=came,
        labels=labels,
        retrained=_score(retrained, after, seed),
        extended=_score(extended, after, seed),
        ignored=_score(old, after, seed),
    )


def _of(outcomes: Outcomes, names: list[str] | tuple[str, ...]) -> Outcomes:
    return narrowed(outcomes, [name in names for name in outcomes.agents])


def _score(router: object, test: Outcomes, seed: int) -> float:
    """Mean test score of the router's first choices among the test's agents."""
    known = Material("test", test)
    predicted = router.predict(test.queries, known.pool)  # type: ignore[attr-defined]
    best = picks(predicted, test.queries, known.pool.names(), draw(seed, "after"))
    return float(known.outcomes.scores[np.arange(len(best)), best].mean())
