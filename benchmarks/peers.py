"""LLMRouter's kNN, SVM, MLP and MF beside ours: same splits, same sentence vectors, one run, one table.

    python benchmarks/peers.py [TABLE] [--seeds 5] [--peers-python PATH] [--published] [--json]

TABLE is a folder of recorded outcomes ($COTERIE_DATA/outcomes/llmrouter by default). PATH is the interpreter of an
environment with `llmrouter-lib`, whose own classes are then driven offline; without it scikit-learn twins of the
published settings stand in. Both are fitted on the train part, select on the validation part, and decide on the
test part before anything is judged. Ours and theirs take turns only by seed: seconds are an order of magnitude.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie import __version__
from coterie.errors import UserError
from coterie.evaluation.replay.contenders import CONTENDERS, Contender, Features
from coterie.evaluation.replay.decide import Decision, Plan, Task, baselines, decide
from coterie.evaluation.replay.judge import Row, Tested, by_query, result, rows_of
from coterie.evaluation.replay.material import Material, read_material
from coterie.evaluation.stats import paired_test

CHILD = Path(__file__).with_name("peer_routers.py")
NO_TABLE = "peers.py: name a folder of recorded outcomes, or set COTERIE_DATA to the folder that holds outcomes/"
LEFT_OUT = ("random", "cheapest")
SHOWN = ("oracle",)
FOREST = "forest"
NARROW = "forest on sentence vectors and layout"
"""Ours without hashed words: what it has over theirs is then the layout of the question alone."""


# --- ours ----------------------------------------------------------------------------------------------


def ours(tasks: Sequence[Task], material: Material, features: Features) -> list[Decision]:
    """The forest, the forest with fewer features, and our kNN on the vectors that theirs gets."""
    narrow = Features(words=features.sentence, sentence=features.sentence)
    found = {contender.name: contender for contender in CONTENDERS}
    forest, neighbours = found["forest"], found["kNN"]
    wanted = (
        (Contender(name=FOREST, candidates=forest.candidates), features),
        (Contender(name=NARROW, candidates=forest.candidates), narrow),
        (Contender(name="kNN of scores", candidates=neighbours.candidates), features),
    )
    plan = Plan(targets={}, sweeps=False)
    return [decide(one, task, material, given, plan) for one, given in wanted for task in tasks]


# --- theirs --------------------------------------------------------------------------------------------


def theirs(tasks: Sequence[Task], features: Features, options: argparse.Namespace) -> tuple[list[Decision], dict]:
    """What a child process decided about each seed's test queries, and how it says it did."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for task in tasks:
            np.savez(folder / f"split-{task.seed}.npz", **arrays(task, features))
        run_child(folder, options)
        found = [one for task in tasks for one in read(folder, task)]
        told = json.loads((folder / f"picks-{tasks[0].seed}.json").read_text())
    return found, {"versions": told["versions"], "twins": {row["name"]: row["twin"] for row in told["rows"]}}


def arrays(task: Task, features: Features) -> dict[str, np.ndarray]:
    """Vectors (n, D) of the three parts; scores (n, A) of the two that may be looked at."""
    parts = {"train": task.train, "validation": task.validation, "test": task.test}
    found = {name: features.sentence.encode([q.messages for q in part.queries]) for name, part in parts.items()}
    scores = {"train_scores": task.train.scores, "validation_scores": task.validation.scores}
    return {**found, **scores}


def run_child(folder: Path, options: argparse.Namespace) -> None:
    """Raises: SystemExit where the child fails, which says why on its own."""
    command = [options.peers_python or sys.executable, str(CHILD), str(folder)]
    command += [] if options.peers_python else ["--twins"]
    command += ["--published"] if options.published else []
    # Nothing of theirs is to be asked of the network; one thread each, as ours.
    quiet = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
    try:
        done = subprocess.run(command, env={**os.environ, **quiet}, stdout=subprocess.DEVNULL, check=False)
    except OSError as mishap:
        raise SystemExit(f"peers.py: {command[0]} cannot be started: {mishap.strerror}") from None
    if done.returncode:
        how = "failed; its last lines are above" if done.returncode > 0 else f"got signal {-done.returncode}"
        raise SystemExit(f"peers.py: the peers' process {how}")


def read(folder: Path, task: Task) -> list[Decision]:
    """The decisions of one seed. Raises: SystemExit where they do not fit the test part."""
    told = json.loads((folder / f"picks-{task.seed}.json").read_text())
    found = []
    with np.load(folder / f"picks-{task.seed}.npz", allow_pickle=False) as picks:
        for row in told["rows"]:
            columns = picks[row["name"]]
            if len(columns) != len(task.test.queries) or not set(columns.tolist()) <= set(
                range(len(task.test.agents))
            ):
                raise SystemExit(f"peers.py: {row['name']} decided on other queries or agents than it was given")
            found.append(
                Decision(
                    contender=f"LLMRouter {row['name']}",
                    seed=task.seed,
                    setting=row["setting"],
                    validation=row["validation"],
                    picks={"": tuple(columns.tolist())},
                    seconds=row["seconds"],
                    notes={"tried": row["tried"]},
                )
            )
    return found


