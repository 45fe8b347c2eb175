"""`trajectory`: a Python function sees the whole trajectory, and gives one number, named ones, or one for each trace."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import signal
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import orjson

from schemas import encode
from stage_workers import grading_process
from stage_workers.evaluators.base import (
    EvaluationContext,
    EvaluatorError,
    Grade,
    OptionKind,
    check_options,
    mapping_option,
    seconds_option,
    text_option,
)

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# The function is the operator's, but it has no use for what opens and seals leases.
_OUR_KEY = re.compile(r"POLYNYA_.*KEY")
_SAID_CHARACTERS = 2000


class TrajectoryEvaluator:
    """Calls `function(session, **arguments)` in a process of its own, so that neither its hanging nor its crash is ours.

    `session` is a `stage_workers.grading_process.GradedSession`. `docs/evaluators.md` lists the options.
    """

    NAME: ClassVar[str] = "trajectory"
    VERSION: ClassVar[str] = "1"
    OPTIONS: ClassVar[Mapping[str, OptionKind]] = {
        "function": "text",
        "arguments": "mapping",
        "timeout_s": "seconds",
        "reward": "text",
    }

    def __init__(self, options: Mapping[str, object]) -> None:
        check_options(self.NAME, options, self.OPTIONS)
        self._function = text_option(options, "function")
        if not _NAME.fullmatch(self._function):
            raise EvaluatorError(f"evaluator.options.function: {self._function!r} isn't of the form module:function")
        self._arguments = mapping_option(options, "arguments")
        self._timeout_s = seconds_option(options, "timeout_s", 300.0)
        self._reward = text_option(options, "reward", "reward")

    async def evaluate(self, context: EvaluationContext) -> list[Grade]:
        """What the function said, as grades. Raises EvaluatorError when it raised, took too long or gave something else."""
        trajectory = await context.trajectory()
        head = {
            "function": self._function,
            "arguments": self._arguments,
            "session_id": context.session_id,
            "task": context.task.model_dump(mode="json"),
            "status": str(context.status),
            "exit_code": context.exit_code,
        }
        answer = await _called(grading_process.packed(head, encode(trajectory).value), self._timeout_s)
        details = {"function": self._function, "traces": len(trajectory.traces)}
        return grades_of(answer, self._reward, traces=len(trajectory.traces), details=details)


async def _called(request: bytes, timeout_s: float) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"import sys; from {grading_process.__name__} import main; sys.exit(main())",
        env={name: value for name, value in os.environ.items() if not _OUR_KEY.fullmatch(name)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            answer, said = await process.communicate(request)
    except TimeoutError:
        raise EvaluatorError(f"the function was still running after {timeout_s:g} s") from None
    finally:
        # With what it started: the group has its number for as long as one of them is left.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    tail = said.decode("utf-8", "replace").strip()[-_SAID_CHARACTERS:]
    try:
        decoded = orjson.loads(answer) if process.returncode == 0 else {}
    except orjson.JSONDecodeError:
        decoded = {}
    if "answer" not in decoded:
        raise EvaluatorError(f"the function failed (exit code {process.returncode}): {decoded.get('error') or tail}")
    return decoded["answer"]


def grades_of(answer: Any, name: str, *, traces: int, details: Mapping[str, object]) -> list[Grade]:
    """A function's answer as grades: a number, numbers by name, or a list with one for each trace.

    Of a list the outcome is the mean. Raises EvaluatorError for anything else.
    """
    if isinstance(answer, Mapping):
        if not answer:
            raise EvaluatorError("the function gave no reward: an empty mapping")
        return [
            grade
            for key, value in answer.items()
            for grade in grades_of(value, str(key), traces=traces, details=details)
        ]
    if isinstance(answer, list):
        values = [_number(value) for value in answer]
        if len(values) != traces:
            raise EvaluatorError(f"the function gave {len(values)} rewards for {traces} traces")
        outcome = math.fsum(values) / len(values) if values else 0.0
        return [Grade(name=name, value=outcome, details=details, trace_values=values)]
    return [Grade(name=name, value=_number(answer), details=details)]


def _number(value: Any) -> float:
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise EvaluatorError(f"the function gave {value!r} where a finite number was expected")
