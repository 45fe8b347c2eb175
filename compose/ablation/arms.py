"""The four arms, and what was published of two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from trainer_sink.credit import Weighting

Builder = Literal["per_request", "prefix_merging"]


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """How calls become traces, and what each trace weighs."""

    builder: Builder
    weighting: Weighting

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.builder}, {'1/traces' if self.weighting == 'per_session' else 'broadcast'}"


ARMS: Final = (
    Arm("per_request", "per_trace"),
    Arm("per_request", "per_session"),
    Arm("prefix_merging", "per_trace"),
    Arm("prefix_merging", "per_session"),
)
"""`per_request, broadcast` is the arm of which reward hacking was published; the last one is our default."""

PUBLISHED: Final = {
    "per_request": {"trainer_updates": 1185, "trainer_wall_clock_min": 189.5, "rollout_gpu_utilisation": 0.204},
    "prefix_merging": {"trainer_updates": 218, "trainer_wall_clock_min": 35.2, "rollout_gpu_utilisation": 0.877},
}
"""Polar (arXiv 2605.24220), figure 5b: three training steps of a 4B model on SWE-Gym issues, on eight GPUs."""
