"""Dead letters: a record that can't be handled is set aside whole, with the reason, and its consumer goes on."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

import structlog

from bus.deliveries import Delivery, Position
from schemas.codec import MalformedRecordError

_log = structlog.get_logger(__name__)
_ERROR_LIMIT = 2000
"""Characters of an error's text that a header keeps."""


class RawPublisher(Protocol):
    """The part of a bus that dead letters need."""

    def publish_raw(
        self, topic: str, key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()
    ) -> Awaitable[Position]:
        """Publish bytes as they are."""
        ...


def dead_letter_name(topic: str, component: str) -> str:
    """The catalogue's name of the topic where `component` sets aside records of `topic`."""
    return f"{topic}.{component}.dead"


def reason_of(error: BaseException) -> str:
    """The word under which an error is counted: what it says of itself, else what kind it is."""
    said = getattr(error, "reason", None)
    if isinstance(said, str) and said:
        return said
    return "malformed" if isinstance(error, MalformedRecordError) else "handler_error"


def dead_letter_headers(
    delivery: Delivery, component: str, error: BaseException, *, reason: str | None = None
) -> tuple[tuple[str, bytes], ...]:
    """The record's own headers, then why, where and when it died; an earlier death's are replaced."""
    own = tuple((name, value) for name, value in delivery.header_list if not name.startswith("dead_"))
    facts = {
        "dead_reason": reason or reason_of(error),
        "dead_error_class": type(error).__name__,
        "dead_error": str(error)[:_ERROR_LIMIT],
        "dead_topic": delivery.topic,
        "dead_partition": str(delivery.partition),
        "dead_offset": str(delivery.offset),
        "dead_component": component,
        "dead_at": str(time.time_ns() // 1_000_000),
    }
    return own + tuple((name, text.encode("utf-8", "replace")) for name, text in facts.items())


class DeadLetters:
    """Sets records aside for one component. Also for consumers that aren't lanes, such as a stream processor's agent."""

    def __init__(self, bus: RawPublisher, component: str) -> None:
        self._bus = bus
        self.component = component

    async def bury(self, delivery: Delivery, error: BaseException, *, reason: str | None = None) -> Position:
        """Publish the raw record to `<topic>.<component>.dead`; returns when it is acknowledged, so the caller may go on."""
        headers = dead_letter_headers(delivery, self.component, error, reason=reason)
        target = dead_letter_name(delivery.topic, self.component)
        value = None if delivery.is_tombstone else delivery.value
        position = await self._bus.publish_raw(target, delivery.key, value, headers)
        _log.error(
            "record.buried",
            topic=delivery.topic,
            partition=delivery.partition,
            offset=delivery.offset,
            dead_topic=target,
            dead_offset=position.offset,
            reason=reason or reason_of(error),
            error=repr(error)[:_ERROR_LIMIT],
        )
        return position


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as read back: the source's place and the reason."""

    source: Position
    component: str
    reason: str
    error_class: str
    error: str
    dead_at: int
    """UTC epoch ms."""

    @classmethod
    def read(cls, delivery: Delivery) -> DeadLetter:
        """Read the `dead_*` headers of a delivery; KeyError or ValueError when it is no dead letter."""
        text = {name: value.decode("utf-8", "replace") for name, value in delivery.headers.items()}
        source = Position(text["dead_topic"], int(text["dead_partition"]), int(text["dead_offset"]))
        return cls(
            source=source,
            component=text["dead_component"],
            reason=text["dead_reason"],
            error_class=text["dead_error_class"],
            error=text["dead_error"],
            dead_at=int(text["dead_at"]),
        )
