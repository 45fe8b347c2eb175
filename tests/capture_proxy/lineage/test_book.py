"""Which lineages a proxy keeps: those of leases that aren't sealed, and their size."""

from __future__ import annotations

import asyncio

from capture_proxy.leases import Lease, LeaseState
from capture_proxy.lineage.book import Lineages
from capture_proxy.lineage.rebuild import Rebuilding
from schemas.records import SessionSpec
from tests.capture_proxy.lineage.toy import OPENING, World


def open_lease(writer: int = 1) -> Lease:
    lease = Lease(
        session_id="s",
        lease_id="lease-1",
        attempt=1,
        writer=writer,
        secret_hash="h",
        spec=SessionSpec(policy_id="p"),
        opened_at=1,
    )
    lease.move(LeaseState.OPEN)
    return lease


class NoLog:
    """A rebuilder whose scan doesn't come to an end by itself."""

    def __init__(self) -> None:
        self.jobs: list[Rebuilding] = []

    def begin(self, job: Rebuilding) -> None:
        self.jobs.append(job)


async def test_a_request_that_comes_behind_the_seal_leaves_nothing() -> None:
    """It was authorised before and parsed meanwhile: neither is a lineage kept for it for ever, nor the log read for one."""
    rebuilder = NoLog()
    lineages = Lineages(rebuilder=rebuilder)  # type: ignore[arg-type]
    lease = open_lease(writer=2)
    lease.move(LeaseState.SEALING)
    lease.move(LeaseState.SEALED)
    assert lineages.is_ready(lease)
    lineage = await lineages.ready(lease)
    assert not lineage.nodes
    assert lineages.describe()["leases"] == 0
    assert rebuilder.jobs == []


async def test_a_lineage_that_is_closed_while_a_call_waits_for_it_isnt_counted() -> None:
    """What was read back until then is gone with the lease; counting it would fill the bound for ever."""
    rebuilder = NoLog()
    lineages = Lineages(rebuilder=rebuilder)  # type: ignore[arg-type]
    lease = open_lease(writer=2)
    lineages.opened(lease, takes_over=1)
    waiting = asyncio.create_task(lineages.ready(lease))
    await asyncio.sleep(0)
    rebuilder.jobs[0].lineage.add(World().ask(OPENING, [51, 99]).record)
    lineages.closed(lease)
    async with asyncio.timeout(5.0):
        assert (await waiting).size_bytes > 0
    assert lineages.size_bytes == 0
