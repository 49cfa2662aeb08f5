"""The policy loss of CERA-MoA and its relatives: advantages, ratios, clipped surrogate, KL, aggregation.

Pure functions of tensors and one record of settings; knows no model, no agent and no optimiser. The loss of an
accumulated batch is the sum of its parts' numerators over the sum of their weights, so that two half batches
equal the whole. Torch is imported by what needs it, so that a recipe can be read without it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from coterie.errors import ConfigError
from coterie.types import Amount, Count, Share, record, spec

if TYPE_CHECKING:
    import torch

Ratio = Literal["token", "sequence"]
Aggregation = Literal["token_mean", "seq_mean", "fixed_length"]
Penalty = Literal["k3", "k3_weighted"]

EQUAL = 1e-6  # rewards nearer than this, relative to the largest of them or to 1, are the same
SOFTEN = 1e-4  # added to the standard deviation (Eq. 20)
STEEP = 20.0  # log-ratios are held within +-STEEP: e^88 is infinite in float32, and 0 * infinity is NaN
WIDE_CLIP = 0.01  # a sequence ratio is a mean over tokens and stays nearer to 1 than this


@spec
class Loss:
    """What the policy loss is. The defaults are the paper's Eqs. 20-25 to the letter.

    `ratio`: one importance ratio per token, or one per sequence, the mean over its tokens in log space (Eq. 21).
    `aggregation`: `token_mean` divides the sum over tokens by the active tokens of the batch (Eq. 25, DAPO), so
    that a sequence counts by its length; `seq_mean` is the mean over sequences of the mean over their tokens
    (GRPO, GSPO); `fixed_length` divides the sum over tokens by sequences times `limit`, the longest completion
    (Dr. GRPO). A prompt weighs by the completions, or tokens, that are left of its group.
    `kl`: what the term weighed by `beta` is. See `kl_tokens` for which gradient each has.
    `clip_low`, `clip_high`: the ratio is clipped to [1 - low, 1 + high]. 0.2 suits token ratios; sequence ratios
    rarely leave [1 - 3e-4, 1 + 4e-4], so that 0.2, which the paper prints, practically never acts on them.
    `limit` 0 is what sampling allows; `within` fills it in. `scale_by_std`: whether advantages are divided by the
    group's deviation. `mask_truncated`: whether completions cut at the limit are left out, of the sum and of what
    it is divided by.

    The paper joins a sequence ratio with a token mean. Those are two decisions: with one update per batch the ratio
    is 1, both levels have the same gradient, the clip is inert, and `aggregation` alone makes the difference.

    A recipe can begin from a published method: `loss: dapo`, or `loss: {use: dapo, beta: 0.01}`, with the constants
    of its own paper; `cera` (the default), `gspo`, `grpo`, `dr_grpo`, `dapo`. DAPO's filter of equal groups is no
    part of a loss: `practice.filter_groups` is.
    """

    presets: ClassVar[Mapping[str, "Loss"]]

    ratio: Ratio = "sequence"
    aggregation: Aggregation = "token_mean"
    kl: Penalty = "k3"
    beta: Amount = 1e-4
    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    scale_by_std: bool = True
    mask_truncated: bool = False
    limit: Count = 0

    def within(self, limit: int) -> "Loss":
        """These settings, with `limit` tokens a completion where they name no limit of their own."""
        return self if self.limit else replace(self, limit=limit)

    def remarks(self) -> tuple[str, ...]:
        """What a reader of the log should know about this combination, one line each; said once a run."""
        said = []
        if self.ratio == "sequence" and self.aggregation == "token_mean":
            said.append("loss: sequence ratio with token mean: a completion counts in proportion to its length")
        if self.ratio == "sequence" and min(self.clip_low, self.clip_high) >= WIDE_CLIP:
            said.append(
                f"loss: clip {self.clip_low:g}/{self.clip_high:g} on a sequence ratio practically never acts; "
                "0.0003/0.0004 does"
            )
        return tuple(said)


Loss.presets = {
    "cera": Loss(),
    "gspo": Loss(aggregation="seq_mean", clip_low=3e-4, clip_high=4e-4, beta=0.0),
    "grpo": Loss(ratio="token", aggregation="seq_mean", beta=0.04),
    "dr_grpo": Loss(ratio="token", aggregation="fixed_length", beta=0.0, scale_by_std=False),
    "dapo": Loss(ratio="token", clip_high=0.28, beta=0.0),
}


@record
class Measured:
    """What a batch's ratios and KL looked like, as sums, so that parts can be added.

    `units` are active tokens for token ratios, sequences with any for sequence ratios.
    """

    units: float = 0.0
    clipped: float = 0.0
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    kl_tokens: float = 0.0
    kl_sum: float = 0.0

    def __add__(self, other: "Measured") -> "Measured":
        return Measured(
            units=self.units + other.units,
            clipped=self.clipped + other.clipped,
            ratio_sum=self.ratio_sum + other.ratio_sum,
            ratio_max=max(self.ratio_max, other.ratio_max),
            kl_tokens=self.kl_tokens + other.kl_tokens,
            kl_sum=self.kl_sum + other.kl_sum,
        )

    def named(self) -> dict[str, float]:
        """`clip_fraction`, `ratio_mean`, `ratio_max`, `kl_mean` (nats a token); what was not measured is absent."""
        found = {}
        if self.units:
            found["clip_fraction"] = self.clipped / self.units
            found["ratio_mean"] = self.ratio_sum / self.units
            found["ratio_max"] = self.ratio_max
        if self.kl_tokens:
            found["kl_mean"] = self.kl_sum / self.kl_tokens
        return found


@record
class Terms:
    """One part of a batch: a scalar with gradient, what it is to be divided by, and what was measured."""

    numerator: "torch.Tensor"
    weight: float
    metrics: Measured


# --- groups ------------------------------------------------------------------------------------------


def advantages(rewards: "torch.Tensor", scale_by_std: bool = True) -> "torch.Tensor":
    """Eq. 20: (R - mean) / (std + 1e-4) within each group. `rewards` (n, G) to (n, G), both float64.

    The deviation has ddof 1 (C5). A reward that is not finite is an error: it leaves the group, which is then
    smaller, and stays NaN. A group of which fewer than two are left has nothing to compare and is NaN throughout.
    Where all rewards are equal there is no direction: exactly 0, however they were rounded.
    Without `scale_by_std`: R - mean (Dr. GRPO).

    Example, rewards (1, 1, 0, 0, NaN): mean 0.5, variance 4 * 0.25 / 3, std 0.57735, advantages
    0.5 / 0.57745 = +-0.86588 and NaN.
    """
    import torch

    values = torch.as_tensor(rewards, dtype=torch.float64)  # (n, G)
    seen = values.isfinite()
    count = seen.sum(1, keepdim=True)  # (n, 1)
    held = values.masked_fill(~seen, 0.0)
    centred = (held - held.sum(1, keepdim=True) / count.clamp(min=1)).masked_fill(~seen, 0.0)
    if scale_by_std:
        deviation = (centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        centred = centred / (deviation + SOFTEN)
    centred = centred.masked_fill(~_spread(values, seen)[:, None], 0.0)
    return centred.masked_fill(~seen | (count < 2), float("nan"))


def telling(scores: "torch.Tensor") -> "torch.Tensor":
    """Which groups carry a policy gradient: (n, G) to (n,) booleans.

    `scores` are the verifier's own. A shaped reward (length penalty) differs within a group that is wrong
    throughout, and to keep that group is to learn from its lengths alone. At least two scores must be finite and
    differ. Routers hear of every group, telling or not.

    Example: (1, 0, NaN) is telling; (0.5, 0.5, 0.5) and (1, NaN, NaN) are not.
    """
    import torch

    values = torch.as_tensor(scores, dtype=torch.float64)
    return _spread(values, values.isfinite())


def _spread(values: "torch.Tensor", seen: "torch.Tensor") -> "torch.Tensor":
    """Whether what is seen of each row differs by more than rounding: (n,)."""
    if values.shape[1] == 0:
        return seen.any(1)
    high = values.masked_fill(~seen, float("-inf")).amax(1)
    low = values.masked_fill(~seen, float("inf")).amin(1)
    largest = values.masked_fill(~seen, 0.0).abs().amax(1).clamp(min=1.0)
    return high - low > EQUAL * largest


def active(mask: "torch.Tensor", truncated: "torch.Tensor", settings: Loss) -> "torch.Tensor":
    """The tokens that count: `mask` (N, C), less the rows of `truncated` (N,) where the settings leave them out."""
    if not settings.mask_truncated:
        return mask.bool()
    return mask.bool() & ~truncated.bool()[:, None]


# --- tokens ------------------------------------------------------------------------------------------


def ratio(new: "torch.Tensor", old: "torch.Tensor", mask: "torch.Tensor", kind: Ratio) -> "torch.Tensor":
    """pi_new / pi_old: (N, C) for tokens, (N, 1) for sequences, 1 where nothing is active.

    A sequence's ratio is exp of the mean over its active tokens of log pi_new - log pi_old (Eq. 21), never the
    product of the tokens' ratios, which shrinks with the length. Log-ratios are held within +-20, beyond which the
    gradient is 0 [O]; the paper has no bound and overflows.

    Example, log-ratios (0.2, 0.0, padding): tokens (1.2214, 1, 1), sequence exp(0.1) = 1.1052.
    """
    kept = mask.bool()
    logs = new.masked_fill(~kept, 0.0) - old.masked_fill(~kept, 0.0)  # (N, C)
    if kind == "sequence":
        logs = logs.sum(1, keepdim=True) / kept.sum(1, keepdim=True).clamp(min=1)  # (N, 1)
    elif kind != "token":
        raise ConfigError(f"loss: ratio must be 'token' or 'sequence', not {kind!r}")
    return logs.clamp(-STEEP, STEEP).exp()


def surrogate(rho: "torch.Tensor", advantage: "torch.Tensor", low: float, high: float) -> "torch.Tensor":
    """Eq. 22, a cost: -min(rho * A, clip(rho, 1 - low, 1 + high) * A), of broadcastable shapes.

    Example, clip 0.2 / 0.2: rho 1.5 costs -1.2 for A = 1 (clipped, no gradient) and 1.5 for A = -1 (not clipped).
    """
    return -(rho * advantage).minimum(rho.clamp(1 - low, 1 + high) * advantage)


def kl_tokens(new: "torch.Tensor", ref: "torch.Tensor") -> "torch.Tensor":
    """Eqs. 23-24, k3 per token: exp(x) - x - 1 with x = log pi_ref - log pi_new. Never negative, 0 where equal.

    Its mean over tokens that pi_new drew is KL(pi_new || pi_ref). As a term of the loss its gradient is another:
    that of KL(pi_ref || pi_new), the same to first order near the reference (`k3`). Multiplied by the token ratio
    pi_new / pi_old (`k3_weighted`) the gradient is that of KL(pi_new || pi_ref) exactly, and with tokens of an
    older policy too. The plain log-ratio k1 = -x has mean gradient 0, and k2 = x^2 / 2 has on fresh tokens, token
    by token, the gradient of `k3_weighted`: neither is offered. All of this holds per token, given what stands
    before it; how a token changes the KL of what follows is not in the gradient.
    `x` is held within +-20 as in `ratio`.

    Example, pi_ref 0.5 and pi_new 0.25: x = log 2, 2 - 0.6931 - 1 = 0.3069.
    """
    x = (ref - new).clamp(-STEEP, STEEP)
    return x.exp() - x - 1


# --- batches -----------------------------------------------------------------------------------------


def terms(
    new: "torch.Tensor",
    old: "torch.Tensor | None",
    ref: "torch.Tensor | None",
    advantages: "torch.Tensor",
    mask: "torch.Tensor",
    settings: Loss,
) -> Terms:
    """Eq. 25 for a part of a batch: sum of mask * (surrogate + beta * KL), and the weight it is divided by.

    `new`, `old`, `ref` (N, C) are log-probabilities of the completions' tokens, `advantages` (N,), `mask` (N, C)
    the active tokens; what stands elsewhere is not read, NaN included. `old` None means on-policy: `new` without
    gradient, the ratio 1. `ref` is needed where beta > 0; where beta is 0 it is only measured. Only `new` carries
    gradient. A sequence whose advantage is NaN is left out, of the numerator and of the weight.

    Example, one sequence of two tokens, A = 1, on-policy, `ref` equal: surrogate -1 on each token, KL 0.
    `token_mean`: numerator -2, weight 2. `seq_mean`: -1 and 1. `fixed_length` with limit 4: -2 and 4.
    Raises: ConfigError where beta > 0 and there is no `ref`, or `fixed_length` has no limit.
    """
    kept = mask.bool() & ~advantages.isnan()[:, None]  # (N, C)
    new = _wide(new).masked_fill(~kept, 0.0)
    before = new.detach() if old is None else old.detach().to(new.dtype).masked_fill(~kept, 0.0)
    gain = advantages.detach().nan_to_num(nan=0.0).to(new.dtype)[:, None]  # (N, 1)
    rho = ratio(new, before, kept, settings.ratio)
    cost = surrogate(rho, gain, settings.clip_low, settings.clip_high).expand(kept.shape)
    kl = None
    if ref is not None:
        kl = _penalty(new, before, ref.detach().to(new.dtype).masked_fill(~kept, 0.0), kept, settings)
        cost = cost + settings.beta * kl if settings.beta else cost
    elif settings.beta:
        raise ConfigError("loss: beta > 0 needs log-probabilities of the reference")
    return Terms(
        numerator=_total(cost, kept, settings.aggregation),
        weight=weight(kept, settings),
        metrics=_measured(rho.detach(), gain, kl, kept, settings),
    )


def weight(mask: "torch.Tensor", settings: Loss) -> float:
    """What a part's numerator is divided by, once summed over the batch. `mask` (N, C).

    `token_mean`: active tokens. `seq_mean`: sequences that have any. `fixed_length`: those times the limit. An
    empty completion has no token to blame and weighs nothing. A part that was not run because nothing in it can
    move (advantage 0 and beta 0) still has this weight.
    Raises: ConfigError where `fixed_length` has no limit, or a completion is longer.
    """
    lengths: list[int] = mask.bool().sum(1).tolist()  # (N,)
    if settings.aggregation == "token_mean":
        return float(sum(lengths))
    sequences = float(sum(length > 0 for length in lengths))
    if settings.aggregation == "seq_mean":
        return sequences
    if settings.aggregation != "fixed_length":
        raise ConfigError(f"loss: unknown aggregation {settings.aggregation!r}")
    needed = max([1, *lengths])
    if settings.limit < needed:
        raise ConfigError(f"loss: fixed_length needs a limit of at least {needed} tokens, not {settings.limit}")
    return sequences * settings.limit


def _penalty(
    new: "torch.Tensor", old: "torch.Tensor", ref: "torch.Tensor", mask: "torch.Tensor", settings: Loss
) -> "torch.Tensor":
    kl = kl_tokens(new, ref)
    return kl * ratio(new, old, mask, "token") if settings.kl == "k3_weighted" else kl


def _total(cost: "torch.Tensor", mask: "torch.Tensor", aggregation: Aggregation) -> "torch.Tensor":
    """The sum over sequences of their tokens' costs, or of the means of these: a scalar."""
    rows = cost.masked_fill(~mask, 0.0).sum(1)  # (N,)
    return (rows / mask.sum(1).clamp(min=1) if aggregation == "seq_mean" else rows).sum()


def _measured(
    rho: "torch.Tensor", gain: "torch.Tensor", kl: "torch.Tensor | None", mask: "torch.Tensor", settings: Loss
) -> Measured:
    """Clipped is what the bound takes the gradient from: beyond it on the side that the advantage pulls to."""
    units = mask if settings.ratio == "token" else mask.any(1, keepdim=True)
    over = ((rho > 1 + settings.clip_high) & (gain > 0)) | ((rho < 1 - settings.clip_low) & (gain < 0))
    seen = rho[units]
    return Measured(
        units=float(units.sum()),
        clipped=float((over & units).sum()),
        ratio_sum=float(seen.sum()),
        ratio_max=float(seen.max()) if len(seen) else 0.0,
        kl_tokens=0.0 if kl is None else float(mask.sum()),
        kl_sum=0.0 if kl is None else float(kl.detach()[mask].sum()),
    )


def _wide(x: "torch.Tensor") -> "torch.Tensor":
    """In float32 at least: sums of log-probabilities lose their differences in bfloat16."""
    return x.float() if x.dtype.itemsize < 4 else x
