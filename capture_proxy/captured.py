"""What was captured of a call, whatever its end: the fields of its record that the request, the engine and the lineage give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from capture_proxy import logprobs, outcome
from capture_proxy.call import Call
from capture_proxy.lineage.identity import canonical_json
from capture_proxy.lineage.nodes import INSTRUCTIONS
from capture_proxy.lineage.side_calls import branch_hint
from capture_proxy.reply import tool_call_id
from capture_proxy.token_ids import packed_ids
from schemas import arrays, ids
from schemas.records import CompletionRecord, VersionSpan


def prompt_echo(call: Call) -> str:
    """How the engine's own prompt ids compare with those that were sent.

    exact, mismatch, absent; counted: only their number is known, and it is the same; `engine`: only it has rendered.
    """
    if call.finish is None:
        return ""
    ids, count = call.finish.prompt_ids, call.finish.prompt_tokens
    if call.is_text_in:
        return "engine" if ids else "absent"
    if ids is None:
        return "absent" if not count else "counted" if count == len(call.prompt.ids) else "mismatch"
    return "exact" if ids == call.prompt.ids else "mismatch"


def captured(call: Call, *, at: int, now_s: float) -> CompletionRecord:
    """The record of a call without its end: it says neither how the call ended nor whether it may be trained."""
    request, parsed, finish = call.request, call.parsed, call.finish
    echo = prompt_echo(call)
    notes: dict[str, Any] = dict(call.notes)
    if request.notes:
        notes["request"] = list(request.notes)
    if call.prompt.notes:
        notes["sampling"] = list(call.prompt.notes)
    if call.lease.spec.sampling:
        notes["sampling_forced"] = call.lease.spec.sampling
    if request.tool_choice not in (None, "auto"):
        notes["tool_choice"] = request.tool_choice
    if not request.parallel_tool_calls:
        notes["parallel_tool_calls"] = False
    if request.response_format:
        notes["response_format"] = request.response_format
    if request.has_instructions:
        notes[INSTRUCTIONS] = True
    if call.is_text_in:
        notes["rendered_by"] = "engine"
    elif call.prompt.placed is not None:
        notes["history"] = call.prompt.placed.history
    return replace(
        call.stub,
        **_place(call),
        finished_at=at,
        sampling_requested=request.sampling,
        sampling_effective=call.prompt.sampling,
        template_options=request.template_kwargs,
        prompt_len=len(call.prompt.ids),
        output_ids=arrays.pack_ids(call.output_ids),
        logprobs=logprobs.pack_logprobs(call.logprobs),
        logprobs_mode=call.logprobs_mode,
        engine_finish=None
        if finish is None
        else {
            "reason": finish.reason,
            "matched": finish.matched,
            "message": finish.message,
            "cached_tokens": finish.cached_tokens,
        },
        text=parsed.text if parsed else "",
        reasoning=parsed.reasoning if parsed else "",
        tool_calls=[
            {"id": tool_call_id(call.completion_id, i), "name": c.name, "arguments": c.arguments, "span": list(c.span)}
            for i, c in enumerate(parsed.tool_calls if parsed else ())
        ],
        parse_status=outcome.parse_status(call),
        version_spans=[VersionSpan(version=s.version, start=s.start, end=s.end) for s in finish.weight_spans]
        if finish
        else [],
        engine=call.engine_kind,
        engine_url=call.engine_url,
        prompt_echo=echo,
        notes=notes,
        queue_ms=_elapsed_ms(call, call.accepted_s),
        first_token_ms=_elapsed_ms(call, call.first_token_s),
        total_ms=_elapsed_ms(call, now_s),
        response_bytes=call.response_bytes,
    )


def _elapsed_ms(call: Call, until_s: float) -> float:
    return max(0.0, (until_s - call.arrived_s) * 1000.0) if until_s else 0.0


def _place(call: Call) -> dict[str, Any]:
    """The record's fields that say where the call stands: its parent, and what of prompt, messages and tools isn't the parent's."""
    prompt, request = call.prompt, call.request
    placed, lineage = prompt.placed, prompt.lineage
    if placed is None or lineage is None:
        return {
            "messages": request.messages,
            "tools": request.tools,
            "tools_digest": ids.digest(canonical_json(request.tools)) if request.tools else "",
            "suffix_ids": packed_ids(prompt.ids),
        }
    head = placed.found.head
    return {
        "lineage": placed.status,
        "lineage_reason": placed.reason,
        "parent_id": placed.parent_id,
        "prefix_len": placed.prefix_len,
        "prefix_digest": placed.prefix_digest,
        "suffix_ids": placed.suffix_ids,
        "messages_prefix": placed.messages_prefix,
        "messages": placed.messages,
        "tools": [] if lineage.knows_tools(head.tools_digest) else request.tools,
        "tools_digest": head.tools_digest,
        "branch_hint": branch_hint(request, placed, lineage, call.notes.get("client") or {}),
    }
