"""What time, the fleet and controls do to sessions: a pure function from what is seen now to facts about sessions.

It changes nothing itself. Each fact names the attempt, round, lease or stage that it is about, so one that is overtaken
does nothing when it arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.records import Boundary, ControlAction, SessionEvent, Stage
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.controls import Controls
from stream_processors.orchestrator.fleet import FleetView
from stream_processors.orchestrator.row import SessionRow


@dataclass(frozen=True, slots=True)
class Limits:
    """Times to live and graces, in ms."""

    lease_ttl_ms: int
    seal_grace_ms: int
    end_grace_ms: int
    command_grace_ms: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen at one moment.

    `pending` are facts that were published a moment ago and aren't in the rows yet; `now` is UTC epoch ms.
    """

    rows: Sequence[SessionRow]
    fleet: FleetView
    limits: Limits
    now: int
    controls: Controls = field(default_factory=Controls)
    pending: Sequence[SessionEvent] = ()
    may_assign: bool = True
    """Whether the views are read far enough to give sessions away: what is paused might stand further on."""


def tick(seen: Seen) -> list[SessionEvent]:
    """The facts that are due now."""
    now, limits = seen.now, seen.limits
    facts: list[SessionEvent] = []
    for row in seen.rows:
        facts += _overdue_seals(row, now, limits)
        if row.stage is Stage.ENDED:
            continue
        fact = _cancel(row, seen.controls) or _deadline(row, seen) or _lost(row, seen.fleet, now, limits)
        if fact is not None:
            facts.append(fact)
    if seen.may_assign:
        busy = {f.session_id for f in facts}
        facts += _assign(seen, [r for r in seen.rows if r.stage is Stage.QUEUED and r.session_id not in busy])
    return facts


def _fact(row: SessionRow, kind: Fact, at: int, **fields: Any) -> SessionEvent:
    whole: dict[str, Any] = {
        "session_id": row.session_id,
        "group_id": row.group_id,
        "task_id": row.task_id,
        "attempt": row.attempt,
        "round": row.round,
        "lease_id": row.lease_id,
        "worker_id": row.worker_id,
        "incarnation": row.incarnation,
        "owner": row.owner,
        "stage": row.stage,
        "at": at,
    }
    return SessionEvent(type=kind, **{**whole, **fields})


def _overdue_seals(row: SessionRow, now: int, limits: Limits) -> Iterator[SessionEvent]:
    for lease_id, (sealed_at, writers) in row.sealing.items():
        if now - sealed_at >= limits.seal_grace_ms:
            yield _fact(
                row, Fact.SEAL_OVERDUE, now, lease_id=lease_id, writers=list(writers), worker_id="", incarnation=""
            )


def _cancel(row: SessionRow, controls: Controls) -> SessionEvent | None:
    """The first control that cancels this session; one from before its registration means an earlier one."""
    if row.ending != "none" or not controls.cancels:
        return None
    control = controls.cancel_of(row.names, row.registered_at, row.lease_id)
    if control is None and row.worker_id:  # a node's cancel means what it had then, not what it gets later
        control = controls.cancel_of({"node": row.worker_id}, row.since_at, row.lease_id)
    if control is None:
        return None
    return _fact(row, Fact.CANCEL_REQUESTED, control.at, error=control.reason, worker_id="", incarnation="")


def _deadline(row: SessionRow, seen: Seen) -> SessionEvent | None:
    times, now, limits = row.times, seen.now, seen.limits
    if row.is_external:
        return _fact(row, Fact.DEADLINE_HIT, now) if row.deadline_at and now >= row.deadline_at else None
    if row.ending != "none" and row.is_open:
        # Asked to end its lease, the holder has had its moment.
        is_due = now - row.moved_at >= limits.end_grace_ms
        return _fact(row, Fact.LEASE_EXPIRED, now, boundary=row.boundary, error=row.error) if is_due else None
    allowed_ms = {
        Stage.QUEUED: times.queue_s * 1000,
        Stage.INIT: times.init_s * 1000 + limits.end_grace_ms,
        Stage.READY: times.queue_s * 1000 + limits.end_grace_ms,
        Stage.RUNNING: times.run_s * 1000 + limits.end_grace_ms,
        Stage.POSTRUN: (times.postrun_s + times.evaluate_s) * 1000 + limits.end_grace_ms,
    }.get(row.stage)
    since_at = row.queued_at if row.stage is Stage.QUEUED else row.since_at
    if allowed_ms is None or now - since_at < allowed_ms:
        return None
    if row.stage is Stage.POSTRUN and now - since_at < allowed_ms + times.queue_s * 1000:
        # Other sessions' slow grading isn't this one's: its budgets begin with its own, and the line is a queue.
        held = (row.worker_id, row.incarnation, row.session_id, row.attempt)
        if seen.fleet.awaits_grading(*held) or now - seen.fleet.graded_since(*held) < allowed_ms:
            return None
    if row.stage is Stage.QUEUED and now - since_at - seen.controls.paused_ms(row.names, since_at, now) < allowed_ms:
        return None  # while it was paused nobody could have taken it
    return _fact(row, Fact.DEADLINE_HIT, now, error=f"the {row.stage} stage took longer than {allowed_ms / 1000:g} s")


