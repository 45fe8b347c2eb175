"""Offline SFT data: run a task set with a fixed model, keep what was accepted, say how much that was, by repository.

    python examples/offline_sft/generate.py OUT --tasks tasks.jsonl       # submits them to the running stack, and waits
    python examples/offline_sft/generate.py OUT --archive DIR             # of sessions that ran already

OUT becomes a data set in OpenAI's message form (`datasets.load_dataset(OUT)`), with a split for validation by task.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bus.archive import ArchiveLog
from schemas.records import ScoredTrajectory, Status
from schemas.wishes import GroupWish, Patterns
from trainer_sink.export.dataset import Layout, Split, export_dataset
from trainer_sink.export.examples import Acceptance, Choice
from trainer_sink.export.sft import SftRows
from trainer_sink.export.span import SpanReader
from trainer_sink.export.spool import ScoredSpool
from trainer_sink.filters import GroupFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bus.protocol import LogReader


@dataclass
class Line:
    """One repository's sessions. `turns` and `tokens` are sums over accepted conversations."""

    attempted: int = 0
    completed: int = 0
    accepted: int = 0
    conversations: int = 0
    turns: int = 0
    tokens: int = 0


def repository_of(scored: ScoredTrajectory) -> str:
    """What the task's metadata calls `repo`."""
    metadata = scored.spec.metadata if scored.spec and isinstance(scored.spec.metadata, Mapping) else {}
    return str(metadata.get("repo") or "(none)")


def count(sessions: Iterable[ScoredTrajectory], rows: Iterable[Mapping[str, Any]]) -> dict[str, Line]:
    """Lines by repository: every session counts as attempted, those that have a row as accepted."""
    lines: dict[str, Line] = {}
    repositories: dict[str, str] = {}
    for scored in sessions:
        repositories[scored.session_id] = name = repository_of(scored)
        line = lines.setdefault(name, Line())
        line.attempted += 1
        line.completed += scored.status is Status.COMPLETED
    accepted: set[str] = set()
    for row in rows:
        line = lines[repositories[row["session_id"]]]
        line.accepted += row["session_id"] not in accepted
        accepted.add(row["session_id"])
        line.conversations += 1
        line.turns += row["turns"]
        line.tokens += row["tokens"]
    return dict(sorted(lines.items()))


def table(lines: Mapping[str, Line]) -> str:
    """The lines and their sum, as Markdown."""
    total = Line(*(sum(getattr(line, name) for line in lines.values()) for name in vars(Line())))
    text = [
        "| repository | attempted | completed | accepted | share | mean turns | tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, line in [*lines.items(), ("all", total)]:
        share = f"{line.accepted / line.attempted:.0%}" if line.attempted else "-"
        turns = f"{line.turns / line.conversations:.1f}" if line.conversations else "-"
        text.append(
            f"| {name} | {line.attempted} | {line.completed} | {line.accepted} | {share} | {turns} | {line.tokens} |"
        )
    return "\n".join(text)


async def run_tasks(tasks: Path, timeout_s: float) -> list[str]:
    """Submit the file's tasks to the running stack and wait until each of their sessions has its result."""
    from compose.cli.connect import open_bus
    from compose.cli.task_file import read_tasks, request_of
    from compose.settings import load
    from compose.watch import follow

    requests = [request_of(spec) for spec in read_tasks(str(tasks))]
    ids = [request.task_id for request in requests]
    since_ms = int(time.time() * 1000)
    total = sum(request.num_samples for request in requests)
    async with open_bus(load()) as bus:
        for request in requests:
            await bus.publish(request)
        print(f"submitted {len(ids)} tasks, {total} sessions", file=sys.stderr)
        await follow(bus, ids, expected=total, since_ms=since_ms, timeout_s=timeout_s, on_change=lambda _: None)
    return ids


@asynccontextmanager
async def open_source(archive: Path | None) -> AsyncIterator[LogReader]:
    """The archive, or the running stack's log."""
    if archive is not None:
        yield ArchiveLog(archive)
        return
    from compose.cli.connect import open_bus
    from compose.settings import load

    async with open_bus(load()) as bus:
        yield bus


async def export(log: LogReader, out: Path, rows: SftRows, validation: float) -> dict[str, Line]:
    """Write the data set, then count the sessions that it was made from: of these tasks, in the span that it names."""
    layout = Layout(split=Split(validation=validation))
    manifest = await export_dataset(log, out, rows, layout, existing="replace" if out.exists() else "refuse")
    written: list[Mapping[str, Any]] = []
    for name in manifest.files:
        # By "\n" alone: text may hold other separators that `splitlines` would take for ends of lines.
        written += [json.loads(line) for line in (out / name).read_text().split("\n") if line]
    with ScoredSpool(GroupFilter(allow_off_context=True)) as spool:
        await spool.fill(SpanReader(log, until=manifest.runs[-1].span.end).records())
        sessions = (scored for _, scored in spool.read() if not rows.acceptance.refuses_kind(scored))
        return count(sessions, written)


async def main(options: argparse.Namespace) -> None:
    """Run, export, report."""
    tasks = await run_tasks(options.tasks, options.timeout_s) if options.tasks else None
    rows = SftRows(
        acceptance=Acceptance(wish=GroupWish(tasks=Patterns.of(tasks)), min_reward=options.min_reward),
        choice=Choice(max_tokens=options.max_tokens),
    )
    async with open_source(options.archive) as log:
        lines = await export(log, options.out, rows, options.validation)
    text = table(lines)
    (options.out / "ACCEPTANCE.md").write_text(text + "\n")
    print(text)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="offline SFT data, with a table of acceptance by repository")
    parser.add_argument("out", type=Path, help="the directory of the data set; one that is there is made anew")
    parser.add_argument("--tasks", type=Path, help="a task file to run first; without it everything on the log counts")
    parser.add_argument("--archive", type=Path, help="read an archive instead of the running stack")
    parser.add_argument("--min-reward", type=float, default=1.0, help="a session is accepted from this reward on")
    parser.add_argument("--max-tokens", type=int, default=None, help="leave out longer conversations")
    parser.add_argument("--validation", type=float, default=0.1, help="this share of the tasks is for validation")
    parser.add_argument("--timeout-s", type=float, default=3600.0, help="how long the sessions may take")
    options = parser.parse_args()
    if options.tasks and options.archive:
        parser.error("--tasks runs on the stack, --archive reads what ran before: one of them")
    return options


if __name__ == "__main__":
    asyncio.run(main(arguments()))
