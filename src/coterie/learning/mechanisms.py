"""The paper's mechanisms in simulation: settings that differ by what they ablate, and what each is said to show.

Says where a sign differs. It neither runs anything nor draws.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import gt, lt

import numpy as np

from coterie.learning.simulate import Simulated
from coterie.types import record

DEFAULT = "default"
VARIANTS: Mapping[str, tuple[str, ...]] = {
    DEFAULT: (),
    "no exploration": ("allocation.ucb=0", "allocation.entropy=0"),
    "fixed top-3": ("allocation.top_k=3",),
    "lambda 1": ("routing.scale=1",),
    "margin 2": ("routing.margin=2",),
    "no margin": ("routing.margin=null",),
    "regression": ("routing.metric=regression",),
    "classifier": ("routing.metric=classifier",),
    "UCB only": ("allocation.entropy=0",),
    "entropy only": ("allocation.ucb=0",),
    "tau 0.8": ("allocation.tau=0.8",),
}
"""Settings by variant, as `--set` takes them."""

Runs = Mapping[str, Sequence[Simulated]]


@record
class Sign:
    """One statement of the paper, what was measured, and in how many of the seeds it holds."""

    name: str
    paper: str
    measured: str
    holds: int
    seeds: int

    @property
    def verdict(self) -> str:
        """In a word: `as in the paper` where it holds in all seeds, `differs` where it does in none."""
        if self.holds == self.seeds:
            return "as in the paper"
        return "differs" if self.holds == 0 else f"in {self.holds} of {self.seeds} seeds"


# --- what is measured of one run ----------------------------------------------------------------------


def jitter(run: Simulated) -> float:
    """How unsteady scores are: deviation of an agent's mean score from point to point, over the mean score.

    On the same test queries at each point, so that the draw of queries is no unrest; over the second half of the
    course, so that the rise at the beginning is none.
    """
    later = np.array([point.known for point in run.points])[len(run.points) // 2 :]
    return float(np.diff(later, axis=0).std() / max(later.mean(), 1e-9))


def reached(run: Simulated, agents: float) -> float:
    """Queries until a query is first asked of at most so many agents, on the mean of a point; infinite if never."""
    return next((float(point.queries) for point in run.points if point.agents <= agents), np.inf)


def late(run: Simulated, value: Callable[[Simulated, int], float], points: int = 5) -> float:
    """Mean of a value over the last points."""
    rows = range(max(0, len(run.points) - points), len(run.points))
    return float(np.mean([value(run, i) for i in rows]))


def agents_late(run: Simulated) -> float:
    """Agents a query at the end of training."""
    return late(run, lambda run, i: run.points[i].agents)


def top_late(run: Simulated) -> float:
    """Highest familiarity of a query at the end of training."""
    return late(run, lambda run, i: run.points[i].top)


def largest_share(run: Simulated) -> float:
    """The busiest agent's part of all calls at the end of training."""
    return late(run, lambda run, i: max(run.points[i].share))


def smallest_share(run: Simulated) -> float:
    """The idlest agent's part of all calls at the end of training."""
    return late(run, lambda run, i: min(run.points[i].share))


def accuracy(run: Simulated, tau: float = 0.7) -> float:
    """Of the test vote at a threshold."""
    return next(one.accuracy for one in run.tests if one.tau == tau)


def asked(run: Simulated, tau: float = 0.7) -> float:
    """Agents a test query at a threshold."""
    return next(one.asked for one in run.tests if one.tau == tau)


# --- signs --------------------------------------------------------------------------------------------


def signs(runs: Runs) -> list[Sign]:
    """All statements that these variants can decide, in the paper's order."""
    found: list[Sign] = []
    if DEFAULT in runs:
        found = [*_activation(runs), _smooth(runs), _specialised(runs), *_sweep(runs)]
        found += [_compared(runs, claim) for claim in CLAIMS if claim.variant in runs]
    return found


def _sign(name: str, paper: str, measured: str, held: Iterable[bool]) -> Sign:
    held = [bool(one) for one in held]
    return Sign(name=name, paper=paper, measured=measured, holds=sum(held), seeds=len(held))


def spread(values: Iterable[float], digits: int = 2) -> str:
    """The mean and the range over seeds in words."""
    known = list(values)
    if not all(np.isfinite(known)):
        reached = [one for one in known if np.isfinite(one)]
        return "never" if not reached else f"{np.mean(reached):,.{digits}f}, never in {len(known) - len(reached)}"
    return f"{np.mean(known):,.{digits}f} ({min(known):,.{digits}f} to {max(known):,.{digits}f})"


def _compared(runs: Runs, claim: "Claim") -> Sign:
    """What a claim says of its variant against the default, by seed."""
    plain = {run.seed: claim.value(run) for run in runs[DEFAULT]}
    pairs = [(claim.value(run), plain[run.seed]) for run in runs[claim.variant] if run.seed in plain]
    here, there = (spread((pair[side] for pair in pairs), claim.digits) for side in (0, 1))
    held = [claim.holds(*pair) for pair in pairs]
    return _sign(claim.variant, claim.paper, f"{claim.label} {here}; default {there}", held)


