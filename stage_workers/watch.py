"""What others say about the sessions held: facts on `rollout.sessions` and broadcasts on `rollout.control`."""

from __future__ import annotations

import structlog

from schemas.records import Control, ControlAction, Record, SessionEvent, SessionEventType, Stage
from stage_workers.errors import EndingKind
from stage_workers.kit import Kit
from stage_workers.sessions import Session

log = structlog.get_logger(__name__)

TOPICS = ("rollout.sessions", "rollout.control")
_BEFORE_LEASE = {Stage.INIT, Stage.READY}


class Watch:
    """Applies facts and controls to the sessions held."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    def take(self, record: Record) -> None:
        """One record of these topics; those about sessions that aren't held don't matter."""
        if isinstance(record, SessionEvent):
            for session in self._kit.holdings.of(record.session_id):
                self._apply(session, record)
        elif isinstance(record, Control):
            self._control(record)
        else:
            raise TypeError(f"a {record.NAME} is no fact of a session and no control")

    def _apply(self, session: Session, event: SessionEvent) -> None:
        match event.type:
            case SessionEventType.GRANTED:
                self._granted(session, event)
            case SessionEventType.LEASE_EXPIRED if event.attempt == session.attempt:
                session.end(EndingKind.LOST, "its lease expired")
            case SessionEventType.INIT_LOST if self._is_mine(event) and _is_assignment(session, event):
                # One that is ready has told so: it may still be granted, if no other is ready before.
                if session.stage is Stage.INIT:
                    session.end(EndingKind.LOST, "the orchestrator gave this INIT up")
            case SessionEventType.DEADLINE_HIT if event.attempt == session.attempt and _is_in(session, event):
                kind = EndingKind.LOST if _has_no_lease(session) else EndingKind.DEADLINE
                session.end(kind, event.error or f"the {session.stage} deadline passed")
            case SessionEventType.CANCEL_REQUESTED if not (_is_early_stop(event) and _has_run(session)):
                self._cancel(session, event.error or "cancelled")
            case SessionEventType.SEALED if event.attempt == session.attempt and not self._is_mine(event):
                session.end(EndingKind.LOST, "its lease was ended by the orchestrator")
            case SessionEventType.ENDED:
                session.end(EndingKind.OVER, f"the session ended ({event.status})")
            case _:
                pass

    def _granted(self, session: Session, event: SessionEvent) -> None:
        is_ours = self._is_mine(event) and event.attempt == session.attempt
        if is_ours and event.round in {0, session.round}:
            session.lease_id = event.lease_id
            session.granted_at = session.granted_at or self._kit.now_ms()
        elif event.attempt >= session.attempt:
            session.end(EndingKind.LOST, f"attempt {event.attempt} was granted to {event.worker_id}")

    def _control(self, control: Control) -> None:
        if control.action is not ControlAction.CANCEL:
            return
        for session in self._kit.holdings:
            spec = session.spec
            names = {
                "session": session.session_id,
                "group": spec.group_id,
                "task": spec.task_id,
                "policy": spec.policy_id,
            }
            is_meant = control.target in {"*", names.get(control.target_kind, session.session_id)}
            if is_meant and control.lease_id in {"", session.lease_id}:
                self._cancel(session, control.reason or "cancelled")

    def _cancel(self, session: Session, reason: str) -> None:
        session.end(EndingKind.LOST if _has_no_lease(session) else EndingKind.CANCELLED, reason)

    def _is_mine(self, event: SessionEvent) -> bool:
        return event.worker_id == self._kit.settings.worker_id and event.incarnation == self._kit.incarnation


def _is_in(session: Session, event: SessionEvent) -> bool:
    """Whether the session still stands in the stage whose deadline was hit: the fact may have been overtaken.

    Where it wasn't, the orchestrator goes on without this attempt, and says so.
    """
    if event.stage is Stage.POSTRUN:
        return session.stage in {Stage.SEALED, Stage.POSTRUN}
    return event.stage is session.stage and event.round in {0, session.round}


def _is_early_stop(event: SessionEvent) -> bool:
    """Whether a cancel only saves what is still to be run: what has run is graded."""
    return isinstance(event.details, dict) and bool(event.details.get("early_stop"))


def _has_run(session: Session) -> bool:
    return session.outcome is not None or session.stage in {Stage.SEALED, Stage.POSTRUN}


def _has_no_lease(session: Session) -> bool:
    return session.stage in _BEFORE_LEASE and not session.granted_at


def _is_assignment(session: Session, event: SessionEvent) -> bool:
    return event.attempt == session.attempt and event.round == session.round
