"""Messages answers as a stream of named events."""

from __future__ import annotations

import orjson

from capture_proxy.dialects.anthropic.errors import error_value
from capture_proxy.dialects.anthropic.response import (
    reply_id,
    reply_usage,
    signature,
    stop_reason,
    stop_sequence,
    usage,
)
from capture_proxy.dialects.encoder import ReplyEncoder
from capture_proxy.dialects.sse import named_event
from capture_proxy.reply import ChatRequest, Json, ProxyError, Reply, Started, ToolCall

_PING = named_event(b"ping", {"type": "ping"})
_STOP = named_event(b"message_stop", {"type": "message_stop"})


class MessagesStreamEncoder(ReplyEncoder):
    """One streamed answer: blocks numbered from 0, one open at a time, every event with its `event:` line."""

    __slots__ = ("_delta_head", "_index", "_model", "_open", "_signature")

    def __init__(self, request: ChatRequest) -> None:
        super().__init__()
        self._model = request.model
        self._open: str | None = None
        self._index = -1
        self._signature = ""
        self._delta_head = b""

    def _text(self, text: str) -> bytes:
        return self._delta("text", text)

    def _reasoning(self, text: str) -> bytes:
        return self._delta("thinking", text)

    def _keep_alive(self) -> bytes:
        return _PING

    def _fail(self, error: ProxyError) -> bytes:
        return named_event(b"error", error_value(error, is_in_stream=True))

    def _start(self, reply: Started | Reply) -> bytes:
        self._signature = signature(reply.completion_id)
        message: dict[str, Json] = {
            "id": reply_id(reply.completion_id),
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(reply.prompt_tokens, 0),
        }
        return named_event(b"message_start", {"type": "message_start", "message": message})

    def _delta(self, kind: str, text: str) -> bytes:
        """One more piece of the open block; the fast path, once per token."""
        opening = b"" if self._open == kind else self._switch(kind)
        return opening + self._delta_head + orjson.dumps(text) + b"}}\n\n"

    def _switch(self, kind: str) -> bytes:
        """Closes the open block and opens one of another kind."""
        block: dict[str, Json] = {"type": kind, kind: ""}
        if kind == "thinking":
            block["signature"] = ""
        out = self._close() + self._open_block(kind, block)
        head = f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{self._index},"delta":{{"type":"{kind}_delta","{kind}":'
        self._delta_head = head.encode()
        return out

    def _open_block(self, kind: str, block: dict[str, Json]) -> bytes:
        self._index += 1
        self._open = kind
        return named_event(
            b"content_block_start", {"type": "content_block_start", "index": self._index, "content_block": block}
        )

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        out = b""
        if self._open == "thinking":
            out = self._block_delta({"type": "signature_delta", "signature": self._signature})
        self._open = None
        return out + named_event(b"content_block_stop", {"type": "content_block_stop", "index": self._index})

    def _block_delta(self, delta: dict[str, Json]) -> bytes:
        return named_event(
            b"content_block_delta", {"type": "content_block_delta", "index": self._index, "delta": delta}
        )

    def _tool(self, call: ToolCall) -> bytes:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": call.arguments or "{}"}
        return self._open_block("tool_use", block) + self._block_delta(delta) + self._close()

    def _finish(self, reply: Reply) -> bytes:
        out = [self._close()]
        out += [self._tool(call) for call in reply.tool_calls]
        end = {
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason(reply), "stop_sequence": stop_sequence(reply)},
            "usage": reply_usage(reply),
        }
        out += [named_event(b"message_delta", end), _STOP]
        return b"".join(out)
