"""The end of a lease: no further calls, the running ones end, and `SessionSealed` says how many there were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from capture_proxy import records
from capture_proxy.leases import Lease, LeaseBook, LeaseState
from capture_proxy.lineage.book import Lineages
from capture_proxy.ports import now_ms
from capture_proxy.spool import Spool

log = structlog.get_logger(__name__)


class Seals:
    """Seals leases, each in a task of its own.

    Running calls get `drain_s`, then `cut(lease, reason)` ends them. Those whose end isn't recorded `delivery_s` later are given up:
    `give_up(lease)` writes their records. As long again is waited for what is on its way to clients.
    """

    def __init__(
        self,
        spool: Spool,
        book: LeaseBook,
        lineages: Lineages,
        *,
        proxy_id: str,
        drain_s: float,
        delivery_s: float,
        cut: Callable[[Lease, str], None],
        give_up: Callable[[Lease], None],
    ) -> None:
        self._spool = spool
        self._book = book
        self._lineages = lineages
        self._proxy_id = proxy_id
        self._drain_s = drain_s
        self._delivery_s = delivery_s
        self._cut = cut
        self._give_up = give_up
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, lease: Lease, reason: str) -> None:
        """Starts a seal without waiting for its end; a lease that is being sealed, or is sealed, stays as it is."""
        if lease.state not in (LeaseState.OPENING, LeaseState.OPEN):
            return
        lease.move(LeaseState.SEALING)
        lease.seal_reason = reason
        task = asyncio.create_task(self._seal(lease), name=f"seal-{lease.lease_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _seal(self, lease: Lease) -> None:
        try:
            async with asyncio.timeout(self._drain_s):
                await lease.drained()
        except TimeoutError:
            self._cut(lease, "sealed")
            await self._await_stragglers(lease)
        entry = self._spool.append(records.sealed(lease, proxy_id=self._proxy_id, at=now_ms()))
        while True:
            try:
                by = await self._spool.durable(entry, ack_wait_s=0.0)
                break
            except TimeoutError:
                log.warning("lease.seal_not_durable", lease_id=lease.lease_id, last_error=self._spool.relay.last_error)
        self._book.sealed(lease)
        self._lineages.closed(lease)
        lease.move(LeaseState.SEALED)
        log.info(
            "lease.sealed",
            session_id=lease.session_id,
            lease_id=lease.lease_id,
            last_seq=lease.last_seq,
            why=lease.seal_reason,
            by=by,
        )

    async def _await_stragglers(self, lease: Lease) -> None:
        try:
            async with asyncio.timeout(self._delivery_s):
                await lease.drained(records_only=True)
        except TimeoutError:
            # Without a record for every number the seal would leave a gap.
            self._give_up(lease)
        try:
            async with asyncio.timeout(self._delivery_s):
                await lease.drained()
        except TimeoutError:
            log.warning("lease.delivery_unknown", lease_id=lease.lease_id, calls=sorted(lease.undelivered))
