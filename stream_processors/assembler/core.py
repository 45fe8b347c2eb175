"""The assembler's pure core: facts in, rows, kept records and closed leases out; then one trajectory per lease.

Every update is idempotent: the same fact again changes nothing. Order between the two topics doesn't matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import orjson
import structlog

from schemas import ids
from schemas.records import (
    CompletionDelivery,
    CompletionRecord,
    Record,
    SessionEvent,
    SessionEventType,
    SessionOpened,
    SessionSealed,
    SessionSpec,
    Trajectory,
)
from stream_processors.assembler.row import LeaseRow, SessionRow, WriterRow
from stream_processors.builders import Built, CompletionFact, Lease, UnknownBuilderError, settle
from stream_processors.builders.untrainable import build_untrainable

_log = structlog.get_logger(__name__)

SUPERSEDED = "superseded_attempt"
_KINDS = ("c", "d0", "d1")
"""What is kept per call: the record, a delivery fact that says no, one that says yes."""


_OF_THE_SESSION = frozenset({SessionEventType.SEAL_OVERDUE, SessionEventType.BUILT})
"""Facts that may name the lease of an earlier attempt than the one in which they say that the session is."""


class BadFactError(ValueError):
    """A fact that names no lease, or counts calls or writers from less than 1."""

    reason = "bad_numbers"
    is_retriable = False


@dataclass(frozen=True, slots=True)
class Step:
    """What one fact does.

    The session's row afterwards, the key under which its bytes are kept ('': not at all), the leases to close now, the closed
    lease to say again, since a call came late ('': none), whether the fact is such a call, and whether the session's time is over.
    """

    row: SessionRow
    keep: str = ""
    closing: tuple[str, ...] = ()
    revising: str = ""
    is_late: bool = False
    is_forgotten: bool = False


def apply(row: SessionRow, fact: Record) -> Step:
    """Apply one fact of a session; raises BadFactError for one that can't be counted."""
    if isinstance(fact, SessionEvent):
        if fact.type is SessionEventType.FORGOTTEN:
            return Step(SessionRow(), is_forgotten=True)
        return _finish(_apply_event(row, fact))
    if isinstance(fact, SessionOpened | CompletionRecord | CompletionDelivery | SessionSealed):
        if not fact.lease_id or fact.writer < 1:
            raise BadFactError(
                f"{fact.NAME} of session {fact.session_id}: lease {fact.lease_id!r}, writer {fact.writer}"
            )
        return _apply_capture(row, fact)
    return Step(row)


def _finish(row: SessionRow, keep: str = "") -> Step:
    return Step(row, keep, tuple(sorted(name for name, lease in row.leases.items() if lease.can_close)))


def _apply_event(row: SessionRow, event: SessionEvent) -> SessionRow:
    if event.spec is not None:
        row = row.with_spec(event.spec)
    if not event.lease_id:
        return row
    lease = row.leases.get(event.lease_id, LeaseRow(opened_at=event.at))
    if event.type not in _OF_THE_SESSION:
        lease = replace(lease, attempt=event.attempt)
    if event.type is SessionEventType.GRANTED:
        # A later attempt runs: whatever an earlier one left open can't win any more.
        for name, other in row.leases.items():
            if other.attempt < event.attempt and not other.closed:
                row = row.with_lease(name, replace(other, is_superseded=True))
        return row.with_lease(event.lease_id, lease)
    if event.type is SessionEventType.LEASE_EXPIRED and lease.sealed is None:
        # The orchestrator ends it, and says whether another attempt follows: a holder's late seal knows nothing of that.
        return row.with_lease(event.lease_id, replace(lease, is_expired=True))
    if event.type in (SessionEventType.SEALED, SessionEventType.SEAL_OVERDUE) and not lease.closed:
        is_overdue = event.type is SessionEventType.SEAL_OVERDUE
        details = event.details if isinstance(event.details, dict) else {}
        if lease.is_expired and not is_overdue and details.get("by") != "orchestrator":
            return row.with_lease(event.lease_id, lease)
        listed = tuple(sorted({*(lease.sealed or ()), *event.writers}))
        lease = replace(
            lease,
            sealed=listed,
            is_overdue=lease.is_overdue or is_overdue,
            is_superseded=lease.is_superseded or bool(details.get("superseded")),
        )
        return row.with_lease(event.lease_id, lease)
    return row.with_lease(event.lease_id, lease)


def _apply_capture(
    row: SessionRow, fact: SessionOpened | CompletionRecord | CompletionDelivery | SessionSealed
) -> Step:
    if isinstance(fact, SessionOpened) and fact.spec is not None:
        row = row.with_spec(fact.spec)
    if isinstance(fact, CompletionRecord | CompletionDelivery) and fact.call_seq < 1:
        raise BadFactError(f"{fact.NAME} of session {fact.session_id} has call_seq {fact.call_seq}")
    lease = row.leases.get(fact.lease_id, LeaseRow(attempt=getattr(fact, "attempt", 1)))
    if lease.closed:
        return _apply_late(row, lease, fact)
    writer = lease.writers.get(fact.writer, WriterRow())
    keep = ""
    if isinstance(fact, SessionOpened):
        lease = replace(lease, attempt=fact.attempt, opened_at=lease.opened_at or fact.opened_at)
    elif isinstance(fact, SessionSealed):
        writer = replace(writer, last_seq=fact.last_seq)
    elif isinstance(fact, CompletionRecord):
        writer = writer.with_call(fact.call_seq)
        keep = record_key(fact.session_id, fact.lease_id, fact.writer, fact.call_seq, "c")
    else:
        writer = replace(writer, top=max(writer.top, fact.call_seq))
        kind = "d1" if fact.delivered else "d0"
        keep = record_key(fact.session_id, fact.lease_id, fact.writer, fact.call_seq, kind)
    return _finish(row.with_lease(fact.lease_id, lease.with_writer(fact.writer, writer)), keep)


