"""The builder `per_request`: one trace for every call that can be trained."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from schemas.arrays import pack_mask
from schemas.records import Trace, TurnSpan
from stream_processors.builders.analysis import Analysis, analyse
from stream_processors.builders.base import ID_BYTES, Built, CompletionFact
from stream_processors.builders.prompts import reply_message, resolve_messages
from stream_processors.builders.roots import resolve_tools


def build_per_request(facts: Iterable[CompletionFact], policy_id: str) -> Built:
    """One trace per trainable call of a lease, in canonical order; every token of the reply has mask 1."""
    analysis = analyse(facts, policy_id)
    messages = resolve_messages(analysis.calls)
    tools = resolve_tools(analysis.calls)
    positions = [c.position for c in analysis.calls if not analysis.reasons[c.position]]
    traces = [_trace(analysis, i, index, messages, tools) for index, i in enumerate(positions)]
    return analysis.finish(traces, {i: index for index, i in enumerate(positions)})


def _trace(analysis: Analysis, i: int, index: int, messages: list[list[object]], tools: list[object]) -> Trace:
    call = analysis.calls[i]
    record = call.record
    n = len(record.output_ids) // ID_BYTES
    turn = TurnSpan(
        completion_id=record.completion_id, start=0, end=n, is_trained=True, version_spans=record.version_spans
    )
    return Trace(
        index=index,
        branch=record.branch_hint or "main",
        prompt_ids=analysis.prompt(i),
        response_ids=record.output_ids,
        loss_mask=pack_mask(np.ones(n, dtype=np.uint8)),
        logprobs=record.logprobs,
        turns=[turn],
        messages=[*messages[i], reply_message(call)],
        tools=tools[i],
        finish_reason=record.finish_reason,
    )
