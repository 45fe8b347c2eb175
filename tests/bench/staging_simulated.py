"""A fleet in virtual time: the real orchestrator core, its timer, its outputs and the workers' own slot rules.

Nothing sleeps, no broker is asked; each hop over the log takes `HOP_MS`.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemas import ids
from schemas.records import Heartbeat, SessionEvent, SessionSpec, Stage, StageCommand, Status
from schemas.records import SessionEventType as Fact
from schemas.task import Budgets, HarnessSpec, TaskSpec
from stage_workers.sessions import Holdings, Session
from stage_workers.settings import WorkerSettings
from stream_processors.orchestrator.core import apply
from stream_processors.orchestrator.fleet import FleetView
from stream_processors.orchestrator.outputs import outputs
from stream_processors.orchestrator.row import SessionRow
from stream_processors.orchestrator.tick import Limits, Seen, tick

HOP_MS: Final = 50
"""From a publish to its handling: several times what a local broker takes."""
TICK_MS: Final = 250
BEAT_MS: Final = 2_000
LIMITS: Final = Limits(lease_ttl_ms=15_000, seal_grace_ms=30_000, end_grace_ms=20_000, command_grace_ms=15_000)
DEFAULTS: Final = {
    name: WorkerSettings.model_fields[name].default
    for name in ("init_slots", "ready_slots", "run_slots", "postrun_slots")
}
TASK: Final = TaskSpec(
    instruction="x", harness=HarnessSpec(name="shell"), budgets=Budgets(queue_s=10**6, run_s=10**4, init_s=10**4)
)


@dataclass(frozen=True, slots=True)
class Job:
    """How long a session takes in each stage, in ms."""

    init_ms: int
    run_ms: int
    evaluate_ms: int


class World:
    """Virtual time, one log of sessions' facts, one orchestrator."""

    def __init__(self, work: Sequence[Job], workers: int, *, is_staged: bool) -> None:
        self.now = 0
        self.fleet = FleetView(fresh_since=-LIMITS.lease_ttl_ms)
        self.jobs = {ids.session_id("g", n): job for n, job in enumerate(work)}
        self.rows: dict[str, SessionRow] = {}
        self.firsts: dict[str, SessionEvent] = {}
        self.ended = 0
        self.busy_ms = 0
        self.last_run_ms = 0
        self._pending: dict[str, tuple[SessionEvent, int]] = {}
        self._offset = 0
        self._has_news = True
        self._order = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self.workers = {f"w{n}": Worker(self, f"w{n}", is_staged=is_staged) for n in range(workers)}
        for n, session_id in enumerate(self.jobs):
            spec = SessionSpec(group_id="g", index=n)
            self.tell(
                SessionEvent(
                    session_id=session_id, type=Fact.REGISTERED, spec=spec, task=TASK.model_dump(mode="json"), at=n + 1
                )
            )

    def after(self, ms: int, what: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._events, (self.now + ms, next(self._order), what))

    def tell(self, fact: SessionEvent) -> None:
        """A fact of a session, on its way to the orchestrator."""
        self.after(HOP_MS, lambda: self.handle(fact))

    def handle(self, fact: SessionEvent) -> None:
        """As the agent does: change the row, and cause what it causes."""
        self._offset += 1
        self._has_news = True
        name = fact.session_id
        if fact.type is Fact.DECLINED:
            self.fleet.mark_full(fact.worker_id, fact.incarnation)
        row = self.rows.get(name)
        after = apply(row, fact, self._offset, self.now)
        if after is None or after is row:
            return
        first = self.firsts.setdefault(name, fact)
        self.rows[name] = after
        if after.stage is Stage.ENDED and (row is None or row.stage is not Stage.ENDED):
            self.ended += 1
            del self.rows[name]
            self.rows[name] = replace(after, sealing={})
        for record in outputs(after, fact, first):
            if isinstance(record, StageCommand):
                self.after(HOP_MS, lambda c=record: self.workers[c.worker_id].obey(c))  # type: ignore[misc]
            elif isinstance(record, SessionEvent):
                self.tell(record)

    def hear(self, beat: Heartbeat) -> None:
        """A worker's beat."""
        known = self.fleet.nodes.get((beat.node_id, beat.incarnation))
        self._has_news |= known is None or known.is_full or known.beat.holds != beat.holds
        self.fleet.take(beat, self.now)

    def look(self) -> None:
        """As the timer does; when nothing was heard since the last look, it would find nothing new here."""
        self.after(TICK_MS, self.look)
        if not self._has_news:
            return
        self._has_news = False
        live = [row for row in self.rows.values() if row.is_live]
        self._pending = {
            event_id: (fact, at)
            for event_id, (fact, at) in self._pending.items()
            if self.rows[fact.session_id].moved_at < at and self.now - at < 10_000
        }
        for fact in tick(Seen(live, self.fleet, LIMITS, self.now, pending=[f for f, _ in self._pending.values()])):
            if fact.event_id not in self._pending:
                self._pending[fact.event_id] = (fact, self.now)
                self.tell(fact)

    def run(self) -> float:
        """Live until every session has ended; the share of time, up to the end of the last run, that run slots were busy."""
        self.after(0, self.look)
        for worker in self.workers.values():
            self.after(0, worker.keep_beating)
        while self.ended < len(self.jobs):
            self.now, _, what = heapq.heappop(self._events)
            what()
        slots = len(self.workers) * DEFAULTS["run_slots"]
        return self.busy_ms / (slots * self.last_run_ms)


