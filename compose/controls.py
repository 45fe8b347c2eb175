"""Asking the orchestrator to cancel, hold or go on: a control on the log."""

from __future__ import annotations

import time
import uuid

from bus import Bus
from schemas.records import Control, ControlAction


async def publish_control(
    bus: Bus,
    action: ControlAction,
    kind: str,
    target: str,
    reason: str,
    *,
    for_ms: int = 0,
    issuer: str = "cli",
    deadline_s: float | None = None,
) -> None:
    """Say it of a session, task, group, policy, node or the fleet (`kind`), named `target`; it is done some moments later.

    A pause or a drain ends by itself after `for_ms`, unless that is 0.
    """
    control = Control(
        control_id=uuid.uuid4().hex,
        target=target,
        target_kind=kind,
        action=action,
        reason=reason,
        issuer=issuer,
        for_ms=for_ms,
        at=int(time.time() * 1000),
    )
    await bus.publish(control, deadline_s=deadline_s)
