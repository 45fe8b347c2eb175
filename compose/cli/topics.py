"""`polynya topics`: the catalogue against the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from compose.cli.connect import bus_settings
from compose.cli.console import async_command, out, print_json
from compose.errors import CommandError
from compose.settings import load

app = typer.Typer(help="Kafka topics: plan, apply, diff (the broker never creates one by itself).", no_args_is_help=True)


async def _plan() -> tuple[list[str], list[str]]:
    from bus.admin import TopicAdmin
    from compose.parts import internal_topics

    settings = load()
    async with TopicAdmin(bus_settings(settings)) as admin:
        plan = await admin.plan(internal_topics(), partitions=settings.partitions)
    return [str(c) for c in plan.changes], [str(r) for r in plan.refusals]


@app.command("plan")
@async_command
async def plan(*, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """What `apply` would do."""
    changes, refusals = await _plan()
    if as_json:
        print_json({"changes": changes, "refusals": refusals})
        return
    for line in changes or ["nothing to do"]:
        out.print(line, markup=False)
    for line in refusals:
        out.print(f"refused: {line}", markup=False)


@app.command("diff")
@async_command
async def diff() -> None:
    """Like plan, but exits 1 when catalogue and cluster differ."""
    changes, refusals = await _plan()
    for line in [*changes, *(f"refused: {r}" for r in refusals)]:
        out.print(line, markup=False)
    if changes or refusals:
        raise CommandError(f"{len(changes) + len(refusals)} difference(s)", hint="polynya topics apply")
    out.print("catalogue and cluster agree")


@app.command("apply")
@async_command
async def apply() -> None:
    """Create what is missing and correct settings; a keyed topic's partitions never change."""
    from bus.admin import TopicAdmin
    from compose.parts import internal_topics

    settings = load()
    async with TopicAdmin(bus_settings(settings)) as admin:
        done = await admin.apply(internal_topics(), partitions=settings.partitions)
    for change in done.changes:
        out.print(str(change), markup=False)
    out.print("applied" if done.changes else "nothing to do")
