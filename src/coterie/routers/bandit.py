"""Online routers: they learn from the outcomes of the agents that they pulled alone, and go on learning in use."""

import math
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from coterie.config import nearest
from coterie.errors import ConfigError
from coterie.features.checks import AnyEncoder, identity_of
from coterie.features.hidden import Hidden
from coterie.features.once import once
from coterie.outcomes import Outcomes
from coterie.routers.arms import Arms, Play, account, contexts, frame_of, one_pass
from coterie.routers.artefact import Artefact, features_of, fitted, in_pool, key_of, read, routed
from coterie.routers.columns import columns_of
from coterie.types import Agent, Amount, Count, Encoder, Pool, Positive, Query, Routing, State, draw, spec

LIN_UCB = "lin_ucb"
THOMPSON = "thompson"


@spec
class LinUCB:
    """Ridge regression of each agent's reward; training pulls the highest mean + alpha * spread (LinUCB).

    A^-1 and b of each agent over the query's context x: theta = A^-1 b, spread = sqrt(x' A^-1 x). One pass over the
    training queries in a seeded order, in which only the pulled agent's reward is seen; a missing one changes
    nothing. Asked, it gives the posterior means (alpha = 0). `learn` goes on online, `pull` says whom it would ask.

    Contexts are the directions of the features, centred, on their first `dims` principal axes (0: all of
    them) and a constant 1; the paper takes all 384 numbers of a sentence embedding as they are, which few pulls
    cannot fill [O]. The axes are those of all training queries; no reward enters them.
    """

    encoder: AnyEncoder = field(default_factory=Hidden)
    dims: Count = 64
    alpha: Amount = 0.5
    ridge: Positive = 1.0
    seed: int = 0
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Expected rewards. Raises: ConfigError unfitted, or fitted on none of the pool's revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Expected rewards, 0 at least: (len(queries), A)."""
        return in_pool(self._known, means(self._known, self._contexts(queries)), pool)

    def fit(self, outcomes: Outcomes) -> "LinUCB":
        """A copy after one online pass. `notes` of what it saves have the pulls and the regret curves."""
        return fitted(self, "_known", played(LIN_UCB, self.encoder, outcomes, self.dims, self._play))

    def learn(self, query: Query, agent: str, reward: float | None, pool: Pool) -> "LinUCB":
        """A copy that has seen one more reward in [0, 1]; None or NaN, a missing outcome, is only counted.

        An agent that the router does not know, such as a new revision, starts without pulls.
        Raises: ConfigError for an agent that is not in the pool.
        """
        x = self._contexts([query])[0]
        return fitted(self, "_known", learnt(self._known, x, known_agent(agent, pool), reward, self.ridge))

    def pull(self, query: Query, pool: Pool, seed: int = 0) -> str:
        """The solver that the online rule would ask next; an agent without pulls is worth its uncertainty."""
        return pulled(self._known, self._contexts([query]), pool, replace(self._play, seed=seed))

    def save(self, path: str | Path) -> None:
        """Write what was learnt."""
        self._known.save(path)

    def _contexts(self, queries: Sequence[Query]) -> np.ndarray:
        return contexts_of(self._known, self.encoder, queries)

    @property
    def _play(self) -> Play:
        return Play(alpha=self.alpha, ridge=self.ridge, seed=self.seed, sampled=False)

    @once
    def _known(self) -> Artefact:
        return read(LIN_UCB, self.weights, identity_of(self.encoder))


@spec
class Thompson:
    """As `lin_ucb`, but training pulls the highest draw from each agent's posterior N(mean, (alpha * spread)^2)."""

    encoder: AnyEncoder = field(default_factory=Hidden)
    dims: Count = 64
    alpha: Amount = 0.25
    ridge: Positive = 1.0
    seed: int = 0
    weights: str | None = None

    def route(self, state: State) -> Routing:
        """Expected rewards. Raises: ConfigError unfitted, or fitted on none of the pool's revisions."""
        return routed(self, state)

    def predict(self, queries: Sequence[Query], pool: Pool) -> np.ndarray:
        """Expected rewards, 0 at least: (len(queries), A)."""
        return in_pool(self._known, means(self._known, self._contexts(queries)), pool)

    def fit(self, outcomes: Outcomes) -> "Thompson":
        """A copy after one online pass. `notes` of what it saves have the pulls and the regret curves."""
        return fitted(self, "_known", played(THOMPSON, self.encoder, outcomes, self.dims, self._play))

    def learn(self, query: Query, agent: str, reward: float | None, pool: Pool) -> "Thompson":
        """A copy that has seen one more reward, as `lin_ucb` has it."""
        x = self._contexts([query])[0]
        return fitted(self, "_known", learnt(self._known, x, known_agent(agent, pool), reward, self.ridge))

    def pull(self, query: Query, pool: Pool, seed: int = 0) -> str:
        """The solver that the online rule would ask next, drawn from `seed`."""
        return pulled(self._known, self._contexts([query]), pool, replace(self._play, seed=seed))

    def save(self, path: str | Path) -> None:
        """Write what was learnt."""
        self._known.save(path)

    def _contexts(self, queries: Sequence[Query]) -> np.ndarray:
        return contexts_of(self._known, self.encoder, queries)

    @property
    def _play(self) -> Play:
        return Play(alpha=self.alpha, ridge=self.ridge, seed=self.seed, sampled=True)

    @once
    def _known(self) -> Artefact:
        return read(THOMPSON, self.weights, identity_of(self.encoder))


