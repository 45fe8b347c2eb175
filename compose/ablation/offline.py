"""Training one arm on the captured set: how many updates it takes, of how many tokens, for how many seconds."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from compose.ablation.arms import Arm
from compose.ablation.captured import CapturedSet
from trainer_sink.reference.settings import GrpoSettings
from trainer_sink.sequences import TrainingSequence, sequences_of

SEQUENCES_PER_UPDATE: Final = 16
"""As a trainer with a fixed batch of samples has it: the more traces a session is cut into, the more updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """What one arm cost. Seconds are the trainer's own, without loading the model."""

    arm: Arm
    sessions: int
    """That were trained: those of groups whose rewards differ."""
    calls: int
    traces: int
    trainer_updates: int
    trained_tokens: int
    """Sampled tokens in the loss."""
    computed_tokens: int
    """Tokens that went through the model, padding included: what the trainer pays for."""
    trainer_cpu_s: float
    trainer_wall_s: float
    longest_quarter_share: float
    """Share of the loss that the quarter of the sessions with the most calls has; evenly it would be 0.25."""
    final_kl: float
    """How far the weights went from those that sampled, in the last update (k3)."""
    max_logprob_diff: float
    """Recomputed against captured, before the first update."""
    counts: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "arm": self.arm.name, "builder": self.arm.builder, "weighting": self.arm.weighting}


def settings_of(arm: Arm, model: Path, output_dir: Path, *, seed: int = 0) -> GrpoSettings:
    """The reference trainer's, for all arms alike but for the weighting.

    One epoch, so that an update is one optimizer step; every sequence counts as its weight (`sequence_mean`), so that with
    `1 / traces` each session counts once; no prefix is shared between sequences, as in trainers that pack them.
    """
    return GrpoSettings(
        model=model,
        output_dir=output_dir,
        resume=False,
        weighting=arm.weighting,
        aggregation="sequence_mean",
        epochs=1,
        share_prefix=False,
        warmup_steps=0,
        seed=seed,
    )


def train_arm(
    arm: Arm, captured: CapturedSet, settings: GrpoSettings, *, sequences_per_update: int = SEQUENCES_PER_UPDATE
) -> ArmResult:
    """Train the set once under the arm's rule. Blocks for as long as that takes; needs torch."""
    from trainer_sink.reference.learner import Learner

    counts: Counter[str] = Counter()
    sequences = [
        sequence
        for group in captured.groups[arm.builder]
        for sequence in sequences_of(group, settings.credit, leave_out=settings.leave_out, counts=counts)
    ]
    calls = captured.calls
    sessions = {s.session_id for s in sequences}
    learner = Learner.load(settings, None)
    version = captured.versions[0] if captured.versions else ""
    updates = trained = computed = 0
    kl = largest = 0.0
    cpu, wall = time.process_time(), time.monotonic()
    for step, batch in enumerate(batches(sequences, sequences_per_update), 1):
        # Only the first update's weights are those that sampled: later ones have names that no token carries.
        told = learner.update(batch, step, version if step == 1 else f"{arm.name} {step}", lambda *_: None)
        updates += 1 if told["sequences"] else 0
        trained += told["tokens"]
        computed += told["computed_tokens"]
        kl = told["kl"]
        largest = max(largest, told["max_logprob_diff"])
    return ArmResult(
        arm=arm,
        sessions=len(sessions),
        calls=sum(calls[s] for s in sessions),
        traces=len(sequences),
        trainer_updates=updates,
        trained_tokens=trained,
        computed_tokens=computed,
        trainer_cpu_s=time.process_time() - cpu,
        trainer_wall_s=time.monotonic() - wall,
        longest_quarter_share=longest_quarter_share(sequences, calls),
        final_kl=kl,
        max_logprob_diff=largest,
        counts=dict(counts),
    )


def longest_quarter_share(sequences: Sequence[TrainingSequence], calls: dict[str, int]) -> float:
    """What the sessions with the most calls weigh in the loss, of all; 0.25 where each session counts once."""
    weights: Counter[str] = Counter()
    for sequence in sequences:
        weights[sequence.session_id] += sequence.weight  # type: ignore[assignment]  # a Counter of floats
    longest = sorted(weights, key=lambda s: (-calls[s], s))
    quarter = longest[: max(1, len(longest) // 4)]
    total = sum(weights.values())
    return sum(weights[s] for s in quarter) / total if total else 0.0


def batches(sequences: Sequence[TrainingSequence], size: int) -> Iterator[list[TrainingSequence]]:
    """Batches of a fixed number of traces, the last one smaller."""
    rest = iter(sequences)
    while batch := list(itertools.islice(rest, size)):
        yield batch
