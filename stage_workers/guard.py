"""Whether a proxy still serves: asked once for all sessions that wonder, with a deadline, since a frozen one refuses nothing."""

from __future__ import annotations

import asyncio
import time

import structlog

from stage_workers.admin import AdminClient, ProxyRefusedError, ProxyUnavailableError
from stage_workers.proxies import ProxyNode, ProxyView

log = structlog.get_logger(__name__)


class ProxyGuard:
    """Looks at proxies, at most every `every_s` at each."""

    def __init__(self, admin: AdminClient, proxies: ProxyView, *, every_s: float, deadline_s: float) -> None:
        self._admin = admin
        self._proxies = proxies
        self._every_s = every_s
        self._deadline_s = deadline_s
        self._looks: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._well_at: dict[tuple[str, str], float] = {}

    async def loss(self, node: ProxyNode) -> str:
        """Why a proxy's incarnation is lost; '' while it serves.

        Silence on the log alone is no reason: it is Kafka's as well as the proxy's.
        """
        if not self._proxies.is_same(node):
            return "it was restarted"
        key = (node.node_id, node.incarnation)
        if time.monotonic() - self._well_at.get(key, float("-inf")) < self._every_s:
            return ""
        look = self._looks.get(key)
        if look is None:
            look = asyncio.create_task(self._look(node), name=f"look-at-{node.node_id}")
            self._looks[key] = look
            look.add_done_callback(lambda _: self._looks.pop(key, None))
        found = await asyncio.shield(look)
        if not found:
            self._well_at[key] = time.monotonic()
        return found

    async def _look(self, node: ProxyNode) -> str:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._ask(node)
        except TimeoutError:
            return f"it doesn't answer within {self._deadline_s:g} s"

    async def _ask(self, node: ProxyNode) -> str:
        for is_last in (False, True):
            try:
                incarnation = await self._admin.incarnation(node.admin_address, self._deadline_s)
            except ProxyUnavailableError as error:
                # A connection that was kept from an earlier call may have broken with the proxy or without it: a new one tells.
                if error.is_certain or is_last:
                    return str(error)
                continue
            except ProxyRefusedError:
                return ""
            return "" if incarnation in {node.incarnation, ""} else "another incarnation answers in its place"
        raise AssertionError("unreachable: the last round returns")
