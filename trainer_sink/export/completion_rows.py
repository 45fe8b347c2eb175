"""The columns of an export of calls."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_TIME: Final = pa.timestamp("ms", tz="UTC")

# Names that other tools read; adding a column is fine, renaming one isn't.
COLUMNS: Final[tuple[tuple[str, pa.DataType], ...]] = (
    ("session_id", pa.string()),
    ("group_id", pa.string()),
    ("task_id", pa.string()),
    ("policy_id", pa.string()),
    ("harness", pa.string()),
    ("dialect", pa.string()),
    ("lease_id", pa.string()),
    ("attempt", pa.int32()),
    ("writer", pa.int32()),
    ("call_seq", pa.int32()),
    ("completion_id", pa.string()),
    ("parent_id", pa.string()),
    ("lineage", pa.string()),
    ("lineage_reason", pa.string()),
    ("branch_hint", pa.string()),
    ("state", pa.string()),
    ("finish_reason", pa.string()),
    ("is_delivered", pa.bool_()),
    ("trainable", pa.bool_()),
    ("untrainable_reason", pa.string()),
    ("error_kind", pa.string()),
    ("error_status", pa.int32()),
    ("model_requested", pa.string()),
    ("prompt_ids", pa.list_(pa.int32())),
    ("prompt_problem", pa.string()),
    ("new_prompt_tokens", pa.int64()),
    ("output_ids", pa.list_(pa.int32())),
    ("logprobs", pa.list_(pa.float32())),
    ("logprobs_mode", pa.string()),
    ("versions", pa.list_(pa.string())),
    ("text", pa.string()),
    ("reasoning", pa.string()),
    ("tool_calls", pa.string()),
    ("parse_status", pa.string()),
    ("messages", pa.string()),
    ("tools", pa.string()),
    ("sampling", pa.string()),
    ("engine", pa.string()),
    ("tokenizer_digest", pa.string()),
    ("started_at", _TIME),
    ("finished_at", _TIME),
    ("queue_ms", pa.float64()),
    ("first_token_ms", pa.float64()),
    ("total_ms", pa.float64()),
    ("request_bytes", pa.int64()),
    ("response_bytes", pa.int64()),
    ("source_partition", pa.int32()),
    ("source_offset", pa.int64()),
)
