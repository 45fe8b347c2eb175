"""`polynya topics`: the catalogue against the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from bus import TopicsRefusedError
from bus.admin import TopicAdmin
from bus.plan import Action, Change
from compose.cli.connect import bus_settings
from compose.cli.console import async_command, out, print_json
from compose.errors import CommandError
from compose.parts import internal_topics
from compose.settings import load

app = typer.Typer(
    help="Kafka topics: plan, apply, diff (the broker never creates one by itself).", no_args_is_help=True
)


async def _differences() -> list[Change]:
    settings = load()
    async with TopicAdmin(bus_settings(settings)) as admin:
        return await admin.diff(internal_topics(), partitions=settings.partitions)


def _show(changes: Sequence[Change]) -> None:
    for change in changes:
        details = f" ({', '.join(change.details)})" if change.details else ""
        out.print(f"{change.action:10} {change.topic}{details}", markup=False)


@app.command("plan")
@async_command
async def plan(*, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """What `apply` would do."""
    changes = await _differences()
    if as_json:
        print_json([{"topic": c.topic, "action": c.action, "details": c.details} for c in changes])
        return
    _show(changes)
    if not changes:
        out.print("nothing to do")


@app.command("diff")
@async_command
async def diff() -> None:
    """Like plan, but exits 1 when catalogue and cluster differ."""
    changes = [c for c in await _differences() if c.action is not Action.UNDECLARED]
    _show(changes)
    if changes:
        raise CommandError(f"{len(changes)} difference(s)", hint="polynya topics apply")
    out.print("catalogue and cluster agree")


@app.command("apply")
@async_command
async def apply() -> None:
    """Create what is missing and correct settings; a keyed topic's partitions never change."""
    settings = load()
    async with TopicAdmin(bus_settings(settings)) as admin:
        try:
            done = await admin.apply(internal_topics(), partitions=settings.partitions)
        except TopicsRefusedError as exc:
            raise CommandError(str(exc)) from exc
    _show(done)
    out.print(f"applied {len(done)} change(s)" if done else "nothing to do")
