"""The published ablation on our own line: the same calls as `per_request` and as `prefix_merging`, with and without `1 / traces`.

In: a log with captured sessions and their rewards, and the checkpoint that sampled them. Out: one table, `result.json`. What it can
and can't show is said in docs/ablation.md.
"""

from __future__ import annotations

from compose.ablation.arms import ARMS, Arm
from compose.ablation.captured import CapturedSet, read_set
from compose.ablation.offline import ArmResult, train_arm

__all__ = ["ARMS", "Arm", "ArmResult", "CapturedSet", "read_set", "train_arm"]