def _lost(row: SessionRow, fleet: FleetView, now: int, limits: Limits) -> SessionEvent | None:
    """Whether the worker that should have the session is gone, or says that it hasn't got it."""
    if row.is_external or row.stage is Stage.QUEUED or not fleet.is_fresh(now, limits.lease_ttl_ms):
        return None
    holder = (row.worker_id, row.incarnation)
    grace_ms = limits.command_grace_ms if row.stage is Stage.INIT else limits.lease_ttl_ms
    known_at = max(fleet.last_held(*holder, row.session_id, row.attempt), row.since_at, row.moved_at)
    is_dropped = now - known_at >= grace_ms
    is_dead = not fleet.is_alive(*holder, now, limits.lease_ttl_ms) and now - row.since_at >= limits.lease_ttl_ms
    if not (is_dropped or is_dead):
        return None
    error = f"no heartbeat of worker {row.worker_id}" if is_dead else f"worker {row.worker_id} doesn't hold it any more"
    if row.stage is Stage.INIT:
        return _fact(row, Fact.INIT_LOST, now, error=error)
    return _fact(row, Fact.LEASE_EXPIRED, now, boundary=Boundary.SANDBOX, error=error)


def _assign(seen: Seen, queued: list[SessionRow]) -> Iterator[SessionEvent]:
    """Give waiting sessions to workers with free places: highest priority first, then the oldest.

    Of the workers the one whose run slots would else stand empty soonest, then the one with most free places: a prepared session
    stays where it was prepared.
    """
    places = _free_places(seen)
    free = {worker: place.free for worker, place in places.items() if place.free > 0}
    if not free:
        return
    on_their_way = {p.session_id for p in seen.pending if p.type is Fact.INIT_ASSIGNED}
    for row in sorted(queued, key=lambda r: (-r.priority, r.registered_at, r.session_id)):
        if row.session_id in on_their_way or seen.controls.holds(row.names, seen.now) is ControlAction.PAUSE:
            continue
        worker = max(free, key=lambda w: (places[w].idle, free[w], w), default=None)
        if worker is None:
            return
        free[worker] -= 1
        places[worker].idle -= 1
        if free[worker] < 1:
            del free[worker]
        yield _fact(
            row,
            Fact.INIT_ASSIGNED,
            seen.now,
            round=row.round + 1,
            worker_id=worker[0],
            incarnation=worker[1],
            lease_id="",
            stage=Stage.INIT,
        )


@dataclass(slots=True)
class _Place:
    """What a worker can take: INITs that can begin, and run slots for which nobody is being prepared (may be below 0)."""

    free: int
    idle: int


def _free_places(seen: Seen) -> dict[tuple[str, str], _Place]:
    """Free places per worker, less what it was given and hasn't listed yet."""
    fleet = seen.fleet
    free: dict[tuple[str, str], _Place] = {}
    for node in fleet.workers(seen.now, seen.limits.lease_ttl_ms):
        beat = node.beat
        if not seen.controls.holds_node(beat.node_id, seen.now):
            prepared = sum(held.stage in (Stage.INIT, Stage.READY) for held in beat.holds)
            free[beat.node_id, beat.incarnation] = _Place(beat.free_init, beat.free_run - prepared)
    if not any(place.free > 0 for place in free.values()):
        return free
    given = {
        (row.worker_id, row.incarnation, row.session_id)
        for row in seen.rows
        if row.stage is Stage.INIT and not fleet.last_held(row.worker_id, row.incarnation, row.session_id, row.attempt)
    }
    given |= {(p.worker_id, p.incarnation, p.session_id) for p in seen.pending if p.type is Fact.INIT_ASSIGNED}
    for worker_id, incarnation, _ in given:
        place = free.get((worker_id, incarnation))
        if place is not None:
            place.free -= 1
            place.idle -= 1
    return free
