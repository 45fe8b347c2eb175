"""Attached sessions: a person or another launcher starts the agent; we open, show, seal and grade."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from bus import Bus
from compose.engines import live_proxies, registered_engines
from compose.errors import CommandError, dependency_down, usage
from compose.records_json import as_json
from compose.watch import session_facts
from schemas import ids
from schemas.records import (
    Boundary,
    CompletionDelivery,
    CompletionRecord,
    Heartbeat,
    Reward,
    ScoredTrajectory,
    SessionEvent,
    SessionEventType,
    SessionSpec,
    Stage,
    Status,
    Trajectory,
)
from schemas.task import EvaluatorSpec, HarnessSpec, TaskSpec

AdminCall = Callable[[str, str, dict[str, object]], Awaitable[dict[str, object]]]

# How long a command waits for the orchestrator, and for the trajectory after the seal.
GRANT_WITHIN_S = 30.0
SCORED_WITHIN_S = 60.0
OWNER = "external"


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """What an agent needs: `base_urls` as the vendors' SDKs take them, the secret as its API key."""

    session_id: str
    secret: str
    base_urls: dict[str, str]


def _now_ms() -> int:
    return int(time.time() * 1000)


class AttachedSessions:
    """Opens and closes attached sessions over the bus and the proxies' admin listeners."""

    def __init__(self, bus: Bus, call_admin: AdminCall) -> None:
        self._bus = bus
        self._call_admin = call_admin

    async def open(self, *, policy_id: str, harness: str, instruction: str, deadline_s: float) -> OpenedSession:
        """Register, wait for the grant, open the lease at a proxy and publish `started`."""
        from harnesses import base_urls

        await self._check_policy(policy_id)
        proxy = await self._find_proxy()
        task_id = f"attached-{uuid.uuid4().hex[:16]}"
        group_id = ids.group_id(task_id)
        session_id = ids.session_id(group_id, 0)
        task = TaskSpec(
            task_id=task_id, instruction=instruction, harness=HarnessSpec(name=harness), policy_id=policy_id
        )
        spec = SessionSpec(
            task_id=task_id,
            group_id=group_id,
            policy_id=policy_id,
            harness=harness,
            builder=task.builder.name,
            builder_options=task.builder.options,
        )
        since_ms = _now_ms()
        common: dict[str, Any] = {
            "session_id": session_id,
            "group_id": group_id,
            "task_id": task_id,
            "owner": OWNER,
            "deadline_at": since_ms + int(deadline_s * 1000),
        }
        registered = SessionEvent(
            type=SessionEventType.REGISTERED, spec=spec, task=task.model_dump(mode="json"), at=since_ms, **common
        )
        await self._bus.publish(registered)
        granted = await self._wait_for(session_id, SessionEventType.GRANTED, since_ms, GRANT_WITHIN_S)
        secret = secrets.token_urlsafe(24)
        await self._call_admin(
            proxy.admin_address,
            "/leases/open",
            {
                "session_id": session_id,
                "attempt": granted.attempt,
                "lease_id": granted.lease_id,
                "secret_hash": ids.secret_hash(secret),
                "writer": 1,
                "takes_over": 0,
                "spec": as_json(spec),
            },
        )
        await self._bus.publish(
            SessionEvent(
                type=SessionEventType.STARTED,
                attempt=granted.attempt,
                lease_id=granted.lease_id,
                worker_id=granted.worker_id,
                incarnation=granted.incarnation,
                writers=[1],
                at=_now_ms(),
                details={"admin_address": proxy.admin_address, "proxy_id": proxy.node_id},
                **common,
            )
        )
        return OpenedSession(session_id, secret, base_urls(proxy.data_address, secret))

    async def close(
        self, session_id: str, *, reward: float | None = None, evaluator: EvaluatorSpec | None = None
    ) -> ScoredTrajectory:
        """Seal, publish the verdict and wait for the scored trajectory."""
        facts = await session_facts(self._bus, session_id)
        started = next((e for e in facts if e.type is SessionEventType.STARTED and e.owner == OWNER), None)
        if started is None:
            raise usage(f"session {session_id} isn't an attached session that runs", hint="polynya session open")
        if any(e.type is SessionEventType.ENDED for e in facts):
            raise usage(f"session {session_id} has ended already", hint=f"polynya session show {session_id[:8]}")
        since_ms = _now_ms()
        await self._call_admin(
            str(started.details["admin_address"]),
            "/leases/seal",
            {"lease_id": started.lease_id, "writer": 1, "reason": "closed"},
        )
        await self._publish_after(started, SessionEventType.FINISHED, status=Status.COMPLETED)
        await self._publish_after(started, SessionEventType.SEALED, writers=[1])
        verdict = await self._verdict(started, reward, evaluator)
        if isinstance(verdict, Reward):
            await self._bus.publish(verdict)
            await self._publish_after(
                started, SessionEventType.GRADED, status=Status.COMPLETED, expects_reward=True, rewards=[verdict.name]
            )
        else:
            await self._publish_after(
                started, SessionEventType.GRADED, status=Status.FAILED, boundary=Boundary.EVALUATOR, error=verdict
            )
        return await self._wait_for_score(session_id, since_ms)

    async def _verdict(
        self, started: SessionEvent, reward: float | None, evaluator: EvaluatorSpec | None
    ) -> Reward | str:
        common = {"session_id": started.session_id, "lease_id": started.lease_id, "at": _now_ms()}
        if reward is not None:
            return Reward(value=reward, grader="person", grader_version="1", provenance="manual", **common)  # type: ignore[arg-type]
        assert evaluator is not None
        from compose.evaluate import evaluate_here

        try:
            value, details = await evaluate_here(evaluator)
        except CommandError as exc:
            return str(exc)
        return Reward(value=value, grader=evaluator.name, grader_version="1", details=details, **common)  # type: ignore[arg-type]

    async def _publish_after(self, started: SessionEvent, kind: SessionEventType, **fields: Any) -> None:
        await self._bus.publish(
            SessionEvent(
                type=kind,
                session_id=started.session_id,
                group_id=started.group_id,
                task_id=started.task_id,
                attempt=started.attempt,
                lease_id=started.lease_id,
                worker_id=started.worker_id,
                incarnation=started.incarnation,
                owner=OWNER,
                at=_now_ms(),
                **fields,
            )
        )

    async def _check_policy(self, policy_id: str) -> None:
        """Refuse a policy that no engine serves: every call of the session would fail."""
        known = sorted({engine.policy_id for engine in await registered_engines(self._bus)})
        if (
            known and policy_id not in known and "*" not in known
        ):  # where no engine is registered at all, proxies have their own
            raise usage(f"no engine serves the policy {policy_id!r}", hint=f"--policy {' or '.join(known)}")

    async def _find_proxy(self) -> Heartbeat:
        if not (living := await live_proxies(self._bus)):
            raise dependency_down("no capture proxy has sent a heartbeat in the last 15 s", hint="polynya up --detach")
        return max(living, key=lambda b: b.at)

    async def _wait_for(self, session_id: str, kind: SessionEventType, since_ms: int, within_s: float) -> SessionEvent:
        try:
            async with asyncio.timeout(within_s):
                async for delivery in self._bus.tail(["rollout.sessions"], start=since_ms - 1):
                    event = delivery.decode()
                    if isinstance(event, SessionEvent) and event.session_id == session_id and event.type is kind:
                        return event
        except TimeoutError as exc:
            raise dependency_down(
                f"no `{kind}` for session {session_id} within {within_s:.0f} s: is an orchestrator running?",
                hint="polynya doctor",
            ) from exc
        raise dependency_down("the log ended while waiting")

    async def _wait_for_score(self, session_id: str, since_ms: int) -> ScoredTrajectory:
        try:
            async with asyncio.timeout(SCORED_WITHIN_S):
                async for delivery in self._bus.tail(["trajectory.scored"], start=since_ms - 1):
                    scored = delivery.decode()
                    if isinstance(scored, ScoredTrajectory) and scored.session_id == session_id:
                        return scored
        except TimeoutError as exc:
            raise dependency_down(
                f"session {session_id} was sealed and graded, but its trajectory isn't scored after {SCORED_WITHIN_S:.0f} s",
                hint="polynya status " + session_id[:8],
            ) from exc
        raise dependency_down("the log ended while waiting")


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as the log shows it; `is_final` once the assembler has built the trajectory."""

    session_id: str
    stage: str
    completions: list[CompletionRecord]
    trajectory: Trajectory | None
    is_final: bool

    @classmethod
    async def read(cls, bus: Bus, session_id: str) -> Self:
        """Read what the log holds now: calls in canonical order, and the trajectory built or so far."""
        from compose.preview import trajectory_so_far

        calls: dict[tuple[str, int, int], CompletionRecord] = {}
        deliveries: list[CompletionDelivery] = []
        key = session_id.encode()
        async for delivery in bus.tail(["capture.completions"], start="earliest", until_end=True):
            if delivery.key != key:
                continue
            record = delivery.decode()
            if isinstance(record, CompletionRecord):
                calls.setdefault((record.lease_id, record.writer, record.call_seq), record)
            elif isinstance(record, CompletionDelivery):
                deliveries.append(record)
        built: Trajectory | None = None
        async for delivery in bus.tail(["trajectory.built"], start="earliest", until_end=True):
            if delivery.key == key and isinstance(record := delivery.decode(), Trajectory):
                built = record
        facts = await session_facts(bus, session_id)
        spec = next((e.spec for e in facts if e.spec is not None), None)
        completions = sorted(calls.values(), key=lambda c: (c.attempt, c.writer, c.call_seq))
        trajectory = built or trajectory_so_far(session_id, spec, completions, deliveries)
        return cls(session_id, _stage(facts), completions, trajectory, built is not None)


def _stage(facts: list[SessionEvent]) -> str:
    last = {
        SessionEventType.REGISTERED: Stage.QUEUED,
        SessionEventType.INIT_ASSIGNED: Stage.INIT,
        SessionEventType.READY: Stage.READY,
        SessionEventType.STARTED: Stage.RUNNING,
        SessionEventType.SEALED: Stage.SEALED,
        SessionEventType.GRADED: Stage.POSTRUN,
        SessionEventType.ENDED: Stage.ENDED,
    }
    known = [last[e.type] for e in facts if e.type in last]
    return str(known[-1]) if known else "unknown"
