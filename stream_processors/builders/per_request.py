"""The builder `per_request`: one trace for every call that can be trained."""

from __future__ import annotations

from schemas.records import Trace, TurnSpan
from schemas.resolve import reply_message
from stream_processors.builders.analysis import Analysis, analyse
from stream_processors.builders.base import Built, Options
from stream_processors.builders.lease import Lease
from stream_processors.builders.messages import Conversations, resolve_tools
from stream_processors.builders.trie import ID_BYTES


def build_per_request(lease: Lease, policy_id: str, _: Options) -> Built:
    """One trace per trainable call of a lease, in canonical order; every token of the reply has mask 1."""
    analysis = analyse(lease, policy_id)
    conversations = Conversations(analysis.calls)
    tools = resolve_tools(analysis.calls)
    positions = [c.position for c in analysis.calls if not analysis.reasons[c.position]]
    traces = [_trace(analysis, i, index, conversations.messages(i), tools[i]) for index, i in enumerate(positions)]
    return analysis.finish(traces, {i: index for index, i in enumerate(positions)})


def _trace(analysis: Analysis, i: int, index: int, messages: list[object], tools: object) -> Trace:
    record = analysis.calls[i].record
    n = len(record.output_ids) // ID_BYTES
    turn = TurnSpan(
        completion_id=record.completion_id, start=0, end=n, is_trained=True, version_spans=record.version_spans
    )
    return Trace(
        index=index,
        branch=record.branch_hint or "main",
        prompt_ids=analysis.place(i).since(0),
        response_ids=record.output_ids,
        loss_mask=b"\x01" * n,
        logprobs=record.logprobs,
        turns=[turn],
        messages=[*messages, reply_message(record)],
        tools=tools,
        finish_reason=record.finish_reason,
    )
