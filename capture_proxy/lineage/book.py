"""The lineages of this proxy's leases: made when a lease opens, gone when it is sealed."""

from __future__ import annotations

from capture_proxy.leases import Lease
from capture_proxy.lineage.index import Lineage


class Lineages:
    """By (lease_id, writer)."""

    def __init__(self) -> None:
        self._by_lease: dict[tuple[str, int], Lineage] = {}

    def is_ready(self, lease: Lease) -> bool:
        """Whether a lease's earlier calls are all here."""
        del lease
        return True

    async def ready(self, lease: Lease) -> Lineage:
        """A lease's lineage, once its earlier calls are here."""
        return self._by_lease.setdefault((lease.lease_id, lease.writer), Lineage(lease.spec.policy_id))

    def closed(self, lease: Lease) -> None:
        """A lease is sealed: nothing goes on from its calls here."""
        self._by_lease.pop((lease.lease_id, lease.writer), None)
