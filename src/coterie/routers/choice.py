"""How much score a dollar must buy: the trade between quality and cost, set on labelled queries and kept in a file.

The file says for which data and which pool it was set; it is refused when the pool has changed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from coterie.errors import ConfigError, DataError
from coterie.storage.runs import write_atomically
from coterie.types import STRICT, Amount, Pool, record

GRID = 401
"""Trades that are tried: so many that the costs of neighbours are about a hundredth apart."""


@record
class Target:
    """What the trade is to reach on the labelled queries.

    `at_most_cost`: the best score for at most this many dollars a thousand queries; of trades whose scores are one
    standard error from it the smallest one, which spends most: the best of many seen scores tends to be a lucky
    one, and by what the router predicts more money never buys less. `within_points`: the lowest
    cost at a score at most this many points (hundredths) below the best single agent's, one standard error of the
    paired difference put on top: the cheapest trade that seems to hold on the labels tends to be a lucky one.
    """

    __pydantic_config__ = STRICT
    kind: Literal["at_most_cost", "within_points"]
    value: float


@record
class Choice:
    """A trade that was set. `trade` is score a dollar; `score`, its 95 % interval and dollars are on the labels.

    `data` is a digest of the labelled queries and their scores, `pool` the revisions of the agents.
    """

    __pydantic_config__ = STRICT
    trade: Amount
    target: Target
    score: float
    interval: tuple[float, float]
    cost_usd_per_1k: float
    queries: int
    data: str
    pool: Mapping[str, str]
    date: str
    format: Literal[1] = 1

    def check(self, pool: Pool, where: str) -> None:
        """Raises: ConfigError where a solver of the pool was added, removed or changed since."""
        now = {name: pool[name].revision for name in pool.names()}
        differing = sorted(name for name in now.keys() | self.pool.keys() if now.get(name) != self.pool.get(name))
        if differing:
            raise ConfigError(
                f"{where}: was set for another pool (differs: {', '.join(differing)});"
                " run `coterie calibrate` again"
            )

    def save(self, path: Path) -> None:
        """Write the file that `read_choice` reads, whole or not at all. Raises: ConfigError."""
        text = json.dumps(TypeAdapter(Choice).dump_python(self, mode="json"), indent=2, allow_nan=False)
        write_atomically(path, text + "\n")


def read_choice(path: str) -> Choice:
    """Raises: ConfigError of one line for a file that is absent or no choice."""
    try:
        return TypeAdapter(Choice).validate_json(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: was not written by `coterie calibrate` ({place}: {first['msg']})") from None


@record
class Sweep:
    """What each trade of a grid gives on labelled queries, (T,) each.

    Mean score, mean dollars a query, mean gain over the best single agent and its standard error.
    """

    trades: np.ndarray
    scores: np.ndarray
    costs: np.ndarray
    gains: np.ndarray
    errors: np.ndarray
    picks: np.ndarray  # (T, n) column of the agent chosen


def sweep(predicted: np.ndarray, expected: np.ndarray, scores: np.ndarray, costs: np.ndarray) -> Sweep:
    """Choices of every trade of a grid, from 0 (score alone) to where cost alone decides.

    `predicted` and `expected` (n, A) are what the choice is made by, `scores` and `costs` (n, A) what came of it,
    NaN where unknown.
    """
    trades = grid(predicted, expected)
    picks = np.stack([(predicted - trade * expected).argmax(axis=1) for trade in trades])
    rows = np.arange(len(predicted))
    came = scores[rows, picks]  # (T, n)
    gains = came - scores[:, np.nanargmax(means(scores, 0))]
    mean = means(gains, 1)
    return Sweep(
        trades=trades,
        scores=means(came, 1),
        costs=means(costs[rows, picks], 1),
        gains=mean,
        errors=np.sqrt(means((gains - mean[:, None]) ** 2, 1) / np.maximum((~np.isnan(gains)).sum(axis=1), 1)),
        picks=picks,
    )


def means(values: np.ndarray, axis: int) -> np.ndarray:
    """Means of what is known along an axis, NaN without a warning where nothing is."""
    counts = (~np.isnan(values)).sum(axis=axis)
    return np.where(counts > 0, np.nansum(values, axis=axis) / np.maximum(counts, 1), np.nan)


def grid(predicted: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """0 and trades evenly spread by their logarithm over those at which choices change."""
    spread = float(np.ptp(predicted, axis=1).max())
    gaps = np.diff(np.sort(expected, axis=1), axis=1)
    gaps = gaps[gaps > 0]
    if not gaps.size or spread <= 0:
        return np.zeros(1)
    low, high = 1e-3 * spread / float(np.ptp(expected, axis=1).max()), 2 * spread / float(np.quantile(gaps, 0.01))
    return np.concatenate([[0.0], np.geomspace(low, high, GRID - 1)])


def chosen(found: Sweep, target: Target) -> int:
    """The place in the sweep that meets the target. Raises: DataError where none does."""
    if target.kind == "at_most_cost":
        meets = found.costs * 1000 <= target.value * (1 + 1e-9)
        order = np.lexsort((found.trades, ~_as_good(found, meets)))
    else:
        meets = found.gains - found.errors >= -target.value / 100 - 1e-12
        order = np.lexsort((-found.scores, found.costs))
    good = [int(i) for i in order if meets[i]]
    if not good:
        raise DataError(
            f"no trade reaches {target.kind} {target.value:g} on these labels; closest: {_closest(found, target)}"
        )
    return good[0]


def _as_good(found: Sweep, meets: np.ndarray) -> np.ndarray:
    """Which trades are within one standard error of the best score of those that meet the target: (T,)."""
    scores = np.where(meets, np.nan_to_num(found.scores, nan=-np.inf), -np.inf)
    best = int(scores.argmax())
    return np.asarray(meets & (scores >= scores[best] - np.nan_to_num(found.errors[best]) - 1e-12))


def _closest(found: Sweep, target: Target) -> str:
    """The nearest that some trade comes; trades whose choices were never recorded tell nothing."""
    known = found.costs if target.kind == "at_most_cost" else found.gains - found.errors
    known = known[~np.isnan(known)]
    if not known.size:
        return "unknown, as no outcome of the chosen agents is recorded"
    if target.kind == "at_most_cost":
        return f"${1000 * float(known.min()):.4g} a thousand queries"
    return f"within {-100 * float(known.max()):.3g} points"
