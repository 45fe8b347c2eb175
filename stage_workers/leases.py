"""Opening a lease at a proxy and sealing it there, with patience: each try is idempotent, so trying again is safe."""

from __future__ import annotations

import asyncio

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


async def open_lease(kit: Kit, session: Session, secret: str) -> OpenLease:
    """Opens the session's lease at a proxy as writer 1; notes it in `session.lease` and `session.writers`.

    A proxy that surely did nothing is left for another one; one that may have opened it is asked again.

    Raises:
        StageFault: (provider) no proxy opened it within the deadline, or one refused.
    """
    opening = Opening(
        session_id=session.session_id,
        attempt=session.attempt,
        lease_id=session.lease_id,
        secret_hash=ids.secret_hash(secret),
        writer=1,
        spec=session.spec,
    )
    deadline_s = kit.settings.open_deadline_s
    problem = "no proxy has announced itself"
    avoid: frozenset[str] = frozenset()
    node: ProxyNode | None = None
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                node = node or await kit.proxies.choose(session.session_id, avoid)
                try:
                    await kit.admin.open(kit.proxies.admin_address(node), opening)
                except ProxyUnavailableError as error:
                    problem = str(error)
                    log.warning("lease.open_delayed", session_id=session.session_id, proxy=node.node_id, error=problem)
                    if error.is_certain and not session.writers:
                        avoid, node = avoid | {node.node_id}, None
                    else:
                        session.writers = [opening.writer]
                    await asyncio.sleep(_PAUSE_S)
                    continue
                session.writers = [opening.writer]
                session.lease = OpenLease(node=node, secret=secret, writer=opening.writer)
                return session.lease
    except TimeoutError:
        raise StageFault(Boundary.PROVIDER, f"no proxy opened the lease within {deadline_s:g} s: {problem}") from None
    except ProxyRefusedError as error:
        raise StageFault(Boundary.PROVIDER, f"the proxy refused to open the lease: {error}") from error


async def seal_lease(kit: Kit, session: Session, lease: OpenLease, reason: str) -> bool:
    """Seals the lease at its proxy; False when that could not be had in time (the proxy's heirs then do it)."""
    try:
        async with asyncio.timeout(kit.settings.seal_deadline_s):
            while True:
                try:
                    await kit.admin.seal(kit.proxies.admin_address(lease.node), session.lease_id, lease.writer, reason)
                except ProxyUnavailableError as error:
                    log.warning("lease.seal_delayed", session_id=session.session_id, error=str(error))
                    await asyncio.sleep(_PAUSE_S)
                    continue
                return True
    except TimeoutError:
        log.warning("lease.unsealed", session_id=session.session_id, proxy=lease.node.node_id)
    except ProxyRefusedError as error:
        log.warning("lease.unsealed", session_id=session.session_id, proxy=lease.node.node_id, error=str(error))
    return False
