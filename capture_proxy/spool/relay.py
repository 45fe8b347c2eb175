"""Sends what the spool holds to Kafka: in order per key, many keys at a time, until each entry is acknowledged."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from bus import EventLog
from bus.errors import RecordTooLargeError
from bus.settings import CLAIM_CHECK_BYTES
from capture_proxy.spool.journal import Position
from schemas.codec import Encoded, MalformedRecordError, decode, encode

log = structlog.get_logger(__name__)

_BACKOFF_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0)

# One attempt: short enough that an outage is noticed while calls go on. A record that timed out and arrives all the same
# is only a repeat of the same id.
_PUBLISH_TIMEOUT_S: Final = 10.0

# These say something about the record; everything else says something about Kafka, and is waited out.
_POISON: Final = (MalformedRecordError, RecordTooLargeError)


@dataclass(eq=False, slots=True)
class Entry:
    """One record on its way: in memory while there is room, always in the journal (`position` None: memory only)."""

    key: str
    encoded: Encoded | None
    position: Position | None
    size_bytes: int
    acked: asyncio.Event = field(default_factory=asyncio.Event)


def _nothing(_entry: Entry) -> None:
    """Nobody wants to hear of acknowledgements."""


class Relay:
    """Publishes entries.

    Entries of one key leave one after the other, in the order of `add`; different keys overtake each other. A failed
    publish is tried again for ever, since the journal keeps the entry; a record that can never be sent goes to the dead
    letters and counts as done, so that it doesn't block its session.
    """

    def __init__(
        self,
        bus: EventLog,
        read: Callable[[Position], bytes],
        *,
        on_acked: Callable[[Entry], None] = _nothing,
        width: int = 32,
        cache_bytes: int = 64 << 20,
        publish_timeout_s: float = _PUBLISH_TIMEOUT_S,
    ) -> None:
        self._bus = bus
        self._read = read
        self._on_acked = on_acked
        self._width = width
        self._cache_bytes = cache_bytes
        self._publish_timeout_s = publish_timeout_s
        self._cached = 0
        self._pending: OrderedDict[Entry, None] = OrderedDict()
        self._queues: dict[str, deque[Entry]] = {}
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._workers: list[asyncio.Task[None]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self.unacked_bytes = 0
        self.sent = 0
        self.poisoned = 0
        self.failures = 0
        """Consecutive failed attempts; 0 while Kafka takes records."""
        self.last_error = ""

    @property
    def unacked(self) -> int:
        """Entries that Kafka hasn't acknowledged."""
        return len(self._pending)

    @property
    def is_healthy(self) -> bool:
        """Whether the last attempt to publish succeeded."""
        return self.failures == 0

    def is_relayed(self, key: str) -> bool:
        """Whether Kafka has all entries of a key."""
        return key not in self._queues

    def acked_through(self, last_seq: int) -> int:
        """The highest seq up to which every record is acknowledged, when the last record's is `last_seq`."""
        for entry in self._pending:
            if entry.position is not None:
                return entry.position.seq - 1
        return last_seq

    def add(self, encoded: Encoded | None, key: str, position: Position | None, size_bytes: int) -> Entry:
        """Queues an entry; returns at once."""
        keeps = encoded is not None and (position is None or self._cached + size_bytes <= self._cache_bytes)
        entry = Entry(key, encoded if keeps else None, position, size_bytes)
        if keeps:
            self._cached += size_bytes
        self.unacked_bytes += size_bytes
        self._pending[entry] = None
        self._idle.clear()
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque((entry,))
            self._ready.put_nowait(key)
        else:
            queue.append(entry)
        return entry

    def start(self) -> None:
        """Starts the workers."""
        self._workers = [asyncio.create_task(self._work(), name=f"relay-{i}") for i in range(self._width)]

    async def stop(self, drain_s: float) -> bool:
        """Waits up to `drain_s` for the last acknowledgement, then stops; says whether all were acknowledged."""
        try:
            async with asyncio.timeout(drain_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("relay.undrained", unacked=self.unacked, last_error=self.last_error)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        return not self._pending

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            queue = self._queues[key]
            await self._send(queue[0])
            self._done(queue.popleft())
            if queue:
                self._ready.put_nowait(key)
            else:
                del self._queues[key]

    async def _send(self, entry: Entry) -> None:
        attempt = 0
        while True:
            try:
                # The bus keeps the deadline; the second one is for a client that hangs.
                async with asyncio.timeout(self._publish_timeout_s * 1.5):
                    await self._publish(entry)
            except _POISON as exc:
                self.poisoned += 1
                log.warning("relay.poison", key=entry.key, size_bytes=entry.size_bytes, error=repr(exc))
                await self._dead_letter(entry, exc)
                return
            except Exception as exc:  # noqa: BLE001 - every failure of the outside means: try again, the journal has it
                self.last_error = repr(exc)
                self.failures += 1
                if self.failures == 1:
                    log.warning("relay.stalled", unacked=self.unacked, error=repr(exc))
                await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
                attempt += 1
            else:
                if self.failures:
                    log.info("relay.resumed", unacked=self.unacked)
                self.failures, self.last_error = 0, ""
                self.sent += 1
                return

    async def _publish(self, entry: Entry) -> None:
        encoded = entry.encoded
        if encoded is None:
            encoded = await asyncio.to_thread(_encoded_again, await self._value(entry))
        if len(encoded.value) <= CLAIM_CHECK_BYTES:
            # It was encoded for the journal; encoding it once more would double the cost of every small record.
            await self._bus.publish_raw(
                encoded.topic, encoded.key, encoded.value, encoded.headers, deadline_s=self._publish_timeout_s
            )
        else:
            await self._bus.publish(encoded, deadline_s=self._publish_timeout_s)

    async def _value(self, entry: Entry) -> bytes:
        if entry.encoded is not None:
            return entry.encoded.value
        assert entry.position is not None
        return await asyncio.to_thread(self._read, entry.position)

    async def _dead_letter(self, entry: Entry, exc: Exception) -> None:
        """Keeps the bytes of a record that can't be published as it is; tried for ever, like any record."""
        topic = entry.encoded.topic if entry.encoded is not None else "capture.completions"
        headers = [("dead_reason", repr(exc).encode()[:1000]), ("dead_component", b"proxy")]
        while True:
            try:
                value = await self._value(entry)
                async with asyncio.timeout(self._publish_timeout_s):
                    await self._bus.publish_raw(f"{topic}.proxy.dead", entry.key.encode(), value, headers)
            except _POISON as again:
                log.warning("relay.dead_letter_failed", key=entry.key, error=repr(again))
                return
            except Exception as again:  # noqa: BLE001 - Kafka is away: once acknowledged here, the journal would let it go
                self.last_error = repr(again)
                self.failures += 1
                await asyncio.sleep(_BACKOFF_S[-1])
            else:
                return

    def _done(self, entry: Entry) -> None:
        if entry.encoded is not None:
            self._cached -= entry.size_bytes
            entry.encoded = None
        self.unacked_bytes -= entry.size_bytes
        del self._pending[entry]
        if not self._pending:
            self._idle.set()
        entry.acked.set()
        self._on_acked(entry)


def _encoded_again(value: bytes) -> Encoded:
    """A journal keeps values without their headers."""
    return encode(decode(value))
