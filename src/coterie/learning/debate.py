"""MAPoRL: agents answer by themselves, then read each other's answers and answer again; each learns by PPO.

A baseline of CERA-MoA's (docs/methods.md says what deviates). The debate is that of the strategy `debate`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Self

import numpy as np

from coterie.errors import ConfigError
from coterie.features.checks import AnyEncoder
from coterie.features.hidden import Hidden
from coterie.learning.checkpoint import Checkpoint
from coterie.learning.course import Course, Made, encoded
from coterie.learning.engine import Verbs
from coterie.learning.losses import Loss
from coterie.learning.peers import Company, Together, quote_of, whole
from coterie.learning.practice import Clock, Drill, Rollouts, within
from coterie.learning.routing import RoutingLearner, RoutingUpdate
from coterie.records import Rate, Units
from coterie.strategies import prompts
from coterie.strategies.revision import Debate
from coterie.team import Team
from coterie.types import Count, Pool, Query, Share, spec


@spec
class Critic:
    """A network an agent that says what its answer to a prompt is worth, by squared error on the prompt's features.

    `standardise`: over so many first training queries features are brought to mean 0 and deviation 1.
    """

    lr: Rate = 1e-3
    hidden: Units = 512
    standardise: Count = 256


@spec
class MAPoRL(Together):
    """Post-co-training by debate (MAPoRL), beside what `Together` says; defaults are the published ones.

    The team's strategy is `debate`, whose `rounds` are the turns. `practice.group` debates of each query,
    `practice.updates` PPO epochs on each batch. `discount`: what later turns' verdicts count in an earlier turn's
    reward. `encoder` gives the features of a prompt that the `critic` works on; null takes, in place of a critic,
    the mean of the debates of the same query (then at least 2).
    """

    encoder: AnyEncoder | None = field(default_factory=Hidden)
    critic: Critic = field(default_factory=Critic)
    discount: Share = 0.3
    practice: Drill = field(default_factory=lambda: Drill(group=1, updates=4))
    loss: Loss = field(default_factory=lambda: Loss(ratio="token", kl="k3_weighted", beta=0.002))

    def suited(self, team: Team) -> Self:
        if self.encoder is None and self.practice.group < 2:
            raise ConfigError(
                f"{team.name}: learner.practice.group 1 has nothing to compare with: set learner.encoder for a"
                " critic, or hold several debates"
            )
        if not isinstance(team.strategy, Debate):
            used = type(team.strategy).__name__
            raise ConfigError(f"{team.name}: MAPoRL trains the strategy `debate`, not {used}")
        whole(team.name, team.strategy)
        if len(self.learners(team.pool)) < 2:
            raise ConfigError(f"{team.name}: a debate needs at least two agents")
        return super().suited(team)

    def begin(self, team: Team, pool: Pool, queries: Sequence[Query], engines: Mapping[str, Verbs]) -> Course:
        assert isinstance(team.strategy, Debate)  # `suited`
        return Debaters(self, pool, team.strategy, queries, engines, team.seed)


class Debaters(Company):
    """Agents that learn by debate."""

    settings: MAPoRL

    def __init__(
        self,
        settings: MAPoRL,
        pool: Pool,
        debate: Debate,
        queries: Sequence[Query],
        engines: Mapping[str, Verbs],
        seed: int,
    ) -> None:
        super().__init__(settings, pool, queries, engines, seed)
        self.debate = debate
        self.critic = None if settings.encoder is None else self._critic(settings.encoder)

    def _critic(self, encoder: AnyEncoder) -> RoutingLearner:
        """Its networks are those that the ablation of the router learns rewards by."""
        given = self.settings.critic
        update = RoutingUpdate(
            metric="regression", lr=given.lr, hidden=given.hidden, standardise=given.standardise, seed=self.seed
        )
        sample = encoded(encoder, [self.queries[key].messages for key in self._first(given.standardise)])
        return RoutingLearner(self.names, sample.shape[1], update, sample)

    def _round(self, clock: Clock) -> Made:
        debates = [self.queries[key] for key in self._take() for _ in range(self.settings.practice.group)]
        turns: list[dict[str, list[Rollouts]]] = []
        for turn in range(self.debate.rounds):
            asked = {name: self._asked(name, debates, turns) for name in self.names}
            turns.append({name: self._say(name, asked[name], turn, clock) for name in self.names})
        verdicts = np.array([[[one.graded.shaped[0] for one in said[n]] for n in self.names] for said in turns])
        rewards = credited(verdicts, self.settings.discount)  # (T, A, D)
        said = {name: [one for each in turns for one in each[name]] for name in self.names}
        with clock.phase("critic"):
            gains = self._gains(said, {name: rewards[:, i] for i, name in enumerate(self.names)})
        row = {"active": len(self.names), "solved_first": _solved(turns[0]), "solved_last": _solved(turns[-1])}
        return Made(done=self._teach(said, gains, clock), row=row)

    def _asked(
        self, name: str, debates: Sequence[Query], turns: Sequence[Mapping[str, Sequence[Rollouts]]]
    ) -> list[Query]:
        """The queries as the agent is asked them: bare at first, then with its own and the others' last answers."""
        if not turns:
            return list(debates)
        room, asked = self.debate.panel.room(self.pool[name]), []
        for d, query in enumerate(debates):
            last = {peer: quote_of(query, turns[-1][peer][d].samples[0]) for peer in self.names}
            others = [quote for peer, quote in last.items() if peer != name and quote.text.strip()]
            asked.append(replace(query, messages=prompts.peers(query, last[name], others, room)))
        return asked

    # --- advantages ----------------------------------------------------------------------------------

    def _gains(
        self, said: Mapping[str, Sequence[Rollouts]], rewards: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Advantages (T * D, 1) of each agent's answers from rewards (T, D); the critic learns from them too."""
        scale = self.settings.loss.scale_by_std
        if self.critic is None or self.settings.encoder is None:
            group = self.settings.practice.group
            return {name: within(r.reshape(-1, group), scale).reshape(-1, 1) for name, r in rewards.items()}
        features = {
            name: encoded(self.settings.encoder, [one.query.messages for one in said[name]]) for name in said
        }
        gains, told = {}, []
        for i, name in enumerate(self.critic.agents):
            returns = rewards[name].ravel()  # (T * D,)
            worth = self.critic.familiarity(features[name])[:, i]
            gains[name] = within((returns - worth)[None], scale).reshape(-1, 1)
            told.append(np.full((len(returns), len(rewards)), np.nan))
            told[-1][:, i] = returns
        rows = np.concatenate([features[name] for name in self.critic.agents])
        for _ in range(self.settings.practice.updates):
            self.critic.step(rows, np.concatenate(told), np.ones(len(rows), dtype=bool))
        return gains

    # --- agents that leave, checkpoints --------------------------------------------------------------

    def without(self, name: str) -> None:
        if len(self.names) <= 2:
            raise ConfigError(f"agent {name} cannot leave: a debate needs at least two")
        if self.critic is not None:
            self.critic.without(name)
        super().without(name)

    def state(self) -> Checkpoint:
        whole = super().state()
        return (
            whole if self.critic is None else replace(whole, parts={**whole.parts, "critic": self.critic.state()})
        )

    def load(self, checkpoint: Checkpoint) -> None:
        super().load(checkpoint)
        if self.critic is not None:
            self.critic.load(*checkpoint.parts["critic"])


def credited(verdicts: np.ndarray, discount: float) -> np.ndarray:
    """MAPoRL's rule: an answer is worth its own verdict and, discounted, what the whole company makes of it later.

    `verdicts` (T, A, D) to rewards of the same shape: (V_t + sum over later t' of g^(t' - t) * mean over agents of
    V_t') / sum of the weights. NaN is no verdict: an answer without its own has no reward; a later turn in which
    nobody has one is left out, weight and all.
    """
    rewards = np.empty_like(verdicts)
    seen = ~np.isnan(verdicts)
    count = seen.sum(axis=1)  # (T, D)
    mean = np.where(seen, verdicts, 0.0).sum(axis=1) / np.maximum(count, 1)  # (T, D)
    for t in range(len(verdicts)):
        weights = np.array([discount ** (later - t) for later in range(t + 1, len(verdicts))])
        known = weights[:, None] * (count[t + 1 :] > 0)  # (T - t - 1, D)
        rewards[t] = (verdicts[t] + (known * mean[t + 1 :]).sum(axis=0)) / (1 + known.sum(axis=0))
    return rewards


def _solved(said: Mapping[str, Sequence[Rollouts]]) -> float:
    """The share of right answers in a turn."""
    solved = np.concatenate([one.graded.solved for found in said.values() for one in found])
    return float(np.nanmean(solved)) if not np.isnan(solved).all() else float("nan")
