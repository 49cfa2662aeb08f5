"""How the next tokens are drawn from logits: each row by its own settings and from its own seed.

Pure tensor functions; they know nothing of requests, caches or models. Imports torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coterie.types import Sampling

# Sorting a whole vocabulary is dear; the nucleus nearly always lies within the first few hundred tokens.
HEAD = 512
GREEDY_BELOW = 1e-4


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling settings of n rows as tensors."""

    temperature: torch.Tensor  # (n,) 0 is greedy
    top_k: torch.Tensor  # (n,) 0 is off
    top_p: torch.Tensor  # (n,) 1 is off

    @staticmethod
    def of(rows: Sequence[Sampling], device: torch.device | str = "cpu") -> "Settings":
        """The settings of `rows` on `device`. Temperatures below 1e-4 count as greedy: they would overflow."""
        heats = [s.temperature if s.temperature >= GREEDY_BELOW else 0.0 for s in rows]
        return Settings(
            torch.tensor(heats, dtype=torch.float32, device=device),
            torch.tensor([max(s.top_k, 0) for s in rows], dtype=torch.long, device=device),
            torch.tensor([s.top_p for s in rows], dtype=torch.float32, device=device),
        )

    def take(self, index: torch.Tensor | slice) -> "Settings":
        """The settings of some rows."""
        return Settings(self.temperature[index], self.top_k[index], self.top_p[index])


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The source of one row's chance: each sampled token draws one number for every word of the vocabulary."""
    return torch.Generator(device).manual_seed(seed % 2**63)


def choose(logits: torch.Tensor, settings: Settings, chance: Sequence[torch.Generator]) -> torch.Tensor:
    """Next token ids, shape (n,), from float32 logits (n, V); row i draws from `chance[i]`, greedy rows do not.

    Temperature, then top-k, then top-p, as is usual; equal logits at a cut stay in together. The draw is a race:
    each token's logit plus its own Gumbel noise, the largest wins. Inverting the cumulative distribution would
    be cheaper, but rounding errors of all tokens add up there, and other batch shapes would change the text often.
    """
    picked = logits.argmax(dim=-1)  # (n,)
    rows = settings.temperature.nonzero()[:, 0]  # (d,)
    if len(rows) == 0:
        return picked
    chosen = settings.take(rows)
    heated = logits[rows] / chosen.temperature[:, None]  # (d, V)
    keep_top_k(heated, chosen.top_k)
    keep_top_p(heated, chosen.top_p)
    picked[rows] = (heated + gumbel([chance[i] for i in rows.tolist()], heated)).argmax(dim=-1)
    return picked


def gumbel(chance: Sequence[torch.Generator], like: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, each row of its own generator. Shape and device of `like` (n, V)."""
    noise = torch.empty_like(like)
    for row, source in zip(noise, chance, strict=True):
        torch.rand(row.shape, generator=source, device=row.device, out=row)
    return noise.log_().neg_().log_().neg_()


def keep_top_k(logits: torch.Tensor, top_k: torch.Tensor) -> None:
    """In place: -inf below the k-th largest logit of each row (n, V); rows with k = 0 stay as they are."""
    rows = ((top_k > 0) & (top_k < logits.shape[1])).nonzero()[:, 0]
    if len(rows) == 0:
        return
    count = top_k[rows]
    part = logits[rows]
    best = part.topk(int(count.max()), dim=-1).values  # (r, K)
    edge = best.gather(1, (count - 1)[:, None])  # (r, 1)
    logits[rows] = part.masked_fill(part < edge, -torch.inf)


def keep_top_p(logits: torch.Tensor, top_p: torch.Tensor) -> None:
    """In place: -inf outside the smallest set of tokens whose probability reaches p (n,); p >= 1 is off."""
    rows = (top_p < 1).nonzero()[:, 0]
    if len(rows) == 0:
        return
    part = logits[rows]
    edge = _nucleus_edge(part, top_p[rows, None], min(HEAD, part.shape[1]))
    logits[rows] = part.masked_fill(part < edge, -torch.inf)


def _nucleus_edge(logits: torch.Tensor, top_p: torch.Tensor, size: int) -> torch.Tensor:
    """The smallest logit inside each row's nucleus, (r, 1), looked for among its `size` largest first."""
    best = logits.topk(size).values  # (r, size) descending
    mass = (best - logits.logsumexp(dim=-1, keepdim=True)).exp().cumsum(dim=-1)
    before = torch.nn.functional.pad(mass[:, :-1], (1, 0))  # probability of all that is larger
    inside = (before < top_p).sum(dim=-1, keepdim=True).clamp_(min=1)  # (r, 1)
    edge = best.gather(1, inside - 1)
    wide = (inside[:, 0] == size).nonzero()[:, 0] if size < logits.shape[1] else inside[:0, 0]
    if len(wide):
        edge[wide] = _nucleus_edge(logits[wide], top_p[wide], logits.shape[1])
    return edge


def log_probs(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities (nats) of `ids` (n,) under untempered logits (n, V). Shape (n,)."""
    return logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(dim=-1)


def entropies(logits: torch.Tensor) -> torch.Tensor:
    """Entropy (nats) of the full distribution under untempered logits (n, V), without truncation. Shape (n,)."""
    shifted = logits - logits.logsumexp(dim=-1, keepdim=True)
    return -(shifted.exp() * shifted).sum(dim=-1)
