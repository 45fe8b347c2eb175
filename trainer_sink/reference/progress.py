"""How far a run has come: its steps and their rewards, restarts included, and whether that is enough."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trainer_sink.groups import Group
from trainer_sink.reference.checkpoints import RunState
from trainer_sink.reference.reports import StepReport, average, baseline_of, has_gained
from trainer_sink.reference.settings import GrpoSettings
from trainer_sink.staleness import VersionOrder, staleness_of

Reason = Literal["max_steps", "gain", "idle", "end_of_log", "stopped"]


class Progress:
    """Counts on from a checkpoint's state, or from nothing."""

    def __init__(self, settings: GrpoSettings, state: RunState | None) -> None:
        self._settings = settings
        self.step = 0 if state is None else state.step
        """The last one that was published."""
        self.rewards: list[float] = [] if state is None else list(state.rewards)
        """The mean of each step so far."""
        self.reports: list[StepReport] = []
        """Of the steps of this process."""

    @property
    def baseline(self) -> float:
        """What the gain is measured from."""
        return baseline_of(self.rewards, self._settings.baseline)

    @property
    def gain(self) -> float:
        """The last steps' mean reward above the baseline; 0 before the first step."""
        return average(self.rewards) - self.baseline if self.rewards else 0.0

    def enough(self) -> Reason | None:
        """Why the run is over, by its settings; None when it isn't."""
        settings = self._settings
        if settings.max_steps is not None and self.step >= settings.max_steps:
            return "max_steps"
        if settings.stop_at_gain is not None and has_gained(self.rewards, settings.baseline, settings.stop_at_gain):
            return "gain"
        return None

    def trained(
        self,
        groups: Sequence[Group],
        from_version: str,
        *,
        counts: Mapping[str, int],
        seconds: Mapping[str, float],
        stats: Mapping[str, Any],
    ) -> StepReport:
        """The report of the next step, which trained `groups`: all but its version and the phases that are still to come.

        `stats` are the fields that `Learner.update` gives. Its reward counts from now on.
        """
        scored = [one for group in groups for one in group.scored]
        rewards = [one.verdict for one in scored if one.verdict is not None]
        staleness = staleness_of(scored, VersionOrder(), from_version)
        self.rewards.append(sum(rewards) / len(rewards) if rewards else 0.0)
        return StepReport(
            step=self.step + 1,
            version="",
            from_version=from_version,
            groups=len(groups),
            sessions=len(scored),
            reward=self.rewards[-1],
            reward_average=average(self.rewards),
            gain=self.gain,
            lr=self._settings.lr_at(self.step + 1),
            staleness_max=staleness.max,
            staleness_mean=staleness.mean,
            counts=dict(counts),
            seconds=dict(seconds),
            at=time.time_ns() // 1_000_000,
            **stats,
        )

    def published(self, report: StepReport) -> None:
        """The step is in the weights, on the log and in the engines."""
        self.step = report.step
        self.reports.append(report)
