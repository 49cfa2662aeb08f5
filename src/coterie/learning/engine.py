"""The agents of one frozen base that learn, by four verbs: sample, forward_backward, optim_step, state/load.

Every verb names its agent; an agent's adapter, moments and counters are its own, so that a step on one leaves every
bit of the others. What an agent practises on is decided elsewhere (`coevolve`). Imports torch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from coterie.errors import BackendError, ConfigError, Diverged, MalformedAnswer, MissingExtra
from coterie.types import Messages, record

try:
    import torch
except ImportError as error:
    raise MissingExtra("torch", "local") from error

from coterie.backends.base_model import Base
from coterie.learning import adapters
from coterie.learning.adapters import Lora
from coterie.learning.learner import Arrays, Learner, Optimiser, Step
from coterie.learning.logprobs import Prompted, Told, passes, told
from coterie.learning.losses import Loss, Terms, active, terms, weight
from coterie.learning.sampler import Ask, Sample, sample

TOKENS, TOKENS_ON_ACCELERATOR = 1024, 16384
"""Tokens that one forward with gradient runs through: what their activations need is the peak of memory."""


@record
class Group:
    """Completions of one prompt by one agent, to learn from.

    `advantages` (G,) are NaN where there was no verdict: such a completion takes no part. `old` are the
    log-probabilities of the policy that sampled them, None where that is the policy that learns (ratio 1).
    """

    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    advantages: np.ndarray
    truncated: tuple[bool, ...]
    old: tuple[np.ndarray, ...] | None = None

    @property
    def prompted(self) -> Prompted:
        return Prompted(prompt=self.prompt, completions=self.completions)


def picked(group: Group, rows: Sequence[int]) -> Group:
    """Some of a group's completions."""
    return Group(
        prompt=group.prompt,
        completions=tuple(group.completions[i] for i in rows),
        advantages=group.advantages[list(rows)],
        truncated=tuple(group.truncated[i] for i in rows),
        old=None if group.old is None else tuple(group.old[i] for i in rows),
    )


def taking_part(group: Group) -> Group:
    """The group without completions that are empty or have no advantage."""
    return picked(
        group, [i for i, ids in enumerate(group.completions) if ids and not math.isnan(group.advantages[i])]
    )


