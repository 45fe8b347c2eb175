"""The demo's evaluator: reads the file where it was left. No process is started for it, since a session takes 0.3 s in all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from compose.demo.family import reward
from stage_workers.evaluators.base import EvaluationContext, Grade, Place, check_options, text_option
from stage_workers.runtimes import RuntimeFault

_LIMIT_BYTES = 65_536


class WrittenWord:
    """Options: `word` and `file`. 1 where the file holds exactly the word, 0.2 where it holds something else, else 0."""

    NAME: ClassVar[str] = "written_word"
    VERSION: ClassVar[str] = "1"
    PLACE: ClassVar[Place] = "session"

    def __init__(self, options: Mapping[str, object]) -> None:
        check_options(self.NAME, options, ("word", "file"))
        self._word = text_option(options, "word")
        self._file = text_option(options, "file")

    async def evaluate(self, context: EvaluationContext) -> list[Grade]:
        """One grade, with what was found."""
        found: str | None
        try:
            data = await context.left_runtime.download(self._file, _LIMIT_BYTES)
            found = data.decode("utf-8", "replace")
        except RuntimeFault:  # not there, no plain file, or far too large: nobody wrote the word
            found = None
        return [Grade(name="reward", value=reward(self._word, found), details={"found": (found or "")[:100]})]
