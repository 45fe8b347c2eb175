"""What a finished call amounts to: how it ended, how its output read, and the reply as the client is told it. Pure."""

from __future__ import annotations

from capture_proxy import logprobs
from capture_proxy.call import Call
from capture_proxy.reply import FinishReason, Reply, ToolCall, tool_call_id


def finish_reason(call: Call) -> FinishReason:
    """How the client is told that the reply ended.

    A whole call is one, also when the limit ended the reply right behind it; a reply that was cut inside a call is cut, whatever
    calls stand before it.
    """
    if call.parsed is not None and call.parsed.tool_calls and call.parsed.status == "ok":
        return "tool_calls"
    return "length" if call.finish is not None and call.finish.reason == "length" else "stop"


def parse_status(call: Call) -> str:
    """How the output read: also whether a well-formed call names a tool that nobody offered, which is the harness' to answer."""
    if call.parsed is None:
        return ""
    request = call.request
    names = {tool["function"]["name"] for tool in request.tools}.union(request.deferred_tools)
    is_known = all(found.name in names for found in call.parsed.tool_calls)
    return call.parsed.status if is_known or call.parsed.status != "ok" else "tool_call_invalid"


def reply(call: Call) -> Reply:
    """The finished reply as the client is told it."""
    parsed, finish = call.parsed, call.finish
    assert parsed is not None
    assert finish is not None
    matched = finish.matched
    return Reply(
        completion_id=call.completion_id,
        model=call.request.model,
        text=parsed.text,
        reasoning=parsed.reasoning,
        tool_calls=tuple(
            ToolCall(tool_call_id(call.completion_id, i), c.name, c.arguments, c.span)
            for i, c in enumerate(parsed.tool_calls)
        ),
        finish_reason=finish_reason(call),
        prompt_tokens=finish.prompt_tokens or len(call.prompt.ids),
        completion_tokens=finish.completion_tokens or len(call.output_ids),
        cached_tokens=finish.cached_tokens,
        reasoning_tokens=parsed.reasoning_tokens,
        stop_sequence=matched if isinstance(matched, str) else None,
        created_at=call.stub.started_at,
        logprobs=None
        if call.request.top_logprobs is None
        else logprobs.for_client(
            parsed,
            call.output_ids,
            call.logprobs,
            call.top_logprobs,
            call.prompt.renderer,
            top_count=call.request.top_logprobs,
        ),
        echo=call.request.echo,
    )
