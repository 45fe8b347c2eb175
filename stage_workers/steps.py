"""The steps of a task (`prepare`, `eval_prepare`, `post_run`): shell commands and uploads, each within its budget."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.records import Boundary
from schemas.task import Step
from stage_workers.errors import StageFault
from stage_workers.runtimes import Runtime, RuntimeFault


async def run_steps(runtime: Runtime, steps: Sequence[Step], name: str, boundary: Boundary) -> None:
    """Does the steps in order; `name` is the list's name in the task file.

    Raises:
        StageFault: a step failed or its budget was over; the text names the step and the end of what it said.
    """
    for index, step in enumerate(steps):
        where = f"{name}[{index}]"
        try:
            if step.upload is not None:
                await runtime.upload(step.upload.path, step.upload.content.encode(), step.upload.mode)
                continue
            command = step.exec or ""
            result = await runtime.exec(["/bin/sh", "-c", command], timeout_s=step.budget_s)
        except RuntimeFault as error:
            raise StageFault(boundary, f"{where}: {error}") from error
        if result.timed_out:
            raise StageFault(boundary, f"{where} took longer than its budget_s of {step.budget_s:g}: {result.tail()}")
        if result.exit_code != 0:
            raise StageFault(boundary, f"{where} exited with {result.exit_code}: {result.tail()}")
