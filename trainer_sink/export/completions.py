"""Parquet for analytics: one row for each captured call, its prompt and messages whole. Needs the extra `trainer` (pyarrow)."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bus import Delivery, Start, is_retriable
from bus.protocol import LogReader
from schemas import arrays, json_text
from schemas.records import CompletionDelivery, CompletionRecord, Record
from schemas.resolve import ResolvedCall, Resolver
from trainer_sink.export.parquet import ExportDependencyError, sync

TOPIC: Final = "capture.completions"
BATCH_BYTES: Final = 32 << 20
"""Tokens of so many bytes are one row group."""


@dataclass(slots=True)
class CompletionsReport:
    """What an export of calls holds. `unresolved` counts calls whose prompt can't be told, by reason; their rows have none."""

    rows: int = 0
    sessions: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    unresolved: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0


@dataclass(slots=True)
class _Open:
    """One lease until its last record: its calls, where they stand, and what is known of their deliveries."""

    resolver: Resolver = field(default_factory=Resolver)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    delivered: dict[str, bool] = field(default_factory=dict)


async def export_completions(
    log: LogReader,
    path: Path,
    *,
    start: Start = "earliest",
    policy_id: str | None = None,
    session_id: str | None = None,
) -> CompletionsReport:
    """Write the calls on the log or in an archive, from `start` to the present end, to one Parquet file.

    Rows are ordered by partition, then by the end of their lease, then by writer and call number. The file appears whole or
    not at all. Raises ExportDependencyError without pyarrow, UnknownSchemaIdError for records of a newer release.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError as exc:
        raise ExportDependencyError("Parquet needs pyarrow: pip install 'polynya[trainer]'") from exc
    from trainer_sink.export.completion_rows import batch, schema

    report = CompletionsReport()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    rows: list[dict[str, Any]] = []
    size = 0
    try:
        with pq.ParquetWriter(part, schema(), compression="zstd") as writer:
            async for lease in _leases(log, start, session_id, report):
                for row in _rows(lease, policy_id, report):
                    rows.append(row)
                    size += row["prompt_ids"].nbytes + row["output_ids"].nbytes
                if size >= BATCH_BYTES:
                    await asyncio.to_thread(writer.write_batch, batch(rows))
                    rows, size = [], 0
            if rows:
                await asyncio.to_thread(writer.write_batch, batch(rows))
        sync(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return report


async def _leases(
    log: LogReader, start: Start, session_id: str | None, report: CompletionsReport
) -> AsyncGenerator[_Open, None]:
    """Each lease once its last record is read, so that only leases that overlap are in memory."""
    for partition in sorted(await log.end_offsets(TOPIC)):
        last: dict[bytes, int] = {}
        async for delivery in _read(log, start, partition, session_id):
            last[delivery.headers.get("lease_id", b"")] = delivery.offset
        leases: dict[bytes, _Open] = {}
        async for delivery in _read(log, start, partition, session_id):
            name = delivery.headers.get("lease_id", b"")
            if name not in last:
                continue  # came after the first look
            lease = leases.setdefault(name, _Open())
            _take(lease, delivery, report)
            if last[name] == delivery.offset:
                lease.resolver.give_up()
                yield leases.pop(name)


async def _read(log: LogReader, start: Start, partition: int, session_id: str | None) -> AsyncGenerator[Delivery, None]:
    async with aclosing(log.tail([TOPIC], start=start, partitions=[partition], until_end=True)) as deliveries:
        async for delivery in deliveries:
            if not delivery.is_tombstone and session_id in (None, (delivery.key or b"").decode(errors="replace")):
                yield delivery


def _take(lease: _Open, delivery: Delivery, report: CompletionsReport) -> None:
    try:
        record: Record = delivery.decode()
    except Exception as error:  # the record's boundary: an export counts poison, consumers set it aside
        if is_retriable(error):
            raise
        report.unreadable += 1
        return
    if isinstance(record, CompletionRecord):
        lease.resolver.add(record)
        lease.places.setdefault(record.completion_id, (delivery.partition, delivery.offset))
    elif isinstance(record, CompletionDelivery):
        known = lease.delivered.get(record.completion_id, False)
        lease.delivered[record.completion_id] = known or record.delivered


def _rows(lease: _Open, policy_id: str | None, report: CompletionsReport) -> list[dict[str, Any]]:
    calls = sorted(lease.resolver.calls.values(), key=lambda c: c.place)
    wanted = [c for c in calls if policy_id is None or c.record.policy_id == policy_id]
    rows = [_row(call, lease) for call in wanted]
    report.rows += len(rows)
    report.sessions += bool(rows)
    for call, row in zip(wanted, rows, strict=True):
        report.prompt_tokens += len(row["prompt_ids"])
        report.sampled_tokens += len(row["output_ids"])
        if call.problem:
            report.unresolved[call.problem] += 1
    return rows


def _row(call: ResolvedCall, lease: _Open) -> dict[str, Any]:
    record = call.record
    partition, offset = lease.places[record.completion_id]
    same = [
        "session_id",
        "group_id",
        "task_id",
        "policy_id",
        "harness",
        "lease_id",
        "attempt",
        "writer",
        "call_seq",
        "completion_id",
        "parent_id",
        "model_requested",
        "lineage_reason",
        "finish_reason",
        "logprobs_mode",
        "text",
        "reasoning",
        "parse_status",
        "engine",
        "tokenizer_digest",
        "branch_hint",
        "trainable",
        "untrainable_reason",
        "started_at",
        "finished_at",
        "queue_ms",
        "first_token_ms",
        "total_ms",
        "request_bytes",
        "response_bytes",
    ]
    return {name: getattr(record, name) for name in same} | {
        "dialect": record.dialect.value,
        "state": record.state.value,
        "lineage": record.lineage.value,
        "prompt_ids": arrays.unpack_ids(b"" if call.problem else call.prompt()),
        "prompt_problem": call.problem,
        "new_prompt_tokens": len(record.suffix_ids) // 4,
        "output_ids": arrays.unpack_ids(record.output_ids[: len(record.output_ids) // 4 * 4]),
        "logprobs": arrays.unpack_logprobs(record.logprobs[: len(record.logprobs) // 4 * 4]),
        "is_delivered": lease.delivered.get(record.completion_id),
        "messages": json_text.dump(call.messages()),
        "tools": json_text.dump(lease.resolver.tools(record)),
        "tool_calls": json_text.dump(record.tool_calls),
        "sampling": json_text.dump(record.sampling_effective),
        "versions": [span.version for span in record.version_spans],
        "error_kind": record.error.kind if record.error else None,
        "error_status": record.error.status if record.error else None,
        "source_partition": partition,
        "source_offset": offset,
    }
