"""`polynya status` and `polynya tail`: what the log says."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Annotated, Any

import typer
from rich.table import Table

from bus import Bus
from bus.protocol import LogReader
from compose.cli.connect import open_bus
from compose.cli.console import async_command, out, print_json
from compose.cli.log_source import point_in_time
from compose.errors import usage
from compose.groups import Overview
from compose.records_json import as_json as record_json
from compose.runtime_info import running_info
from compose.settings import load
from compose.watch import session_facts
from schemas import MalformedRecordError, UnknownSchemaIdError
from schemas.records import SessionEvent, SessionState, Trajectory
from schemas.topics import TOPICS


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("status")(status)
    app.command("tail")(tail)


async def states(log: LogReader) -> dict[str, SessionState]:
    """The newest state of every session; a lower state_version is ignored."""
    newest: dict[str, SessionState] = {}
    async for delivery in log.tail(["rollout.state"], start="earliest", until_end=True):
        if not delivery.value:  # a tombstone
            newest.pop((delivery.key or b"").decode(), None)
            continue
        state = delivery.decode()
        if isinstance(state, SessionState):
            known = newest.get(state.session_id)
            if known is None or known.state_version <= state.state_version:
                newest[state.session_id] = state
    return newest


async def resolve_session(log: LogReader, prefix: str, *, also: str = "") -> str:
    """The one session whose id is `prefix` or starts with it; a usage error when there is none or more than one.

    Where nothing else knows of it any more (an archive of old calls), the topic `also` is asked.
    """
    found = {s for s in await states(log) if s.startswith(prefix)}
    for topic in ("rollout.sessions", also):
        if topic and not (found and topic == also):
            async for delivery in log.tail([topic], start="earliest", until_end=True, resolved=False):
                if (key := (delivery.key or b"").decode()).startswith(prefix):
                    found.add(key)
    if prefix in found:
        return prefix
    if len(found) != 1:
        what = "no session" if not found else f"{len(found)} sessions"
        raise usage(f"{what} with an id that starts with {prefix!r}", hint="polynya status")
    return found.pop()


@async_command
async def status(
    session: Annotated[str | None, typer.Argument(help="a session id, or the start of one")] = None,
    *,
    groups: Annotated[bool, typer.Option("--groups", help="groups and trainers instead of sessions")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Where every session stands; with a SESSION, its facts in order and where its calls ended."""
    settings = load()
    async with open_bus(settings) as bus:
        if session is not None:
            session_id = await resolve_session(bus, session)
            _one(await session_facts(bus, session_id), await trajectories_of(bus, session_id), as_json=as_json)
            return
        overview = await Overview.read(bus, max_lag=settings.max_lag_groups)
        current = {} if groups else await states(bus)
    if groups:
        _groups(overview, as_json=as_json)
        return
    if as_json:
        print_json([record_json(s) for s in current.values()])
        return
    table = Table("session", "task", "harness", "stage", "attempt", "status", "boundary", "worker")
    for s in sorted(current.values(), key=lambda s: (s.task_id, s.session_id)):
        table.add_row(
            s.session_id[:8], s.task_id, s.harness, s.stage, str(s.attempt), s.status, s.boundary, s.worker_id
        )
    out.print(table)
    counts = Counter(str(s.stage) for s in current.values())
    out.print(", ".join(f"{n} {stage}" for stage, n in counts.items()) or "no sessions yet; try: polynya submit FILE")
    if waiting := {g: n for g, n in overview.counts().items() if g.startswith("waiting")}:
        out.print("groups: " + ", ".join(f"{n} {state}" for state, n in waiting.items()))
    for line in overview.held():
        out.print(line, markup=False)
    if (info := running_info(settings)) is not None:
        forward = f", forward proxy {info.forward_address}" if info.forward_address else ""
        out.print(f"capture proxy {info.proxy_address}{forward}", markup=False)


