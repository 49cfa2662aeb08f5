"""Who is compared: the recipes of several runs, named apart, one recipe's seeds put together, answers by question.

It reads runs and computes nothing that is reported; `compare` does.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from coterie.config import nearest
from coterie.errors import ConfigError
from coterie.evaluation.metrics import Traces, outcome
from coterie.evaluation.samples import avg_at_k
from coterie.storage.runs import Run
from coterie.tasks.extract import CONTRACTS
from coterie.types import Query, Trace, record

Measure = Literal["accuracy", "score"]
By = Literal["domain", "source", "task"]
Key = tuple[str, str]
"""A question: its id, and a digest of what was asked and of the gold side."""


@record
class Member:
    """One recipe of one run. `identity` is equal for what differs in the seed only; `seed` tells those apart."""

    run: str
    recipe: str
    traces: Sequence[Trace]
    identity: str = ""
    seed: str = "0"


@record
class Answers:
    """What an entrant did with one question. `values` are the judged samples of each replicate, 1 or 0 or rewards;
    `passes` tells which of them passed.

    `errors` and `unscored` samples have no value. `cost` is dollars and `tokens` is tokens a judged sample; dollars
    are None as soon as one is unknown.
    """

    labels: Mapping[By, str]
    values: Mapping[str, tuple[float, ...]]
    passes: Mapping[str, tuple[bool, ...]]
    errors: int
    unscored: int
    cost: float | None
    tokens: float

    @property
    def mean(self) -> float | None:
        """Mean over samples, then over replicates; None where nothing has a verdict."""
        means = [mean for found in self.values.values() if (mean := avg_at_k(found)) is not None]
        return avg_at_k(means)


@record
class Entrant:
    """One row: a recipe with its replicates, which are its seeds (or its runs), and its answers by question."""

    name: str
    runs: tuple[str, ...]
    replicates: tuple[str, ...]
    answers: Mapping[Key, Answers]

    @property
    def samples(self) -> int:
        """Judged samples of the question that has most, within one replicate: with k of them the mean is avg@k."""
        return max((len(v) for answers in self.answers.values() for v in answers.values.values()), default=0)


def question_digest(query: Query) -> str:
    """Equal for one question under several answer contracts: kind, gold side, and the text without the suffix."""
    contract = CONTRACTS.get(query.contract)
    text = query.text.removesuffix(contract.suffix.strip()).strip() if contract else query.text
    facts = json.dumps([query.task, query.reference, text], sort_keys=True, default=str)
    return hashlib.sha256(facts.encode(errors="surrogatepass")).hexdigest()[:16]


# --- from run folders --------------------------------------------------------------------------------


def members(paths: Sequence[Path]) -> list[Member]:
    """Every recipe of every run, in order. ConfigError for a folder that is no run, or that is given twice."""
    where = [path.resolve() for path in paths]
    twice = next((path for i, path in enumerate(paths) if where[i] in where[:i]), None)
    if twice is not None:
        raise ConfigError(f"{twice}: is given twice; a run can not be compared with itself")
    names = run_names(where)
    return [member for path, name in zip(paths, names, strict=True) for member in _members(finished(path), name)]


def finished(path: Path) -> Run:
    """The run of an evaluation as it lies on disk. Raises: ConfigError for a replay's folder and a damaged one."""
    run = Run.load(path)
    recipes, baseline = run.config.get("recipes"), run.config.get("baseline")
    if recipes is None and "contenders" in run.config:
        raise ConfigError(
            f"{path}: is the folder of a replay, which has no traces; its page is {path / 'report.html'},"
            f" and `coterie bench replay` with --out {path} writes it anew"
        )
    if not isinstance(recipes, Mapping | None) or not isinstance(baseline, str | None):
        raise ConfigError(f"{path / 'run.json'}: is damaged, its recipes or its baseline are not those of a run")
    return run


