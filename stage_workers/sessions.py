"""The sessions that a worker holds: what each is, in which stage, and how one is taken away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harnesses import Adapter, Installed
from schemas.records import Boundary, Held, SessionEvent, SessionEventType, SessionSpec, Stage, StageCommand, Status
from schemas.task import TaskSpec
from stage_workers.errors import EndingKind, SessionOver
from stage_workers.fresh import FreshRuntime
from stage_workers.proxies import ProxyNode
from stage_workers.runtimes import Runtime

T = TypeVar("T")


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, as told in `finished`."""

    status: Status
    boundary: Boundary = Boundary.NONE
    exit_code: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLease:
    """A lease as opened: at which proxy, under which secret (never logged, never published), as which writer."""

    node: ProxyNode
    secret: str = field(repr=False)
    writer: int


@dataclass(slots=True, kw_only=True)
class Session:
    """One attempt of a session on this worker, from its INIT command to its teardown."""

    worker_id: str
    incarnation: str
    session_id: str
    attempt: int
    round: int
    spec: SessionSpec
    task: TaskSpec
    expires_at: int
    stage: Stage = Stage.INIT
    lease_id: str = ""
    granted_at: int = 0
    adapter: Adapter | None = None
    installed: Installed = field(default_factory=Installed)
    runtime: Runtime | None = None
    fresh: FreshRuntime | None = None
    leases: list[OpenLease] = field(default_factory=list)
    """The writers that were opened, in their order; the last one is in use."""
    writers: list[int] = field(default_factory=list)
    outcome: Outcome | None = None
    run_command: asyncio.Future[StageCommand] = field(default_factory=_future)
    postrun_command: asyncio.Future[StageCommand] = field(default_factory=_future)
    _ending: asyncio.Future[SessionOver] = field(default_factory=_future, init=False)

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells it from other attempts and assignments of the same session."""
        return self.session_id, self.attempt, self.round

    @property
    def runtime_name(self) -> str:
        """What its runtimes' names begin with."""
        return f"{self.session_id}.{self.attempt}.{self.round}"

    @property
    def held(self) -> Held:
        """Its line in a heartbeat."""
        return Held(
            session_id=self.session_id,
            attempt=self.attempt,
            round=self.round,
            lease_id=self.lease_id,
            stage=self.stage,
        )

    @property
    def lease(self) -> OpenLease | None:
        """The writer in use."""
        return self.leases[-1] if self.leases else None

    def event(self, kind: SessionEventType, at: int, **fields: object) -> SessionEvent:
        """A fact of this session, with everything that says whose it is."""
        return SessionEvent(
            session_id=self.session_id,
            type=kind,
            group_id=self.spec.group_id,
            task_id=self.spec.task_id,
            attempt=self.attempt,
            round=self.round,
            lease_id=self.lease_id,
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            at=at,
            **fields,  # type: ignore[arg-type]  # the record's own fields, by name
        )

    def end(self, kind: EndingKind, reason: str) -> None:
        """Takes the session away; a stronger reason replaces a weaker one, whoever has read the weaker already."""
        if self._ending.done():
            if kind.strength <= self._ending.result().kind.strength:
                return
            self._ending = _future()
        self._ending.set_result(SessionOver(kind, reason))

    def revive(self) -> None:
        """Goes on after a run that was cut short: what cut it has been told, and doesn't touch the grading."""
        if self._ending.done() and not self._ending.result().kind.is_final:
            self._ending = _future()

    @property
    def ending(self) -> SessionOver | None:
        """How it was taken away, if it was."""
        return self._ending.result() if self._ending.done() else None

    @property
    def is_lost(self) -> bool:
        """Whether nothing more may be told of it."""
        return self.ending is not None and self.ending.kind in {EndingKind.LOST, EndingKind.SHUTDOWN}

    async def guard(self, work: Awaitable[T]) -> T:
        """Does `work`; when the session is taken away first, cancels it, waits for its end and raises SessionOver."""
        task = asyncio.ensure_future(work)
        try:
            watched: set[asyncio.Future[Any]] = {task, self._ending}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._ending.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


class Holdings:
    """All sessions of a worker, and the slots that they leave free."""

    def __init__(self, *, init_slots: int, ready_slots: int, run_slots: int, postrun_slots: int) -> None:
        self._sessions: dict[tuple[str, int, int], Session] = {}
        self._init_slots = init_slots
        self._ready_slots = ready_slots
        self._run_slots = run_slots
        self._postrun_slots = postrun_slots

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: Session) -> None:
        """Takes a session in."""
        self._sessions[session.key] = session

    def remove(self, session: Session) -> None:
        """Lets a session go."""
        self._sessions.pop(session.key, None)

    def of(self, session_id: str) -> list[Session]:
        """Its attempts that are held (more than one only while an old one is torn down)."""
        return [session for session in self if session.session_id == session_id]

    def has_runtime(self, name: str) -> bool:
        """Whether a runtime of that name belongs to a session that is held."""
        return any(name.startswith(session.runtime_name) for session in self)

    def find(self, session_id: str, attempt: int, round_: int = 0) -> Session | None:
        """An attempt that is held: that assignment of it, or the newest (0)."""
        found = [
            session for session in self.of(session_id) if session.attempt == attempt and round_ in {0, session.round}
        ]
        return max(found, key=lambda session: session.round, default=None)

    def count(self, *stages: Stage) -> int:
        """How many stand in these stages."""
        return sum(session.stage in stages for session in self)

    @property
    def free_ready(self) -> int:
        """Places in READY that neither a ready session nor one on its way there takes."""
        return max(0, self._ready_slots - self.count(Stage.INIT, Stage.READY))

    @property
    def free_init(self) -> int:
        """How many more INITs can begin: none without a place in READY."""
        return max(0, min(self._init_slots - self.count(Stage.INIT), self.free_ready))

    @property
    def free_run(self) -> int:
        """How many more can run. One that waits for its grading still takes its place, so that runs don't outpace grading."""
        return max(0, self._run_slots - self.count(Stage.RUNNING, Stage.SEALED))

    @property
    def free_postrun(self) -> int:
        """How many more can be graded."""
        return max(0, self._postrun_slots - self.count(Stage.POSTRUN))
