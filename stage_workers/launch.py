"""Launching a harness in its runtime: files, argv and environment from its adapter, output to bounded logs, its verdict."""

from __future__ import annotations

from dataclasses import replace

import harnesses
from schemas.records import Boundary, Status
from stage_workers.attribution import attributed
from stage_workers.errors import StageFault
from stage_workers.keeper import LeaseKeeper
from stage_workers.kit import Kit
from stage_workers.output import BoundedLog, Lines
from stage_workers.runtimes import ExecResult, RuntimeFault
from stage_workers.runtimes.base import Stream
from stage_workers.sessions import Outcome, Session

# Configuration files name the lease's secret: for the session's user alone.
_FILE_MODE = 0o600
# What stands for a lease's secret in a text that leaves its worker.
_HIDDEN = "[secret]"


async def launch(kit: Kit, session: Session, keeper: LeaseKeeper, secret: str, run_s: float) -> Outcome:
    """Runs the session's harness for at most `run_s` seconds; its process tree is dead when this returns.

    Raises:
        StageFault: the runtime failed.
        HarnessError: the harness can't be launched with these values.
    """
    adapter, runtime = session.adapter, session.runtime
    if adapter is None or runtime is None:
        raise StageFault(Boundary.SANDBOX, "the session was never prepared")
    plan = harnesses.launch_plan(
        adapter,
        session.task.harness.options,
        instruction=session.task.instruction,
        urls=harnesses.base_urls(keeper.address, secret, adapter.url_form),
        secret=secret,
        model=session.spec.policy_id or session.task.policy_id,
        home=runtime.home,
        workdir=runtime.workdir,
        executable=session.installed.executable,
        path_dirs=session.installed.path_dirs,
        forward=keeper.forward,
    )
    judge = harnesses.Judge(adapter.verdict)
    lines = Lines(judge.feed)
    directory = kit.log_dir(session)
    logs: dict[Stream, BoundedLog] = {
        "stdout": BoundedLog(directory / "stdout.log", kit.settings.log_limit_bytes),
        "stderr": BoundedLog(directory / "stderr.log", kit.settings.log_limit_bytes),
    }

    def take(stream: Stream, data: bytes) -> None:
        logs[stream].feed(data)
        if stream == "stdout":
            lines.feed(data)

    try:
        for path, content in plan.files.items():
            await runtime.upload(path, content, _FILE_MODE)
        result = await runtime.exec(
            plan.argv,
            timeout_s=run_s,
            env=plan.env,
            cwd=plan.cwd,
            path_dirs=plan.path_dirs,
            stdin=plan.stdin,
            on_output=take,
        )
    except RuntimeFault as error:
        raise StageFault(Boundary.SANDBOX, str(error)) from error
    finally:
        for log in logs.values():
            log.close()
    lines.close()
    outcome = await attributed(kit, session, keeper, _outcome(judge, _without(secret, result), run_s))
    return replace(outcome, error=outcome.error.replace(secret, _HIDDEN))


def _without(secret: str, result: ExecResult) -> ExecResult:
    """What the program said, fit to be told: harnesses name their base URL, which holds the secret, when a call fails."""
    named, hidden = secret.encode(), _HIDDEN.encode()
    return replace(result, stdout=result.stdout.replace(named, hidden), stderr=result.stderr.replace(named, hidden))


def _outcome(judge: harnesses.Judge, result: ExecResult, run_s: float) -> Outcome:
    if result.timed_out:
        return Outcome(
            status=Status.TIMEOUT,
            boundary=Boundary.HARNESS,
            exit_code=result.exit_code,
            error=f"the harness was still running after {run_s:.0f} s",
        )
    verdict = judge.verdict(result.exit_code)
    if verdict.succeeded:
        return Outcome(status=Status.COMPLETED, exit_code=result.exit_code)
    said = result.tail()
    return Outcome(
        status=Status.FAILED,
        boundary=Boundary.HARNESS,
        exit_code=result.exit_code,
        error=f"{verdict.error}: {said}" if said and result.exit_code else verdict.error,
    )
