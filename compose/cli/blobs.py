"""`polynya blobs`: what lies in the blob store, and the sweep of what nobody needs any more."""

from __future__ import annotations

from typing import Annotated

import typer

from bus.blobs import open_store
from compose.cli.connect import bus_settings, open_bus
from compose.cli.console import async_command, out, print_json
from compose.cli.log_source import duration_s
from compose.settings import load

app = typer.Typer(help="The blob store: large values of the log, and the artifacts of gradings.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The blob store: large values of the log, and the artifacts of gradings."""


@app.command("prune")
@async_command
async def prune(
    *,
    older_than: Annotated[str, typer.Option(help="how old at least: 90s, 30m, 12h, 7d")] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would go")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Remove old blobs that no record on the log refers to, and artifacts whose time is over."""
    from bus.admin import TopicAdmin
    from compose.grading.prune import prune as sweep

    settings = load()
    older_than_s = duration_s("--older-than", older_than)
    async with TopicAdmin(bus_settings(settings)) as admin:
        topics = await admin.names()
    async with open_bus(settings) as bus:
        report = await sweep(bus, open_store(settings.blobs), topics, older_than_s=older_than_s, is_dry=dry_run)
    if as_json:
        print_json(report.as_json())
        return
    verb = "would go" if dry_run else "removed"
    out.print(f"{settings.blobs}: {report.blobs} blobs", markup=False)
    out.print(f"  {report.removed} {verb} ({report.removed_bytes} bytes)")
    out.print(f"  {report.kept} stay because the log refers to them, {report.young} because they are young")
    if report.undated:
        out.print(f"  {report.undated} stay because the store doesn't tell how old they are")
