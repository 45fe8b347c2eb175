"""Chat Completions answers as a stream of chunks."""

from __future__ import annotations

import orjson

from capture_proxy.dialects.encoder import ReplyEncoder
from capture_proxy.dialects.openai_chat.errors import error_value
from capture_proxy.dialects.openai_chat.response import finish_reason, logprobs_value, reply_id, usage
from capture_proxy.dialects.openai_chat.tools import call_value, function_value, is_legacy
from capture_proxy.dialects.sse import data_event
from capture_proxy.reply import ChatRequest, Json, ProxyError, Reply, Started

_DONE = b"data: [DONE]\n\n"
_DELTA_END = b'},"logprobs":null,"finish_reason":null}]}\n\n'


class ChatStreamEncoder(ReplyEncoder):
    """One streamed answer. A keep-alive is a chunk with an empty delta: comments don't count for some clients.

    The usage chunk without choices comes only when asked for; otherwise usage rides on the finishing chunk.
    """

    __slots__ = ("_head", "_include_usage", "_model")

    def __init__(self, request: ChatRequest) -> None:
        super().__init__()
        self._include_usage = request.include_usage
        self._model = request.model
        self._head = self._make_head("pending", 0)

    def _text(self, text: str) -> bytes:
        return self._head + b'{"content":' + orjson.dumps(text) + _DELTA_END

    def _reasoning(self, text: str) -> bytes:
        return self._head + b'{"reasoning_content":' + orjson.dumps(text) + _DELTA_END

    def _keep_alive(self) -> bytes:
        return self._head + b"{" + _DELTA_END

    def _fail(self, error: ProxyError) -> bytes:
        return data_event(error_value(error, is_in_stream=True))

    def _make_head(self, completion_id: str, created_at: int) -> bytes:
        """Everything of a chunk up to its delta; made once, since a chunk goes out per token."""
        start = {
            "id": reply_id(completion_id),
            "object": "chat.completion.chunk",
            "created": created_at // 1000,
            "model": self._model,
        }
        return b"data: " + orjson.dumps(start)[:-1] + b',"choices":[{"index":0,"delta":'

    def _start(self, reply: Started | Reply) -> bytes:
        self._head = self._make_head(reply.completion_id, reply.created_at)
        return self._head + b'{"role":"assistant","content":""' + _DELTA_END

    def _finish(self, reply: Reply) -> bytes:
        out: list[bytes] = []
        if reply.logprobs is not None:  # all at once: before the end it isn't known which tokens are visible text
            logprobs = orjson.dumps(logprobs_value(reply))
            out.append(self._head + b'{},"logprobs":' + logprobs + b',"finish_reason":null}]}\n\n')
        if is_legacy(reply):
            value = orjson.dumps(function_value(reply.tool_calls[0]))
            out.append(self._head + b'{"function_call":' + value + _DELTA_END)
        else:
            for index, call in enumerate(reply.tool_calls):
                value = orjson.dumps([{"index": index, **call_value(call, reply.echo)}])
                out.append(self._head + b'{"tool_calls":' + value + _DELTA_END)
        end = self._head + b'{},"logprobs":null,"finish_reason":"' + finish_reason(reply).encode() + b'"}]'
        if self._include_usage:
            out += [end + b"}\n\n", data_event(self._usage_chunk(reply))]
        else:
            out.append(end + b',"usage":' + orjson.dumps(usage(reply)) + b"}\n\n")
        out.append(_DONE)
        return b"".join(out)

    def _usage_chunk(self, reply: Reply) -> dict[str, Json]:
        return {
            "id": reply_id(reply.completion_id),
            "object": "chat.completion.chunk",
            "created": reply.created_at // 1000,
            "model": self._model,
            "choices": [],
            "usage": usage(reply),
        }
