"""Groups, controls and trainers as the log shows them now, for those who ask: the status command and the API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from bus import Bus
from schemas import MalformedRecordError, UnknownSchemaIdError
from schemas.records import BatchConsumed, Control, ControlAction, GroupEvent, GroupEventType, TrainerRegistered
from stream_processors.orchestrator.controls import Controls
from stream_processors.orchestrator.groups.admission import SeenGroups, why_waiting
from stream_processors.orchestrator.groups.core import apply
from stream_processors.orchestrator.groups.ledger import Ledger, Trainer
from stream_processors.orchestrator.groups.row import GroupRow
from stream_processors.orchestrator.groups.states import GroupStage
from stream_processors.settings import ProcessorSettings


@dataclass(slots=True)
class Overview:
    """All groups by id, what holds them, and how far trainers are; as the orchestrator sees it, from the same log."""

    groups: dict[str, GroupRow] = field(default_factory=dict)
    controls: Controls = field(default_factory=Controls)
    ledger: Ledger = field(default_factory=Ledger)
    max_lag: int = ProcessorSettings.model_fields["max_lag_groups"].default

    @classmethod
    async def read(cls, bus: Bus, *, max_lag: int | None = None) -> Overview:
        """Everything that the log holds now; what can't be read is the business of those who must."""
        view = cls(max_lag=max_lag or ProcessorSettings.model_fields["max_lag_groups"].default)
        topics = ["rollout.groups", "rollout.control", "trainer.consumed"]
        async for delivery in bus.tail(topics, start="earliest", until_end=True):
            try:
                record = delivery.decode() if delivery.value else None
            except (MalformedRecordError, UnknownSchemaIdError):
                continue
            at = delivery.timestamp_ms
            if isinstance(record, GroupEvent):
                row = apply(view.groups.get(record.group_id), record, delivery.offset, at)
                if record.type is GroupEventType.FORGOTTEN:
                    view.groups.pop(record.group_id, None)
                elif row is not None:
                    view.groups[record.group_id] = row
                home = await bus.partition_for("trajectory.scored", record.group_id)
                view.ledger.take_group(record, at, home)
            elif isinstance(record, Control):
                view.controls.take(record, at)
            elif isinstance(record, TrainerRegistered):
                view.ledger.take_beat(record, at)
            elif isinstance(record, BatchConsumed):
                view.ledger.take_batch(record)
        return view

    def state_of(self, row: GroupRow, now: int | None = None) -> str:
        """Where a group stands, in a word or two: why it waits, or how it ended."""
        if row.stage is GroupStage.CLOSED:
            return f"closed ({row.close_reason})"
        now = int(time.time() * 1000) if now is None else now
        if row.stage is GroupStage.WAITING:
            why = why_waiting(row, SeenGroups((), self.controls, self.ledger, self.max_lag, now))
            return "waiting" if why is None else f"waiting ({str(why).replace('_', ' ')})"
        held = self.controls.holds(row.names, now)
        return "paused" if held is ControlAction.PAUSE else "running"

    def trainers(self, now: int) -> dict[str, tuple[Trainer, int]]:
        """The trainers whose time to live hasn't run out, with their lags in groups."""
        live = self.ledger.trainers.items()
        return {name: (trainer, self.ledger.lag(trainer)) for name, trainer in live if trainer.is_live(now)}

    def held(self, now: int | None = None) -> list[str]:
        """What is paused or drained, one text each."""
        found = []
        for (kind, target), span in sorted(self.controls.in_force(now or int(time.time() * 1000)).items()):
            how = "paused" if span.action is ControlAction.PAUSE else "draining"
            until = "" if span.to_at is None else f" until {datetime.fromtimestamp(span.to_at // 1000, UTC):%F %T} UTC"
            found.append(f"{how}: {kind if target == '*' else f'{kind} {target}'}{until}")
        return found

    def as_json(self, row: GroupRow) -> Mapping[str, Any]:
        """A group as one JSON object."""
        names = ("group_id", "task_id", "policy_id", "harness", "priority", "requeue_of", "for_trainer")
        return {**{name: getattr(row, name) for name in names}, "state": self.state_of(row), **row.counts}

    def counts(self) -> Counter[str]:
        """How many groups stand in each state."""
        return Counter(self.state_of(row) for row in self.groups.values())
