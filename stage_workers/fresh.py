"""A fresh runtime for the evaluator: made ready in the background while the agent runs, and thrown away if nobody grades."""

from __future__ import annotations

import asyncio

import structlog

from schemas.records import Boundary, Status
from schemas.task import TaskSpec
from stage_workers.errors import StageFault
from stage_workers.runtimes import Runtime, RuntimeFactory, RuntimeFault
from stage_workers.steps import run_steps

log = structlog.get_logger(__name__)


class FreshRuntime:
    """One session's second runtime.

    `begin` starts on it; `ready` waits for it, and tries once more where the first try failed; `discard` ends it, whatever its
    state. Each try has `budgets.init_s`, as a session's own runtime has.
    """

    def __init__(self, runtimes: RuntimeFactory, task: TaskSpec, name: str) -> None:
        """`name` is unique on this worker."""
        self._runtimes = runtimes
        self._task = task
        self._name = name
        self._tries = 0
        self._preparing: asyncio.Task[Runtime] | None = None
        self._made: list[Runtime] = []

    def begin(self) -> None:
        """Starts preparing; returns at once."""
        self._tries += 1
        self._preparing = asyncio.create_task(self._prepare(), name=f"fresh-{self._name}")

    async def ready(self) -> Runtime:
        """The prepared runtime. Raises StageFault when it can't be had."""
        if self._preparing is None:
            self.begin()
        while True:
            assert self._preparing is not None
            try:
                # Shielded: whose patience ends cancels its own waiting; what is half made is `discard`'s.
                return await asyncio.shield(self._preparing)
            except StageFault as fault:
                if self._tries > 1:
                    raise
                log.warning("fresh_runtime.again", runtime=self._name, error=fault.error)
                self.begin()

    async def discard(self) -> None:
        """Stops what was made; may be called twice."""
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            preparing.cancel()
            await asyncio.wait({preparing})
            if not preparing.cancelled() and (error := preparing.exception()) is not None:
                log.info("fresh_runtime.unused", runtime=self._name, error=str(error))
        while self._made:
            await self._made.pop().stop()

    async def _prepare(self) -> Runtime:
        task, budget_s = self._task, self._task.budgets.init_s
        spec = task.evaluator.runtime or task.runtime
        try:
            runtime = self._runtimes(spec, f"{self._name}{self._tries if self._tries > 1 else ''}")
            self._made.append(runtime)
            async with asyncio.timeout(budget_s):
                await runtime.start()
                if task.eval_prepare:
                    await run_steps(runtime, task.eval_prepare, "eval_prepare", Boundary.EVALUATOR)
                else:
                    await run_steps(runtime, task.prepare, "prepare (in the evaluator's runtime)", Boundary.EVALUATOR)
        except TimeoutError:
            text = f"the evaluator's runtime wasn't ready within budgets.init_s ({budget_s:g} s)"
            raise StageFault(Boundary.EVALUATOR, text, Status.TIMEOUT) from None
        except RuntimeFault as error:
            raise StageFault(Boundary.SANDBOX, f"the evaluator's runtime: {error}") from error
        return runtime
