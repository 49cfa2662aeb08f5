"""Samples completions of one base's agents for learning: token ids, how they ended, how uncertain they were.

Synchronous and on the tensors that are being trained; serving goes through `backends.local`. Imports torch.
"""

from collections.abc import Iterable, Sequence

from coterie.backends.base_model import Base
from coterie.backends.running import Row, Running, cut
from coterie.errors import BackendError
from coterie.types import Agent, Sampling, record


@record
class Ask:
    """One completion that is wanted: prompt ids, the adapter by name (None: the base), settings, seed."""

    prompt: tuple[int, ...]
    adapter: str | None
    sampling: Sampling
    seed: int


@record
class Sample:
    """One completion. `ids` end with the end-of-turn token where there was one.

    `entropy` is the mean over its tokens, in nats, of the full distribution it was drawn from, untempered and
    untruncated (docs/methods.md C8); 0 for an empty completion. `logprobs` are what its tokens have under that
    distribution, in nats.
    """

    ids: tuple[int, ...]
    text: str
    finish: str
    entropy: float
    logprobs: tuple[float, ...] = ()


def sample(base: Base, asks: Sequence[Ask], max_batch: int, cache_gib: float = 4.0) -> list[Sample]:
    """A completion for each ask, in their order. Equal asks in equal company give equal completions.

    Raises: BackendError where the model gave no numbers for one of them.
    """
    # A fresh batch each time: where a row lies in memory must not depend on what was sampled before.
    running = Running(base, max_batch, tokens=True, cache_gib=cache_gib)
    rows = [Row(list(ask.prompt), ask.adapter, ask.sampling, ask.seed) for ask in asks]
    waiting = rows[::-1]
    while waiting or running.active:
        joining: list[Row] = []
        while waiting and running.fits(waiting[-1], joining):
            joining.append(waiting.pop())
        running.admit(joining)
        if running.active:
            running.step()
    return [_finished(base, row) for row in rows]


def truncation_warning(agents: Iterable[Agent]) -> str | None:
    """Why agents' tokens come from another distribution than their log-probabilities, or None where they do not."""
    cut = [agent for agent in agents if agent.sampling.top_p < 1 or agent.sampling.top_k]
    if not cut:
        return None
    first = cut[0].sampling
    return (
        f"{', '.join(agent.name for agent in cut)}: sampling.top_p {first.top_p:g}, top_k {first.top_k}: tokens are"
        " drawn from the cut distribution, as in the paper, and the loss weighs them by the whole one; top_p 1 and"
        " top_k 0 make the two equal"
    )


def _finished(base: Base, row: Row) -> Sample:
    if row.error is not None:
        raise BackendError(f"a completion could not be sampled: {row.error}") from row.error
    ended = bool(row.out) and row.out[-1] in base.eos_ids
    text = base.text_of(row.out[:-1] if ended else row.out)
    mean = sum(row.entropies) / len(row.entropies) if row.entropies else 0.0
    return Sample(
        ids=tuple(row.out),
        text=cut(text, row.sampling.stop)[0],
        finish=row.finish or "length",
        entropy=mean,
        logprobs=tuple(row.logprobs),
    )
