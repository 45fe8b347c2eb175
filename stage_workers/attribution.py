"""Whose fault a run's end is: a harness that ends because its model failed isn't the one to blame, whatever its exit code says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog

from schemas.records import Boundary, Status
from stage_workers.admin import ProxyRefusedError, ProxyUnavailableError
from stage_workers.keeper import LeaseKeeper
from stage_workers.kit import Kit
from stage_workers.sessions import OpenLease, Outcome, Session

log = structlog.get_logger(__name__)

_ASK_S: Final = 5.0
_FAILED: Final = frozenset({"failed", "refused"})
_OF_THE_REQUEST: Final = frozenset({"bad_request", "context_overflow", "too_large", "not_found"})
"""Errors that say what is wrong with a request: a provider that refuses it does its work."""


async def attributed(kit: Kit, session: Session, keeper: LeaseKeeper, outcome: Outcome) -> Outcome:
    """The outcome with its boundary settled by the last model call: `provider` when that failed there, also at exit code 0."""
    if keeper.is_moving:
        if outcome.status is Status.COMPLETED and not (keeper.is_waited_for or keeper.tally.is_last_cut):
            return outcome  # its proxy went after its last answer
        return _at_provider(outcome, "no proxy took the session's calls any more")
    if outcome.status not in {Status.COMPLETED, Status.FAILED}:
        return outcome
    lease = session.lease
    if lease is None:
        return outcome
    try:
        call = await _last_call(kit, session, lease)
    except ProxyUnavailableError as error:
        if outcome.status is Status.COMPLETED and not keeper.tally.is_last_cut:
            return outcome  # it acted on nothing that isn't recorded, and missed nothing
        return _at_provider(outcome, f"the proxy at {lease.node.data_address} went away: {error}")
    if call is None and keeper.tally.is_last_cut:
        return _at_provider(outcome, "the proxy of its last model call went away, and the call wasn't made again")
    if call is None or call.get("state") not in _FAILED or call.get("boundary") != str(Boundary.PROVIDER):
        return outcome
    if call.get("kind") in _OF_THE_REQUEST:
        return outcome
    return _at_provider(outcome, f"the last model call failed: {call.get('kind')}: {call.get('message')}")


async def _last_call(kit: Kit, session: Session, lease: OpenLease) -> Mapping[str, object] | None:
    """How the last call of the writer in use ended; None when it had none. Raises ProxyUnavailableError."""
    try:
        found = await kit.admin.lease(lease.node.admin_address, session.lease_id, lease.writer, _ASK_S)
    except ProxyRefusedError as error:
        raise ProxyUnavailableError(str(error)) from error
    call = found.get("last_call")
    return call if isinstance(call, Mapping) else None


def _at_provider(outcome: Outcome, error: str) -> Outcome:
    said = f"; the harness: {outcome.error}" if outcome.error else ""
    status = Status.FAILED if outcome.status is Status.COMPLETED else outcome.status
    return replace(outcome, status=status, boundary=Boundary.PROVIDER, error=error + said)
