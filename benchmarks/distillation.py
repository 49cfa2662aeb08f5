"""Does distillation make a reviewer's scores say more? The embedded model as ReM-MoA's reviewer, before and after.

Traces of four kinds of generated questions are collected once; a teacher who knows the gold answers labels their
layers; several seeds learn from all kinds, one from each three of them. All review the same fresh proposals, and
the rank correlation of their scores with the proposals' rewards is that of `coterie layers`. Beside them stand what
needs no model: how many others agree, and how often the kind is solved. Runs go on where they were stopped:

    python benchmarks/distillation.py runs/distilled [--queries 24] [--test 30] [--seeds 1 2 3]

`--stage train --seeds 1` does one run, so that several cores can share the work.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from counts import count

KINDS = {
    "chain_sum": "min_terms=2&max_terms=2&min_digits=1&max_digits=1",
    "products": "min_digits=1&max_digits=1",
    "gcd": "max_value=20",
    "ransom_note": "max_note_length=4",
}
TEAM = "rem_moa/smollm2"
LEARNER = {
    "use": "distill",
    "least": 1,
    "lr": 5e-4,
    "epochs": 2,
    "batch": 8,
    "micro_batch": 4,
    "checkpoint_every": 5,
}
"""What differs from the published settings: short proposals count, and fewer examples make a smaller batch."""
PATIENT = {"limits": {"seconds": None}}
"""A busy machine ends no query early: what is learned from must not hang on the clock."""
SHELF, SEED = "off the shelf", 1000


def coterie(*arguments: str) -> None:
    """Run a command of the package, which prints its own progress."""
    print("coterie", *arguments, file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "coterie", *arguments], check=True, stdout=sys.stderr)


def task(kind: str, part: str) -> str:
    return f"reasoning_gym:{kind}/{part}?{KINDS[kind]}"


def written(file: Path, table: Mapping[str, object]) -> str:
    file.write_text(json.dumps(table))
    return str(file)


def finished(run: Path) -> bool:
    """Whether a run is sealed and all its proposals are graded; it is then good for ever."""
    from coterie.storage.runs import Run

    if not (run / "decisions.sha256").is_file():
        return False
    turns = [turn for rows in Run.load(run).traces().values() for trace in rows for turn in trace.turns]
    return all(turn.score is not None for turn in turns if turn.part == "proposer")


def collect(asked: argparse.Namespace) -> list[Path]:
    """A finished run of the team for each kind; its name is the kind's."""
    team = written(asked.out / "team.yaml", {"extends": TEAM, "name": SHELF, "learner": LEARNER, **PATIENT})
    for kind in asked.kinds:
        if not finished(asked.out / "runs" / kind):
            out = str(asked.out / "runs" / kind)
            coterie("eval", team, "-t", task(kind, "train"), "-n", str(asked.queries), "-o", out)
    return [asked.out / "runs" / kind for kind in asked.kinds]


def students(asked: argparse.Namespace) -> dict[str, Path]:
    """The run folder of each student: one for every seed, and the first seed without each kind."""
    found = {f"seed {seed}": asked.out / f"seed-{seed}" for seed in asked.seeds}
    if not asked.no_loo:
        found |= {f"without {kind}": asked.out / f"without-{kind}" for kind in asked.kinds}
    return found


def train(asked: argparse.Namespace) -> None:
    for name, folder in students(asked).items():
        if (folder / "team" / "team.yaml").exists():
            continue
        seed = name.removeprefix("seed ") if name.startswith("seed") else str(asked.seeds[0])
        more = ["--leave-out", name.removeprefix("without ")] if name.startswith("without") else []
        more += [option for setting in [f"seed={seed}", *asked.set] for option in ("--set", setting)]
        more += ["--resume"] if (folder / "run.json").exists() else []
        runs = [str(asked.out / "runs" / kind) for kind in asked.kinds]
        coterie("distill", *runs, "--team", str(asked.out / "team.yaml"), "--out", str(folder), *more)