def _groups(overview: Overview, *, as_json: bool) -> None:
    now = int(time.time() * 1000)
    rows = sorted(overview.groups.values(), key=lambda g: (-g.priority, g.submitted_at, g.group_id))
    if as_json:
        print_json([overview.as_json(g) for g in rows])
        return
    table = Table("group", "task", "policy", "priority", "state", "ended", "usable", "run again for")
    for g in rows:
        of = f"{g.group_id[:8]}{f' ({g.requeue_of[:8]} again)' if g.requeue_of else ''}"
        ended = f"{g.ended} of {g.size}"
        state = overview.state_of(g, now)
        again = ", ".join(g.requeued_for)
        table.add_row(of, g.task_id, g.policy_id, str(g.priority), state, ended, str(g.usable_count), again)
    out.print(table)
    for name, (trainer, lag) in sorted(overview.trainers(now).items()):
        limit = trainer.beat.max_lag or overview.max_lag
        out.print(f"trainer {name}: {lag} group(s) behind, of at most {limit}", markup=False)
    for line in overview.held():
        out.print(line, markup=False)


async def trajectories_of(bus: Bus, session_id: str) -> list[Trajectory]:
    """The newest revision of the trajectory of each of a session's leases, by attempt."""
    newest: dict[str, Trajectory] = {}
    partition = await bus.partition_for("trajectory.built", session_id)
    async for delivery in bus.tail(["trajectory.built"], start="earliest", partitions=[partition], until_end=True):
        if delivery.key == session_id.encode() and isinstance(record := delivery.decode(), Trajectory):
            known = newest.get(record.lease_id)
            if known is None or known.revision < record.revision:
                newest[record.lease_id] = record
    return sorted(newest.values(), key=lambda t: t.attempt)


def sums(trajectory: Trajectory) -> str:
    """Where a lease's calls ended, as a sum that adds up; what never reached the log; and the traces."""
    counts = trajectory.counts
    parts = [f"{counts.trained} trained", f"{counts.context} context"]
    parts += [f"{n} untrainable ({reason})" for reason, n in counts.untrainable.items()]
    line = f"attempt {trajectory.attempt}: {counts.calls} calls = {' + '.join(parts)}"
    line += f"; {counts.traces} traces, {counts.trainable_tokens} of {counts.sampled_tokens} sampled tokens trained"
    if trajectory.revision > 1:
        line += f"; revision {trajectory.revision}"
    for gap in trajectory.capture_incomplete:
        line += f"; writer {gap.writer}: nothing after call {gap.after_seq}"
    return line


def _one(facts: list[SessionEvent], trajectories: list[Trajectory], *, as_json: bool) -> None:
    if as_json:
        print_json([record_json(e) for e in facts])
        return
    table = Table("at", "fact", "attempt", "worker", "status", "boundary", "error")
    first = facts[0].at if facts else 0
    for e in facts:
        table.add_row(
            f"+{(e.at - first) / 1000:.2f} s", e.type, str(e.attempt), e.worker_id, e.status, e.boundary, e.error[:80]
        )
    out.print(table)
    for trajectory in trajectories:
        out.print(sums(trajectory), markup=False)


@async_command
async def tail(
    topic: Annotated[str, typer.Argument(help="a topic of the catalogue, or a dead-letter topic")],
    *,
    decode: Annotated[bool, typer.Option("--decode", help="decode the records")] = False,
    start: Annotated[str, typer.Option("--from", help="earliest, latest, ISO 8601, 2h, epoch ms")] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on when the end is reached")] = False,
    limit: Annotated[int, typer.Option(help="stop after this many records (0: no limit)")] = 0,
) -> None:
    """Print a topic's records, one JSON line each."""
    if topic not in TOPICS and not topic.endswith(".dead"):
        raise usage(f"no topic {topic!r} in the catalogue", hint=f"one of {', '.join(TOPICS)}")
    position: Any = start if start in ("earliest", "latest") else point_in_time("--from", start)
    printed = 0
    async with open_bus(load()) as bus:
        async for delivery in bus.tail([topic], start=position, until_end=not follow):
            line: dict[str, Any] = {
                "topic": delivery.topic,
                "partition": delivery.partition,
                "offset": delivery.offset,
                "timestamp_ms": delivery.timestamp_ms,
                "key": (delivery.key or b"").decode(errors="replace"),
                "headers": {k: v.decode(errors="replace") for k, v in delivery.headers.items()},
            }
            if decode and delivery.value:
                try:
                    line["record"] = record_json(delivery.decode())
                except (MalformedRecordError, UnknownSchemaIdError) as exc:
                    line["undecodable"] = str(exc)
            if decode is False or "undecodable" in line:
                line["value_bytes"] = len(delivery.value or b"")
            print_json(line)
            printed += 1
            if limit and printed >= limit:
                return
    if not printed:
        sys.stderr.write(f"{topic} holds no records from {start}\n")
