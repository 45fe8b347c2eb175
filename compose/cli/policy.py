"""`polynya policy`: who writes which policy, which versions it has had, what its engines serve."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from compose.cli.connect import open_bus
from compose.cli.console import async_command, out, print_json
from compose.errors import usage
from compose.settings import load
from schemas import MalformedRecordError
from schemas.records import PolicyEvent
from trainer_sink.policies import EngineReport, PolicyTimeline, Timelines, ask_engines, read_timelines

app = typer.Typer(help="Policies: their writers, versions and engines.", no_args_is_help=True)

NAME = typer.Argument(help="the policy")
AS_JSON = typer.Option("--json", help="one JSON document on stdout")


@app.command("list")
@async_command
async def list_(*, as_json: Annotated[bool, AS_JSON] = False) -> None:
    """All policies of the timeline: who may push, the published version, how many engines."""
    async with open_bus(load()) as bus:
        timelines = await read_timelines(bus)
    rows = [summary(timelines.by_policy[name]) for name in sorted(timelines.by_policy)]
    if as_json:
        print_json(rows)
        return
    table = Table("policy", "version", "published", "writer", "epoch", "engines")
    for row in rows:
        cells = (row["policy_id"], row["version"], _when(row["published_at"]), row["trainer_id"], row["epoch"])
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in cells), str(len(row["engines"])))
    out.print(table)


@app.command("show")
@async_command
async def show(policy: Annotated[str, NAME], *, as_json: Annotated[bool, AS_JSON] = False) -> None:
    """One policy: its writer and version, and what each of its engines says that it serves now."""
    async with open_bus(load()) as bus:
        timelines = await read_timelines(bus)
    timeline = _known(timelines, policy)
    row = summary(timeline)
    reports = {report.url: report for report in await ask_engines(timeline)}
    row["engines"] = [
        {**engine, "serves": _serves(reports.get(str(engine["url"])), row["version"])} for engine in row["engines"]
    ]
    if as_json:
        print_json(row)
        return
    out.print(f"policy {policy}: version {row['version'] or 'none published'}", markup=False)
    if timeline.owner is not None:
        since = _when(timeline.owner.at)
        out.print(f"written by {timeline.owner.trainer_id} since {since} (epoch {timeline.owner.epoch})", markup=False)
    table = Table("engine", "kind", "serves")
    for engine in row["engines"]:
        table.add_row(*(Text(str(engine[name])) for name in ("url", "kind", "serves")))
    out.print(table)


@app.command("history")
@async_command
async def history(
    policy: Annotated[str, NAME],
    *,
    last: Annotated[int, typer.Option(min=1, help="how many events, the newest ones")] = 40,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """A policy's timeline, event by event, in the order of the log."""
    rows: list[dict[str, Any]] = []
    async with open_bus(load()) as bus:
        _known(await read_timelines(bus), policy)
        number = await bus.partition_for(PolicyEvent.TOPIC, policy)
        tail = bus.tail([PolicyEvent.TOPIC], partitions=[number], until_end=True)
        async with aclosing(tail) as deliveries:
            async for delivery in deliveries:
                try:
                    event = None if delivery.is_tombstone else delivery.decode()
                except MalformedRecordError:  # those who read the timeline for good set it aside
                    continue
                if isinstance(event, PolicyEvent) and event.policy_id == policy:
                    rows.append(event_row(event, delivery.offset))
    rows = rows[-last:]
    if as_json:
        print_json(rows)
        return
    table = Table("offset", "time", "event", "version", "trainer", "epoch", "what")
    for row in rows:
        cells = (row["offset"], _when(row["at"]), row["event"], row["version"], row["trainer_id"], row["epoch"])
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in cells), Text(row["what"]))
    out.print(table)


def summary(timeline: PolicyTimeline) -> dict[str, Any]:
    """What the list says of a policy."""
    published, owner = timeline.published, timeline.owner
    return {
        "policy_id": timeline.policy_id,
        "version": published.version if published else "",
        "published_at": published.at if published else None,
        "weights_path": published.weights_path if published else "",
        "weights_digest": published.weights_digest if published else "",
        "trainer_id": owner.trainer_id if owner else "",
        "epoch": owner.epoch if owner else None,
        "engines": [{"url": engine.url, "kind": engine.kind} for engine in timeline.engines.values()],
    }


def event_row(event: PolicyEvent, offset: int) -> dict[str, Any]:
    """An event as the history shows it; a claim's reason is its nonce, which says nothing to a person."""
    by_trainer = bool(event.trainer_id)
    what = event.engine_url or ("" if event.type.value == "claimed" else event.reason) or event.weights_path
    return {
        "offset": offset,
        "at": event.at,
        "event": event.type.value,
        "version": event.version,
        "trainer_id": event.trainer_id,
        # A claim's epoch is its own place on the log.
        "epoch": (offset if event.type.value == "claimed" else event.trainer_epoch) if by_trainer else None,
        "what": what,
    }


def _serves(report: EngineReport | None, published: str) -> str:
    if report is None or report.problem:
        return f"unknown: {report.problem if report else 'another kind of engine'}"
    return report.version if report.version == published else f"{report.version}, not {published or 'a published one'}"


def _known(timelines: Timelines, policy: str) -> PolicyTimeline:
    if policy not in timelines.by_policy:
        known = ", ".join(sorted(timelines.by_policy)) or "none"
        raise usage(f"there is no policy {policy!r}; the timeline knows {known}", hint="polynya policy list")
    return timelines.of(policy)


def _when(at_ms: int | None) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%m-%d %H:%M:%S") if at_ms else ""