# --- the table -----------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> dict:
    """Decide everything, then judge."""
    material = read_material(options.table)
    features = Features.opened(options.encoder)
    prompts = [query.messages for query in material.queries]
    for encoder in (features.words, features.sentence):
        encoder.encode(prompts)  # so that nobody's seconds hold the encoding
    tasks = [Task.of(material, material.split(seed), seed) for seed in range(options.seeds)]
    decided = [one for task in tasks for one in baselines(task, material)]
    decided += ours(tasks, material, features)
    found, told = theirs(tasks, features, options)
    decided += found
    tests = [Tested(seed=task.seed, outcomes=task.test) for task in tasks]
    wanted = {*SHOWN, *(one.contender for one in decided if one.contender not in LEFT_OUT)}
    rows = [row for row in rows_of(decided, tests, ()) if row.name in wanted]
    against = against_forest(decided, tests)
    return {
        "table": material.name,
        "queries": len(material.queries),
        "agents": len(material.pool),
        "splits": [len(part.queries) for part in (tasks[0].train, tasks[0].validation, tasks[0].test)],
        "seeds": options.seeds,
        "encoder": options.encoder,
        "tied": tied(material),
        "theirs": told,
        "coterie": __version__,
        "rows": [as_json(row, against, decided) for row in rows],
    }


def tied(material: Material) -> float:
    """Share of the queries with several best agents, where one that is taught as the best is a guess."""
    scores = material.outcomes.scores
    return float(((scores == np.nanmax(scores, axis=1, keepdims=True)).sum(axis=1) > 1).mean())


def against_forest(decided: Sequence[Decision], tests: Sequence[Tested]) -> dict[str, float | None]:
    """p-value of each row's paired test against the forest, on the same queries."""
    by_seed = {test.seed: test for test in tests}
    named: dict[str, list] = {}
    for one in decided:
        named.setdefault(one.contender, []).append(result(by_seed[one.seed], one.picks[""]))
    scores = {name: by_query(found) for name, found in named.items()}
    forest = scores.pop(FOREST)
    return {
        name: paired_test(list(forest.values()), [row[i] for i in forest]).p_value for name, row in scores.items()
    }


def as_json(row: Row, against: dict[str, float | None], decided: Sequence[Decision]) -> dict:
    """A row with every setting that was selected, and for how many seeds."""
    mine = [dict(one.setting) for one in decided if one.contender == row.name]
    settings = [json.dumps({k: v for k, v in one.items() if k != "use"}, sort_keys=True) for one in mine]
    return {
        "name": row.name,
        "score": row.score,
        "ci": row.ci,
        "gain": row.gain,
        "p_value": row.p_value,
        "p_against_forest": against.get(row.name),
        "seconds": row.seconds,
        "settings": {text: settings.count(text) for text in sorted(set(settings))},
        "seeds": row.seeds,
    }


def page(found: dict) -> str:
    """The table as Markdown, and what was compared."""
    told = found["theirs"]
    packages = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
    twins = sorted({why for why in told["twins"].values() if why})
    lines = [
        f"{found['table']}: {found['queries']:,} queries, {found['agents']} agents, split "
        f"{' / '.join(f'{n:,}' for n in found['splits'])}, {found['seeds']} seeds, {found['encoder']} vectors, "
        f"coterie {found['coterie']}; several agents are best on {found['tied']:.0%} of the queries",
        f"theirs: {packages}; "
        + (f"scikit-learn twins ({'; '.join(twins)})" if twins else "the package's own code"),
        "",
        "| router | score | over best single | forest ahead by | p against forest | seconds a seed |",
        "|---|---|---|---|---|---|",
        *(line_of(row, found) for row in found["rows"]),
        "",
        *(selected(row) for row in found["rows"] if row["seconds"] and not row["name"].endswith("published")),
    ]
    return "\n".join(lines)


def line_of(row: dict, found: dict) -> str:
    """A row of the page."""
    forest = next(one["gain"] for one in found["rows"] if one["name"] == FOREST)
    p_value = row["p_against_forest"]
    twin = found["theirs"]["twins"].get(row["name"].removeprefix("LLMRouter "))
    cells = [
        row["name"] + (" (twin)" if twin else ""),
        f"{row['score']:.4f}",
        f"{row['gain']:+.2f}",
        "" if p_value is None else f"{forest - row['gain']:+.2f}",
        "" if p_value is None else "< 0.001" if p_value < 0.001 else f"{p_value:.2g}",
        f"{row['seconds']:.1f}" if row["seconds"] else "",
    ]
    return f"| {' | '.join(cells)} |"


def selected(row: dict) -> str:
    """What validation selected, and in how many seeds."""
    return f"{row['name']}: " + "; ".join(f"{text} in {count}" for text, count in row["settings"].items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--encoder", choices=("sentence", "hashed"), default="sentence")
    parser.add_argument("--peers-python", help="interpreter of an environment with llmrouter-lib")
    parser.add_argument("--published", action="store_true", help="theirs with their published settings alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    if options.table is None and "COTERIE_DATA" not in os.environ:
        print(NO_TABLE)
        return
    options.table = options.table or Path(os.environ["COTERIE_DATA"]) / "outcomes" / "llmrouter"
    try:
        found = measure(options)
    except UserError as mishap:
        parser.exit(2, f"peers.py: {mishap}\n")
    print(json.dumps(found) if options.json else page(found))


if __name__ == "__main__":
    main()
