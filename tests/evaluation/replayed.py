"""Recorded tables with a known truth for the replay tests: three kinds of question, an expert for each."""

from pathlib import Path

import numpy as np

from coterie.evaluation.replay.contenders import Contender, tried
from coterie.evaluation.replay.material import read_material
from coterie.evaluation.replay.run import Asked
from coterie.storage.tablefile import Item, Recorded, Table, save_table

KINDS = {
    "sum": "Add the numbers {0} and {0}.",
    "poem": "Please write a short poem about the year {0}!",
    "code": "def f(x): what does f({0}) return?",
}
AGENTS = ("ada", "bob", "cyd")
SKILL = np.array([[1.0, 0.6, 0.5], [0.1, 1.0, 0.2], [0.1, 0.2, 1.0]])  # (agent, kind)
DOLLARS = (0.004, 0.002, 0.001)
FAST = (
    Contender(name="kNN", candidates=tried("knn", {"k": 5}, {"k": 20})),
    Contender(name="forest", candidates=tried("forest", {"trees": 5, "components": 8})),
)
ASKED = Asked(seeds=2, encoder="hashed", contenders=FAST)


def item(number, kind, text=None, choices=()):
    question = text or KINDS[kind].format(number)
    return Item(id=f"q{number}", dataset=kind, task="math", category="", question=question, choices=choices)


def items_of(size, start=0):
    return [item(i, list(KINDS)[i % 3]) for i in range(start, start + size)]


def table_of(items, *, agents=AGENTS, skill=SKILL, dollars=DOLLARS, seed=0, price=True):
    """Each agent is right with its chance for the kind; costs differ a little from call to call."""
    random = np.random.default_rng(seed)
    kinds = [list(KINDS).index(one.dataset) for one in items]
    scores = (random.uniform(size=(len(items), len(agents))) < skill[:, kinds].T).astype(float)
    costs = np.array(dollars) * random.uniform(0.8, 1.2, scores.shape)
    return Table(
        folder="",
        items=tuple(items),
        models=tuple(Recorded(agent=name) for name in agents),
        scores=scores,
        prompt_tokens=np.full_like(scores, 10.0),
        completion_tokens=np.full_like(scores, 5.0),
        costs=costs if price else np.full_like(costs, np.nan),
    )


def written(folder: Path, table: Table) -> Path:
    save_table(folder, table)
    return folder


def material_of(folder: Path, table: Table, agents=()):
    return read_material(written(folder, table), agents)


def quiet(step):
    """A watch that shows nothing."""
