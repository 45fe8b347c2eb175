"""GRPO's loss and one step of it, in plain torch.

The clipped ratio is that of PPO (Schulman et al. 2017, arXiv 1707.06347) with the upper bound raised (DAPO, arXiv 2503.14476); group
advantages are those of GRPO (arXiv 2402.03300); importance weights are truncated as in TIS (Yao et al. 2025, "Your efficient RL
framework secretly brings you off-policy RL training").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer_sink.reference.errors import NotFiniteError
from trainer_sink.reference.forward import TokenBatch, token_batch
from trainer_sink.reference.model import PolicyModel
from trainer_sink.reference.passes import plan_passes, trained_places
from trainer_sink.reference.settings import Aggregation, Anchor, GrpoSettings
from trainer_sink.sequences import TrainingSequence

# An advantage this small is none: a mean of floats isn't exact.
NO_ADVANTAGE = 1e-6
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRule:
    """The numbers of the loss; see `GrpoSettings`."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    tis_cap: float = 2.0
    anchor: Anchor = "captured"
    kl_coef: float = 0.0
    entropy_coef: float = 0.0

    @classmethod
    def of(cls, settings: GrpoSettings) -> LossRule:
        """The loss' part of the settings."""
        return cls(**{name: getattr(settings, name) for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Per trained token, shape (N,): the loss and what is reported of it."""

    loss: Tensor
    ratio: Tensor
    is_clipped: Tensor
    kl: Tensor
    kl_reference: Tensor


def token_loss(
    logprobs: Tensor,
    captured: Tensor,
    advantages: Tensor,
    rule: LossRule,
    *,
    anchor: Tensor | None = None,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
) -> TokenLoss:
    """The loss of each token; all tensors have shape (N,).

    With `anchor` (the trainer's own logprobs at the step's begin) the clipped ratio is taken from it, and each token is weighted
    with min(exp(anchor - captured), tis_cap). Without, the ratio is taken from `captured` and itself held at `tis_cap`, which matters
    where the advantage is negative: nothing else bounds it there.
    """
    old = captured if anchor is None else anchor
    ratio = (logprobs - old).exp()
    weight = torch.ones_like(ratio) if anchor is None else (anchor - captured).exp().clamp(max=rule.tis_cap)
    bounded = ratio.clamp(max=rule.tis_cap)
    plain = bounded * advantages
    clipped = ratio.clamp(1.0 - rule.clip_low, 1.0 + rule.clip_high) * advantages
    loss = -weight * torch.minimum(plain, clipped)
    kl_reference = torch.zeros_like(ratio) if reference is None else k3(logprobs, reference)
    if rule.kl_coef:
        loss = loss + rule.kl_coef * kl_reference
    if rule.entropy_coef and entropy is not None:
        loss = loss - rule.entropy_coef * entropy
    with torch.no_grad():
        stopped = ((advantages > 0) & (ratio > 1.0 + rule.clip_high)) | (
            (advantages < 0) & ((ratio < 1.0 - rule.clip_low) | (ratio > rule.tis_cap))
        )
        return TokenLoss(loss, ratio.detach(), stopped, k3(logprobs, captured).detach(), kl_reference.detach())


def k3(logprobs: Tensor, other: Tensor) -> Tensor:
    """Schulman's estimate of KL(policy, other) from the policy's samples: exp(d) - d - 1 with d = other - logprobs; never negative."""
    difference = other - logprobs
    return difference.exp() - difference - 1.0


def token_shares(sequences: Sequence[TrainingSequence], aggregation: Aggregation) -> list[float]:
    """What one token of each sequence counts in the step's loss; over all trained tokens they sum to 1.

    `token_mean`: as its sequence's weight. `sequence_mean`: each sequence's mean counts as its weight.
    """
    counts = [len(trained_places(s)) for s in sequences]
    if aggregation == "token_mean":
        total = sum(s.weight * n for s, n in zip(sequences, counts, strict=True))
        return [s.weight / total if total else 0.0 for s in sequences]
    total = sum(s.weight for s, n in zip(sequences, counts, strict=True) if n)
    return [s.weight / (n * total) if n and total else 0.0 for s, n in zip(sequences, counts, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """What one step did; means are over its trained tokens, each counted by its share, in the last epoch."""

    sequences: int = 0
    tokens: int = 0
    computed_tokens: int = 0
    loss: float = 0.0
    ratio: float = 1.0
    kl: float = 0.0
    kl_reference: float = 0.0
    entropy: float = 0.0
    clip_fraction: float = 0.0
    grad_norm: float = 0.0
    max_logprob_diff: float = 0.0
    checked_tokens: int = 0
    where: str = ""
    """The token with the largest difference."""


Judge = Callable[[float, str], None]
"""Told the largest difference between recomputed and captured logprobs and where it is, before anything is changed; may raise."""


def update(
    model: PolicyModel,
    optimizer: torch.optim.Optimizer,
    sequences: Sequence[TrainingSequence],
    settings: GrpoSettings,
    *,
    version: str,
    reference: PolicyModel | None = None,
    judge: Judge | None = None,
) -> UpdateStats:
    """One step: `settings.epochs` passes over all sequences with an advantage, an optimizer step after each.

    `version` is what the model's weights are called: tokens that they sampled are compared with what the model says now, also
    those without an advantage. Gradients of several passes add up to that of the whole step.
    """
    rule = LossRule.of(settings)
    share = settings.share_prefix and model.can_share_prefix
    kept = [s for s in sequences if abs(s.advantage) > NO_ADVANTAGE and s.weight > 0 and len(trained_places(s))]
    others = [s for s in sequences if abs(s.advantage) <= NO_ADVANTAGE or s.weight <= 0]
    batches = _batches(kept, token_shares(kept, settings.aggregation), settings, version, share)
    check = _Check()
    with torch.no_grad():
        for batch in _batches(others, [0.0] * len(others), settings, version, share):
            if bool(batch.is_current.any()):
                check.see(batch, model.token_logprobs(batch)[0])
        references = [reference.token_logprobs(batch)[0] if reference is not None else None for batch in batches]
    anchors: list[Tensor | None] = [None] * len(batches)
    sums = torch.zeros(6)
    norm = 0.0
    for epoch in range(settings.epochs if batches else 0):
        optimizer.zero_grad(set_to_none=True)
        sums.zero_()
        for i, batch in enumerate(batches):
            logprobs, entropy = model.token_logprobs(batch, with_entropy=rule.entropy_coef > 0)
            if epoch == 0:
                check.see(batch, logprobs.detach())
                anchors[i] = logprobs.detach() if rule.anchor == "recomputed" else None
            told = token_loss(
                logprobs,
                batch.captured,
                batch.advantages,
                rule,
                anchor=anchors[i],
                reference=references[i],
                entropy=entropy,
            )
            loss = (batch.shares * told.loss).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            spread = (-logprobs if entropy is None else entropy).detach()
            parts = (told.loss.detach(), told.ratio, told.kl, told.kl_reference, spread, told.is_clipped.float())
            sums += torch.stack([(batch.shares * part).sum() for part in parts]).cpu()
        if epoch == 0 and judge is not None:
            judge(check.largest, check.where)
        norm = float(torch.nn.utils.clip_grad_norm_(model.module.parameters(), settings.grad_clip))
        if not math.isfinite(norm):  # one step of it, and every weight is NaN
            raise NotFiniteError(
                f"the gradient of epoch {epoch + 1} isn't finite (norm {norm}, loss {float(sums[0])}){_blame(kept)}. Nothing of this "
                "step was saved or pushed: go on from the last checkpoint with a smaller --lr, or without those sessions"
            )
        optimizer.step()
    if not batches and judge is not None:
        judge(check.largest, check.where)
    optimizer.zero_grad(set_to_none=True)
    loss_, ratio, kl, kl_reference, entropy_, clipped = sums.tolist() if batches else (0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    return UpdateStats(
        sequences=len(kept),
        tokens=sum(len(batch.targets) for batch in batches),
        computed_tokens=sum(len(batch.prefix) + batch.rest.numel() for batch in batches),
        loss=loss_,
        ratio=ratio,
        kl=kl,
        kl_reference=kl_reference,
        entropy=entropy_,
        clip_fraction=clipped,
        grad_norm=norm,
        max_logprob_diff=check.largest,
        checked_tokens=check.tokens,
        where=check.where,
    )


class _Check:
    """The largest difference between recomputed and captured logprobs of tokens that the current weights sampled."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.tokens = 0
        self.where = ""

    def see(self, batch: TokenBatch, logprobs: Tensor) -> None:
        """Compare one pass."""
        # What isn't a number differs from everything.
        differences = (logprobs - batch.captured).abs().nan_to_num(nan=_LARGEST).masked_fill(~batch.is_current, -1.0)
        self.tokens += int(batch.is_current.sum())
        worst = int(differences.argmax())
        if float(differences[worst]) > self.largest:
            self.largest = float(differences[worst])
            self.where = batch.where(worst)


def _blame(sequences: Sequence[TrainingSequence]) -> str:
    """Which sequences have a trained token whose captured logprob isn't finite, for a message; '' for none."""
    named = [s.name for s in sequences if not np.isfinite(s.logprobs[s.loss_mask == 1]).all()]
    return f", and neither are captured logprobs of {', '.join(named[:5])}" if named else ""


def _batches(
    sequences: Sequence[TrainingSequence],
    shares: Sequence[float],
    settings: GrpoSettings,
    version: str,
    share: bool,
) -> list[TokenBatch]:
    return [
        token_batch(sequences, part, shares, version=version, temperature=settings.temperature, device=settings.device)
        for part in plan_passes(sequences, settings.max_tokens_per_pass, share=share)
    ]
