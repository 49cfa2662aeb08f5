"""Log-probabilities of completion tokens with gradient, the prompt of a group run once.

Nothing the size of (tokens, vocabulary) outlives one chunk. Knows no agent and no loss. Imports torch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from coterie.errors import ConfigError, MissingExtra
from coterie.types import record

try:
    import torch
    from transformers import DynamicCache

    from coterie.backends.base_model import Base
    from coterie.backends.decode import SLIDING, Decoder
except ImportError as error:
    raise MissingExtra(str(error.name or "torch"), "local") from error

CHUNK = 256
Ids = Sequence[int]


@record
class Prompted:
    """Completions of one prompt, token ids each; an empty completion is a row without a token."""

    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Tokens that a forward runs through, all completions as long as the longest."""
        return len(self.prompt) + len(self.completions) * max(map(len, self.completions), default=0)


@record
class Told:
    """Log-probabilities (nats, at the temperature) of R rows' completion tokens, right-padded.

    `logprobs` (R, C) may carry a gradient and are 0 where `mask` (R, C), 1 on real tokens, is. Rows are the
    completions of all groups, one group after the other.
    """

    logprobs: torch.Tensor
    mask: torch.Tensor


def passes(groups: Sequence[Prompted], tokens: int) -> Iterator[list[int]]:
    """Indices of groups that go through one forward: alike in length, so that little of it is padding."""
    batch: list[int] = []
    filled = 0
    for i in sorted(range(len(groups)), key=lambda i: (-_longest(groups[i]), i)):
        if batch and filled + groups[i].size > tokens:
            yield batch
            batch, filled = [], 0
        batch.append(i)
        filled += groups[i].size
    if batch:
        yield batch


def told(base: Base, groups: Sequence[Prompted], temperature: float = 1.0) -> Told:
    """What the model, with whatever adapter is laid over it, gives the tokens of `groups`' completions.

    The prompts' all-but-last tokens run once a group, the last one and the completion once a row; both carry
    gradients. Padding at the right, positions and a mask by position: no row depends on its company.
    The caller holds the base's lock.
    """
    device = base.device
    owner = torch.tensor([g for g, group in enumerate(groups) for _ in group.completions], device=device)  # (R,)
    before = [len(group.prompt) - 1 for group in groups]
    cache = _prefix(base, [group.prompt[:-1] for group in groups])
    if cache is not None:
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[owner], layer.values[owner]
    rows = [(group.prompt[-1], *completion) for group in groups for completion in group.completions]
    width = max(1, *(len(row) - 1 for row in rows))
    ids, targets, mask = _rows(rows, width, device)
    start = torch.tensor(before, device=device)[owner]  # (R,)
    hidden = _body(base, ids, start, max(before), cache)  # (R, C, H)
    keep = mask.bool()
    logp = Picked.apply(hidden[keep], targets[keep], head_of(base), temperature)  # type: ignore[no-untyped-call]
    return Told(logprobs=_spread(logp, keep), mask=mask)


def head_of(base: Base) -> torch.Tensor:
    """The weight (V, H) of the language-model head.

    Raises: ConfigError for a model whose logits are more than a product with it.
    """
    head = base.model.get_output_embeddings()
    config = base.model.config.get_text_config()
    odd = [
        name for name in ("final_logit_softcapping", "logit_scale", "logits_scaling") if getattr(config, name, None)
    ]
    if odd or getattr(head, "bias", None) is not None:
        raise ConfigError(f"{base.name}: its logits are more than one product ({', '.join(odd) or 'bias'})")
    weight: torch.Tensor = head.weight
    return weight


