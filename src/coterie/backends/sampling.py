"""How the next tokens are drawn from logits: each row by its own settings and its own number in [0, 1).

Pure tensor functions; they know nothing of requests, caches or models. Imports torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coterie.types import Sampling

# Sorting a whole vocabulary is dear; the nucleus nearly always lies within the first few hundred tokens.
HEAD = 512
BLOCK = 256
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


def uniforms(seed: int, count: int) -> torch.Tensor:
    """The `count` numbers in [0, 1), float64, that a row with this seed draws one a token. Shape (count,)."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    return torch.rand(count, generator=generator, dtype=torch.float64)


def choose(logits: torch.Tensor, settings: Settings, numbers: torch.Tensor) -> torch.Tensor:
    """Next token ids, shape (n,), from float32 logits (n, V) and one uniform number a row (n,).

    Temperature, then top-k, then top-p, as is usual; equal logits at a cut stay in together.
    """
    picked = logits.argmax(dim=-1)  # (n,)
    drawn = settings.temperature.nonzero()[:, 0]  # (d,)
    if len(drawn) == 0:
        return picked
    chosen = settings.take(drawn)
    heated = logits[drawn] / chosen.temperature[:, None]  # (d, V)
    keep_top_k(heated, chosen.top_k)
    keep_top_p(heated, chosen.top_p)
    picked[drawn] = invert(heated, numbers[drawn])
    return picked


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
    """In place: -inf outside the smallest set of tokens whose probability reaches p; p >= 1 is off."""
    for row in (top_p < 1).nonzero()[:, 0].tolist():
        line = logits[row]  # (V,)
        edge = _nucleus_edge(line, float(top_p[row]))
        line.masked_fill_(line < edge, -torch.inf)


def _nucleus_edge(line: torch.Tensor, top_p: float) -> torch.Tensor:
    """The smallest logit inside the nucleus of one row (V,)."""
    total = line.logsumexp(dim=-1)
    for size in (min(HEAD, len(line)), len(line)):
        best = line.topk(size).values  # (size,) descending
        before = (best - total).exp().cumsum(0).roll(1)
        before[0] = 0.0
        inside = int((before < top_p).sum())
        if inside < size:
            break
    return best[max(inside, 1) - 1]


def invert(logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Inverse distribution function in vocabulary order: ids (n,) from logits (n, V) and numbers (n,) in [0, 1).

    Sums over blocks first, then inside the block that holds the number: one pass over the vocabulary.
    """
    count, size = logits.shape
    weights = (logits - logits.amax(dim=-1, keepdim=True)).exp()  # (n, V)
    padding = -size % BLOCK
    if padding:
        weights = torch.nn.functional.pad(weights, (0, padding))
    blocks = weights.view(count, -1, BLOCK)  # (n, V/BLOCK, BLOCK)
    sums = blocks.sum(dim=-1).double()  # (n, V/BLOCK)
    ends = sums.cumsum(dim=-1)
    goal = numbers.to(ends.device).double()[:, None] * ends[:, -1:]  # (n, 1)
    block = torch.searchsorted(ends, goal, right=True).clamp_(max=ends.shape[1] - 1)  # (n, 1)
    goal = goal - (ends - sums).gather(1, block)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0].double()  # (n, BLOCK)
    place = torch.searchsorted(inside.cumsum(dim=-1), goal, right=True)  # (n, 1)
    # Rounding can leave the goal past the last token that has any weight.
    last = BLOCK - 1 - (inside > 0).flip(1).int().argmax(dim=-1, keepdim=True)
    return (block * BLOCK + torch.minimum(place, last))[:, 0]


def log_probs(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities (nats) of `ids` (n,) under untempered logits (n, V). Shape (n,)."""
    return logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(dim=-1)
