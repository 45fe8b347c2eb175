"""A call at an engine that renders and parses by itself: what it is asked, what may be shown, and where the call stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from capture_proxy.call import Call
from capture_proxy.engines.base import ChatPrompt, EngineChunk, EngineFinish, EngineReply
from capture_proxy.rendering.base import ParsedCall, ParsedReply, ParseStatus
from capture_proxy.reply import ReasoningDelta, TextDelta
from schemas import arrays
from schemas.records import LineageStatus

TEXT_IN: Final = "text_in"
"""The lineage's reason: the prompt is the engine's own rendering, so whether it goes on from an earlier call is for its ids to show."""

_NO_SPAN: Final = (0, 0)


def chat_prompt(call: Call, *, context_length: int | None) -> ChatPrompt:
    """The request as the engine gets it."""
    request = call.request
    limit = call.prompt.sampling.get("max_tokens")
    is_clients = "max_tokens" in request.sampling or "max_tokens" in (call.lease.spec.sampling or {})
    # Where the proxy cut the limit to the room that its own rendering leaves, only the engine knows the room that there is.
    is_cut = context_length is not None and limit is not None and limit + len(call.prompt.ids) >= context_length
    return ChatPrompt(
        messages=request.messages,
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=request.response_format,
        template_kwargs=request.template_kwargs,
        max_tokens=limit if is_clients and not is_cut else None,
    )


def stand_alone(call: Call) -> None:
    """Takes the proxy's own rendering out of the call: the engine's counts. No earlier call is its parent by message identity."""
    prompt = call.prompt
    prompt.release()
    placed = prompt.placed
    if placed is not None:
        found = replace(placed.found, parent=None, new_from=0, status=LineageStatus.NONE, reason=TEXT_IN)
        placed = replace(
            placed,
            found=found,
            status=LineageStatus.NONE,
            reason=TEXT_IN,
            parent=None,
            prefix_len=0,
            prefix_digest="",
            suffix_ids=b"",
            messages_prefix=0,
            messages=call.request.messages,
        )
    call.prompt = replace(prompt, ids=[], placed=placed)


def note_prompt(call: Call, ids: Sequence[int] | None) -> None:
    """The prompt's ids as the engine says it rendered them."""
    if not ids or ids is call.prompt.ids:  # every chunk repeats them: a long prompt is packed once, not once per token
        return
    placed = call.prompt.placed
    if placed is not None:
        placed = replace(placed, suffix_ids=arrays.pack_ids(ids))
    call.prompt = replace(call.prompt, ids=ids, placed=placed)


class TextReader:
    """What of a text-in engine's chunks the client is shown, and its reply as the record holds it."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def feed(self, chunk: EngineChunk) -> list[ReasoningDelta | TextDelta]:
        """The engine's own words."""
        return _deltas(chunk.reasoning, chunk.text)

    def finish(self, finish: EngineFinish) -> tuple[list[ReasoningDelta | TextDelta], ParsedReply]:
        """The rest, and the whole. A call whose arguments are no JSON object is text, as it was sampled."""
        reply = finish.reply or EngineReply()
        good = [call for call in reply.tool_calls if _is_object(call.arguments)]
        broken = "".join(call.arguments for call in reply.tool_calls if not _is_object(call.arguments))
        is_cut = finish.reason == "length"
        if broken and not is_cut:  # one that can't be read makes all of them text
            broken, good = "".join(f"{call.name}{call.arguments}" for call in reply.tool_calls), []
        status: ParseStatus = "tool_parse_error" if broken else "ok"
        spans, thought = self._from_ids([call.name for call in good])
        calls = tuple(ParsedCall(c.name, c.arguments, span) for c, span in zip(good, spans, strict=True))
        parsed = ParsedReply(
            text=reply.text + broken,
            reasoning=reply.reasoning,
            tool_calls=calls,
            status=status,
            reasoning_tokens=reply.reasoning_tokens or thought,
        )
        return _deltas("", broken), parsed

    def _from_ids(self, names: list[str]) -> tuple[list[tuple[int, int]], int]:
        """Where the calls stand in the ids, and how many of these are thinking; nothing where our parser reads them otherwise."""
        call, nothing = self._call, ([_NO_SPAN] * len(names), 0)
        if not call.output_ids or call.finish is None or call.finish.fault:
            return nothing
        parser = call.prompt.renderer.parser(
            call.prompt.ids, is_parsing_tools=call.request.is_parsing_tools, tools=call.request.tools
        )
        parser.feed(call.output_ids)
        _, parsed = parser.finish(is_cut=call.finish.reason == "length")
        if [found.name for found in parsed.tool_calls] != names:
            return nothing
        return [found.span for found in parsed.tool_calls], parsed.reasoning_tokens


def _deltas(reasoning: str, text: str) -> list[ReasoningDelta | TextDelta]:
    shown: list[ReasoningDelta | TextDelta] = []
    if reasoning:
        shown.append(ReasoningDelta(reasoning))
    if text:
        shown.append(TextDelta(text))
    return shown


def _is_object(text: str) -> bool:
    try:
        value: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict)