def _activation(runs: Runs) -> list[Sign]:
    default = runs[DEFAULT]
    first, last = [run.points[0].agents for run in default], [agents_late(run) for run in default]
    start = [a >= 0.99 * run.settings.agents for run, a in zip(default, first, strict=True)]
    falls = "the number falls towards 1 (rule here: at most 1.5 at the end)"
    return [
        _sign("activation", "all agents are active at the start", f"{spread(first)} in the first round", start),
        _sign("activation", falls, f"{spread(last)} at the end", [one <= 1.5 for one in last]),
    ]


def _smooth(runs: Runs) -> Sign:
    default = runs[DEFAULT]
    first = [float(np.mean(run.points[0].familiarity)) for run in default]
    tops = [np.array([point.top for point in run.points]) for run in default]
    falls = [float(np.maximum(-np.diff(top), 0).sum() / np.abs(np.diff(top)).sum()) for top in tops]
    held = [
        0.04 <= a <= 0.08 and top[-1] >= 0.5 and fall <= 0.1
        for a, top, fall in zip(first, tops, falls, strict=True)
    ]
    return _sign(
        "familiarity",
        "rises smoothly from about 0.06 to about 0.6 (rule here: at most a tenth of all movement is downwards)",
        f"mean {spread(first, 3)} at the start; the highest of a query ends at"
        f" {spread(float(top[-1]) for top in tops)}; {100 * float(np.mean(falls)):.0f} % of movement downwards",
        held,
    )


def _specialised(runs: Runs) -> Sign:
    default = runs[DEFAULT]
    first = [run.points[0].owned for run in default]
    last = [late(run, lambda run, i: run.points[i].owned) for run in default]
    idle = [smallest_share(run) for run in default]
    held = [
        b >= a + 0.2 and low >= 0.25 / run.settings.agents
        for run, a, b, low in zip(default, first, last, idle, strict=True)
    ]
    return _sign(
        "specialisation",
        "agents specialise and none starves (rule here: the idlest has a fourth of an equal share or more)",
        f"the main agent's part of a domain's calls: {spread(first)} at the start, {spread(last)} at the end;"
        f" the idlest agent's share of all calls {spread(idle)}",
        held,
    )


def _sweep(runs: Runs) -> list[Sign]:
    found = []
    for part, value, paper in (("agents", asked, "asks more agents"), ("accuracy", accuracy, "is more accurate")):
        courses = [[value(run, one.tau) for one in run.tests] for run in runs[DEFAULT]]
        ends = " to ".join(spread(course[end] for course in courses) for end in (0, -1))
        held = [bool((np.diff(course) >= 0).all() and course[-1] > course[0]) for course in courses]
        told = f"{part} from threshold 0.5 to 0.9: {ends}"
        found.append(_sign("test threshold", f"a higher one {paper}, monotonically", told, held))
    return found


@record
class Claim:
    """What is said of a variant, what is measured, and whether its value and the default's bear it out."""

    variant: str
    paper: str
    label: str
    value: Callable[[Simulated], float]
    holds: Callable[[float, float], bool]
    digits: int = 2


def lowest_known(run: Simulated) -> float:
    """The least familiar agent's mean familiarity at the end of training."""
    return late(run, lambda run, i: min(run.points[i].known))


def until_two(run: Simulated) -> float:
    """Queries until two agents are enough."""
    return reached(run, 2.0)


UNREST = ("unrest", jitter, 3)
ACCURACY = ("test accuracy", accuracy, 3)


def _claim(
    variant: str,
    paper: str,
    measured: tuple[str, Callable[[Simulated], float], int],
    holds: Callable[[float, float], bool],
) -> Claim:
    label, value, digits = measured
    return Claim(variant=variant, paper=paper, label=label, value=value, holds=holds, digits=digits)


CLAIMS = (
    _claim(
        "no exploration",
        "one agent takes most queries (rule here: half of all calls or more)",
        ("the busiest agent's share", largest_share, 2),
        lambda here, default: here >= 0.5,
    ),
    _claim("no exploration", "accuracy suffers", ACCURACY, lt),
    _claim("fixed top-3", "familiarity oscillates", UNREST, gt),
    _claim("fixed top-3", "the same test threshold asks more agents", ("agents on the test", asked, 2), gt),
    _claim(
        "lambda 1", "the threshold is reached too early", ("queries until two agents are enough", until_two, 0), lt
    ),
    _claim("lambda 1", "accuracy suffers", ACCURACY, lt),
    _claim(
        "margin 2", "an agent's familiarity fails to grow", ("the lowest mean familiarity", lowest_known, 3), lt
    ),
    _claim("margin 2", "accuracy suffers", ACCURACY, lt),
    _claim("no margin", "familiarity fails to grow", ("highest familiarity at the end", top_late, 2), lt),
    _claim("no margin", "familiarity fluctuates", UNREST, gt),
    _claim("regression", "scores are noisier", UNREST, gt),
    _claim("regression", "accuracy is lower", ACCURACY, lt),
    _claim("classifier", "scores are noisier", UNREST, gt),
    _claim("classifier", "accuracy is lower", ACCURACY, lt),
)
