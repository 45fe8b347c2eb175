"""What others publish about results, as facts of ours: pure, by headers where those say enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bus import Delivery
from schemas.records import (
    BatchConsumed,
    GroupEvent,
    GroupEventType,
    Record,
    ScoredTrajectory,
    SessionEvent,
    SessionEventType,
    SkippedGroup,
    Status,
)
from stream_processors.joiner.core import headers_of as score_headers

Headers = Mapping[str, bytes]


def built(headers: Headers, delivery: Delivery) -> SessionEvent | None:
    """The fact that a lease's trajectory stands on the log; None when the headers name no lease."""
    session_id, lease_id = _text(headers, "session_id"), _text(headers, "lease_id")
    if not session_id or not lease_id:
        return None
    return SessionEvent(session_id=session_id, type=SessionEventType.BUILT, lease_id=lease_id, at=delivery.timestamp_ms)


def scored(headers: Headers, delivery: Delivery) -> GroupEvent | None:
    """The fact that a session of a group has its result; None when the headers don't say enough.

    A further revision is another fact of the same id: the first that is read counts.
    """
    group_id, session_id = _text(headers, "group_id"), _text(headers, "session_id")
    if not group_id or not session_id or "is_usable" not in headers:
        return None
    status = _text(headers, "status")
    return GroupEvent(
        group_id=group_id,
        type=GroupEventType.SCORED,
        session_id=session_id,
        index=int(_text(headers, "index") or 0),
        status=Status(status) if status in list(Status) else Status.UNKNOWN,
        is_usable=_text(headers, "is_usable") == "1",
        partition=delivery.partition,
        offset=delivery.offset,
        at=delivery.timestamp_ms,
    )


def headers_of(record: Record) -> Headers:
    """What the headers should have said, from the record itself."""
    names = {name: str(getattr(record, name, "")).encode() for name in ("session_id", "group_id", "lease_id")}
    return {**names, **dict(score_headers(record))} if isinstance(record, ScoredTrajectory) else names


def requeue_requests(batch: BatchConsumed, wants: Callable[[SkippedGroup], bool]) -> list[GroupEvent]:
    """What a trainer's report asks to be run again, for that trainer."""
    return [
        GroupEvent(
            group_id=skipped.group_id,
            type=GroupEventType.REQUEUE_REQUESTED,
            for_trainer=batch.trainer_id,
            reason=skipped.reason,
            at=batch.at,
        )
        for skipped in batch.skipped
        if wants(skipped) and skipped.group_id and batch.trainer_id
    ]


def _text(headers: Headers, name: str) -> str:
    return headers.get(name, b"").decode(errors="replace")
