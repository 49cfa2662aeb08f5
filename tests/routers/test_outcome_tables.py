"""Learned routers on recorded outcomes of real models: better than the mean agent on queries they have not seen."""

import csv
import gzip

import numpy as np
import pytest
from planted import outcomes_of, pool_of

from coterie.features.hashed import Hashed
from coterie.routers.baselines import BestSingle
from coterie.routers.familiarity import Familiarity
from coterie.routers.supervised import KNN, MLP
from coterie.types import Message, Query, State


def rows_of(path):
    with gzip.open(path, "rt", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def halves(data):
    """400 queries of the table of nine open models to fit on, 200 others to ask."""
    folder = data / "outcomes" / "llmrouter"
    asked = rows_of(folder / "queries.csv.gz")
    chosen = np.random.default_rng(0).permutation(len(asked))[:600]
    scores = {(r["query_id"], r["agent"]): float(r["score"]) for r in rows_of(folder / "outcomes.csv.gz")}
    agents = sorted({agent for _, agent in scores})

    def table(rows):
        queries = [
            Query(
                id=r["query_id"],
                messages=(Message(role="user", content=f"{r['question']}\n{r['choices']}"),),
                metadata={"domain": r["dataset"]},
            )
            for r in rows
        ]
        return outcomes_of(queries, [[scores.get((q.id, a), np.nan) for a in agents] for q in queries], agents)

    return table([asked[i] for i in chosen[:400]]), table([asked[i] for i in chosen[400:]])


@pytest.mark.parametrize(
    "router",
    [
        BestSingle(),
        KNN(encoder=Hashed(), k=50),
        MLP(encoder=Hashed()),
        Familiarity(encoder=Hashed(), hidden=64, width=32, epochs=20),
    ],
    ids=["best_single", "knn", "mlp", "familiarity"],
)
def test_top_choice_beats_the_mean_agent(halves, router):
    train, test = halves
    pool = pool_of(*train.agents)
    fitted = router.fit(train)
    firsts = [fitted.route(State(q, pool, seed=i)).ranked()[0] for i, q in enumerate(test.queries)]
    reached = np.nanmean([test.scores[i, test.agents.index(name)] for i, name in enumerate(firsts)])
    assert reached > np.nanmean(test.scores) + 0.08
