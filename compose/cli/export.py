"""`polynya export`: trajectories and calls into files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from compose.cli import export_datasets
from compose.cli.console import async_command, out, print_json
from compose.cli.log_source import open_log, point_in_time
from compose.cli.status import resolve_session

app = typer.Typer(
    help="Exports: data sets of conversations, pairs and traces; trajectories and calls as Parquet.",
    no_args_is_help=True,
)
export_datasets.register(app)


@app.command("parquet")
@async_command
async def parquet(
    file: Annotated[Path, typer.Argument(help="the Parquet file to write")],
    *,
    policy: Annotated[str | None, typer.Option(help="only this policy's trajectories")] = None,
    task: Annotated[list[str] | None, typer.Option(help="only these tasks (repeatable)")] = None,
    allow_off_context: Annotated[
        bool, typer.Option("--allow-off-context", help="also spliced traces, whose tokens saw another context")
    ] = False,
    archive: Annotated[Path | None, typer.Option(help="read this archive instead of Kafka")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """One row per trace of every scored trajectory so far."""
    from trainer_sink.export.parquet import export_parquet

    async with open_log(archive) as log:
        report = await export_parquet(log, file, policy_id=policy, task_ids=task, allow_off_context=allow_off_context)
    if as_json:
        print_json({"file": str(file), **dataclasses.asdict(report)})
        return
    out.print(f"{file}: {report.rows} traces of {report.sessions} sessions")
    if report.skipped:
        out.print("left out: " + ", ".join(f"{n} {reason}" for reason, n in report.skipped.items()))


@app.command("completions")
@async_command
async def completions(
    file: Annotated[Path, typer.Argument(help="the Parquet file to write")],
    *,
    from_time: Annotated[
        str | None, typer.Option("--from", help="calls recorded from then on: ISO 8601, 2h, epoch ms")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="only this policy's calls")] = None,
    session: Annotated[str | None, typer.Option(help="only this session, by its id or its start")] = None,
    archive: Annotated[Path | None, typer.Option(help="read this archive instead of Kafka")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """One row per captured call, with its whole prompt and messages."""
    from trainer_sink.export.completions import export_completions

    since = point_in_time("--from", from_time)
    async with open_log(archive) as log:
        report = await export_completions(
            log,
            file,
            start="earliest" if since is None else since,
            policy_id=policy,
            session_id=None if session is None else await resolve_session(log, session, also="capture.completions"),
        )
    if as_json:
        print_json({"file": str(file), **dataclasses.asdict(report)})
        return
    out.print(
        f"{file}: {report.rows} calls of {report.sessions} leases, {report.prompt_tokens} prompt tokens, "
        f"{report.sampled_tokens} sampled"
    )
    for reason, n in sorted(report.unresolved.items()):
        out.print(f"{n} calls without a prompt: {reason}")
    if report.unreadable:
        out.print(f"{report.unreadable} records can't be read")
