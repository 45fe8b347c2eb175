"""The columns of a Parquet export: one row for each trace."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import pyarrow as pa

from schemas import arrays, json_text
from schemas.records import ScoredTrajectory, Trace
from trainer_sink.export.arrow import Row
from trainer_sink.groups import Source

# Names that other tools read; adding a column is fine, renaming one isn't.
COLUMNS: Final[tuple[tuple[str, pa.DataType], ...]] = (
    ("task_id", pa.string()),
    ("group_id", pa.string()),
    ("session_id", pa.string()),
    ("session_index", pa.int32()),
    ("group_size", pa.int32()),
    ("policy_id", pa.string()),
    ("harness", pa.string()),
    ("trajectory_id", pa.string()),
    ("lease_id", pa.string()),
    ("attempt", pa.int32()),
    ("revision", pa.int32()),
    ("status", pa.string()),
    ("boundary", pa.string()),
    ("error", pa.string()),
    ("reward", pa.float64()),
    ("rewards", pa.string()),
    ("trace_index", pa.int32()),
    ("trace_count", pa.int32()),
    ("trace_reward", pa.float64()),
    ("branch", pa.string()),
    ("parent_trace", pa.int32()),
    ("root_reason", pa.string()),
    ("weight", pa.float64()),
    ("prompt_ids", pa.list_(pa.int32())),
    ("response_ids", pa.list_(pa.int32())),
    ("loss_mask", pa.list_(pa.uint8())),
    ("logprobs", pa.list_(pa.float32())),
    ("trainable_tokens", pa.int64()),
    ("finish_reason", pa.string()),
    ("is_off_context", pa.bool_()),
    ("turns", pa.string()),
    ("messages", pa.string()),
    ("tools", pa.string()),
    ("counts", pa.string()),
    ("builder", pa.string()),
    ("tokenizer_digest", pa.string()),
    ("logprobs_mode", pa.string()),
    ("metadata", pa.string()),
    ("ended_at", pa.timestamp("ms", tz="UTC")),
    ("source_topic", pa.string()),
    ("source_partition", pa.int32()),
    ("source_offset", pa.int64()),
)


def session_rows(scored: ScoredTrajectory, source: Source, topic: str) -> list[Row]:
    """The rows of one session: none when it has no traces.

    Raises `arrays.ArrayLengthError` for a torn token array, ValueError when a trace's arrays differ in length.
    """
    trajectory, spec = scored.trajectory, scored.spec
    if trajectory is None:
        return []
    shared: Row = {
        "task_id": scored.task_id,
        "group_id": scored.group_id,
        "session_id": scored.session_id,
        "session_index": spec.index if spec else None,
        "group_size": spec.group_size if spec else None,
        "policy_id": scored.policy_id,
        "harness": spec.harness if spec else None,
        "trajectory_id": scored.trajectory_id,
        "lease_id": scored.lease_id,
        "attempt": scored.attempt,
        "revision": scored.revision,
        "status": scored.status.value,
        "boundary": scored.boundary.value,
        "error": scored.error,
        "reward": scored.reward,
        "rewards": json_text.dump([_plain(r) for r in scored.rewards]),
        "trace_count": len(trajectory.traces),
        "counts": json_text.dump(_plain(trajectory.counts)),
        "builder": trajectory.builder,
        "tokenizer_digest": scored.tokenizer_digest or trajectory.tokenizer_digest,
        "logprobs_mode": scored.logprobs_mode or trajectory.logprobs_mode,
        "metadata": json_text.dump(spec.metadata if spec else {}),
        "ended_at": scored.ended_at,
        "source_topic": topic,
        "source_partition": source.partition,
        "source_offset": source.offset,
    }
    return [shared | _trace_row(trace) for trace in trajectory.traces]


def _trace_row(trace: Trace) -> Row:
    response = arrays.unpack_ids(trace.response_ids)
    mask = arrays.unpack_mask(trace.loss_mask)
    logprobs = arrays.unpack_logprobs(trace.logprobs)
    if not len(response) == len(mask) == len(logprobs):
        raise ValueError(
            f"trace {trace.index} has {len(response)} response ids, {len(mask)} mask values and {len(logprobs)} logprobs"
        )
    return {
        "trace_index": trace.index,
        "trace_reward": trace.reward,
        "branch": trace.branch,
        "parent_trace": trace.parent_trace,
        "root_reason": trace.root_reason,
        "weight": trace.weight,
        "prompt_ids": arrays.unpack_ids(trace.prompt_ids),
        "response_ids": response,
        "loss_mask": mask,
        "logprobs": logprobs,
        "trainable_tokens": int(mask.sum()),
        "finish_reason": trace.finish_reason,
        "is_off_context": trace.is_off_context,
        "turns": json_text.dump([_plain(t) for t in trace.turns]),
        "messages": json_text.dump(trace.messages),
        "tools": json_text.dump(trace.tools),
    }


def _plain(record: Any) -> Row:
    return dataclasses.asdict(record)