def rows_of(group: Group, tokens: int) -> list[list[int]]:
    """The group's completions in parts that fit a forward of `tokens` tokens, one at least, alike in length."""
    rows = sorted(range(len(group.completions)), key=lambda i: -len(group.completions[i]))
    longest = max(map(len, group.completions), default=0)
    each = max(1, (tokens - len(group.prompt)) // max(1, longest))
    if each >= len(rows):
        return [sorted(rows)] if rows else []
    return [rows[start : start + each] for start in range(0, len(rows), each)]


def parts_of(group: Group, tokens: int) -> list[Group]:
    """The parts of `rows_of` as groups.

    The loss is a sum over completions, so that parts add up to the whole; each part runs the prompt again.
    """
    return [picked(group, rows) for rows in rows_of(group, tokens)]


class Verbs(Protocol):
    """What a training run asks of an engine, here (`Engine`) or in another process (`remote`)."""

    loss: Loss

    @property
    def context(self) -> int: ...
    def add(self, name: str, seed: int, folder: Path | None = None, reference: str = "base") -> None: ...
    def remove(self, name: str) -> None: ...
    def close(self) -> None: ...
    def prompt_ids(self, messages: Messages, limit: int) -> list[int]: ...
    def sample(self, name: str, asks: Sequence[Ask]) -> list[Sample]: ...
    def log_probs(self, name: str, groups: Sequence[Group], temperature: float) -> list[tuple[np.ndarray, ...]]: ...
    def forward_backward(self, name: str, groups: Sequence[Group], temperature: float) -> None: ...
    def optim_step(self, name: str) -> Step: ...
    def counts(self, name: str) -> tuple[int, int]: ...
    def state(self, name: str) -> tuple[dict[str, Any], Arrays]: ...
    def load(self, name: str, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None: ...
    def write(self, name: str, folder: Path) -> None: ...


class Engine:
    """A base and the agents that learn over it. Not thread-safe; holds the base's lock while it computes."""

    def __init__(self, base: Base, lora: Lora, optimiser: Optimiser, loss: Loss, max_batch: int = 64) -> None:
        self.base, self.lora, self.optimiser, self.loss, self.max_batch = base, lora, optimiser, loss, max_batch
        self.learners: dict[str, Learner] = {}
        self.pass_tokens = TOKENS if base.device.type == "cpu" else TOKENS_ON_ACCELERATOR
        self._key = uuid4().hex  # another engine on this base may have agents of the same names

    # --- agents --------------------------------------------------------------------------------------

    def add(self, name: str, seed: int, folder: Path | None = None, reference: str = "base") -> None:
        """A new agent: a fresh adapter drawn from `seed`, or the one in a PEFT `folder`.

        `reference` is what its KL is measured against: the `base`, or its `initial` adapter.
        """
        if name in self.learners:
            raise ConfigError(f"agent {name}: is there already")
        weights = (
            adapters.read(folder, self.base, self.lora) if folder else adapters.fresh(self.base, self.lora, seed)
        )
        wanted, found = adapters.count(self.base, self.lora), sum(t.numel() for t in weights.values())
        if wanted != found:
            raise ConfigError(f"agent {name}: {found} trainable numbers where the lora settings mean {wanted}")
        self.learners[name] = Learner(weights, self.optimiser)
        self._lay(name)
        if reference == "initial":
            copies = {key: tensor.detach().clone() for key, tensor in weights.items()}
            self._put(self._initial(name), copies)

    def remove(self, name: str) -> None:
        """Forget an agent; the others go on bit for bit."""
        del self.learners[name]
        with self.base.lock:
            for key in (self._live(name), self._initial(name)):
                if key in self.base.adapters:
                    self.base.adapters.drop(key)

    def close(self) -> None:
        """Take every adapter off the base."""
        for name in list(self.learners):
            self.remove(name)

    @property
    def context(self) -> int:
        """Tokens that a prompt and its completion may have together."""
        return self.base.context

    def prompt_ids(self, messages: Messages, limit: int) -> list[int]:
        """The token ids of a prompt, at most `limit`: the left part is cut."""
        return self.base.prompt_ids(messages, limit)

    def counts(self, name: str) -> tuple[int, int]:
        """How many updates the agent has had, and how many were skipped."""
        return self.learners[name].updates, self.learners[name].skipped

    # --- the verbs -----------------------------------------------------------------------------------

    def sample(self, name: str, asks: Sequence[Ask]) -> list[Sample]:
        """Completions by the agent as it is now; the asks' `adapter` is filled in.

        Raises: Diverged where the model gives no numbers for one of them; BackendError where it fails otherwise.
        """
        key = self._live(name)
        asked = [Ask(prompt=a.prompt, adapter=key, sampling=a.sampling, seed=a.seed) for a in asks]
        try:
            return sample(self.base, asked, self.max_batch)
        except BackendError as error:
            if isinstance(error.__cause__, MalformedAnswer):
                raise Diverged(f"agent {name}: {error}; {self._cure(name)}") from error
            raise BackendError(f"agent {name}: {error}") from error

    def log_probs(self, name: str, groups: Sequence[Group], temperature: float) -> list[tuple[np.ndarray, ...]]:
        """Log-probabilities of every completion's tokens under the agent as it is now, without gradient."""
        places = [(g, rows) for g, group in enumerate(groups) for rows in rows_of(group, self.pass_tokens)]
        parts = [picked(groups[g], rows).prompted for g, rows in places]
        found: dict[tuple[int, int], np.ndarray] = {}
        with torch.no_grad(), self._over(self._live(name)):
            for batch in passes(parts, self.pass_tokens):
                values = told(self.base, [parts[p] for p in batch], temperature).logprobs.cpu().numpy()
                keys = [(places[p][0], row) for p in batch for row in places[p][1]]
                found |= {
                    (g, i): v[: len(groups[g].completions[i])].copy()
                    for (g, i), v in zip(keys, values, strict=True)
                }
        return [tuple(found[g, i] for i in range(len(group.completions))) for g, group in enumerate(groups)]

    def forward_backward(self, name: str, groups: Sequence[Group], temperature: float) -> None:
        """Gather the gradient of the loss on `groups`; calls add up until `optim_step`.

        Groups whose advantages are all 0 are not run where beta is 0: they cannot change the loss, though their
        tokens count in its normaliser (docs/methods.md C4). A call that raises forgets what was gathered.
        """
        learner = self.learners[name]
        taken = [taking_part(group) for group in groups]
        taken = [group for group in taken if group.completions]
        silent = [not self.loss.beta and not np.any(group.advantages) for group in taken]
        learner.weight += weight(
            _mask([group for group, still in zip(taken, silent, strict=True) if still], self.loss), self.loss
        )
        live = [group for group, still in zip(taken, silent, strict=True) if not still]
        live = [part for group in live for part in parts_of(group, self.pass_tokens)]
        whole = False
        try:
            for batch in passes([group.prompted for group in live], self.pass_tokens):
                self._one_pass(learner, name, [live[i] for i in batch], temperature)
            whole = True
        finally:
            if not whole:
                learner.start()
            self._lay(name)

    def optim_step(self, name: str) -> Step:
        """One update of this agent by what it has gathered, whatever other agents have.

        Raises: Diverged where its weights are no numbers any more.
        """
        step = self.learners[name].step()
        if not self.learners[name].finite:
            raise Diverged(f"agent {name}: its weights are no numbers any more; {self._cure(name)}")
        self._lay(name)
        return step

    def state(self, name: str) -> tuple[dict[str, Any], Arrays]:
        """Everything needed to go on with the agent bit for bit."""
        return self.learners[name].state()

    def load(self, name: str, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """What `state` gave; the agent must have been added."""
        self.learners[name].load(facts, arrays)
        self._lay(name)

    def write(self, name: str, folder: Path) -> None:
        """The agent's adapter as a plain PEFT folder."""
        adapters.write(folder, self.learners[name].weights, self.lora, self.base.name)

    # --- inside --------------------------------------------------------------------------------------

    def _one_pass(self, learner: Learner, name: str, groups: Sequence[Group], temperature: float) -> None:
        prompted = [group.prompted for group in groups]
        reference = self._reference(name, prompted, temperature) if self.loss.beta else None
        self._put(self._live(name), learner.weights)
        with self._over(self._live(name)):
            new = told(self.base, prompted, temperature)
        found = self._terms(new, reference, groups)
        learner.weight += found.weight
        learner.measured += found.metrics
        if not bool(torch.isfinite(found.numerator)):
            learner.broken = True
        elif found.numerator.requires_grad:
            found.numerator.backward()  # type: ignore[no-untyped-call]

    def _terms(self, new: Told, reference: Told | None, groups: Sequence[Group]) -> Terms:
        device = new.logprobs.device
        gains = np.concatenate([group.advantages for group in groups])
        cut = torch.tensor([flag for group in groups for flag in group.truncated], device=device)
        return terms(
            new.logprobs,
            _old(groups, new.logprobs),
            None if reference is None else reference.logprobs,
            torch.from_numpy(gains).float().to(device),
            active(new.mask, cut, self.loss),
            self.loss,
        )

    def _reference(self, name: str, groups: Sequence[Prompted], temperature: float) -> Told:
        key = self._initial(name) if self._initial(name) in self.base.adapters else None
        with torch.no_grad(), self._over(key):
            return told(self.base, groups, temperature)

    def _cure(self, name: str) -> str:
        """What to do where an agent's numbers are none."""
        if not self.learners[name].updates:
            return "it has not learned yet: its model or first adapter is damaged, or lora.alpha too large"
        return "begin again with a lower learner.optimiser.lr, optimiser.weight_decay or lora.alpha"

    def _live(self, name: str) -> str:
        return f"learning/{self._key}/now/{name}"

    def _initial(self, name: str) -> str:
        return f"learning/{self._key}/first/{name}"

    @contextmanager
    def _over(self, key: str | None) -> Iterator[None]:
        """The base with one adapter over it, or bare."""
        with self.base.lock, self.base.adapters.rows([key]):
            yield

    def _lay(self, name: str) -> None:
        """Give sampling the adapter as it is now, without its graph."""
        with torch.no_grad():
            self._put(self._live(name), self.learners[name].weights)

    def _put(self, key: str, weights: Mapping[str, torch.Tensor]) -> None:
        with self.base.lock:
            self.base.adapters.put(key, adapters.pairs(weights, self.lora, self.base.model.dtype))


def _mask(groups: Sequence[Group], loss: Loss) -> torch.Tensor:
    """The tokens of groups that are not run, as `terms` would have counted them: (N, C)."""
    lengths = [len(ids) for group in groups for ids in group.completions]
    cut = torch.tensor([flag for group in groups for flag in group.truncated], dtype=torch.bool)
    mask = torch.arange(max(lengths, default=0)) < torch.tensor(lengths, dtype=torch.long)[:, None]
    return active(mask, cut, loss)


def _old(groups: Sequence[Group], like: torch.Tensor) -> torch.Tensor | None:
    """Log-probabilities (R, C) under the policy that sampled; None where that is the one that learns."""
    if groups[0].old is None:
        return None
    table = torch.zeros_like(like, requires_grad=False)
    rows = [values for group in groups if group.old is not None for values in group.old]
    for r, values in enumerate(rows):
        table[r, : len(values)] = torch.from_numpy(values)
    return table
