"""Does co-evolution pay? Four agents and their router against one agent that learns alone, on one budget.

Both practise on the same questions with the same number of completions and prompts an update, several seeds; judged
greedily on pairs that nobody trained on, beside the untrained model, fixed top-1 and top-2, the best constant
answer and copied numbers. Runs go on where they were stopped. On 2 cores, about 10 minutes a run:

    python benchmarks/coevolution.py runs/rules [--rules red+blue+green+yellow] [--high 30] [--completions 5120]

`--stage train --methods cera --seeds 1` does one run, so that several machines or cores can share the work.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean

from counts import count

METHODS = {"cera": "cera/smollm2", "gspo": "cera/baselines/gspo"}
GREEDY = {"use": "vote", "temperature": 0.0}
BASE, ALONE, CERA, TOP = "base, majority of four", "single-agent gspo", "cera-moa", "cera-moa, fixed top-{}"


def coterie(*arguments: str, quiet: bool = False) -> str:
    """Run a command of the package, which prints its own progress; its output where `quiet`."""
    command = [sys.executable, "-m", "coterie", *arguments]
    print("coterie", *arguments, file=sys.stderr, flush=True)
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE if quiet else sys.stderr)
    return done.stdout or ""


def train(asked: argparse.Namespace, method: str, seed: int) -> Path:
    """The team that a method's run with this seed ends in."""
    folder = asked.out / f"{method}-{seed}"
    team = folder / "team" / "team.yaml"
    if not team.exists():
        tasks = json.dumps({f"operands:{asked.rules}/train?high={asked.high}": None})
        sets = [f"seed={seed}", f"learner.tasks={tasks}", f"learner.completions={asked.completions}"]
        more = [option for setting in [*sets, *asked.set] for option in ("--set", setting)]
        going_on = ["--resume"] if (folder / "run.json").exists() else []
        coterie("train", METHODS[method], "--out", str(folder), *more, *going_on)
    return team


def variants(asked: argparse.Namespace, seed: int) -> list[Path]:
    """Recipes of all that is compared: each file extends a trained team and says how it is asked."""
    cera, alone = (train(asked, method, seed) for method in ("cera", "gspo"))
    base = {
        "name": BASE,
        "extends": METHODS["cera"],
        "router": "uniform",
        "strategy": {"use": "top_k", "temperature": 0.0},
    }
    made = {
        "base": base,
        "gspo": {"name": ALONE, "extends": str(alone.resolve()), "strategy": GREEDY},
        "cera": {"name": CERA, "extends": str(cera.resolve()), "strategy": GREEDY},
    }
    for k in (1, 2):
        strategy = {"use": "top_k", "k": k, "temperature": 0.0}
        made[f"top{k}"] = {"name": TOP.format(k), "extends": str(cera.resolve()), "strategy": strategy}
    files = []
    for name, table in made.items():
        home = {"gspo": alone, "base": asked.out / "base.yaml"}.get(name, cera).parent
        files.append(home / f"greedy-{name}-{seed}.yaml")
        files[-1].write_text(json.dumps(table))
    return files


def judge(asked: argparse.Namespace) -> list[Path]:
    """One evaluation a seed, of all variants on the same test questions."""
    test = f"operands:{asked.rules}/test?high={asked.high}"
    runs = []
    for seed in asked.seeds:
        runs.append(asked.out / f"judged-{seed}")
        coterie("eval", *map(str, variants(asked, seed)), "-t", test, "-o", str(runs[-1]), "--baseline", ALONE)
    return runs


def floors(asked: argparse.Namespace) -> dict[str, float]:
    """Accuracy on the test questions of what learns nothing: the best constant of each domain, a copied number."""
    from coterie.evaluation.floors import constant_team, echo_team
    from coterie.tasks.catalog import load_task, verify
    from coterie.team import Team

    parts = (f"operands:{asked.rules}/{part}?high={asked.high}" for part in ("train", "test"))
    train, test = (load_task(part, contracts={"math": "answer"}).queries for part in parts)

    async def accuracy(team: Team) -> float:
        texts = [(await team.solve(query)).text for query in test]
        return mean(bool(verify(text, query).correct) for text, query in zip(texts, test, strict=True))

    teams = (constant_team(train, test), echo_team(test))
    return {team.name: asyncio.run(accuracy(team)) for team in teams}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of all runs")
    parser.add_argument("--rules", default="red+blue+green+yellow", help="domains of `operands:`")
    parser.add_argument("--high", type=count, default=30, help="numbers are 1 to this")
    parser.add_argument("--completions", type=count, default=5120, help="sampled in a training run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--set", action="append", default=[], help="a recipe setting for every training run")
    parser.add_argument("--stage", choices=("train", "judge"), help="only this; default: both")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.stage != "judge":
        for seed in asked.seeds:
            for method in asked.methods:
                train(asked, method, seed)
    if asked.stage != "train":
        runs = judge(asked)
        print(coterie("compare", *map(str, runs), "--by-name", "--baseline", ALONE, quiet=True))
        for name, accuracy in floors(asked).items():
            print(f"{name}: {accuracy:.1%}")


if __name__ == "__main__":
    main()
