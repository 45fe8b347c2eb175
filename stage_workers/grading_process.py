"""The process in which a person's grading function runs: a session on standard input, its answer on standard output."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from schemas import decode
from schemas.records import Trajectory

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedSession:
    """What a grading function sees: the trajectory with its traces and calls, the task as a tree, and how the run ended."""

    session_id: str
    trajectory: Trajectory
    task: Mapping[str, Any]
    status: str
    exit_code: int | None


def packed(head: Mapping[str, Any], trajectory: bytes) -> bytes:
    """One request: a line of JSON, and the trajectory in its wire form behind it."""
    return orjson.dumps(head) + b"\n" + trajectory


def answer_of(request: bytes) -> Any:
    """What the named function says of the session. Raises whatever it raises."""
    head, _, value = request.partition(b"\n")
    given = orjson.loads(head)
    trajectory = decode(value)
    assert isinstance(trajectory, Trajectory)
    module, _, name = given.pop("function").partition(":")
    function = getattr(importlib.import_module(module), name)
    arguments = given.pop("arguments")
    answer = function(GradedSession(trajectory=trajectory, **given), **arguments)
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    return await answer


def main() -> int:
    """Reads, calls, answers; what the function prints goes to standard error."""
    # A worker that is killed takes this process with it: nobody could enforce its deadline any more.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    sys.path.insert(0, str(Path.cwd()))
    # Programs that the function starts inherit no way to write into the answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = sys.stdin.buffer.read()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer = {"answer": answer_of(request)}
        reply = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    except Exception as error:  # noqa: BLE001  # a person's function: whatever it raises is its answer
        reply = orjson.dumps({"error": f"{type(error).__name__}: {error}"})
    with answers:
        answers.write(reply)
    return 0


if __name__ == "__main__":
    sys.exit(main())
