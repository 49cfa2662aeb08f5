"""Finished runs of a scripted ReM-MoA team, to distil a reviewer from, and a recipe whose reviewer can learn."""

import asyncio

import yaml

from coterie.backends.recorded import Scripted
from coterie.config import build
from coterie.evaluation.evaluate import Entry, evaluate, run_config
from coterie.pool import pool_of, revise
from coterie.storage.runs import Run
from coterie.tasks.task import Task
from coterie.team import Backends, Team
from coterie.types import Agent, Completion, Message, Query

REVIEW = '{"reviews": [{"trace": 1, "score": 5, "rationale": "x"}, {"trace": 2, "score": 5, "rationale": "y"}]}'
DOMAINS = ("sums", "products")


def questions(count=6):
    """Sums and products in turn; the answer to question n is 2n + 1 or 2n."""
    found = []
    for n in range(1, count + 1):
        text, gold = (f"Add {n} to {n + 1}.", 2 * n + 1) if n % 2 else (f"Double the number {n}.", 2 * n)
        found.append(
            Query(
                id=f"q{n}",
                messages=(Message(role="user", content=text),),
                task="qa",
                contract="boxed",
                reference={"answers": [str(gold)]},
                metadata={"domain": DOMAINS[(n + 1) % 2], "source": "made"},
            )
        )
    return tuple(found)


def says(agent, messages, seed):
    """`good` is right, `bad` is off by one and shows a wrong step; texts of both differ between questions."""
    text = messages[0].content.partition("\n")[0]
    numbers = [int(word.strip(".")) for word in text.split() if word.strip(".").isdigit()]
    gold = sum(numbers) if text.startswith("Add") else 2 * numbers[0]
    if agent.name == "good":
        return Completion(text=f"{gold - 1} + 1 = {gold}\nso \\boxed{{{gold}}}", completion_tokens=12)
    return Completion(text=f"{gold} + 1 = {gold + 2}\nso \\boxed{{{gold + 1}}}", completion_tokens=12)


def scripted(name, role="solver", reply=says):
    return revise(Agent(name=name, model=f"scripted:{name}", role=role)), Scripted(model=name, answer=reply)


def team(layers=2, review=REVIEW):
    """Two proposers, a reviewer without a clue."""
    made = [scripted("good"), scripted("bad"), scripted("judge", "reviewer", lambda a, m, s: review)]
    return Team(
        pool=pool_of([agent for agent, _ in made]),
        router=build("router", "uniform"),
        strategy=build("strategy", {"use": "rem_moa", "layers": layers, "panel": {"width": 2}}),
        backends=Backends(opened={agent.model: backend for agent, backend in made}),
        name="recorded",
    )


def recorded(folder, asked=None, made=None):
    """The folder of a finished run."""
    made = made or team()
    task = Task(name="made", queries=asked or questions())
    entries = [Entry(team=made, queries=task.queries)]
    run = Run.open(folder, run_config(task, entries, None))
    asyncio.run(evaluate(entries, run))
    run.lock.close()
    return folder


def traces(folder):
    [found] = Run.load(folder).traces().values()
    return found


LEARNER = {
    "use": "distill",
    "rank": 2,
    "alpha": 4.0,
    "lr": 1e-2,
    "epochs": 2,
    "batch": 2,
    "micro_batch": 1,
    "least": 1,
    "checkpoint_every": 1,
    "keep": 100,
}


def recipe(folder, tiny, **learner):
    """The file of a team that shares the scripted proposers' names and has the tiny model as its reviewer."""
    folder.mkdir(parents=True, exist_ok=True)
    agents = [{"name": name, "model": f"scripted:{name}"} for name in ("good", "bad")]
    agents.append({"name": "judge", "role": "reviewer", "model": f"local:{tiny}", "sampling": {"max_tokens": 600}})
    table = {
        "name": "student",
        "agents": agents,
        "strategy": {"use": "rem_moa", "layers": 2, "panel": {"width": 2}},
        "backends": {"scripted": {"rules": [{"reply": "so \\boxed{1}"}]}},
        "learner": LEARNER | learner,
        "seed": 3,
    }
    file = folder / "student.yaml"
    file.write_text(yaml.safe_dump(table))
    return file
