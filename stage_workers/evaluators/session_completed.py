"""`session_completed`: 1 for a run that completed, 0 for one that failed or ran out of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from schemas.records import Status
from stage_workers.evaluators.base import EvaluationContext, Grade, OptionKind, check_options, text_option


class SessionCompletedEvaluator:
    """Grades by how the run ended. Option: `reward` (the reward's name)."""

    NAME: ClassVar[str] = "session_completed"
    VERSION: ClassVar[str] = "1"
    OPTIONS: ClassVar[Mapping[str, OptionKind]] = {"reward": "text"}

    def __init__(self, options: Mapping[str, object]) -> None:
        check_options(self.NAME, options, self.OPTIONS)
        self._reward = text_option(options, "reward", "reward")

    async def evaluate(self, context: EvaluationContext) -> list[Grade]:
        """One grade, 1.0 or 0.0."""
        value = 1.0 if context.status is Status.COMPLETED else 0.0
        return [Grade(name=self._reward, value=value, details={"status": str(context.status)})]
