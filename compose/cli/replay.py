"""`polynya replay` and `polynya archive`: the past made again, and kept."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compose.cli.connect import bus_settings, open_bus
from compose.cli.console import async_command, err, is_live, out, print_json
from compose.cli.log_source import open_log, time_span
from compose.cli.status import resolve_session
from compose.errors import CommandError, usage
from compose.settings import load

if TYPE_CHECKING:
    from bus.protocol import LogReader
    from compose.replay_out import Checkpoint, FileOutput, TopicOutput


CALLS = "capture.completions"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("replay")(replay)
    app.command("archive")(archive)


@async_command
async def replay(
    *,
    to_: Annotated[str, typer.Option("--out", help="a topic (trajectory.replay.NAME) or a .jsonl or .parquet file")],
    from_time: Annotated[
        str | None, typer.Option("--from", help="sessions opened from then on: ISO 8601, 2h, epoch ms")
    ] = None,
    to_time: Annotated[str | None, typer.Option("--to", help="sessions opened before then")] = None,
    builder: Annotated[str, typer.Option(help="prefix_merging or per_request (default: each session's own)")] = "",
    drift: Annotated[str | None, typer.Option(help="split or splice: what becomes of re-tokenised replies")] = None,
    end_of_turn_id: Annotated[int | None, typer.Option(help="with splice: the end-of-turn token")] = None,
    session: Annotated[
        list[str] | None, typer.Option(help="only these sessions, by id or its start (repeatable)")
    ] = None,
    archive: Annotated[Path | None, typer.Option(help="read this archive instead of Kafka")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="begin anew instead of going on from a checkpoint")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Build trajectories again from the captured calls; interrupted, the same command goes on where it was."""
    from compose.replay_out import Checkpoint
    from stream_processors.builders import UnknownBuilderError
    from stream_processors.replay import Progress, Wanted
    from stream_processors.replay import replay as run_replay

    options = {k: v for k, v in (("drift", drift), ("end_of_turn_id", end_of_turn_id)) if v is not None}
    span = time_span(from_time, to_time)
    arguments = [from_time, to_time, builder, options, sorted(session or ()), str(archive or "")]
    checkpoint = Checkpoint(_checkpoint_path(to_), arguments, span)
    if fresh:
        checkpoint.remove()
    saved = checkpoint.load()
    wanted = Wanted(
        builder=builder,
        options=options if options or builder else None,
        from_ms=checkpoint.span[0],
        to_ms=checkpoint.span[1],
    )
    try:
        wanted.check()
    except UnknownBuilderError as exc:
        raise usage(str(exc)) from exc

    def show(progress: Progress) -> None:
        line = (
            f"partition {progress.partition} at {progress.offset} of {progress.end}: {progress.records} records, "
            f"{progress.trajectories} trajectories, {progress.traces} traces"
        )
        err.print(line, end="\r" if is_live() else "\n", markup=False)

    async with open_log(archive) as log:
        if session:
            wanted = replace(wanted, sessions=frozenset([await resolve_session(log, s, also=CALLS) for s in session]))
        opening = _to_file(to_, checkpoint, saved) if _is_file(to_) else _to_topic(to_, checkpoint, log)
        async with opening as output:
            progress = await run_replay(log, wanted, output, checkpoint=saved, on_progress=show)
    checkpoint.remove()
    result = {
        "out": to_,
        "trajectories": progress.trajectories,
        "traces": progress.traces,
        "calls": dict(sorted(progress.states.items())),
        "skipped": dict(sorted(progress.skipped.items())),
    }
    if as_json:
        print_json(result)
        return
    out.print(f"{to_}: {progress.trajectories} trajectories, {progress.traces} traces")
    out.print("calls: " + (", ".join(f"{n} {state}" for state, n in sorted(progress.states.items())) or "none"))
    if progress.skipped:
        out.print("left out: " + ", ".join(f"{n} {reason}" for reason, n in sorted(progress.skipped.items())))


def _checkpoint_path(to_: str) -> Path:
    if _is_file(to_):
        path = Path(to_)
        return path.with_name(f".{path.name}.replay.json")
    return load().state_dir / "replay" / f"{hashlib.sha256(to_.encode()).hexdigest()[:16]}.json"


def _is_file(to_: str) -> bool:
    from compose.replay_out import FORMATS

    return Path(to_).suffix in FORMATS


@asynccontextmanager
async def _to_file(name: str, checkpoint: Checkpoint, saved: Mapping[str, Any] | None) -> AsyncIterator[FileOutput]:
    from compose.replay_out import FileOutput

    output = FileOutput(Path(name), checkpoint)
    output.resume(saved)
    try:
        yield output
    finally:
        output.abandon()  # nothing, unless it was interrupted
    await asyncio.to_thread(output.finish)


@asynccontextmanager
async def _to_topic(name: str, checkpoint: Checkpoint, log: LogReader) -> AsyncIterator[TopicOutput]:
    from bus.admin import TopicAdmin
    from compose.replay_out import TopicOutput, replay_topic

    topic = replay_topic(name, max(1, len(await log.end_offsets(CALLS))))
    async with TopicAdmin(bus_settings(load())) as admin:
        await admin.ensure([topic])
    async with open_bus(load()) as bus:
        yield TopicOutput(bus, name, checkpoint)


@async_command
async def archive(
    directory: Annotated[Path | None, typer.Argument(help="where to (default: the stack's own archive)")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on when the end is reached")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Copy completions, sessions, trajectories and rewards to Parquet, from where the last run ended."""
    from bus.archive import ArchiveError
    from bus.archive import archive as run_archive

    settings = load()
    root = directory or settings.archives
    stop = asyncio.Event() if follow else None
    if stop is not None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_bus(settings) as bus:
        try:
            report = await run_archive(bus, root, stop=stop)
        except ArchiveError as exc:
            raise CommandError(str(exc)) from exc
    if as_json:
        print_json({"archive": str(root), "records": report.records, "files": report.files, "lost": report.lost})
        return
    total = sum(report.records.values())
    out.print(f"{root}: {total} new records in {report.files} files", markup=False)
    for topic, n in sorted(report.records.items()):
        out.print(f"  {topic}: {n}")
    for topic, n in sorted(report.lost.items()):
        out.print(f"  {topic}: {n} records had been taken by retention before", markup=False)
