"""`polynya export`: trajectories into files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compose.cli.connect import open_bus
from compose.cli.console import async_command, out, print_json
from compose.settings import load

app = typer.Typer(help="Exports of trajectories.", no_args_is_help=True)


@app.command("parquet")
@async_command
async def parquet(
    file: Annotated[Path, typer.Argument(help="the Parquet file to write")],
    *,
    policy: Annotated[str | None, typer.Option(help="only this policy's trajectories")] = None,
    task: Annotated[list[str] | None, typer.Option(help="only these tasks (repeatable)")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """One row per trace of every scored trajectory so far."""
    from trainer_sink.export.parquet import export_parquet

    async with open_bus(load()) as bus:
        report = await export_parquet(bus, file, policy_id=policy, task_ids=task)
    if as_json:
        print_json({"file": str(file), "rows": report.rows, "sessions": report.sessions})
    else:
        out.print(f"{file}: {report.rows} traces of {report.sessions} sessions")
