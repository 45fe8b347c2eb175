"""Asking the fleet for something: cancel, drain."""

from __future__ import annotations

from compose.api.context import Context
from compose.controls import publish_control
from schemas.records import ControlAction


async def ask(context: Context, action: ControlAction, target: str, kind: str, reason: str) -> None:
    """Publish a control; returns once Kafka has acknowledged it. Raises BusError."""
    deadline_s = context.settings.publish_within_s
    await publish_control(context.bus, action, kind, target, reason, issuer="api", deadline_s=deadline_s)
