"""A lease's proxy as a model socket sees it: one of its listeners, whichever proxy that is by now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from stage_workers.model_socket import Upstream
from stage_workers.proxies import ProxyNode
from stage_workers.sessions import OpenLease


class Keeps(Protocol):
    """Who keeps the lease open."""

    def peek(self) -> OpenLease | None:
        """The writer in use; None while another one is looked for."""

    async def current(self) -> OpenLease:
        """The writer in use, as soon as there is one. Raises RouteOver."""

    async def examined(self, writer: int) -> OpenLease:
        """The writer in use, after a look at whether this one still is open where it was opened. Raises RouteOver."""


class Face:
    """One listener of the lease's proxy, as a model socket's route."""

    def __init__(self, keeper: Keeps, address_of: Callable[[ProxyNode], str]) -> None:
        self._keeper = keeper
        self._address_of = address_of

    def of(self, lease: OpenLease) -> Upstream:
        """That listener of the lease's proxy, for the lease's writer."""
        parts = urlsplit(self._address_of(lease.node))
        return Upstream(parts.hostname or "", parts.port or 80, lease.writer)

    def peek(self) -> Upstream | None:
        """See `Route`."""
        lease = self._keeper.peek()
        return None if lease is None else self.of(lease)

    async def current(self) -> Upstream:
        """See `Route`."""
        return self.of(await self._keeper.current())

    async def verified(self, upstream: Upstream) -> Upstream:
        """See `Route`."""
        return self.of(await self._keeper.examined(upstream.writer))


def forward_address(node: ProxyNode) -> str:
    """Its forward listener's URL; '' where it has none."""
    forward = node.details.get("forward")
    return str(forward.get("address", "")) if isinstance(forward, dict) else ""