class Worker:
    """A worker's pools by the rules of `stage_workers`; unstaged, a session keeps its place from INIT to its grade."""

    def __init__(self, world: World, worker_id: str, *, is_staged: bool) -> None:
        self.world = world
        self.worker_id = worker_id
        self.is_staged = is_staged
        self.holdings = Holdings(**DEFAULTS)
        self.places = {Stage.RUNNING: DEFAULTS["run_slots"], Stage.POSTRUN: DEFAULTS["postrun_slots"]}
        self.waiting: dict[Stage, deque[Session]] = {stage: deque() for stage in self.places}
        self.seq = 0

    @property
    def free_init(self) -> int:
        """Places that its heartbeats offer."""
        return self.holdings.free_init if self.is_staged else DEFAULTS["run_slots"] - len(self.holdings)

    def keep_beating(self) -> None:
        """A beat now, and regularly."""
        self.beat()
        self.world.after(BEAT_MS, self.keep_beating)

    def beat(self) -> None:
        """A beat, on its way."""
        self.seq += 1
        beat = Heartbeat(
            node_id=self.worker_id,
            role="worker",
            incarnation="i",
            free_init=self.free_init,
            free_run=self.holdings.free_run,
            seq=self.seq,
            holds=[s.held for s in self.holdings],
        )
        self.world.after(HOP_MS, lambda: self.world.hear(beat))

    def obey(self, command: StageCommand) -> None:
        """Take a command as `stage_workers.commands` does."""
        if command.stage is Stage.INIT:
            self._init(command)
            return
        session = self.holdings.find(command.session_id, command.attempt)
        assert session is not None
        session.lease_id = command.lease_id
        self._queue(session, command.stage)

    def _init(self, command: StageCommand) -> None:
        session = Session(
            worker_id=self.worker_id,
            incarnation="i",
            session_id=command.session_id,
            attempt=command.attempt,
            round=command.round,
            spec=command.spec or SessionSpec(),
            task=TASK,
            expires_at=command.expires_at,
        )
        if self.free_init < 1:
            self._tell(session, Fact.DECLINED, stage=Stage.INIT)
            return
        self.holdings.add(session)
        self.beat()
        self.world.after(self.world.jobs[session.session_id].init_ms, lambda: self._ready(session))

    def _ready(self, session: Session) -> None:
        session.stage = Stage.READY
        self._tell(session, Fact.READY, stage=Stage.READY)
        self.beat()

    def _queue(self, session: Session, stage: Stage) -> None:
        self.waiting[stage].append(session)
        self._serve(stage)

    def _serve(self, stage: Stage) -> None:
        # Unstaged, everybody who is in has a place for everything.
        while self.waiting[stage] and (self.places[stage] > 0 or not self.is_staged):
            session = self.waiting[stage].popleft()
            self.places[stage] -= 1
            session.stage = stage
            self.beat()
            job = self.world.jobs[session.session_id]
            if stage is Stage.RUNNING:
                self._tell(session, Fact.STARTED, writers=[1])
                self.world.after(job.run_ms, lambda s=session: self._ran(s))  # type: ignore[misc]
            else:
                self.world.after(job.evaluate_ms, lambda s=session: self._graded(s))  # type: ignore[misc]

    def _ran(self, session: Session) -> None:
        self.world.busy_ms += self.world.jobs[session.session_id].run_ms
        self.world.last_run_ms = self.world.now
        self._tell(session, Fact.FINISHED, status=Status.COMPLETED)
        self._tell(session, Fact.SEALED, writers=[1])
        session.stage = Stage.SEALED
        self.places[Stage.RUNNING] += 1
        self.beat()
        self._serve(Stage.RUNNING)

    def _graded(self, session: Session) -> None:
        self._tell(session, Fact.GRADED, status=Status.COMPLETED)
        self.holdings.remove(session)
        self.places[Stage.POSTRUN] += 1
        self.beat()
        self._serve(Stage.POSTRUN)

    def _tell(self, session: Session, kind: Fact, **fields: object) -> None:
        self.world.tell(session.event(kind, self.world.now, **fields))
