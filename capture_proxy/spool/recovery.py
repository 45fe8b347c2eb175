"""What a dead incarnation left unsaid: pure, and the same whenever it is computed again, so that ids never conflict."""

from __future__ import annotations

from dataclasses import replace

from capture_proxy.spool.state import SpoolState
from schemas.records import Boundary, CallError, CompletionRecord, CompletionState, Record, SessionSealed

CRASH = "proxy_crash"


def unfinished_business(state: SpoolState) -> list[Record]:
    """A failed record for every started call without one, then the seal of every open lease, in the order to append them."""
    out: list[Record] = []
    for (lease_id, writer), lease in state.leases.items():
        for _, call in sorted(lease.started.items()):
            out.append(crashed(call))
        out.append(
            SessionSealed(
                session_id=lease.opened.session_id,
                lease_id=lease_id,
                attempt=lease.opened.attempt,
                writer=writer,
                last_seq=lease.last_seq,
                reason=CRASH,
                proxy_id=lease.opened.proxy_id,
                # Not the clock: the same spool must give the same facts, however often it is read.
                sealed_at=lease.seen_at,
            )
        )
    return out


def crashed(call: CompletionRecord) -> CompletionRecord:
    """The record of a call whose proxy died: what was known at its start, and the reason."""
    return replace(
        call,
        state=CompletionState.FAILED,
        finished_at=call.started_at,
        finish_reason="",
        trainable=False,
        untrainable_reason=CRASH,
        error=CallError(kind=CRASH, boundary=Boundary.PROVIDER, message="the proxy died before the call ended"),
    )
