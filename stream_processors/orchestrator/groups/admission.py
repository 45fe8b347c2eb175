"""Which waiting groups are due, and why the others wait: pure, from rows, controls and trainers' lags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from schemas.records import ControlAction, GroupEvent
from schemas.records import GroupEventType as Fact
from stream_processors.orchestrator.controls import Controls
from stream_processors.orchestrator.groups.ledger import Ledger
from stream_processors.orchestrator.groups.row import GroupRow


class Wait(StrEnum):
    """Why a group isn't admitted."""

    PAUSED = "paused"
    DRAINING = "draining"
    TRAINER_BEHIND = "trainer_behind"


@dataclass(frozen=True, slots=True)
class SeenGroups:
    """What is seen at one moment. `pending` are facts that were published a moment ago and aren't applied yet."""

    waiting: Sequence[GroupRow]
    controls: Controls
    ledger: Ledger
    max_lag: int
    """Groups that may be admitted ahead of a trainer that names no limit of its own."""
    now: int
    pending: Sequence[GroupEvent] = ()


def admissions(seen: SeenGroups) -> list[GroupEvent]:
    """The facts that are due: `admitted` by priority, then age, whole groups at a time, and `cancel_requested`.

    What a trainer had run again is exempt from its lag: it waits for just that.
    """
    on_their_way = {p.group_id for p in seen.pending}
    given: list[GroupEvent] = [p for p in seen.pending if p.type is Fact.ADMITTED]
    facts: list[GroupEvent] = []
    for row in sorted(seen.waiting, key=lambda r: (-r.priority, r.submitted_at, r.group_id)):
        if row.group_id in on_their_way:
            continue
        cancel = seen.controls.cancel_of(row.names, row.submitted_at)
        if cancel is not None:
            facts.append(_fact(row, Fact.CANCEL_REQUESTED, seen.now, cancel.reason))
        elif why_waiting(row, seen, given) is None:
            facts.append(_fact(row, Fact.ADMITTED, seen.now))
            given.append(facts[-1])
    return facts


def why_waiting(row: GroupRow, seen: SeenGroups, given: Sequence[GroupEvent] = ()) -> Wait | None:
    """Why a group may not be admitted now; None when it may."""
    held = seen.controls.holds(row.names, seen.now)
    if held is not None:
        return Wait.PAUSED if held is ControlAction.PAUSE else Wait.DRAINING
    if row.requeue_of:
        return None
    for trainer in seen.ledger.trainers.values():
        limit = trainer.beat.max_lag or seen.max_lag
        if trainer.is_live(seen.now) and trainer.wants(row) and seen.ledger.lag(trainer, given) >= limit:
            return Wait.TRAINER_BEHIND
    return None


def _fact(row: GroupRow, kind: Fact, at: int, reason: str = "") -> GroupEvent:
    return GroupEvent(
        group_id=row.group_id,
        type=kind,
        task_id=row.task_id,
        policy_id=row.policy_id,
        harness=row.harness,
        size=row.size,
        priority=row.priority,
        generation=row.generation,
        requeue_of=row.requeue_of,
        for_trainer=row.for_trainer,
        metadata=row.metadata,
        reason=reason,
        at=at,
    )
