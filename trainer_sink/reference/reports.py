"""What a step and a run tell: plain values, as they stand in metrics.jsonl."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

WINDOW: Final = 5
"""Steps in the moving average of rewards, and in the gain."""
FIRST: Final = 2
"""Steps whose mean is the baseline where none was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step. Times in seconds; `version` is what the step's weights became, `from_version` what they were."""

    step: int
    version: str
    from_version: str
    groups: int
    sessions: int
    sequences: int
    """Sequences that the loss saw."""
    tokens: int
    """Sampled tokens that the loss saw, per epoch."""
    computed_tokens: int
    """Tokens that went through the model per epoch, padding included, a shared prefix once."""
    reward: float
    """Mean over the sessions that have one."""
    reward_average: float
    """Mean of the last 5 steps, or of as many as there were."""
    gain: float
    """`reward_average` above the baseline."""
    loss: float = 0.0
    """Of the last epoch."""
    ratio: float = 1.0
    """Mean of the importance ratios in the last epoch."""
    kl: float = 0.0
    """Mean k3 estimate of the divergence from what sampled the tokens, in the last epoch."""
    kl_reference: float = 0.0
    """The same from the reference model."""
    entropy: float = 0.0
    """Mean entropy where the bonus is on, else the mean of -logprob of the sampled tokens."""
    clip_fraction: float = 0.0
    """Tokens whose gradient the clipping stopped, in the last epoch."""
    grad_norm: float = 0.0
    lr: float = 0.0
    max_logprob_diff: float = 0.0
    """Largest difference between recomputed and captured logprobs, of tokens that `from_version` sampled."""
    checked_tokens: int = 0
    """Tokens that were compared."""
    staleness_max: float = 0.0
    """Versions between a token's own and `from_version`: the largest."""
    staleness_mean: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    """Why sessions and traces gave nothing to train, by reason."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase: wait, read, train, save, push, total."""
    at: int = 0
    """UTC epoch ms of its end."""

    def to_json(self) -> dict[str, Any]:
        """One line of metrics.jsonl."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From such a line; fields of a later release are left out."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{k: v for k, v in values.items() if k in known})

    def published(self, version: str, seconds: Mapping[str, float]) -> Self:
        """With the version that its weights were pushed as, and all phases."""
        return dataclasses.replace(self, version=version, seconds=dict(seconds))

    def line(self) -> str:
        """For the console."""
        seconds = " ".join(f"{name} {value:.2f}" for name, value in self.seconds.items() if name != "total")
        diff = f"{self.max_logprob_diff:.1e}" if self.checked_tokens else "-"
        return (
            f"step {self.step:4d}  v{self.version:<4s} reward {self.reward:.3f} (avg {self.reward_average:.3f}, gain {self.gain:+.3f})  "
            f"loss {self.loss:+.4f}  ratio {self.ratio:.3f}  kl {self.kl:.4f}  clip {self.clip_fraction:.3f}  "
            f"stale {self.staleness_max:.0f}  tokens {self.tokens}  diff {diff}  [{seconds}] s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """A run, or the part of it since the last restart; `steps` holds the steps of this process."""

    steps: tuple[StepReport, ...]
    reason: str
    """Why it ended: max_steps, gain, idle, end_of_log or stopped."""
    rewards: tuple[float, ...]
    """Of every step since the run began, restarts included."""
    baseline: float
    gain: float
    version: str
    checkpoint: Path | None
    """The newest checkpoint directory, which an engine can serve."""
    max_logprob_diff: float
    seconds: float
    plot: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "checkpoint": _text(self.checkpoint), "plot": _text(self.plot)}


def average(rewards: Sequence[float]) -> float:
    """Mean of the last WINDOW rewards."""
    last = rewards[-WINDOW:]
    return sum(last) / len(last) if last else 0.0


def baseline_of(rewards: Sequence[float], given: float | None) -> float:
    """What the gain is measured from."""
    first = rewards[:FIRST]
    return given if given is not None else sum(first) / len(first) if first else 0.0


def has_gained(rewards: Sequence[float], given: float | None, wanted: float) -> bool:
    """Whether the last WINDOW steps are `wanted` above the baseline; never before there are so many after the baseline's own."""
    needed = WINDOW if given is not None else WINDOW + FIRST
    return len(rewards) >= needed and average(rewards) - baseline_of(rewards, given) >= wanted


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