def _apply_late(
    row: SessionRow, lease: LeaseRow, fact: SessionOpened | CompletionRecord | CompletionDelivery | SessionSealed
) -> Step:
    """What comes behind the close: it is counted, and the lease is said again once its writers are whole."""
    writer = lease.writers.get(fact.writer, WriterRow())
    is_late = isinstance(fact, CompletionRecord) and not writer.has(fact.call_seq)
    # One that is known goes on to the question below all the same: a crash may have kept the row and lost the revision.
    if isinstance(fact, CompletionRecord | CompletionDelivery):
        if is_late:
            writer = writer.with_call(fact.call_seq)
            lease = replace(lease, late=(*lease.late, (fact.writer, fact.call_seq)))
        elif (fact.writer, fact.call_seq) not in lease.late:
            return Step(row)
    elif isinstance(fact, SessionSealed) and writer.last_seq is None:
        writer = replace(writer, last_seq=fact.last_seq)
    lease = lease.with_writer(fact.writer, writer)
    revising = fact.lease_id if lease.is_revisable else ""
    return Step(row.with_lease(fact.lease_id, lease), revising=revising, is_late=is_late)


def record_key(session_id: str, lease_id: str, writer: int, call_seq: int, kind: str) -> str:
    """Where a call's fact is kept: `kind` is c (record), d0 or d1 (delivery)."""
    return f"{session_id}|{lease_id}|{writer}|{call_seq}|{kind}"


def record_keys(row: SessionRow, session_id: str, lease_id: str) -> list[str]:
    """Every key under which something of a lease may be kept."""
    calls = row.leases[lease_id].calls()
    return [record_key(session_id, lease_id, writer, seq, kind) for writer, seq in calls for kind in _KINDS]


def assemble(row: SessionRow, session_id: str, lease_id: str, grown: Lease, built_at: int) -> Trajectory:
    """The next revision of a lease's trajectory from its facts; pure but for `built_at`, which the digest leaves out.

    What can't be built (a builder that this version doesn't know) is a trajectory without traces whose calls say so.
    """
    lease = row.leases[lease_id]
    built = _build(row, lease, session_id, grown)
    gaps = lease.gaps()
    states = [(c.completion_id, c.writer, c.call_seq, c.disposition, c.reason, c.trace) for c in built.calls]
    holes = [(g.writer, g.after_seq) for g in gaps]
    options = canonical_options(row.builder_options)
    return Trajectory(
        trajectory_id=ids.trajectory_id(session_id, lease_id, row.builder, options),
        session_id=session_id,
        group_id=row.group_id,
        task_id=row.task_id,
        policy_id=row.policy_id,
        lease_id=lease_id,
        attempt=lease.attempt,
        builder=row.builder,
        builder_options=row.builder_options,
        content_digest=ids.digest(orjson.dumps([row.builder, options, states, holes])),
        traces=built.traces,
        calls=built.calls,
        counts=built.counts,
        capture_incomplete=gaps,
        tokenizer_digest=built.tokenizer_digest,
        logprobs_mode=built.logprobs_mode,
        built_at=built_at,
        revision=lease.revision + 1,
    )


def canonical_options(options: object) -> str:
    """A builder's options as the JSON that trajectory ids are made of."""
    return orjson.dumps(options, option=orjson.OPT_SORT_KEYS).decode()


def _build(row: SessionRow, lease: LeaseRow, session_id: str, grown: Lease) -> Built:
    if lease.is_superseded:
        return build_untrainable(grown, SUPERSEDED)
    try:
        options = row.builder_options if isinstance(row.builder_options, dict) else {"options": row.builder_options}
        return settle(row.builder, options, grown, row.policy_id)
    except UnknownBuilderError as error:
        _log.error("builder.unknown", session_id=session_id, builder=row.builder, error=str(error))
        return build_untrainable(grown, "unknown_builder")


def build_trajectory(
    session_id: str,
    lease_id: str,
    spec: SessionSpec,
    completions: Iterable[CompletionRecord],
    deliveries: Iterable[CompletionDelivery],
) -> Trajectory:
    """What these records of one lease would give if it were sealed now: for looking at a session that still runs."""
    row = SessionRow(leases={lease_id: LeaseRow()}).with_spec(spec)
    facts: list[CompletionFact] = [*completions, *deliveries]
    return assemble(row, session_id, lease_id, Lease(facts), built_at=0)


def close(row: SessionRow, lease_id: str, content_digest: str) -> SessionRow:
    """The row after a lease's trajectory, or its next revision, is acknowledged: only numbers stay."""
    lease = row.leases[lease_id]
    told = replace(lease, closed=content_digest, revision=lease.revision + 1, has_told_gaps=bool(lease.gaps()))
    return row.with_lease(lease_id, told)
