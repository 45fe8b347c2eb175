"""`polynya cancel`: ask the fleet to end what runs."""

from __future__ import annotations

import time
import uuid
from typing import Annotated

import typer

from compose.cli.connect import open_bus
from compose.cli.console import async_command, out
from compose.cli.status import resolve_session, states
from compose.errors import usage
from compose.settings import load
from schemas.records import Control, ControlAction
from schemas.records.base import Stage


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cancel")(cancel)


@async_command
async def cancel(
    target: Annotated[str, typer.Argument(help="a session id (or its start), or a task id with --task")],
    *,
    task: Annotated[bool, typer.Option("--task", help="TARGET is a task: cancel all its sessions")] = False,
    reason: Annotated[str, typer.Option(help="why, for the record")] = "cancelled by an operator",
) -> None:
    """Cancel a session, or every session of a task; each ends once, with status cancelled and what it has."""
    async with open_bus(load()) as bus:
        if task:
            of_task = [s for s in (await states(bus)).values() if s.task_id == target]
            if not of_task:
                raise usage(f"no session of a task {target!r}", hint="polynya status")
        else:
            target = await resolve_session(bus, target)
            of_task = [s for s in (await states(bus)).values() if s.session_id == target]
        left = [s for s in of_task if s.stage is not Stage.ENDED]
        if of_task and not left:
            out.print("nothing to cancel: ended already")
            return
        control = Control(
            control_id=uuid.uuid4().hex,
            target=target,
            target_kind="task" if task else "session",
            action=ControlAction.CANCEL,
            reason=reason,
            issuer="cli",
            at=int(time.time() * 1000),
        )
        await bus.publish(control)
    out.print(f"asked to cancel {max(1, len(left))} session(s); follow with: polynya status")
