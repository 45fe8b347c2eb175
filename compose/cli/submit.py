"""`polynya submit`: validate task files whole, then ask the orchestrator to run them."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from compose.cli.connect import open_bus
from compose.cli.console import async_command, is_live, out, print_json
from compose.cli.display import results_table
from compose.cli.task_file import read_tasks, request_of
from compose.errors import CommandError
from compose.settings import load
from compose.watch import Progress, follow

# Where nobody watches live, a line this often is enough.
PLAIN_EVERY_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("submit")(submit)


@async_command
async def submit(
    file: Annotated[str, typer.Argument(help="task file (YAML or JSON), or - for standard input")],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="follow the sessions to their end")] = False,
    timeout_s: Annotated[float, typer.Option(help="how long --wait waits")] = 3600.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Submit tasks. Nothing is submitted unless every task of the file is valid."""
    settings = load()
    requests = [request_of(spec) for spec in read_tasks(file)]
    since_ms = int(time.time() * 1000)
    async with open_bus(settings) as bus:
        for request in requests:
            await bus.publish(request)
        total = sum(r.num_samples for r in requests)
        if not as_json:
            for request in requests:
                out.print(f"submitted task {request.task_id}: {request.num_samples} session(s)")
        if not wait:
            if as_json:
                print_json({"tasks": [r.task_id for r in requests], "sessions": total})
            else:
                out.print("follow with: polynya status")
            return
        reporter = ProgressPrinter(quiet=as_json)
        try:
            progress = await follow(
                bus,
                [r.task_id for r in requests],
                expected=total,
                since_ms=since_ms,
                timeout_s=timeout_s,
                on_change=reporter.show,
            )
        except TimeoutError as exc:
            raise CommandError(f"not all sessions ended within {timeout_s:.0f} s", hint="polynya status") from exc
    scored = list(progress.scored.values())
    if as_json:
        print_json([{"session_id": s.session_id, "status": s.status, "reward": s.reward} for s in scored])
    else:
        out.print(results_table(scored))


class ProgressPrinter:
    """Prints a progress line when it changes: over the last one on a terminal, plain lines elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._last = ""
        self._printed_s = 0.0
        self._quiet = quiet

    def show(self, progress: Progress) -> None:
        """Print the summary if it isn't the last one."""
        line = progress.summary()
        now_s = time.monotonic()
        is_early = not is_live() and not progress.is_done and now_s - self._printed_s < PLAIN_EVERY_S
        if self._quiet or line == self._last or is_early:
            return
        self._last, self._printed_s = line, now_s
        out.print(line, end="\r" if is_live() and not progress.is_done else "\n")
