"""`polynya evaluate`: grade sessions that are over again."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bus import Bus
from compose.cli.connect import open_bus
from compose.cli.console import async_command, err, out, print_json
from compose.cli.status import resolve_session
from compose.cli.task_file import check_evaluator, check_evaluator_name
from compose.errors import CommandError, usage
from compose.grading.again import Regraded, Regrading
from compose.grading.evaluator_text import parse_evaluator
from compose.grading.past import PastSession, past_sessions
from compose.settings import default_cache, load


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(evaluate)


@async_command
async def evaluate(
    *,
    task: Annotated[list[str] | None, typer.Option(help="the sessions of this task (repeatable)")] = None,
    group: Annotated[list[str] | None, typer.Option(help="the sessions of this group (repeatable)")] = None,
    session: Annotated[list[str] | None, typer.Option(help="this session, by the start of its id (repeatable)")] = None,
    evaluator: Annotated[
        str | None, typer.Option(help="NAME, NAME:key=value,… or NAME:{json} (default: each task's own)")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="grade in a fresh runtime, prepared as the task says (with --evaluator)")
    ] = False,
    at_once: Annotated[int, typer.Option(min=1, help="gradings at a time")] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="grade, and publish nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Grade sessions again from their artifacts and trajectories. Verdicts that are news become revisions of their results."""
    if not (task or group or session):
        raise usage("say which sessions", hint="polynya evaluate --task ID, --group ID or --session ID")
    if fresh and not evaluator:
        raise usage("--fresh needs --evaluator: a task's own evaluator grades where its task says")
    asked = parse_evaluator(evaluator) if evaluator else None
    if asked is not None:
        asked = asked.model_copy(update={"fresh": fresh or None})
        # Without options those of each task are meant.
        check_evaluator(asked) if asked.options else check_evaluator_name(asked.name)
    settings = load()
    async with open_bus(settings) as bus:
        found = await _sessions(bus, task or [], group or [], session or [])
        if not found:
            raise usage("the log has no session of such a task or group", hint="polynya status --groups")
        from stage_workers.runtimes.factory import Runtimes

        with tempfile.TemporaryDirectory(prefix="polynya-evaluate-") as place:
            owner = f"evaluate-{uuid.uuid4().hex[:12]}/{uuid.uuid4().hex}"
            runtimes = Runtimes(root=Path(place), owner=owner, cache_dir=default_cache())
            grading = Regrading(bus, runtimes, artifact_retention_s=settings.artifact_retention_s, is_dry=dry_run)
            try:
                done = await grading.grade_all(
                    found, asked, at_once=at_once, on_done=lambda one: None if as_json else _say(one)
                )
            finally:
                await runtimes.close()
    if as_json:
        print_json([_plain(one) for one in done])
    else:
        out.print(_table(done))
        news = sum(bool(one.news) for one in done)
        out.print(f"{news} of {len(done)} sessions got another verdict" + (" (not published)" if dry_run else ""))
    if failed := sum(bool(one.error) for one in done):
        raise CommandError(f"{failed} of {len(done)} sessions could not be graded again")


async def _sessions(bus: Bus, tasks: list[str], groups: list[str], sessions: list[str]) -> list[PastSession]:
    whole = [await resolve_session(bus, prefix) for prefix in sessions]
    return await past_sessions(bus, tasks=tasks, groups=groups, sessions=whole)


def _say(one: Regraded) -> None:
    if one.error:
        err.print(f"{one.session.session_id[:8]}: {one.error}", markup=False)


def _plain(one: Regraded) -> dict[str, Any]:
    return {
        "session_id": one.session.session_id,
        "rewards": {reward.name: reward.value for reward in one.rewards},
        "before": {name: reward.value for name, reward in one.session.rewards.items()},
        "news": [reward.name for reward in one.news],
        "error": one.error,
    }


def _table(done: list[Regraded]) -> Table:
    table = Table("session", "task", "reward", "before", "now", "")
    for one in done:
        if one.error:
            table.add_row(one.session.session_id[:8], one.session.spec.task_id, "", "", "", "not graded")
        for reward in one.rewards:
            before = one.session.rewards.get(reward.name)
            table.add_row(
                one.session.session_id[:8],
                one.session.spec.task_id,
                reward.name,
                "-" if before is None else f"{before.value:g}",
                f"{reward.value:g}",
                "new" if reward in one.news else "as before",
            )
    return table
