"""Engines on `policy.timeline`: which serve which policy now, what proxies found out about them, the facts that add and remove them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from bus import EventLog
from schemas.records import Heartbeat, PolicyEvent, PolicyEventType
from trainer_sink.policies import RegisteredEngine, read_timelines

__all__ = [
    "RegisteredEngine",
    "add_engine",
    "engine_states",
    "live_proxies",
    "registered_engines",
    "remove_engine",
    "replace_own_engine",
]

# A heartbeat that is older tells nothing of the proxy's present.
FRESH_MS = 15_000


async def registered_engines(bus: EventLog) -> list[RegisteredEngine]:
    """The engines by the timeline as it is now, policy by policy, in the order in which they were added."""
    return (await read_timelines(bus)).engines()


async def live_proxies(bus: EventLog) -> list[Heartbeat]:
    """The newest heartbeat of each proxy that lives and takes sessions."""
    newest: dict[str, Heartbeat] = {}
    async for delivery in bus.tail(["rollout.nodes"], start=_now_ms() - FRESH_MS, until_end=True):
        beat = delivery.decode() if delivery.value else None
        if isinstance(beat, Heartbeat) and beat.role == "proxy":
            newest[beat.node_id] = beat
    return [beat for beat in newest.values() if not beat.is_draining]


def engine_states(healths: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """What proxies found out about engines, by policy and URL, from their answers to `GET /health`; the worst one counts."""
    states: dict[tuple[str, str], tuple[int, str]] = {}
    for health in healths:
        for seen in health.get("engines", ()):
            key = (str(seen["policy_id"]), str(seen["url"]))
            states[key] = max(states.get(key, (0, "")), _state(seen))
    return {key: text for key, (_, text) in states.items()}


def _state(seen: Mapping[str, Any]) -> tuple[int, str]:
    if not seen["is_probed"]:
        return 3, "doesn't answer"
    if seen["refusal"]:
        return 4, f"refused: {seen['refusal']}"
    return (2, f"used, but: {'; '.join(seen['gaps'])}") if seen["gaps"] else (1, "used")


async def add_engine(
    bus: EventLog, *, policy_id: str, url: str, kind: str, model: str = "", added_by: str = "", deadline_s: float = 30.0
) -> None:
    """Says that an engine serves a policy; every proxy probes it before it gets a call."""
    event = PolicyEvent(
        policy_id=policy_id,
        type=PolicyEventType.ENGINE_ADDED,
        engine_url=url.rstrip("/"),
        engine_kind=kind,
        model=model,
        reason=added_by,
        at=_now_ms(),
    )
    await bus.publish(event, deadline_s=deadline_s)


async def remove_engine(bus: EventLog, *, policy_id: str, url: str, reason: str = "", deadline_s: float = 30.0) -> None:
    """Says that an engine no longer serves a policy."""
    event = PolicyEvent(
        policy_id=policy_id,
        type=PolicyEventType.ENGINE_REMOVED,
        engine_url=url.rstrip("/"),
        reason=reason,
        at=_now_ms(),
    )
    await bus.publish(event, deadline_s=deadline_s)


async def replace_own_engine(bus: EventLog, engine: RegisteredEngine) -> None:
    """Adds a stack's engine, then removes those that the same stack has added before and that a crash kept it from removing."""
    before = await registered_engines(bus)
    await add_engine(
        bus,
        policy_id=engine.policy_id,
        url=engine.url,
        kind=engine.kind,
        model=engine.model,
        added_by=engine.added_by,
    )
    for old in before:  # afterwards, so that the policy is never without one
        if old.added_by == engine.added_by and (old.policy_id, old.url) != (engine.policy_id, engine.url.rstrip("/")):
            await remove_engine(bus, policy_id=old.policy_id, url=old.url, reason="its stack has another engine now")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