def played(router: str, encoder: Encoder, outcomes: Outcomes, dims: int, play: Play) -> Artefact:
    """What one online pass over the outcomes leaves."""
    table = columns_of(outcomes)
    features = features_of(encoder, table.prompts, router)
    frame = frame_of(features, dims)
    done = one_pass(contexts(features, frame), table.scores, play)
    return Artefact(
        router=router,
        names=table.names,
        keys=table.keys,
        tensors=frame | tensors_of(done.arms),
        encoder=identity_of(encoder),
        width=features.shape[1],
        notes=account(done, table.scores),
    )


def tensors_of(arms: Arms) -> dict[str, np.ndarray]:
    return {"inverse": arms.inverse, "response": arms.response, "theta": arms.theta()}


def arms_of(known: Artefact) -> Arms:
    return Arms(inverse=known.tensors["inverse"], response=known.tensors["response"])


def contexts_of(known: Artefact, encoder: Encoder, queries: Sequence[Query]) -> np.ndarray:
    """Contexts (n, d) of the queries."""
    features = features_of(encoder, [query.messages for query in queries], known.router, known.width)
    return contexts(features, known.tensors)


def means(known: Artefact, x: np.ndarray) -> np.ndarray:
    """Expected rewards (n, K) at contexts (n, d)."""
    return np.asarray(x @ known.tensors["theta"].T)


def known_agent(name: str, pool: Pool) -> Agent:
    """The solver of that name. Raises: ConfigError where the pool has none."""
    if name not in pool.names():
        raise ConfigError(f"no solver {name!r} in the pool{nearest(name, pool.names())}")
    return pool[name]


def learnt(known: Artefact, x: np.ndarray, agent: Agent, reward: float | None, ridge: float) -> Artefact:
    """The artefact after one more reward of one agent at context (d,)."""
    if row_of(known, agent) is None:
        known = with_agent(known, agent, ridge)
    row = row_of(known, agent)
    assert row is not None
    pulls = [count + (i == row) for i, count in enumerate(known.notes["pulls"])]
    if reward is None or math.isnan(reward):
        return replace(known, notes={**known.notes, "pulls": pulls, "missing": known.notes["missing"] + 1})
    arms = arms_of(known).copy()
    arms.learn(row, x, reward)
    return replace(known, tensors={**known.tensors, **tensors_of(arms)}, notes={**known.notes, "pulls": pulls})


def with_agent(known: Artefact, agent: Agent, ridge: float) -> Artefact:
    """The artefact with an agent that was never pulled."""
    return replace(
        known,
        names=(*known.names, agent.name),
        keys=(*known.keys, key_of(agent)),
        tensors={**known.tensors, **tensors_of(arms_of(known).with_one_more(ridge))},
        notes={**known.notes, "pulls": [*known.notes["pulls"], 0]},
    )


def row_of(known: Artefact, agent: Agent) -> int | None:
    """Where the agent is filed: under its revision, else under its name."""
    return next((known.keys.index(key) for key in (agent.revision, agent.name) if key in known.keys), None)


def pulled(known: Artefact, x: np.ndarray, pool: Pool, play: Play) -> str:
    """The solver of the highest value at context (1, d); equal ones are drawn between."""
    for agent in (pool[name] for name in pool.names()):
        known = known if row_of(known, agent) is not None else with_agent(known, agent, play.ridge)
    expected, spreads = means(known, x)[0], arms_of(known).spreads(x)[0]
    random = np.random.default_rng(draw(play.seed, "pull"))
    values = play.values(expected, spreads, random)
    worth = {name: float(values[row_of(known, pool[name]) or 0]) for name in pool.names()}
    return max(worth, key=lambda name: (worth[name], draw(play.seed, "pull", name)))
