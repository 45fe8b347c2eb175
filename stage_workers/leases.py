"""Opening the session's lease at a proxy and sealing it there, with patience: each try is idempotent, so trying again is safe."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import structlog

from schemas import ids
from schemas.records import Boundary
from stage_workers.admin import Opening, ProxyRefusedError, ProxyUnavailableError
from stage_workers.errors import StageFault
from stage_workers.kit import Kit
from stage_workers.proxies import ProxyNode
from stage_workers.sessions import OpenLease, Session

log = structlog.get_logger(__name__)

_PAUSE_S = 0.5
# An earlier writer's proxy is most often dead; where it only was slow, its seal comes at once.
_EARLIER_SEAL_S = 5.0


class LeaseOpener:
    """Opens one lease's writers, one after the other. Only the secret's hash leaves the worker."""

    def __init__(
        self, kit: Kit, session: Session, secret: str, fits: Callable[[ProxyNode], bool] = lambda _node: True
    ) -> None:
        self._kit = kit
        self._session = session
        self._secret = secret
        self._fits = fits
        self._writer = 0
        self._since_at = 0
        self.problem = "no proxy has announced itself"
        """Why it isn't open yet."""

    async def first(self) -> OpenLease:
        """Opens writer 1.

        Raises:
            StageFault: (provider) no proxy opened it within the deadline, or one refused.
        """
        deadline_s = self._kit.settings.open_deadline_s
        self._since_at = self._kit.now_ms()
        try:
            async with asyncio.timeout(deadline_s):
                return await self.next(frozenset())
        except TimeoutError:
            text = f"no proxy opened the lease within {deadline_s:g} s: {self.problem}"
            raise StageFault(Boundary.PROVIDER, text) from None

    async def next(self, avoid: frozenset[str], *, held: OpenLease | None = None) -> OpenLease:
        """Opens the next writer, at a proxy beside those in `avoid` where there are others; tries until it is open.

        A proxy that surely did nothing is left for another one; one that may have opened it is asked again. Where only the proxy of
        `held`, the writer before, is there, and turns out to be well, that one stays.

        Raises:
            StageFault: (provider) a proxy refused.
        """
        kit, session = self._kit, self._session
        failed = {node_id: kit.proxies.incarnation(node_id) for node_id in avoid}
        node: ProxyNode | None = None
        unsure: dict[tuple[str, str], int] = {}
        self._writer += 1
        while True:
            gone = frozenset(name for name, which in failed.items() if kit.proxies.incarnation(name) == which)
            node = node or await kit.proxies.choose(session.session_id, gone, self._fits)
            if held is not None and (kept := await self._kept(held, node)) is not None:
                return kept
            place = (node.node_id, node.incarnation)
            # Where a number may be open, another one would be refused while that is.
            writer = unsure.get(place, self._writer)
            try:
                await kit.admin.open(kit.proxies.admin_address(node), self._opening(writer))
            except ProxyUnavailableError as error:
                self.problem = str(error)
                log.warning("lease.open_delayed", session_id=session.session_id, proxy=node.node_id, error=self.problem)
                if not error.is_certain:
                    unsure[place] = writer
                    if not session.leases:
                        session.writers = [writer]
                if error.is_certain or await kit.guard.loss(node):
                    failed[node.node_id] = node.incarnation
                    # A number that may be open somewhere isn't used anywhere else.
                    self._writer += unsure.get(place) == self._writer
                    node = None
                await asyncio.sleep(_PAUSE_S)
                continue
            except ProxyRefusedError as error:
                # It may have come back to itself between our look and our asking.
                if held is not None and (kept := await self._kept(held, node)) is not None:
                    return kept
                raise StageFault(Boundary.PROVIDER, f"the proxy refused to open the lease: {error}") from error
            lease = OpenLease(node=node, secret=self._secret, writer=writer)
            session.leases.append(lease)
            session.writers = [lease.writer for lease in session.leases]
            return lease

    def _opening(self, writer: int) -> Opening:
        session = self._session
        return Opening(
            session_id=session.session_id,
            attempt=session.attempt,
            lease_id=session.lease_id,
            secret_hash=ids.secret_hash(self._secret),
            writer=writer,
            takes_over=session.leases[-1].writer if session.leases else 0,
            since_at=self._since_at,
            spec=session.spec,
        )

    async def _kept(self, held: OpenLease, node: ProxyNode) -> OpenLease | None:
        """The writer before, if it is open at `node`: a proxy that is well after all.

        It may have been opened at a new incarnation before that had said that it is one: then it is noted as that one's.
        """
        if node.node_id != held.node.node_id:
            return None
        within_s = self._kit.settings.probe_deadline_s
        try:
            found = await self._kit.admin.lease(node.admin_address, self._session.lease_id, held.writer, within_s)
        except (ProxyUnavailableError, ProxyRefusedError):
            return None
        if found.get("state") != "open":
            return None
        self._writer -= 1
        if node.incarnation == held.node.incarnation:
            return held
        kept = dataclasses.replace(held, node=node)
        self._session.leases[-1] = kept
        return kept


async def seal_leases(kit: Kit, session: Session, reason: str) -> bool:
    """Seals every writer of the session; False when the last one's seal could not be had in time (its proxy's heirs then do it)."""
    *earlier, last = session.leases
    async with asyncio.TaskGroup() as group:
        for lease in earlier:
            group.create_task(seal_lease(kit, session, lease, reason, _EARLIER_SEAL_S))
        sealing = group.create_task(seal_lease(kit, session, last, reason, kit.settings.seal_deadline_s))
    return sealing.result()


async def seal_lease(kit: Kit, session: Session, lease: OpenLease, reason: str, within_s: float) -> bool:
    """Seals one writer at its proxy; False when that could not be had in time, or the proxy has been replaced."""
    where = {"session_id": session.session_id, "proxy": lease.node.node_id, "writer": lease.writer}
    try:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    await kit.admin.seal(kit.proxies.admin_address(lease.node), session.lease_id, lease.writer, reason)
                except ProxyUnavailableError as error:
                    log.warning("lease.seal_delayed", error=str(error), **where)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                return True
    except TimeoutError:
        log.warning("lease.unsealed", error=f"not within {within_s:g} s", **where)
    except ProxyRefusedError as error:
        log.warning("lease.unsealed", error=str(error), **where)
    return False
