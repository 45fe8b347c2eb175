"""Asking the fleet for something: cancel, drain."""

from __future__ import annotations

import time
import uuid

from compose.api.context import Context
from schemas.records import Control, ControlAction


async def ask(context: Context, action: ControlAction, target: str, kind: str, reason: str) -> None:
    """Publish a control; returns once Kafka has acknowledged it. Raises BusError."""
    control = Control(
        control_id=uuid.uuid4().hex,
        target=target,
        target_kind=kind,
        action=action,
        reason=reason,
        issuer="api",
        at=int(time.time() * 1000),
    )
    await context.bus.publish(control, deadline_s=context.settings.publish_within_s)
