"""The life of one streamed answer, the same in every dialect: it begins once, ends once, and nothing follows the end."""

from __future__ import annotations

from abc import ABC, abstractmethod

from capture_proxy.reply import (
    Failed,
    Finished,
    KeepAlive,
    ProxyError,
    ReasoningDelta,
    Reply,
    ReplyEvent,
    Started,
    TextDelta,
)


class ReplyEncoder(ABC):
    """Takes the events of one reply apart; a dialect says what each adds to its stream. An empty delta adds nothing."""

    __slots__ = ("_has_ended", "_is_started")

    def __init__(self) -> None:
        self._is_started = False
        self._has_ended = False

    def encode(self, event: ReplyEvent) -> bytes:
        """The bytes that this event adds to the stream."""
        if self._has_ended:
            return b""
        match event:
            case TextDelta(text):
                return self._text(text) if text else b""
            case ReasoningDelta(text):
                return self._reasoning(text) if text else b""
            case KeepAlive():
                return self._keep_alive()
            case Started():
                return self._begin(event)
            case Finished(reply):
                self._has_ended = True
                return self._begin(reply) + self._finish(reply)
            case Failed(error):
                self._has_ended = True
                return self._fail(error)

    def _begin(self, reply: Started | Reply) -> bytes:
        if self._is_started:
            return b""
        self._is_started = True
        return self._start(reply)

    @abstractmethod
    def _start(self, reply: Started | Reply) -> bytes:
        """The answer's head; a reply that finishes without having started brings the same facts."""

    @abstractmethod
    def _text(self, text: str) -> bytes:
        """More of the visible answer; the fast path, once per token."""

    @abstractmethod
    def _reasoning(self, text: str) -> bytes:
        """More thinking."""

    @abstractmethod
    def _keep_alive(self) -> bytes:
        """A sign of life that clients of this dialect count and don't stumble over."""

    @abstractmethod
    def _finish(self, reply: Reply) -> bytes:
        """Everything that may leave only when the record is durable."""

    @abstractmethod
    def _fail(self, error: ProxyError) -> bytes:
        """The dialect's error inside a stream, which is its end."""
