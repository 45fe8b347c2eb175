"""One run of a harness here, in a directory of its own: installed, launched by its plan, judged by its definition."""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import harnesses
from stage_workers.output import Lines
from stage_workers.runtimes import LocalRuntime
from stage_workers.runtimes.base import ExecResult

# The name that is asked for: one that no harness knows, since known names change what some of them send.
MODEL = "polynya-trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How it ended: the process' end, the verdict over it, and the files that it left in the working directory."""

    result: ExecResult
    verdict: harnesses.Verdict
    files: Mapping[str, bytes]
    seconds: float


async def run_harness(
    adapter: harnesses.Adapter,
    options: Mapping[str, object],
    *,
    instruction: str,
    urls: Mapping[str, str],
    secret: str,
    model: str = MODEL,
    forward: harnesses.ForwardProxy | None = None,
    timeout_s: float = 300.0,
    report: Callable[[str], None] = lambda _line: None,
) -> Run:
    """Runs a harness once in runtime `local` and throws its directory away.

    Raises:
        HarnessError: it can't be installed or launched with these options.
        RuntimeFault: this machine can't run it.
    """
    installed = await asyncio.to_thread(harnesses.ensure_installed, adapter, progress=report)
    with tempfile.TemporaryDirectory(prefix="polynya-try-") as root:
        # The processes of a runtime are found by its name: two tries at once must not have the same.
        place = LocalRuntime(Path(root), uuid.uuid4().hex[:12], owner="try")
        await place.start()
        try:
            plan = harnesses.launch_plan(
                adapter,
                options,
                instruction=instruction,
                urls=urls,
                secret=secret,
                model=model,
                home=place.home,
                workdir=place.workdir,
                executable=installed.executable,
                path_dirs=installed.path_dirs,
                forward=forward,
            )
            for path, content in plan.files.items():
                await place.upload(path, content, 0o600)
            judge = harnesses.Judge(adapter.verdict)
            lines = Lines(judge.feed)
            started = time.monotonic()
            result = await place.exec(
                plan.argv,
                timeout_s=timeout_s,
                env=plan.env,
                cwd=plan.cwd,
                path_dirs=plan.path_dirs,
                stdin=plan.stdin,
                on_output=lambda stream, data: lines.feed(data) if stream == "stdout" else None,
            )
            lines.close()
            return Run(
                result=result,
                verdict=judge.verdict(result.exit_code),
                files=await asyncio.to_thread(_files, Path(place.workdir)),
                seconds=time.monotonic() - started,
            )
        finally:
            await place.stop()


def _files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and ".git/" not in str(path)
    }
