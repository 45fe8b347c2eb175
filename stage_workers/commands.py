"""Stage commands: which of them are for this worker's incarnation, and what each does to the sessions held."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import structlog
from pydantic import ValidationError

from schemas.records import (
    Boundary,
    Record,
    SessionEvent,
    SessionEventType,
    SessionSpec,
    Stage,
    StageCommand,
    Status,
)
from schemas.task import TaskSpec
from stage_workers.kit import Kit
from stage_workers.sessions import Session

log = structlog.get_logger(__name__)

TOPICS = ("rollout.stage.init", "rollout.stage.run", "rollout.stage.postrun")
# Commands repeat only within moments of each other (an orchestrator that processes a fact again).
_REMEMBERED = 10_000


class Commands:
    """Admits INIT commands within the free slots (else answers `declined`), hands run and postrun commands to their session."""

    def __init__(self, kit: Kit, begin: Callable[[Session], None]) -> None:
        self._kit = kit
        self._begin = begin
        self._seen: OrderedDict[str, None] = OrderedDict()
        self.is_draining = False

    def take(self, record: Record) -> None:
        """One record of the stage topics.

        Raises:
            TypeError: it is no stage command; pydantic's ValidationError: its task can't be read. (Both are dead letters.)
        """
        if not isinstance(record, StageCommand):
            raise TypeError(f"a {record.NAME} is no stage command")
        kit = self._kit
        if record.worker_id != kit.settings.worker_id or record.incarnation != kit.incarnation:
            return
        if record.event_id in self._seen:
            return
        if record.expires_at and record.expires_at <= kit.now_ms():
            log.warning(
                "command.expired", stage=str(record.stage), session_id=record.session_id, attempt=record.attempt
            )
            return
        if record.stage is Stage.INIT:
            self._take_init(record)
        elif record.stage in {Stage.RUNNING, Stage.POSTRUN}:
            self._hand_over(record)
        else:
            raise TypeError(f"a command to the stage {record.stage} means nothing to a worker")
        self._seen[record.event_id] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def _take_init(self, command: StageCommand) -> None:
        kit = self._kit
        if self.is_draining or kit.holdings.free_init < 1:
            log.info("command.declined", session_id=command.session_id, is_draining=self.is_draining)
            self._answer(command, SessionEventType.DECLINED, details={"is_draining": self.is_draining})
            return
        try:
            task = TaskSpec.model_validate(command.task)
        except ValidationError as error:
            text = f"the task can't be read by this worker: {error}"
            self._answer(
                command, SessionEventType.INIT_FAILED, status=Status.FAILED, boundary=Boundary.SANDBOX, error=text
            )
            raise
        self._begin(
            Session(
                worker_id=kit.settings.worker_id,
                incarnation=kit.incarnation,
                session_id=command.session_id,
                attempt=command.attempt,
                round=command.round,
                spec=command.spec or SessionSpec(),
                task=task,
                expires_at=command.expires_at,
            )
        )

    def _answer(self, command: StageCommand, kind: SessionEventType, **fields: object) -> None:
        """Tells a fact about a session that isn't held."""
        spec = command.spec or SessionSpec()
        self._kit.facts.put(
            SessionEvent(
                session_id=command.session_id,
                type=kind,
                group_id=spec.group_id,
                task_id=spec.task_id,
                attempt=command.attempt,
                round=command.round,
                worker_id=self._kit.settings.worker_id,
                incarnation=self._kit.incarnation,
                at=self._kit.now_ms(),
                stage=Stage.INIT,
                **fields,  # type: ignore[arg-type]  # the record's own fields, by name
            )
        )

    def _hand_over(self, command: StageCommand) -> None:
        session = self._kit.holdings.find(command.session_id, command.attempt, command.round)
        future = None
        if session is not None:
            future = session.run_command if command.stage is Stage.RUNNING else session.postrun_command
        if future is None or future.done():
            log.warning(
                "command.unheld", stage=str(command.stage), session_id=command.session_id, attempt=command.attempt
            )
            return
        future.set_result(command)
