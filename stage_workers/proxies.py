"""Which capture proxies live, and which one a session uses: a view of their heartbeats on `rollout.nodes`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.records import Heartbeat, Record

ROLE = "proxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyNode:
    """A proxy as it announced itself: where harnesses talk to it, and where its leases are opened and sealed."""

    node_id: str
    incarnation: str
    data_address: str
    admin_address: str
    fresh_until: int
    is_draining: bool
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What else it said of itself: its forward listener, for example."""

    @property
    def is_stopping(self) -> bool:
        """Whether it is about to go: the leases that it has must move."""
        return bool(self.details.get("is_stopping"))


class ProxyView:
    """The proxies that announced themselves lately."""

    def __init__(self, fresh_s: float, now_ms: Callable[[], int]) -> None:
        self._fresh_s = fresh_s
        self._now_ms = now_ms
        self._nodes: dict[str, ProxyNode] = {}
        self._changed = asyncio.Event()

    def take(self, record: Record, told_at: int | None = None) -> None:
        """A record of `rollout.nodes`, as the log dates it (UTC epoch ms; its own time without that); other roles don't matter."""
        if not isinstance(record, Heartbeat) or record.role != ROLE or not record.admin_address:
            return
        # A proxy that beats slowly isn't stale before it has missed a few.
        patience_s = max(self._fresh_s, 3 * record.interval_s)
        known = self._nodes.get(record.node_id)
        # Not by the proxy's own clock: one that is behind would always seem stale.
        fresh_until = (record.at if told_at is None else told_at) + int(patience_s * 1000)
        if known is not None and known.fresh_until > fresh_until:
            return
        self._nodes[record.node_id] = ProxyNode(
            node_id=record.node_id,
            incarnation=record.incarnation,
            data_address=record.data_address,
            admin_address=record.admin_address,
            fresh_until=fresh_until,
            is_draining=record.is_draining,
            details=record.details,
        )
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed(self) -> None:
        """Returns at the next beat of any proxy."""
        await self._changed.wait()

    def now(self, node: ProxyNode) -> ProxyNode:
        """What that proxy said last, in whatever incarnation."""
        return self._nodes.get(node.node_id, node)

    def incarnation(self, node_id: str) -> str:
        """Which incarnation of that proxy was heard last; '' for none."""
        node = self._nodes.get(node_id)
        return "" if node is None else node.incarnation

    def fresh(self) -> list[ProxyNode]:
        """Those that may be given new sessions."""
        now = self._now_ms()
        return [node for node in self._nodes.values() if node.fresh_until > now and not node.is_draining]

    def admin_address(self, node: ProxyNode) -> str:
        """Where a proxy's admin listener is now: a restarted one has another port."""
        return self._nodes.get(node.node_id, node).admin_address

    def is_same(self, node: ProxyNode) -> bool:
        """Whether no restart of that proxy has been heard of since."""
        return self._nodes.get(node.node_id, node).incarnation == node.incarnation

    async def choose(
        self,
        session_id: str,
        avoid: frozenset[str] = frozenset(),
        fits: Callable[[ProxyNode], bool] = lambda _node: True,
    ) -> ProxyNode:
        """The proxy for a session: the same one for as long as it lives, and the sessions spread evenly.

        Waits until there is one that `fits`; the caller sets the deadline. `avoid` (node ids) is kept to while others are there.
        """
        while True:
            nodes = [node for node in self.fresh() if fits(node)]
            nodes = [node for node in nodes if node.node_id not in avoid] or nodes
            if nodes:
                return max(nodes, key=lambda node: hashlib.sha256(f"{session_id}\0{node.node_id}".encode()).digest())
            await self._changed.wait()
