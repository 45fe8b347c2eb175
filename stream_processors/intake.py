"""The record boundary of a stream processor: decode, handle, try again, bury, or stop the partition.

Faust acknowledges a record whose handling raised, which loses it. So nothing ever raises here: the outcome is either
"done" (acknowledge) or "held" (don't, and take nothing more of that partition).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

import structlog

from bus import BlobStore, BusError, DeadLetters, Delivery, Problem, is_retriable
from bus.claims import resolve
from schemas import registry
from schemas.registry import UnknownSchemaIdError

_log = structlog.get_logger(__name__)

FIRST_RETRY_S: Final = 0.1
LONGEST_RETRY_S: Final = 5.0

Handle = Callable[[Delivery, bytes], Awaitable[None]]
"""Handles one resolved and decodable delivery; the second argument is its value as it stands on the log (perhaps a claim
check). Returns when everything that it caused is acknowledged; safe to call again with the same record."""


@dataclass(slots=True)
class IntakeHealth:
    """What an intake has done and what keeps it from going on; progress means that `handled` grows or the lag is 0."""

    handled: int = 0
    buried: int = 0
    last_handled_at: int = 0


class Intake:
    """Feeds one processor from the stream of all its partitions, one record at a time."""

    def __init__(
        self,
        handle: Handle,
        blobs: BlobStore,
        dead_letters: DeadLetters,
        *,
        by_header: Collection[str] = (),
        on_done: Callable[[Delivery], None] = lambda _: None,
    ) -> None:
        """Of `by_header` topics only the headers are read; `on_done` is told of each record that was handled or buried."""
        self._handle = handle
        self._by_header = by_header
        self._on_done = on_done
        self._blobs = blobs
        self._dead_letters = dead_letters
        self.health = IntakeHealth()
        self.problems: dict[tuple[str, int], Problem] = {}
        """By topic and partition, what keeps it from moving; empty when all is well."""

    async def take(self, delivery: Delivery) -> bool:
        """Whether the record is done and may be acknowledged; False while its partition is held at an unknown schema."""
        place = (delivery.topic, delivery.partition)
        held = self.problems.get(place)
        if held is not None and held.reason == "unknown_schema" and delivery.offset > held.offset:
            return False
        tries = 0
        while True:
            try:
                await self._attempt(delivery)
            except UnknownSchemaIdError as error:
                self._note(delivery, "unknown_schema", str(error), error.schema_id)
                return False
            except Exception as error:  # noqa: BLE001 - the record boundary: Faust would acknowledge and lose the record
                tries += 1
                if await self._settle(delivery, error, tries):
                    break
            else:
                self.health.handled += 1
                break
        self.health.last_handled_at = time.time_ns() // 1_000_000
        self.problems.pop(place, None)
        self._on_done(delivery)
        return True

    async def _attempt(self, delivery: Delivery) -> None:
        if delivery.topic in self._by_header:
            await self._handle(delivery, delivery.value)
            return
        resolved = await resolve(delivery, self._blobs)
        if resolved.is_tombstone:
            return
        resolved.decode()
        await self._handle(resolved, delivery.value)

    async def _settle(self, delivery: Delivery, error: Exception, tries: int) -> bool:
        """Bury what can't ever be handled (True), else wait before the next try (False)."""
        text = f"try {tries} failed: {error!r}"
        if not is_retriable(error):
            try:
                await self._dead_letters.bury(delivery, error)
            except BusError as failed:
                text = f"{error!r}, and it couldn't be buried: {failed}"
            else:
                self.health.buried += 1
                return True
        self._note(delivery, "retrying", text)
        await asyncio.sleep(min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(tries - 1, 16)))
        return False

    def has_learnt(self) -> bool:
        """Whether the registry now knows a schema at which a partition is held: then it is time to read again."""
        held = [p.schema_id for p in self.problems.values() if p.schema_id is not None]
        if not held:
            return False
        registry.frozen_schemas.cache_clear()  # the file may have grown
        return any(schema_id in registry.frozen_schemas() for schema_id in held)

    def _note(self, delivery: Delivery, reason: str, text: str, schema_id: int | None = None) -> None:
        place = (delivery.topic, delivery.partition)
        earlier = self.problems.get(place)
        self.problems[place] = Problem(
            topic=delivery.topic,
            partition=delivery.partition,
            offset=delivery.offset,
            reason=reason,
            text=f"{delivery.where}: {text}",
            schema_id=schema_id,
            since_ms=earlier.since_ms if earlier else time.time_ns() // 1_000_000,
        )
        event = "partition.stopped" if reason == "unknown_schema" else "record.retried"
        _log.warning(
            event, topic=delivery.topic, partition=delivery.partition, offset=delivery.offset, reason=reason, text=text
        )
