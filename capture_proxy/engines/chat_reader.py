"""Answers of `/v1/chat/completions`, streamed or whole, with the ids that servers put into one place or another. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from capture_proxy.engines.base import EngineChunk
from capture_proxy.engines.chat_tokens import TokenEvidence
from capture_proxy.engines.errors import error_of
from capture_proxy.engines.sse import DONE, EventSplitter, parse_event
from capture_proxy.reply import ProxyError

_WHOLE_BYTES_MAX: Final = 256 << 20


class ChatReader:
    """The chunks of one streamed answer; the finish comes at its very end, since usage and ids may follow the finish reason."""

    __slots__ = ("_evidence", "_is_finished", "_splitter", "is_done")

    def __init__(self) -> None:
        self._splitter = EventSplitter()
        self._evidence = TokenEvidence()
        self._is_finished = False
        self.is_done = False

    def feed(self, data: bytes) -> Iterator[EngineChunk]:
        """The chunks completed by `data`. Raises ProxyError at an error event, after the chunks before it."""
        for event in self._splitter.feed(data):
            if event == DONE:
                self.is_done = True
                yield from self.end()
                return
            value = parse_event(event)
            if value.get("error"):
                raise error_of(value, None)
            if (chunk := take(self._evidence, value, "delta")) is not None:
                yield chunk

    def end(self) -> Iterator[EngineChunk]:
        """The finish, if a finish reason came."""
        if self._evidence.reason is not None and not self._is_finished:
            self._is_finished = True
            yield self._evidence.last_chunk()


class WholeReader:
    """The one chunk of an answer that isn't streamed."""

    __slots__ = ("_data", "is_done")

    def __init__(self) -> None:
        self._data = bytearray()
        self.is_done = False

    def feed(self, data: bytes) -> Iterator[EngineChunk]:
        """Nothing yet: the answer is one object. Raises ProxyError when it is absurdly long."""
        self._data += data
        if len(self._data) > _WHOLE_BYTES_MAX:
            raise ProxyError("engine_error", "the engine's answer doesn't end")
        return iter(())

    def end(self) -> Iterator[EngineChunk]:
        """The whole reply. Raises ProxyError."""
        value = parse_event(bytes(self._data))
        if value.get("error"):
            raise error_of(value, None)
        evidence = TokenEvidence()
        chunk = take(evidence, value, "message")
        if chunk is not None:
            yield chunk
        if evidence.reason is not None:
            yield evidence.last_chunk()


def take(evidence: TokenEvidence, value: Mapping[str, Any], key: str) -> EngineChunk | None:
    """Notes what an event holds, and gives what may be shown of it. Raises ProxyError for an event of another shape."""
    try:
        return evidence.take(value, key)
    except (TypeError, ValueError, LookupError, AttributeError, orjson.JSONEncodeError) as error:
        raise ProxyError("engine_error", f"the engine sent an answer of another shape: {error!r}") from error
