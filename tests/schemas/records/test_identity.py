"""What makes a fact the same fact: keys and identities of every record."""

from __future__ import annotations

from typing import ClassVar

import pytest

from schemas.records import (
    RECORD_TYPES,
    BatchConsumed,
    CompletionDelivery,
    Control,
    GroupEvent,
    GroupEventType,
    Heartbeat,
    Record,
    Rejection,
    Reward,
    ScoredTrajectory,
    SessionEvent,
    SessionEventType,
    SessionState,
    StageCommand,
    Status,
    TrainerRegistered,
    Trajectory,
)


@pytest.mark.parametrize("cls", RECORD_TYPES, ids=lambda c: c.NAME)
def test_every_record_names_its_topic_key_and_event_id(cls: type[Record]) -> None:
    """No record falls back to the base class, and two equal records are one event."""
    assert isinstance(cls().key, str)
    assert cls().event_id == cls().event_id
    assert len(cls().event_id) == 36


def test_a_base_record_says_what_it_lacks() -> None:
    """A record class that forgot its key or identity fails with its name."""

    class Forgetful(Record):
        NAME: ClassVar[str] = "forgetful"

    with pytest.raises(TypeError, match="Forgetful doesn't define its key"):
        _ = Forgetful().key
    with pytest.raises(TypeError, match="Forgetful doesn't define its identity"):
        _ = Forgetful().event_id


@pytest.mark.parametrize("cls", RECORD_TYPES, ids=lambda c: c.NAME)
def test_records_are_frozen(cls: type[Record]) -> None:
    """A fact can't be changed after it happened."""
    with pytest.raises((AttributeError, TypeError)):
        cls().anything = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            SessionEvent(session_id="s", type=SessionEventType.READY, attempt=1),
            SessionEvent(session_id="s", type=SessionEventType.READY, attempt=2),
        ),
        (
            SessionEvent(session_id="s", type=SessionEventType.INIT_ASSIGNED, round=1),
            SessionEvent(session_id="s", type=SessionEventType.INIT_ASSIGNED, round=2),
        ),
        (StageCommand(session_id="s", incarnation="a"), StageCommand(session_id="s", incarnation="b")),
        (SessionState(session_id="s", state_version=1), SessionState(session_id="s", state_version=2)),
        (CompletionDelivery(lease_id="l", delivered=True), CompletionDelivery(lease_id="l", delivered=False)),
        (Reward(session_id="s", value=0.0), Reward(session_id="s", value=1.0)),
        (Reward(session_id="s", trace_rewards=None), Reward(session_id="s", trace_rewards=[])),
        (Trajectory(trajectory_id="t", content_digest="a"), Trajectory(trajectory_id="t", content_digest="b")),
        (ScoredTrajectory(session_id="s"), ScoredTrajectory(session_id="t")),
        (BatchConsumed(trainer_id="t", step=1), BatchConsumed(trainer_id="t", step=2)),
        (Heartbeat(node_id="n", seq=1), Heartbeat(node_id="n", seq=2)),
        (TrainerRegistered(trainer_id="t", at=1), TrainerRegistered(trainer_id="t", at=2)),
        (
            GroupEvent(group_id="g", type=GroupEventType.REGISTERED),
            GroupEvent(group_id="g", type=GroupEventType.CLOSED),
        ),
        (Control(target="s", at=1), Control(target="s", at=2)),
        (Rejection(proxy_id="p", at=1), Rejection(proxy_id="p", at=2)),
    ],
    ids=lambda r: r.NAME,
)
def test_different_facts_have_different_ids(one: Record, other: Record) -> None:
    """What tells two facts apart is part of their identity."""
    assert one.event_id != other.event_id


@pytest.mark.parametrize(
    ("one", "again"),
    [
        (
            SessionEvent(session_id="s", type=SessionEventType.ENDED, status=Status.COMPLETED, at=1),
            SessionEvent(session_id="s", type=SessionEventType.ENDED, status=Status.FAILED, attempt=2, at=2),
        ),
        (BatchConsumed(trainer_id="t", step=1, at=1), BatchConsumed(trainer_id="t", step=1, at=2)),
        (Trajectory(trajectory_id="t", built_at=1), Trajectory(trajectory_id="t", built_at=2)),
        (Control(control_id="c", at=1), Control(control_id="c", at=2)),
        (Rejection(rejection_id="r", at=1), Rejection(rejection_id="r", at=2)),
    ],
    ids=lambda r: r.NAME,
)
def test_the_same_fact_published_again_keeps_its_id(one: Record, again: Record) -> None:
    """Times don't tell facts apart; a session has one end, whatever it says."""
    assert one.event_id == again.event_id
