"""The API's memory as a pure projection: records in, rows of tasks, groups, sessions and callbacks out; bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import orjson
from pydantic import ValidationError

from compose.api.rows import CallbackRow, GroupRow, Result, SessionRow, TaskRow
from schemas import ids
from schemas.records import (
    Callback,
    GroupEvent,
    GroupEventType,
    Heartbeat,
    Record,
    ScoredTrajectory,
    SessionEvent,
    SessionEventType,
    SessionState,
    TaskRequest,
)
from schemas.task import TaskSpec

FORGOTTEN_KEPT: Final = 200_000
"""Digests of forgotten tasks that are kept, so that their ids aren't given away again (about 150 bytes each)."""

ERROR_CHARACTERS: Final = 500

_GROUP_STATES: Final = frozenset(
    {GroupEventType.REGISTERED, GroupEventType.ADMITTED, GroupEventType.CANCEL_REQUESTED, GroupEventType.CLOSED}
)


def digest_of(spec: Any) -> str:
    """The digest of a task's specification without its id: two submissions with the same digest ask for the same."""
    try:
        spec = TaskSpec.model_validate(spec).model_dump(mode="json")
    except ValidationError:  # of another release; compared as it stands
        spec = dict(spec) if isinstance(spec, dict) else {"spec": spec}
    spec.pop("task_id", None)
    try:
        return ids.digest(orjson.dumps(spec, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS))
    except TypeError:  # numbers beyond 64 bits
        return ids.digest(repr(sorted(spec.items())).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredHead:
    """What the headers of a scored trajectory say: all that memory keeps of it."""

    session_id: str
    group_id: str
    task_id: str
    status: str
    reward: float | None
    revision: int

    @classmethod
    def of_headers(cls, headers: dict[str, bytes]) -> Self | None:
        """Read them; None when they are of a release that wrote less. ValueError when one isn't what it should be."""
        text = {name: value.decode("utf-8", "replace") for name, value in headers.items()}
        if not ("status" in text and "task_id" in text):
            return None
        return cls(
            session_id=text.get("session_id", ""),
            group_id=text.get("group_id", ""),
            task_id=text["task_id"],
            status=text["status"],
            reward=float(text["reward"]) if "reward" in text else None,
            revision=int(text.get("revision", "1")),
        )

    @classmethod
    def of_record(cls, scored: ScoredTrajectory) -> Self:
        """The same from the record itself."""
        return cls(
            session_id=scored.session_id,
            group_id=scored.group_id,
            task_id=scored.task_id,
            status=str(scored.status),
            reward=scored.reward,
            revision=scored.revision,
        )


class Projection:
    """Rows by id. A record that comes twice, or in another order than it was caused in, changes nothing for the worse."""

    def __init__(self, *, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._forgotten: dict[str, str] = {}
        """Digests by task id of the tasks that are over and gone from memory."""
        self._evictable: dict[str, None] = {}
        self.tasks: dict[str, TaskRow] = {}
        self.sessions: dict[str, SessionRow] = {}
        self.nodes: dict[str, Heartbeat] = {}
        self.evicted = 0

    def known_digest(self, task_id: str) -> str | None:
        """The digest under which a task id is taken; None when it is free."""
        row = self.tasks.get(task_id)
        return row.digest if row is not None else self._forgotten.get(task_id)

    def is_forgotten(self, task_id: str) -> bool:
        """Whether a task was known and is gone from memory."""
        return task_id in self._forgotten

    def take(self, record: Record, partition: int, offset: int) -> None:
        """Apply a record that stands at this place of its topic; ValueError when it is none of ours."""
        match record:
            case TaskRequest():
                self._take_task(record)
            case GroupEvent():
                self._take_group(record)
            case SessionEvent():
                self._take_fact(record, partition, offset)
            case SessionState():
                self._take_state(record)
            case Callback():
                self._take_callback(record)
            case Heartbeat():
                self.nodes[record.node_id] = record
            case _:
                raise ValueError(f"a {record.NAME} says nothing about tasks")

    def _task(self, task_id: str) -> TaskRow | None:
        """The task's row, made when it is new; None when it has been forgotten."""
        if not task_id or task_id in self._forgotten:
            return None
        return self.tasks.setdefault(task_id, TaskRow(task_id))

    def _group(self, task: TaskRow, group_id: str) -> GroupRow:
        return task.groups.setdefault(group_id, GroupRow(group_id))

    def _session(self, record: SessionEvent | SessionState | ScoredHead) -> SessionRow | None:
        row = self.sessions.get(record.session_id)
        if row is None:
            task = self._task(record.task_id)
            if task is None or not record.session_id:
                return None
            row = SessionRow(record.session_id, task_id=record.task_id, group_id=record.group_id)
            self.sessions[record.session_id] = row
            self._group(task, record.group_id).sessions[record.session_id] = row
            self._make_room()
        return row

    def _take_task(self, request: TaskRequest) -> None:
        row = self._task(request.task_id)
        if row is None or row.digest:
            return  # the first one counts
        spec = request.spec if isinstance(request.spec, dict) else {}
        row.digest = digest_of(request.spec)
        row.policy_id, row.harness = request.policy_id, request.harness
        row.num_samples, row.submitted_at = request.num_samples, request.submitted_at
        self._note_callback(row, spec)

    def _note_callback(self, row: TaskRow, spec: Any) -> None:
        if isinstance(spec, dict):
            row.callback_url = str(spec.get("callback_url") or row.callback_url)
            row.callback_body = str(spec.get("callback_body") or row.callback_body)

    def _take_group(self, event: GroupEvent) -> None:
        task = self._task(event.task_id)
        if task is None:
            return
        if event.type is GroupEventType.FORGOTTEN:
            return  # its sessions say so themselves
        group = self._group(task, event.group_id)
        group.size = event.size or group.size
        group.requeue_of, group.for_trainer = (
            event.requeue_of or group.requeue_of,
            event.for_trainer or group.for_trainer,
        )
        group.generation = event.generation or group.generation
        if event.type in _GROUP_STATES and group.state != GroupEventType.CLOSED:
            group.state, group.reason = str(event.type), event.reason or group.reason
        task.policy_id, task.harness = task.policy_id or event.policy_id, task.harness or event.harness
        if event.type is GroupEventType.REGISTERED and not event.requeue_of and isinstance(event.task, dict):
            task.num_samples, task.submitted_at = task.num_samples or event.size, task.submitted_at or event.at
            self._note_callback(task, event.task)
            task.digest = task.digest or digest_of(event.task)  # the command itself may have expired

    def _take_fact(self, fact: SessionEvent, partition: int, offset: int) -> None:
        if fact.type is SessionEventType.FORGOTTEN:
            self.drop_session(fact.session_id)
            return
        row = self._session(fact)
        if row is None:
            return
        self._note_fact(row, partition, offset)
        spec = fact.spec
        if fact.type is SessionEventType.REGISTERED and spec is not None:
            row.index, row.policy_id, row.harness = spec.index, spec.policy_id, spec.harness
            row.owner, row.registered_at = fact.owner, fact.at
            task = self.tasks[row.task_id]
            group = self._group(task, row.group_id)
            group.size = group.size or spec.group_size
            group.requeue_of, group.for_trainer = spec.requeue_of, spec.for_trainer
            task.policy_id, task.harness = task.policy_id or spec.policy_id, task.harness or spec.harness
            task.num_samples = task.num_samples or spec.group_size
            task.submitted_at = task.submitted_at or fact.at
            self._note_callback(task, fact.task)
            if not task.digest and isinstance(fact.task, dict):
                task.digest = digest_of(fact.task)  # the command itself may have expired

    def note_fact(self, session_id: str, partition: int, offset: int) -> bool:
        """Note that a fact of a known session stands there; False when the session isn't known."""
        row = self.sessions.get(session_id)
        if row is None:
            return False
        self._note_fact(row, partition, offset)
        return True

    def _note_fact(self, row: SessionRow, partition: int, offset: int) -> None:
        row.fact_partition = partition
        if not row.facts or row.facts[-1] < offset:
            row.facts.append(offset)

    def _take_state(self, state: SessionState) -> None:
        row = self._session(state)
        if row is None or state.state_version < row.state_version:
            return
        row.policy_id, row.harness = state.policy_id or row.policy_id, state.harness or row.harness
        row.stage, row.status, row.boundary = state.stage, state.status, str(state.boundary)
        row.error, row.attempt = state.error[:ERROR_CHARACTERS], state.attempt
        row.lease_id, row.worker_id, row.owner = state.lease_id, state.worker_id, state.owner
        row.state_version, row.updated_at, row.deadline_at = state.state_version, state.updated_at, state.deadline_at

    def take_scored(self, head: ScoredHead, partition: int, offset: int) -> TaskRow | None:
        """Note a session's result; its task when that has ended (again)."""
        row = self._session(head)
        if row is None:
            return None
        known = row.result
        group = self.tasks[row.task_id].groups.get(row.group_id)
        if known is None and group is not None:
            group.scored += 1
        if known is None or known.revision < head.revision:
            first = offset if known is None else known.first_offset
            row.result = Result(partition, offset, first, head.revision, head.status, head.reward)
        task = self.tasks[row.task_id]
        if not task.is_ended:
            return None
        self._evictable.setdefault(task.task_id)
        self._make_room()
        return task

    def _take_callback(self, callback: Callback) -> None:
        task = self._task(callback.task_id)
        if task is not None:
            error = callback.error[:ERROR_CHARACTERS]
            task.callbacks[callback.delivery_id] = CallbackRow(callback.state, callback.tries, error)

    # -- forgetting --------------------------------------------------------------------------------------------------

    def drop_session(self, session_id: str) -> None:
        """Leave nothing of a session whose retention is over; of its task with its last one."""
        row = self.sessions.pop(session_id, None)
        task = self.tasks.get(row.task_id) if row is not None else None
        if row is None or task is None:
            return
        if (group := task.groups.get(row.group_id)) is not None:
            group.sessions.pop(session_id, None)
            if not group.sessions:
                del task.groups[row.group_id]
        if not task.groups:
            self._forget(task)

    def _make_room(self) -> None:
        while len(self.sessions) > self._max_sessions and self._evictable:
            task = self.tasks.get(next(iter(self._evictable)))
            if task is None or not task.is_ended:  # run again since
                self._evictable.pop(next(iter(self._evictable)))
                continue
            self.evicted += 1
            for session in list(task.sessions()):
                self.sessions.pop(session.session_id, None)
            self._forget(task)

    def _forget(self, task: TaskRow) -> None:
        self.tasks.pop(task.task_id, None)
        self._evictable.pop(task.task_id, None)
        self._forgotten[task.task_id] = task.digest
        while len(self._forgotten) > FORGOTTEN_KEPT:
            self._forgotten.pop(next(iter(self._forgotten)))
