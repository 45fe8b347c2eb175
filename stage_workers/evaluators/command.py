"""`command`: a shell command in the session's runtime grades: by its exit code, or by the number that it prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from stage_workers.evaluators.base import (
    EvaluationContext,
    EvaluatorError,
    Grade,
    OptionKind,
    check_options,
    text_option,
)
from stage_workers.runtimes import RuntimeFault

# How much of what the command said stands in the reward's details.
_SAID_CHARACTERS = 400


class CommandEvaluator:
    """Runs `command` with a shell in the working directory: of the session's runtime, or of a fresh one where it asks for it.

    Options: `command`; `score`: `exit_code` (default: 1.0 for 0, else 0.0) or `printed` (the last line of standard output is
    the number, and an exit code other than 0 is a failure of the evaluator); `reward` (the reward's name). The command finds
    POLYNYA_STATUS, POLYNYA_EXIT_CODE and POLYNYA_SESSION_ID in its environment.
    """

    NAME: ClassVar[str] = "command"
    VERSION: ClassVar[str] = "1"
    OPTIONS: ClassVar[Mapping[str, OptionKind]] = {"command": "text", "score": "text", "reward": "text"}

    def __init__(self, options: Mapping[str, object]) -> None:
        check_options(self.NAME, options, self.OPTIONS)
        self._command = text_option(options, "command")
        self._score = text_option(options, "score", "exit_code")
        if self._score not in {"exit_code", "printed"}:
            raise EvaluatorError(f"evaluator.options.score: must be exit_code or printed, not {self._score!r}")
        self._reward = text_option(options, "reward", "reward")

    async def evaluate(self, context: EvaluationContext) -> list[Grade]:
        """One grade. Raises EvaluatorError when the command ran out of time or printed no number."""
        env = {
            "POLYNYA_STATUS": str(context.status),
            "POLYNYA_EXIT_CODE": "" if context.exit_code is None else str(context.exit_code),
            "POLYNYA_SESSION_ID": context.session_id,
        }
        try:
            result = await context.place.exec(["/bin/sh", "-c", self._command], timeout_s=context.evaluate_s, env=env)
        except RuntimeFault as error:
            raise EvaluatorError(f"the command could not be run: {error}") from error
        if said := result.stdout + result.stderr:
            await context.artifacts.keep("evaluator.log", said)
        if result.timed_out:
            raise EvaluatorError(f"the command was still running after {context.evaluate_s:g} s: {result.tail()}")
        output = result.stdout.decode("utf-8", "replace")
        value = verdict_of(result.exit_code, output, {"score": self._score}, said=result.tail())
        details = {"exit_code": result.exit_code, "said": result.tail(_SAID_CHARACTERS)}
        return [Grade(name=self._reward, value=value, details=details)]


def verdict_of(exit_code: int, output: str, options: Mapping[str, object], said: str = "") -> float:
    """The number that a grading command gives, from its exit code and its standard output, by the option `score`.

    Raises:
        EvaluatorError: `printed` was asked for, and the command failed or its last line is no finite number.
    """
    if options.get("score", "exit_code") == "exit_code":
        return 1.0 if exit_code == 0 else 0.0
    said = said or " | ".join(output.strip().splitlines())[-_SAID_CHARACTERS:]
    if exit_code != 0:
        raise EvaluatorError(f"the command exited with {exit_code} instead of printing a number: {said}")
    lines = output.strip().splitlines()
    try:
        value = float(lines[-1]) if lines else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise EvaluatorError(f"the last line of the command's output is no finite number: {said}")
    return value