def judge(asked: argparse.Namespace) -> None:
    """One evaluation a kind: all reviewers review one layer of the same proposals."""
    one = {"seed": SEED, "strategy": {"use": "rem_moa", "layers": 1}}
    shelf = written(asked.out / "judged-shelf.yaml", {"extends": str((asked.out / "team.yaml").resolve()), **one})
    made = {}
    for name, folder in students(asked).items():
        table = {"extends": str((folder / "team" / "team.yaml").resolve()), "name": name, **one}
        made[name] = written(folder / "team" / "judged.yaml", table)
    for kind in asked.kinds:
        recipes = [
            file for name, file in made.items() if not name.startswith("without") or name.endswith(f" {kind}")
        ]
        out = str(asked.out / "judged" / kind)
        coterie("eval", shelf, *recipes, "-t", task(kind, "test"), "-n", str(asked.test), "-o", out)


# --- what came of it ----------------------------------------------------------------------------------


def table(asked: argparse.Namespace) -> None:
    """Rank correlations over all kinds together and within each, and how many reviews had the form asked for."""
    from coterie.evaluation.depth import layers
    from coterie.storage.runs import Run

    found = {kind: Run.load(asked.out / "judged" / kind).traces() for kind in asked.kinds}
    names = [SHELF, *students(asked)]
    rows = {name: {kind: list(found[kind][name]) for kind in asked.kinds if name in found[kind]} for name in names}
    loo = {kind: traces for name in names if name.startswith("without") for kind, traces in rows.pop(name).items()}
    rows |= {"each kind by who never saw it": loo} if loo else {}
    print("| reviewer | all | within kinds | " + " | ".join(asked.kinds) + " | in the form | neutral |")
    print("|---|---|---|" + "---|" * (len(asked.kinds) + 2))
    for name, by_kind in rows.items():
        [whole] = layers([trace for traces in by_kind.values() for trace in traces])
        each = [layers(traces)[0].rank for traces in by_kind.values()]
        form = 1 - (whole.mended + whole.neutral) / whole.reviewed
        print(row(name, whole.rank, each), f" {form:.1%} | {whole.neutral} of {whole.reviewed} |", sep="")
    for name, score in floors(asked).items():
        print(row(name, *ranks(rows[SHELF], score)), " – | – |", sep="")


def row(name: str, whole: float | None, each: Sequence[float | None]) -> str:
    known = [one for one in each if one is not None]
    cells = [whole, mean(known) if known else None, *each]
    return f"| {name} | " + " | ".join("–" if one is None else f"{one:.3f}" for one in cells) + " |"


def floors(asked: argparse.Namespace) -> dict[str, Callable]:
    """What needs no model: how many of the other proposals give the answer; how often the kind was solved."""
    from coterie.storage.runs import Run

    solved = {}
    for kind in asked.kinds:
        [traces] = Run.load(asked.out / "runs" / kind).traces().values()
        scores = [turn.score for trace in traces for turn in trace.turns if turn.part == "proposer"]
        solved[kind] = mean(score.value for score in scores if score is not None and score.value is not None)

    def agreeing(trace, turn):
        others = [
            t for t in trace.turns if t.part == "proposer" and t.layer == turn.layer and t.index != turn.index
        ]
        return sum(turn.answer is not None and other.answer == turn.answer for other in others)

    return {
        "others that agree": agreeing,
        "share solved of the kind": lambda trace, turn: solved[trace.query.domain],
    }


def ranks(by_kind, score):
    from coterie.evaluation.depth import spearman

    pairs = {
        kind: [
            (score(trace, turn), turn.score.value)
            for trace in traces
            for turn in trace.turns
            if turn.part == "proposer" and turn.score is not None and turn.score.value is not None
        ]
        for kind, traces in by_kind.items()
    }
    everything = [pair for found in pairs.values() for pair in found]
    each = [spearman(*zip(*found, strict=True)) for found in pairs.values()]
    return spearman(*zip(*everything, strict=True)), each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of all runs")
    parser.add_argument(
        "--queries", type=count, default=24, help="training queries of a kind; each gives two layers"
    )
    parser.add_argument("--test", type=count, default=30, help="test queries of a kind")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of questions")
    parser.add_argument("--no-loo", action="store_true", help="train no student without one of the kinds")
    parser.add_argument("--set", action="append", default=[], help="a recipe setting for every training run")
    parser.add_argument("--stage", choices=("collect", "train", "judge", "table"), help="only this; default: all")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, stage in (("collect", collect), ("train", train), ("judge", judge), ("table", table)):
        if asked.stage in (None, name):
            stage(asked)


if __name__ == "__main__":
    main()