class Picked(torch.autograd.Function):
    """log softmax(h W^T / t) at the chosen ids, over chunks of tokens.

    A token's number depends on its own h only and W is frozen, so the gradient is the upstream one times
    (W[id] - p W) / t, which the forward works out while it has p: no logits are kept and none are computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, ids: torch.Tensor, head: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """`hidden` (N, H), `ids` (N,), `head` (V, H) -> log-probabilities (N,), float32."""
        wanted = hidden.requires_grad or ctx.needs_input_grad[0]
        slope = torch.empty_like(hidden) if wanted else hidden.new_empty(0)
        logp = torch.empty(len(ids), dtype=torch.float32, device=hidden.device)
        for start in range(0, len(ids), CHUNK):
            part = slice(start, start + CHUNK)
            logits = (hidden[part] @ head.T).float() / temperature  # (n, V)
            logits -= logits.logsumexp(dim=-1, keepdim=True)
            logp[part] = logits.gather(1, ids[part, None])[:, 0]
            if wanted:
                slope[part] = (head[ids[part]] - logits.exp_().to(head.dtype) @ head) / temperature
        ctx.save_for_backward(slope)
        return logp

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return (upstream[:, None].to(slope.dtype) * slope if len(slope) else None), None, None, None


# --- the forward -------------------------------------------------------------------------------------


def _prefix(base: Base, prompts: Sequence[Ids]) -> Any:
    """Keys and values of right-padded prompts, with gradient; None where all are empty."""
    width = max(map(len, prompts))
    if not width:
        return None
    ids = torch.zeros(len(prompts), width, dtype=torch.long)  # (m, T)
    for i, prompt in enumerate(prompts):
        ids[i, : len(prompt)] = torch.tensor(prompt)
    cache = DynamicCache()
    base.model.get_decoder()(input_ids=ids.to(base.device), use_cache=True, **{cache_name(base): cache})
    return cache


def _rows(rows: Sequence[Ids], width: int, device: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids that are fed (R, C), ids that they are to give (R, C), mask (R, C)."""
    table = torch.zeros(len(rows), width + 1, dtype=torch.long)
    mask = torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row) - 1] = 1
    table = table.to(device)
    return table[:, :-1], table[:, 1:], mask.to(device)


def _body(base: Base, ids: torch.Tensor, start: torch.Tensor, longest: int, cache: Any) -> torch.Tensor:
    """Last hidden states (R, C, H) of rows whose prefixes, `start` (R,) tokens long, lie in the cache."""
    steps = torch.arange(ids.shape[1], device=ids.device)
    places = start[:, None] + steps  # (R, C)
    prefix = torch.arange(longest, device=ids.device).expand(len(ids), -1)  # (R, T)
    keys = torch.cat([prefix, places], dim=1)  # (R, T + C)
    there = torch.cat([prefix < start[:, None], torch.ones_like(places, dtype=torch.bool)], dim=1)
    seen = there[:, None] & (keys[:, None] <= places[..., None])  # (R, C, T + C)
    decoder = Decoder(base.model)
    near = seen & (keys[:, None] > places[..., None] - decoder.window)
    masks = {kind: _additive(near if kind == SLIDING else seen, base) for kind in decoder.kinds}
    options = {cache_name(base): cache} if cache is not None else {}
    out = base.model.get_decoder()(
        input_ids=ids,
        position_ids=places,
        attention_mask=masks if len(masks) > 1 else masks.popitem()[1],
        use_cache=cache is not None,
        **options,
    )
    hidden: torch.Tensor = out.last_hidden_state
    return hidden


def cache_name(base: Base) -> str:
    """What this version of transformers calls the argument that takes keys and values."""
    return Decoder(base.model).cache_name


def _additive(seen: torch.Tensor, base: Base) -> torch.Tensor:
    mask = torch.zeros(seen.shape, dtype=base.model.dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(base.model.dtype).min)[:, None]


def _spread(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Values of the kept places (N,) in a table (R, C) that is 0 elsewhere."""
    table = torch.zeros(keep.shape, dtype=values.dtype, device=values.device)
    return table.masked_scatter(keep, values)


def _longest(group: Prompted) -> int:
    return max(map(len, group.completions), default=0)
