"""Evaluators run by a person's command, in the current directory."""

from __future__ import annotations

import asyncio
from typing import Any

from compose.errors import CommandError, usage
from schemas.task import EvaluatorSpec

EVALUATE_WITHIN_S = 600.0


async def evaluate_here(evaluator: EvaluatorSpec) -> tuple[float, dict[str, Any]]:
    """The verdict of an evaluator that needs no runtime of ours; CommandError when it fails."""
    if evaluator.name == "session_completed":
        return 1.0, {}
    if evaluator.name != "command":
        raise usage(f"no evaluator {evaluator.name!r} here", hint="--evaluator command --command 'pytest -q'")
    from stage_workers.evaluators.command import verdict_of

    process = await asyncio.create_subprocess_shell(
        str(evaluator.options["command"]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), EVALUATE_WITHIN_S)
    except TimeoutError as exc:
        process.kill()
        await process.wait()
        raise CommandError(f"the evaluator's command took more than {EVALUATE_WITHIN_S:.0f} s") from exc
    value = verdict_of(process.returncode or 0, output.decode(errors="replace"), evaluator.options)
    return value, {"exit_code": process.returncode}
