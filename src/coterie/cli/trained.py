"""Training runs as sheets of the report: what is asked beside their curves is read, encoded and routed here."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import ConfigError
from coterie.evaluation.metrics import Traces
from coterie.evaluation.sheet import Card, Sheet
from coterie.evaluation.training import is_training, training_sheet
from coterie.evaluation.training_skill import skill_card
from coterie.evaluation.training_states import FEWEST, States, states_card
from coterie.storage.runs import Run
from coterie.team import Team
from coterie.types import record

if TYPE_CHECKING:
    from coterie.types import Query

RECIPE = Path("team") / "team.yaml"


@record
class Extras:
    """What is shown of a training run beside its curves: traces before and after, a map of `states` queries."""

    before: Traces | None = None
    after: Traces | None = None
    states: int | None = None


def sheets_of(folders: Sequence[Path], extras: Extras) -> list[Sheet]:
    """A sheet for each training run. Raises: ConfigError where extras are asked for, but not of exactly one."""
    asked = extras != Extras()
    if (extras.before is None) != (extras.after is None):
        raise ConfigError("--before and --after go together: evaluations of the base team and of the trained one")
    if asked and len(folders) != 1:
        raise ConfigError("--before, --after and --states are about one training run: name one")
    return [training_sheet(folder, _cards(folder, extras)) for folder in folders]


def _cards(folder: Path, extras: Extras) -> list[Card]:
    cards = []
    if extras.before is not None and extras.after is not None:
        cards.append(_skill(extras.before, extras.after))
    if extras.states is not None:
        cards.append(states_card(states_of(folder, extras.states)))
    return cards


def _skill(before: Traces, after: Traces) -> Card:
    card = skill_card(before, after)
    if not card.markup:
        raise ConfigError("--before and --after: no agent has verdicts on the same questions in both")
    return card


def of_one_run(traces: Traces) -> tuple[Traces, Traces]:
    """Before and after where one evaluation holds both: its first recipe and its second."""
    if len(traces) < 2:
        raise ConfigError("--before and --after name one run, which has one recipe: evaluate both teams in it")
    first, second, *_ = traces.items()
    return dict([first]), dict([second])


def states_of(folder: Path, count: int) -> States:
    """Features of the first `count` training queries of each domain in turn, and the agent that is ranked first.

    Raises: ConfigError for a run that has written no team.
    """
    recipe = folder / RECIPE
    if not recipe.is_file():
        raise ConfigError(
            f"{folder}: --states needs the trained team, which a run writes when it ends or is stopped"
        )
    team = Team.load(recipe)
    queries = _spread(_queries(folder, team), count)
    if len(queries) < FEWEST:
        raise ConfigError(f"--states: {folder} has {len(queries)} training queries; at least {FEWEST} are needed")
    from coterie.routers.familiarity import Familiarity
    from coterie.routers.learned_scores import LearnedScores

    if not isinstance(team.router, Familiarity | LearnedScores):
        raise ConfigError(f"{recipe}: --states needs a router as it was trained, not {type(team.router).__name__}")
    names = team.pool.names()
    first = team.router.predict(queries, team.pool).argmax(axis=1)
    return States(
        features=team.router.encoder.encode([query.messages for query in queries]),
        agents=tuple(names[i] for i in first),
        domains=tuple(query.domain for query in queries),
        texts=tuple(query.text for query in queries),
    )


def _queries(folder: Path, team: Team) -> "Sequence[Query]":
    from coterie.learning.training import learner_of, queries_of

    return queries_of(learner_of(Run.load(folder).config.get("recipe"), str(folder)), team)


def _spread(queries: "Sequence[Query]", count: int) -> "list[Query]":
    """The first queries of each domain, an equal number of each as far as there are so many."""
    waiting: dict[str, list[Query]] = {}
    for query in queries:
        waiting.setdefault(query.domain, []).append(query)
    turns = [(place, domain) for domain, found in sorted(waiting.items()) for place in range(len(found))]
    return [waiting[domain][place] for place, domain in sorted(turns)[:count]]


def apart(runs: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Training runs, and the others."""
    return [path for path in runs if is_training(path)], [path for path in runs if not is_training(path)]
