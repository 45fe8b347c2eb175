"""The calls of one session with their whole prompts and conversations, read from any place of the log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import structlog

from bus.deliveries import Delivery, Start
from bus.protocol import EventLog
from schemas.records import CompletionRecord, SessionOpened
from schemas.resolve import ResolvedCall, Resolver

_log = structlog.get_logger(__name__)

TOPIC: Final = "capture.completions"

MARGIN_MS: Final = 60_000
"""Clocks of proxies and brokers may differ: a session's records are looked for from a minute before it was opened."""


@dataclass(frozen=True, slots=True)
class SessionCall:
    """A call as it stands on the log, with what its deltas stand for: `call.prompt()`, `call.messages()`, or `call.problem`."""

    delivery: Delivery
    call: ResolvedCall
    tools: Any

    @property
    def record(self) -> CompletionRecord:
        """The record as logged."""
        return self.call.record


def since_opening(opened: SessionOpened) -> int:
    """The time (UTC epoch ms) from which a session's records are found, given the opening of its first writer."""
    return max(0, opened.opened_at - MARGIN_MS)


async def read_session(
    bus: EventLog, session_id: str, *, since: Start = "earliest", from_offset: int = 0
) -> AsyncGenerator[SessionCall, None]:
    """The session's calls from `from_offset` of its partition on, as far as the log reaches now, each resolved.

    A delta builds on earlier records, so reading begins at `since`, the session's start (see `since_opening`), wherever the caller
    wants to go on from. Calls come in the order of the log; one whose parent stands behind it comes after that.
    What is left without its parent comes last, with a `problem`. Raises as `EventLog.tail`.
    """
    partition = await bus.partition_for(TOPIC, session_id)
    key = session_id.encode()
    resolver = Resolver()
    places: dict[str, Delivery] = {}
    async with aclosing(bus.tail([TOPIC], start=since, partitions=[partition], until_end=True)) as deliveries:
        async for delivery in deliveries:
            record = _completion(delivery) if delivery.key == key else None
            if record is None:
                continue
            places.setdefault(record.completion_id, delivery)
            for call in resolver.add(record):
                if (place := places[call.record.completion_id]).offset >= from_offset:
                    yield SessionCall(place, call, resolver.tools(call.record))
    for call in resolver.give_up():
        if (place := places[call.record.completion_id]).offset >= from_offset:
            yield SessionCall(place, call, resolver.tools(call.record))


def _completion(delivery: Delivery) -> CompletionRecord | None:
    try:
        record = delivery.decode()
    except Exception as error:  # noqa: BLE001 - the record's boundary: one that can't be read is no reason to lose the session
        _log.warning("record.unreadable", where=delivery.where, error=repr(error))
        return None
    return record if isinstance(record, CompletionRecord) else None
