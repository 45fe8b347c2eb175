"""Parquet for analytics: one row for each captured call, its prompt and messages whole. Needs the extra `trainer` (pyarrow)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bus import Start
from bus.protocol import LogReader
from schemas import arrays, json_text
from schemas.resolve import ResolvedCall
from trainer_sink.export.arrow import Row, batch, require_pyarrow
from trainer_sink.export.durable import whole
from trainer_sink.export.lease_reader import OpenLease, read_leases

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


async def export_completions(
    log: LogReader,
    path: Path,
    *,
    start: Start = "earliest",
    policy_id: str | None = None,
    session_id: str | None = None,
) -> CompletionsReport:
    """Write the calls on the log or in an archive, from `start` to the present end, to one Parquet file.

    A session that began before `start` is read from its beginning, so that later prompts are whole; its earlier calls have no row.
    Rows are ordered by partition, then by the end of their lease, then by writer and call number. The file appears whole or
    not at all. Raises ExportDependencyError without pyarrow, UnknownSchemaIdError for records of a newer release.
    """
    require_pyarrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    from trainer_sink.export.completion_rows import COLUMNS

    report = CompletionsReport()
    rows: list[Row] = []
    size = 0
    with whole(path) as part, pq.ParquetWriter(part, pa.schema(list(COLUMNS)), compression="zstd") as writer:
        async for lease in read_leases(log, start, session_id):
            for row in _rows(lease, policy_id, report):
                rows.append(row)
                size += row["prompt_ids"].nbytes + row["output_ids"].nbytes
            if size >= BATCH_BYTES:
                await asyncio.to_thread(writer.write_batch, batch(rows, COLUMNS))
                rows, size = [], 0
        if rows:
            await asyncio.to_thread(writer.write_batch, batch(rows, COLUMNS))
    return report


def _rows(lease: OpenLease, policy_id: str | None, report: CompletionsReport) -> list[Row]:
    report.unreadable += lease.unreadable
    wanted = [c for c in lease.calls() if policy_id is None or c.record.policy_id == policy_id]
    rows = [_row(call, lease) for call in wanted]
    report.rows += len(rows)
    report.sessions += bool(rows)
    for call, row in zip(wanted, rows, strict=True):
        report.prompt_tokens += len(row["prompt_ids"])
        report.sampled_tokens += len(row["output_ids"])
        if call.problem:
            report.unresolved[call.problem] += 1
    return rows


def _row(call: ResolvedCall, lease: OpenLease) -> Row:
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
