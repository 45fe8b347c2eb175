"""What happens to one record in a lane: decoded, handled, tried again, or buried. It ends only when the offset may be committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from bus.blobs import BlobStore
from bus.claims import resolve
from bus.dead_letters import DeadLetters
from bus.deliveries import Delivery
from bus.errors import BusError, is_retriable
from schemas import registry
from schemas.registry import UnknownSchemaIdError

_log = structlog.get_logger(__name__)

FIRST_RETRY_S: Final = 0.1
LONGEST_RETRY_S: Final = 30.0
RECHECK_S: Final = 5.0
"""How often a partition that stopped at an unknown schema looks whether the registry has learnt it."""


class AbandonedError(BusError):
    """The lane gives the partition up while a record waits for its next try; nobody has handled it."""

    is_retriable = True


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a partition doesn't move."""

    topic: str
    partition: int
    offset: int
    reason: str
    """`unknown_schema`, `retrying` or `stopped` (poison, in a lane without dead letters)."""
    text: str
    """What, where and what to do."""
    schema_id: int | None = None
    since_ms: int = 0
    """UTC epoch ms."""


class RecordHandling:
    """The handling of single records for one lane; pure of partitions, offsets and clients."""

    def __init__(
        self,
        handler: Callable[[Delivery], Awaitable[None]],
        blobs: BlobStore,
        dead_letters: DeadLetters | None,
        *,
        decode: bool = True,
        recheck_s: float = RECHECK_S,
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        self._handler = handler
        self._blobs = blobs
        self._dead_letters = dead_letters
        self._decode = decode
        self._recheck_s = recheck_s
        self._first_retry_s = first_retry_s
        self.problems: dict[tuple[str, int], Problem] = {}
        """By topic and partition, what keeps it from moving; empty when all is well."""
        self.handled = 0
        self.buried = 0

    async def handle(self, delivery: Delivery, giving_up: asyncio.Event) -> None:
        """Return when the record is handled or buried; raises `AbandonedError` when `giving_up` is set between two tries."""
        tries = 0
        try:
            while True:
                try:
                    await self._attempt(delivery)
                except UnknownSchemaIdError as error:
                    self._stop_at_unknown_schema(delivery, error)
                    await _pause(self._recheck_s, giving_up)
                    registry.frozen_schemas.cache_clear()  # the file may have grown
                except Exception as error:  # noqa: BLE001 - the record boundary: one bad record must not end the lane
                    tries += 1
                    pause_s = await self._after_failure(delivery, error, tries)
                    if pause_s is None:
                        self.buried += 1
                        return
                    await _pause(pause_s, giving_up)
                else:
                    self.handled += 1
                    return
        finally:
            self.problems.pop((delivery.topic, delivery.partition), None)

    async def _attempt(self, delivery: Delivery) -> None:
        if not self._decode:
            await self._handler(delivery)
            return
        resolved = await resolve(delivery, self._blobs)
        if not resolved.is_tombstone:
            resolved.decode()
        await self._handler(resolved)

    async def _after_failure(self, delivery: Delivery, error: Exception, tries: int) -> float | None:
        """Seconds until the next try; None when the record is buried and the lane may go on."""
        if is_retriable(error):
            pause_s = self._growing(tries)
            self._note(delivery, "retrying", f"try {tries} failed with {error!r}; again in {pause_s:.1f} s")
            return pause_s
        if self._dead_letters is None:
            self._note(
                delivery, "stopped", f"{error!r}, and this lane buries nothing: fix the cause; it is tried again"
            )
            return self._recheck_s
        try:
            await self._dead_letters.bury(delivery, error)
        except BusError as failed:
            pause_s = self._growing(tries)
            self._note(delivery, "retrying", f"{error!r}, and it couldn't be buried: {failed}")
            return pause_s
        return None

    def _growing(self, tries: int) -> float:
        # 16 doublings are far beyond the longest pause; without a limit the number itself would grow for ever.
        return min(LONGEST_RETRY_S, self._first_retry_s * float(2 ** min(tries - 1, 16)))

    def _stop_at_unknown_schema(self, delivery: Delivery, error: UnknownSchemaIdError) -> None:
        self._note(delivery, "unknown_schema", str(error), schema_id=error.schema_id)

    def _note(self, delivery: Delivery, reason: str, text: str, *, schema_id: int | None = None) -> None:
        key = (delivery.topic, delivery.partition)
        earlier = self.problems.get(key)
        now_ms = time.time_ns() // 1_000_000
        self.problems[key] = Problem(
            topic=delivery.topic,
            partition=delivery.partition,
            offset=delivery.offset,
            reason=reason,
            text=f"{delivery.where}: {text}",
            schema_id=schema_id,
            since_ms=earlier.since_ms if earlier else now_ms,
        )
        if reason != "retrying" and earlier is not None and earlier.reason == reason:
            return  # said once; health goes on saying it
        _log.warning(
            "partition.stopped" if reason != "retrying" else "record.retried",
            topic=delivery.topic,
            partition=delivery.partition,
            offset=delivery.offset,
            reason=reason,
            text=text,
        )


async def _pause(seconds: float, giving_up: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await giving_up.wait()
    except TimeoutError:
        return
    raise AbandonedError("the partition was given up before the record's next try")
