"""generateContent answers as a stream: an event per chunk, or one JSON array."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import orjson

from capture_proxy.dialects.encoder import ReplyEncoder
from capture_proxy.dialects.google.errors import error_value
from capture_proxy.dialects.google.response import call_part, candidate, create_time, reply_id, usage
from capture_proxy.dialects.sse import STREAM_HEADERS
from capture_proxy.reply import ChatRequest, Json, ProxyError, Reply, Started
from capture_proxy.turn_ids import turn_token

ARRAY_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {**STREAM_HEADERS, "content-type": "application/json; charset=utf-8"}
)

_LINE_ENDS: Final = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
"""What ends a line for a client that cuts its lines as Unicode does, or for another's pattern; JSON needs no escape there."""


def stream_headers(request: ChatRequest) -> Mapping[str, str]:
    """The headers that go with the framing."""
    return ARRAY_HEADERS if request.echo.get("array") else STREAM_HEADERS


class GenerateStreamEncoder(ReplyEncoder):
    """One streamed answer. Calls, usage and the finish reason are in the last chunk, and only there.

    The signature stands on the first part of each kind: clients that put pieces together keep the first one's. A keep-alive is
    an empty text of the kind that is open: without any part, one SDK's chat would forget the whole turn; of the other kind, a
    client would cut the thought in two.
    """

    __slots__ = ("_begun", "_delta_end", "_is_array", "_is_first", "_model", "_open", "_shows_thoughts", "_signature")

    def __init__(self, request: ChatRequest) -> None:
        super().__init__()
        self._model = request.model
        self._is_array = bool(request.echo.get("array"))
        self._shows_thoughts = bool(request.echo.get("thoughts"))
        self._is_first = True
        self._open = "text"
        self._begun: set[str] = set()
        self._signature = b""
        self._delta_end = self._make_end({"modelVersion": self._model})

    def _text(self, text: str) -> bytes:
        return self._delta("text", text)

    def _reasoning(self, text: str) -> bytes:
        return self._delta("thought", text) if self._shows_thoughts else b""

    def _keep_alive(self) -> bytes:
        return self._chunk(self._part(self._open, "", with_signature=False) + self._delta_end)

    def _start(self, reply: Started | Reply) -> bytes:
        """What every chunk repeats is made once, since a chunk goes out per token. There is no head to send."""
        self._signature = b',"thoughtSignature":"' + turn_token(reply.completion_id).encode() + b'"'
        facts = {
            "modelVersion": self._model,
            "createTime": create_time(reply.created_at),
            "responseId": reply_id(reply.completion_id),
        }
        self._delta_end = self._make_end(facts)
        return b""

    def _make_end(self, facts: dict[str, Json]) -> bytes:
        return b'],"role":"model"},"index":0}],' + orjson.dumps(facts)[1:]

    def _delta(self, kind: str, text: str) -> bytes:
        self._open = kind
        is_first = kind not in self._begun
        self._begun.add(kind)
        return self._chunk(self._part(kind, text, with_signature=is_first) + self._delta_end)

    def _part(self, kind: str, text: str, *, with_signature: bool) -> bytes:
        head = b'{"candidates":[{"content":{"parts":[{"text":' + orjson.dumps(text)
        return (
            head
            + (b',"thought":true' if kind == "thought" else b"")
            + (self._signature if with_signature else b"")
            + b"}"
        )

    def _finish(self, reply: Reply) -> bytes:
        signature = turn_token(reply.completion_id)
        parts: list[Json] = [call_part(call, signature) for call in reply.tool_calls]
        value = {
            "candidates": [candidate(reply, parts or [{"text": "", "thoughtSignature": signature}])],
            "usageMetadata": usage(reply),
            "modelVersion": self._model,
            "createTime": create_time(reply.created_at),
            "responseId": reply_id(reply.completion_id),
        }
        return self._chunk(orjson.dumps(value)) + (b"\n]\n" if self._is_array else b"")

    def _fail(self, error: ProxyError) -> bytes:
        """An error as an event, and then as a bare object, which is the vendor's form of an error that breaks a stream.

        One client doesn't look for errors in events: without something odd behind it, it would take what it has for the answer.
        """
        value = orjson.dumps(error_value(error))
        return self._chunk(value) + (b"\n]\n" if self._is_array else _one_line(value) + b"\n")

    def _chunk(self, value: bytes) -> bytes:
        if not self._is_array:
            return b"data: " + _one_line(value) + b"\n\n"
        lead = b"[" if self._is_first else b",\r\n"
        self._is_first = False
        return lead + value


def _one_line(value: bytes) -> bytes:
    for sent, escaped in _LINE_ENDS:
        if sent in value:
            value = value.replace(sent, escaped)
    return value
