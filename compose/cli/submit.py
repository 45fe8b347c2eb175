"""`polynya submit`: validate task files whole, then ask the orchestrator to run them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from bus import Bus
from compose.cli.connect import open_bus
from compose.cli.console import async_command, is_live, out, print_json
from compose.cli.display import results_table
from compose.cli.task_file import read_tasks, request_of
from compose.errors import CommandError
from compose.settings import load
from compose.submissions import LoggedTasks, Taken, digests_of, take
from compose.watch import Progress, follow
from schemas.task import TaskSpec

# Where nobody watches live, a line this often is enough.
PLAIN_EVERY_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("submit")(submit)


@async_command
async def submit(
    file: Annotated[str, typer.Argument(help="task file (YAML, JSON or JSON lines), or - for standard input")],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="follow the sessions to their end")] = False,
    timeout_s: Annotated[float, typer.Option(help="how long --wait waits")] = 3600.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Submit tasks. Nothing is submitted unless every task of the file is valid."""
    settings = load()
    specs = read_tasks(file)
    async with open_bus(settings) as bus:
        taken = {one.request.task_id: one for one in await submit_to(bus, specs)}
        total = sum(one.request.num_samples for one in taken.values())
        known = [task_id for task_id, one in taken.items() if not one.is_new]
        if not as_json:
            for task_id, one in taken.items():
                said = "submitted task" if one.is_new else "not run again: the same was submitted before as task"
                out.print(f"{said} {task_id}: {one.request.num_samples} session(s)", markup=False)
            if known:
                out.print("to run one anew, give it another task_id, or none")
        if not wait:
            if as_json:
                print_json({"tasks": list(taken), "sessions": total, "known": known})
            else:
                out.print("follow with: polynya status")
            return
        reporter = ProgressPrinter(quiet=as_json)
        try:
            progress = await follow(
                bus,
                taken,
                expected=total,
                since_ms=min(one.request.submitted_at for one in taken.values()),
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


async def submit_to(bus: Bus, specs: Sequence[TaskSpec]) -> list[Taken]:
    """Ask for these tasks; those that stand on the log already, word for word, aren't asked for again.

    Raises:
        CommandError: an id stands for another task, on the log or among these. Nothing is submitted then.
    """
    requests = [request_of(spec) for spec in specs]
    digests = digests_of(requests)
    # Ids that were made up just now needn't be looked for.
    log = LoggedTasks(bus, (spec.task_id for spec in specs if spec.task_id is not None))
    await log.read()
    return await take(bus, log, requests, digests)


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
