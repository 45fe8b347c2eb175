"""The group's state machine as one table: which fact does what in which stage. What isn't listed does nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from schemas.records import GroupEventType as Fact


class GroupStage(StrEnum):
    """Where a group stands."""

    NEW = "new"
    WAITING = "waiting"
    """Registered; none of its sessions exists yet, no budget runs."""
    OPEN = "open"
    """Admitted: its sessions are registered, and run whatever becomes of the trainers' lag."""
    CLOSED = "closed"
    """Every session has its result."""


class GroupMove(StrEnum):
    """What a fact does to a group."""

    ENTER = "enter"
    """It waits for its admission."""
    ADMIT = "admit"
    """All of its sessions are registered."""
    CALL_OFF = "call_off"
    """It was cancelled before its admission: its sessions are registered and cancelled, so that each has its end and its result."""
    COUNT = "count"
    """A session's result is counted; the last one closes the group, the last usable one that is needed stops the others."""
    REQUEUE = "requeue"
    """It is run once more for one trainer, as a group of its own."""


MOVES: Final[dict[tuple[GroupStage, Fact], GroupMove]] = {
    (GroupStage.NEW, Fact.REGISTERED): GroupMove.ENTER,
    (GroupStage.WAITING, Fact.ADMITTED): GroupMove.ADMIT,
    (GroupStage.WAITING, Fact.CANCEL_REQUESTED): GroupMove.CALL_OFF,
    (GroupStage.OPEN, Fact.SCORED): GroupMove.COUNT,
    # a trainer may be faster than the fact that closes the group
    (GroupStage.OPEN, Fact.REQUEUE_REQUESTED): GroupMove.REQUEUE,
    (GroupStage.CLOSED, Fact.REQUEUE_REQUESTED): GroupMove.REQUEUE,
}


def move_for(stage: GroupStage, fact: Fact) -> GroupMove | None:
    """What a fact does in a stage; None: nothing (a repetition, a late fact, one that was overtaken)."""
    return MOVES.get((stage, fact))
