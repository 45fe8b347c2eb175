"""What the proxy reads along: `rollout.state` revokes leases, `rollout.control` seals and drains, `policy.timeline` names engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from bus import Delivery, EventLog, Reader, Start
from capture_proxy.engine_pool import EnginePool
from capture_proxy.leases import Lease
from capture_proxy.ports import now_ms
from capture_proxy.recorder import Recorder
from schemas.records import Control, ControlAction, PolicyEvent, PolicyEventType, Record, SessionState, Stage

log = structlog.get_logger(__name__)

_HOLDS: Final = (ControlAction.DRAIN, ControlAction.RESUME)

_BEFORE_THE_START_MS: Final = 600_000
"""A lease is opened before its session is told to have started: not ten minutes before."""


def revokes(state: SessionState, lease: Lease) -> bool:
    """Whether a session's state says that this lease is over. A state from before the grant says nothing of it."""
    if state.session_id != lease.session_id or state.attempt < lease.attempt:
        return False
    if state.attempt > lease.attempt or state.stage is Stage.ENDED:
        return True
    return state.lease_id == lease.lease_id and not state.lease_open


def addresses(control: Control, lease: Lease) -> bool:
    """Whether a control means this lease's session."""
    if control.lease_id and control.lease_id != lease.lease_id:
        return False
    spec = lease.spec
    match control.target_kind:
        case "session":
            return control.target in (lease.session_id, "*")
        case "group":
            return control.target == spec.group_id
        case "task":
            return control.target == spec.task_id
        case "policy":
            return control.target == spec.policy_id
        case _:
            return False


class SessionsView:
    """Follows the topics and acts on the recorder and the engine pool. It only ever revokes: opening is the admin's."""

    def __init__(
        self, bus: EventLog, recorder: Recorder, engines: EnginePool, *, on_drain: Callable[[bool], None]
    ) -> None:
        self._bus = bus
        self._recorder = recorder
        self._engines = engines
        self._on_drain = on_drain
        self._versions: dict[str, int] = {}
        self._moved_at: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        self.problems: dict[str, str] = {}
        """What keeps a view from going on: its name → why."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to read."""
        self._tasks = [
            asyncio.create_task(self._reader("state", "rollout.state", "earliest").run(), name="view-state"),
            asyncio.create_task(self._reader("control", "rollout.control", now_ms()).run(), name="view-control"),
            asyncio.create_task(self._reader("timeline", "policy.timeline", "earliest").run(), name="view-timeline"),
        ]

    async def stop(self) -> None:
        """Stops reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _reader(self, name: str, topic: str, start: Start) -> Reader:
        return Reader(self._bus, "proxy", name, self._take, topics=[topic], start=start, problems=self.problems)

    async def _take(self, delivery: Delivery, record: Record | None) -> None:
        if record is None:
            if delivery.topic == "rollout.state" and delivery.key is not None:
                self._forget(delivery.key.decode())
        elif isinstance(record, SessionState):
            self.take_state(record)
        elif isinstance(record, Control):
            self.take_control(record)
        elif isinstance(record, PolicyEvent):
            await self.take_policy(record)

    def take_state(self, state: SessionState) -> None:
        """Seals the leases that a session's new state revokes, and remembers its ended lease."""
        if state.state_version < self._versions.get(state.session_id, -1):
            return
        self._versions[state.session_id] = state.state_version
        self._attempts[state.session_id] = state.attempt
        if state.stage is not Stage.ENDED:
            self._moved_at.setdefault(state.session_id, state.updated_at)
        else:
            self._moved_at.pop(state.session_id, None)
        if state.lease_id and not state.lease_open:
            self._recorder.book.ended(state.lease_id, f"session is {state.stage}")
        for lease in self._recorder.book.of_session(state.session_id):
            if revokes(state, lease):
                self._recorder.book.ended(lease.lease_id, f"session is {state.stage}")
                self._recorder.begin_seal(lease, "lease_ended")

    def attempt_of(self, session_id: str) -> int:
        """The newest attempt of a session that was heard of; 0: none."""
        return self._attempts.get(session_id, 0)

    def since_of(self, session_id: str) -> int | None:
        """A time (UTC epoch ms) before a session's first call, as far as its states tell; None: unknown.

        A view that began after the start has seen the latest state alone; while an agent runs, that is of its start.
        """
        moved_at = self._moved_at.get(session_id)
        return moved_at - _BEFORE_THE_START_MS if moved_at else None

    def take_control(self, control: Control) -> None:
        """Obeys seal, cancel, drain and resume."""
        if control.action in (ControlAction.SEAL, ControlAction.CANCEL):
            for lease in self._recorder.book.active():
                if addresses(control, lease):
                    self._recorder.begin_seal(lease, control.reason or str(control.action))
        elif (control.target_kind, control.target) == ("node", self._recorder.proxy_id) and control.action in _HOLDS:
            # What holds the whole fleet isn't meant for proxies: without them the sessions that run couldn't go on.
            self._on_drain(control.action is ControlAction.DRAIN)

    async def take_policy(self, event: PolicyEvent) -> None:
        """Adds and removes engines."""
        if event.type is PolicyEventType.ENGINE_ADDED:
            try:
                self._engines.add(event.policy_id, event.engine_url, event.engine_kind or "sglang")
            except ValueError as exc:
                log.warning("engine.refused", policy_id=event.policy_id, url=event.engine_url, error=str(exc))
        elif event.type is PolicyEventType.ENGINE_REMOVED:
            await self._engines.remove(event.policy_id, event.engine_url)

    def _forget(self, session_id: str) -> None:
        self._versions.pop(session_id, None)
        self._moved_at.pop(session_id, None)
        self._attempts.pop(session_id, None)
        for lease in self._recorder.book.of_session(session_id):
            self._recorder.begin_seal(lease, "lease_ended")
