"""A small sound log for the tests of the checks: two sessions, one of which needed a second attempt."""

from __future__ import annotations

from collections.abc import Sequence

from schemas import ids
from schemas.records import (
    CallDisposition,
    CallState,
    CompletionRecord,
    CompletionState,
    Counts,
    Record,
    Reward,
    ScoredTrajectory,
    SessionEvent,
    SessionEventType,
    SessionOpened,
    SessionSealed,
    SessionState,
    Stage,
    Status,
    Trace,
    Trajectory,
    TurnSpan,
)
from tests.chaos.checks import Evidence
from tests.chaos.ledger import Ledger, Received
from tests.chaos.log import Log

GROUP = ids.group_id("task")
PLAIN = ids.session_id(GROUP, 0)
"""A session that ran once."""
TWICE = ids.session_id(GROUP, 1)
"""A session whose first attempt lost its worker."""


def nonce(number: int) -> str:
    """The nonce of call `number` of the log."""
    return f"nonce-{number:032x}"


def call(session: str, attempt: int, seq: int, number: int, writer: int = 1) -> CompletionRecord:
    """A finished call whose text bears a nonce."""
    lease = ids.lease_id(session, attempt)
    return CompletionRecord(
        session_id=session,
        attempt=attempt,
        lease_id=lease,
        writer=writer,
        call_seq=seq,
        completion_id=ids.completion_id(lease, writer, seq),
        state=CompletionState.FINISHED,
        text=f"Step {seq}, {nonce(number)}.",
    )


def trajectory(calls: Sequence[CompletionRecord], *, trained: bool, revision: int = 1) -> Trajectory:
    """The trajectory of these calls of one lease: all trained in one trace, or all superseded."""
    one = calls[0]
    fate = CallDisposition.TRAINED if trained else CallDisposition.UNTRAINABLE
    states = [
        CallState(
            completion_id=c.completion_id,
            lease_id=c.lease_id,
            writer=c.writer,
            call_seq=c.call_seq,
            disposition=fate,
            reason="" if trained else "superseded_attempt",
        )
        for c in calls
    ]
    turns = [TurnSpan(completion_id=c.completion_id, is_trained=True) for c in calls]
    return Trajectory(
        trajectory_id=ids.trajectory_id(one.session_id, one.lease_id, "prefix_merging"),
        session_id=one.session_id,
        group_id=GROUP,
        lease_id=one.lease_id,
        attempt=one.attempt,
        content_digest=ids.digest(f"{one.lease_id} {len(calls)}".encode()),
        traces=[Trace(turns=turns)] if trained else [],
        calls=states,
        counts=Counts(
            calls=len(calls),
            trained=len(calls) if trained else 0,
            untrainable={} if trained else {"superseded_attempt": len(calls)},
        ),
        revision=revision,
    )


def scored(built: Trajectory, revision: int = 1) -> ScoredTrajectory:
    """What is delivered of a session."""
    return ScoredTrajectory(
        session_id=built.session_id,
        group_id=GROUP,
        trajectory_id=built.trajectory_id,
        lease_id=built.lease_id,
        attempt=built.attempt,
        revision=revision,
        content_digest=ids.digest(f"scored {built.content_digest}".encode()),
        status=Status.COMPLETED,
        reward=1.0,
        trajectory=built,
    )


def _lease(calls: Sequence[CompletionRecord]) -> list[Record]:
    one = calls[0]
    own = {"session_id": one.session_id, "lease_id": one.lease_id, "attempt": one.attempt}
    return [SessionOpened(**own), *calls, SessionSealed(**own, last_seq=len(calls))]  # type: ignore[arg-type]


def _end(built: Trajectory) -> list[Record]:
    session, lease = built.session_id, built.lease_id
    return [
        Reward(session_id=session, lease_id=lease, value=1.0),
        SessionEvent(
            session_id=session,
            type=SessionEventType.ENDED,
            attempt=built.attempt,
            status=Status.COMPLETED,
            winning_lease=lease,
            expects_trajectory=True,
            expects_reward=True,
        ),
        SessionState(session_id=session, stage=Stage.ENDED, status=Status.COMPLETED, state_version=9),
        scored(built),
    ]


def sound() -> Evidence:
    """Evidence without a violation; each call gives a fresh one to doctor."""
    plain = [call(PLAIN, 1, n, n) for n in (1, 2, 3)]
    lost = [call(TWICE, 1, 1, 4)]
    won = [call(TWICE, 2, n, 4 + n) for n in (1, 2)]
    built = [trajectory(plain, trained=True), trajectory(lost, trained=False), trajectory(won, trained=True)]
    records: list[Record] = [
        *(SessionEvent(session_id=s, type=SessionEventType.REGISTERED) for s in (PLAIN, TWICE)),
        *_lease(plain),
        *_lease(lost),
        *_lease(won),
        *built,
        *_end(built[0]),
        *_end(built[2]),
    ]
    return Evidence(
        log=Log.of(records),
        ledger=Ledger(
            received=tuple(Received(c.completion_id, nonce(n)) for n, c in enumerate([*plain, *lost], start=1)),
            returned=frozenset({nonce(1), nonce(2), nonce(5)}),
        ),
        expected={GROUP: (PLAIN, TWICE)},
        groups=((GROUP, (PLAIN, TWICE)),),
    )
