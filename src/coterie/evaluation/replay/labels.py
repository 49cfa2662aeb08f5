"""How a router's score grows with the number of labelled queries that it is fitted on."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.errors import DataError
from coterie.evaluation.evaluate import Progress, Watch
from coterie.evaluation.replay.contenders import Contender, Features, made
from coterie.evaluation.replay.decide import best_agent
from coterie.evaluation.replay.material import Material, picks
from coterie.outcomes import Outcomes
from coterie.types import draw, record

SIZES = (50, 100, 200, 500, 1000, 3000)
HELD = 0.2
BASELINE = "best single"


@record
class Learnt:
    """Mean test score of one router after fitting on `labels` queries, by seed."""

    name: str
    labels: int
    seeds: tuple[float, ...]

    @property
    def score(self) -> float:
        return float(np.mean(self.seeds))


def curve(
    contenders: Sequence[Contender],
    material: Material,
    features: Features,
    sizes: Sequence[int],
    seeds: int,
    watch: Watch,
) -> list[Learnt]:
    """Every router at every number of labels, and the best single agent as those labels tell it.

    A fifth of the questions are the test, the same for every size; labels are the first of a random order of the
    rest, so that a larger set holds the smaller ones. Settings are selected on a fifth of the labels, and the
    winner is fitted on all of them. Sizes beyond what there is are left out. Raises: DataError where all are.
    """
    found: dict[tuple[str, int], list[float]] = {}
    total, done, most = seeds * len(sizes), 0, 0
    for seed in range(seeds):
        split = material.split(seed)
        rest = np.random.default_rng(draw(seed, "labels")).permutation([*split.train, *split.validation]).tolist()
        most = max(most, len(rest))
        test = material.outcomes.take(split.test)
        for size in (size for size in sizes if size <= len(rest)):
            watch(Progress(phase=f"{size} labels, seed {seed}", done=done, total=total))
            labels = material.outcomes.take(rest[:size])
            for name, score in _scores(contenders, labels, test, material, features, seed).items():
                found.setdefault((name, size), []).append(score)
            done += 1
    if not found:
        raise DataError(
            f"{material.name}: has too few labelled queries outside the test part for {min(sizes)} labels;"
            f" there are {most}"
        )
    return [Learnt(name=name, labels=size, seeds=tuple(scores)) for (name, size), scores in found.items()]


def _scores(
    contenders: Sequence[Contender],
    labels: Outcomes,
    test: Outcomes,
    material: Material,
    features: Features,
    seed: int,
) -> dict[str, float]:
    names = material.pool.names()
    found = {BASELINE: float(test.scores[:, best_agent(labels)].mean())}
    for contender in contenders:
        table = selected(contender, labels, material, features, seed)
        predicted = made(table, features, seed).fit(labels).predict(test.queries, material.pool)
        best = picks(predicted, test.queries, names, draw(seed, contender.name))
        found[contender.name] = float(test.scores[np.arange(len(best)), best].mean())
    return found


def selected(
    contender: Contender, labels: Outcomes, material: Material, features: Features, seed: int
) -> Mapping[str, Any]:
    """The candidate that does best on a fifth of the labels, fitted on the others; the first one of equal ones."""
    if len(contender.candidates) == 1:
        return contender.candidates[0]
    held = round(HELD * len(labels.queries))
    check, learn = labels.take(range(held)), labels.take(range(held, len(labels.queries)))
    scores = []
    for table in contender.candidates:
        predicted = made(table, features, seed).fit(learn).predict(check.queries, material.pool)
        best = picks(predicted, check.queries, material.pool.names(), draw(seed, "held"))
        scores.append(float(np.nanmean(check.scores[np.arange(held), best])))
    return contender.candidates[max(range(len(scores)), key=lambda i: (scores[i], -i))]