def run_names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as many parents before them as tell them apart."""
    for depth in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _members(run: Run, name: str) -> list[Member]:
    facts: Mapping[str, Any] = run.config.get("recipes") or {}
    found = run.traces()
    ordered = sorted(found, key=lambda recipe: list(facts).index(recipe) if recipe in facts else len(facts))
    return [_member(name, recipe, found[recipe], facts.get(recipe)) for recipe in ordered]


def _member(run: str, recipe: str, traces: Sequence[Trace], facts: Any) -> Member:
    if not isinstance(facts, Mapping) or not isinstance(facts.get("config"), Mapping):
        return Member(run=run, recipe=recipe, traces=traces, identity=run)  # nothing tells what it was
    config = facts["config"]
    same = [facts.get(key) for key in ("revisions", "router", "strategy", "limits")]
    same += [config.get(key) for key in ("contracts", "backends")]
    identity = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
    return Member(run=run, recipe=recipe, traces=traces, identity=identity, seed=str(config.get("seed", 0)))


def of_traces(traces: Traces, measure: Measure = "accuracy") -> list[Entrant]:
    """The recipes of one run."""
    return entrants([Member(run="", recipe=name, traces=rows) for name, rows in traces.items()], measure)


# --- who is one recipe -------------------------------------------------------------------------------


def entrants(found: Sequence[Member], measure: Measure = "accuracy", *, by_name: bool = False) -> list[Entrant]:
    """The rows of a comparison, in order of appearance.

    Recipes of one name whose configurations differ in the seed only are one row with its seeds as replicates; of
    the same seed they are one and the same, and a sample that both have counts once. With `by_name` all
    recipes of one name are one row, a replicate a run, whatever differs. Else a name that
    means several things gets its run behind it: `vote @ monday`.
    """
    groups: dict[tuple[str, str], list[Member]] = {}
    for member in found:
        groups.setdefault((member.recipe, "" if by_name else member.identity), []).append(member)
    names = [recipe for recipe, _ in groups]
    return [
        _entrant(_name(recipe, group, names.count(recipe) > 1), group, measure, by_name)
        for (recipe, _), group in groups.items()
    ]


def _name(recipe: str, group: Sequence[Member], ambiguous: bool) -> str:
    return f"{recipe} @ {' + '.join(dict.fromkeys(m.run for m in group))}" if ambiguous else recipe


def _entrant(name: str, group: Sequence[Member], measure: Measure, by_name: bool) -> Entrant:
    traces: dict[Key, dict[str, dict[int, Trace]]] = {}
    replicate: Callable[[Member], str] = (lambda m: m.run) if by_name else (lambda m: m.seed)
    for member in group:
        for trace in member.traces:
            kept = traces.setdefault((trace.query.id, question_digest(trace.query)), {})
            samples = kept.setdefault(replicate(member), {})
            if trace.sample not in samples or not _judged(samples[trace.sample]):
                samples[trace.sample] = trace
    return Entrant(
        name=name,
        runs=tuple(dict.fromkeys(m.run for m in group)),
        replicates=tuple(dict.fromkeys(replicate(m) for m in group)),
        answers={key: _answers(kept, measure) for key, kept in traces.items()},
    )


def _answers(kept: Mapping[str, Mapping[int, Trace]], measure: Measure) -> Answers:
    every = [trace for samples in kept.values() for trace in samples.values()]
    outcomes = [outcome(trace) for trace in every]
    judged = {name: [found[i] for i in sorted(found) if _judged(found[i])] for name, found in kept.items()}
    counted = [trace for found in judged.values() for trace in found]
    costs = [trace.cost for trace in counted]
    query = every[0].query
    return Answers(
        labels={"domain": query.domain, "source": str(query.metadata.get("source", "")), "task": query.task},
        values={name: tuple(_value(trace, measure) for trace in found) for name, found in judged.items()},
        passes={name: tuple(outcome(trace) == "right" for trace in found) for name, found in judged.items()},
        errors=outcomes.count("error"),
        unscored=outcomes.count("unscored"),
        cost=None if None in costs or not costs else sum(c for c in costs if c is not None) / len(costs),
        tokens=sum(trace.tokens for trace in counted) / max(1, len(counted)),
    )


def _judged(trace: Trace) -> bool:
    return outcome(trace) in ("right", "wrong")


def _value(trace: Trace, measure: Measure) -> float:
    passed = float(outcome(trace) == "right")
    if measure == "accuracy" or trace.score is None or trace.score.value is None:
        return passed
    return trace.score.value


def chosen(found: Sequence[Entrant], name: str) -> Entrant:
    """The entrant of a name; ConfigError that lists the names where there is none or several are meant."""
    exact = [entrant for entrant in found if entrant.name == name]
    if exact:
        return exact[0]
    names = [entrant.name for entrant in found]
    meant = [known for known in names if known.startswith(f"{name} @ ")]
    if meant:
        raise ConfigError(f"--baseline {name!r} means several recipes; choose one: {'; '.join(meant)}")
    raise ConfigError(f"--baseline {name!r} is none of the recipes' names{nearest(name, names)}")
