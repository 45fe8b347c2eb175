"""What the proxy reads along: states revoke, controls seal and drain, the timeline names engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from capture_proxy.leases import Lease
from capture_proxy.sessions import addresses, revokes
from schemas.records import (
    Control,
    ControlAction,
    PolicyEvent,
    PolicyEventType,
    SessionSpec,
    SessionState,
    Stage,
)
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.test_service import ask
from tests.capture_proxy.wire import WIRES

MakeStack = Callable[..., Awaitable[Stack]]


def lease(**changes: object) -> Lease:
    """Attempt 2 of session s."""
    spec = SessionSpec(task_id="t", group_id="g", policy_id="p")
    base = {"session_id": "s", "lease_id": "l2", "attempt": 2, "writer": 1, "secret_hash": "h", "spec": spec}
    return Lease(**{**base, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (SessionState(session_id="s", attempt=2, lease_id="l2", lease_open=True, stage=Stage.RUNNING), False),
        (SessionState(session_id="s", attempt=2, lease_id="l2", lease_open=False, stage=Stage.SEALED), True),
        (SessionState(session_id="s", attempt=2, lease_id="", lease_open=False, stage=Stage.READY), False),
        (SessionState(session_id="s", attempt=1, lease_id="l1", lease_open=False, stage=Stage.RUNNING), False),
        (SessionState(session_id="s", attempt=3, lease_id="", lease_open=False, stage=Stage.INIT), True),
        (SessionState(session_id="s", attempt=2, lease_id="l2", lease_open=True, stage=Stage.ENDED), True),
        (SessionState(session_id="other", attempt=9, stage=Stage.ENDED), False),
    ],
    ids=["open", "closed", "before-grant", "earlier-attempt", "later-attempt", "ended", "other-session"],
)
def test_only_a_state_about_this_lease_revokes_it(state: SessionState, expected: bool) -> None:
    """A stale state from before the grant never closes a fresh lease."""
    assert revokes(state, lease()) is expected


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        (Control(target="s"), True),
        (Control(target="other"), False),
        (Control(target="*"), True),
        (Control(target="s", lease_id="l1"), False),
        (Control(target="g", target_kind="group"), True),
        (Control(target="t", target_kind="task"), True),
        (Control(target="p", target_kind="policy"), True),
        (Control(target="s", target_kind="node"), False),
    ],
)
def test_controls_address_by_kind(control: Control, expected: bool) -> None:
    """A control reaches the sessions that it names, by session, group, task or policy."""
    assert addresses(control, lease()) is expected


async def test_the_proxy_seals_when_the_lease_ends(stack: Stack) -> None:
    """The orchestrator's state says that the lease is over: the proxy seals by itself, and later calls are 409."""
    await ask(stack, WIRES[0], stream=False)
    await stack.bus.publish(
        SessionState(
            session_id="session-1",
            attempt=1,
            lease_id=stack.lease_id,
            lease_open=False,
            stage=Stage.ENDED,
            state_version=5,
        )
    )
    await stack.until(lambda: bool(stack.seals))
    assert (stack.seals[0].last_seq, stack.seals[0].reason) == (1, "lease_ended")
    status, _ = await ask(stack, WIRES[0], stream=False)
    assert status == 409
    await stack.until(lambda: bool(stack.rejections))
    assert stack.rejections[0].reason == "lease_ended"
    assert (await stack.open(writer=2))[0] == 409


async def test_a_tombstone_ends_the_lease(stack: Stack) -> None:
    """A session that is gone from `rollout.state` has no open lease."""
    await stack.bus.publish_raw("rollout.state", b"session-1", None)
    await stack.until(lambda: bool(stack.seals))
    assert [seal.reason for seal in stack.seals] == ["lease_ended"]


async def test_an_older_state_is_ignored(stack: Stack) -> None:
    """A lower `state_version` than one already seen changes nothing."""
    view = stack.proxy.view
    state = {"session_id": "session-1", "attempt": 1, "lease_id": stack.lease_id}
    view.take_state(SessionState(**state, lease_open=True, stage=Stage.RUNNING, state_version=9))
    view.take_state(SessionState(**state, lease_open=False, stage=Stage.RUNNING, state_version=8))
    assert (await ask(stack, WIRES[0], stream=False))[0] == 200


async def test_controls_seal_and_drain(stack: Stack) -> None:
    """`cancel` of the session seals its lease; `drain` of the node stops new ones."""
    await stack.bus.publish(Control(control_id="1", target="session-1", action=ControlAction.CANCEL, reason="enough"))
    await stack.bus.publish(Control(control_id="2", target="proxy-a", target_kind="node", action=ControlAction.DRAIN))
    await stack.until(lambda: bool(stack.seals) and stack.proxy.recorder.is_draining)
    assert stack.seals[0].reason == "enough"
    await stack.bus.publish(Control(control_id="3", target="proxy-a", target_kind="node", action=ControlAction.RESUME))
    await stack.until(lambda: not stack.proxy.recorder.is_draining)


async def test_holding_the_fleet_holds_no_proxy(stack: Stack) -> None:
    """A drain of everything, or of another node, keeps no running session from opening its next writer."""
    for control in (Control(target="*", target_kind="fleet"), Control(target="proxy-b", target_kind="node")):
        stack.proxy.view.take_control(replace(control, action=ControlAction.DRAIN))
    assert not stack.proxy.recorder.is_draining


async def test_the_timeline_adds_and_removes_engines(stack: Stack) -> None:
    """An engine of the policy's own wins over the general one, and its removal brings that back."""
    added = PolicyEvent(
        policy_id="policy-1",
        type=PolicyEventType.ENGINE_ADDED,
        engine_url=stack.engine.url + "/",
        engine_kind="sglang",
        at=1,
    )
    await stack.bus.publish(added)
    await stack.until(lambda: len(stack.proxy.engines.describe()) == 2)
    await stack.proxy.engines.remove("*", stack.engine.url)
    assert (await ask(stack, WIRES[0], stream=False))[0] == 200
    removed = PolicyEvent(policy_id="policy-1", type=PolicyEventType.ENGINE_REMOVED, engine_url=stack.engine.url, at=2)
    await stack.bus.publish(removed)
    await stack.until(lambda: not stack.proxy.engines.describe())
    assert (await ask(stack, WIRES[0], stream=False))[0] == 503


async def test_an_unknown_kind_of_engine_is_passed_over(stack: Stack) -> None:
    """A timeline with an engine that this proxy can't speak to doesn't stop it from reading on."""
    for at, kind in ((1, "tea-kettle"), (2, "sglang")):
        await stack.bus.publish(
            PolicyEvent(
                policy_id="p2",
                type=PolicyEventType.ENGINE_ADDED,
                engine_url=f"http://127.0.0.1:{at}",
                engine_kind=kind,
                at=at,
            )
        )
    await stack.until(lambda: any(e["url"] == "http://127.0.0.1:2" for e in stack.proxy.engines.describe()))
    assert all(e["url"] != "http://127.0.0.1:1" for e in stack.proxy.engines.describe())


@pytest.mark.parametrize("topic", ["rollout.state", "rollout.control", "policy.timeline"])
async def test_poison_is_set_aside_and_the_view_goes_on(stack: Stack, topic: str) -> None:
    """Bytes that are no record land in the topic's dead letters; what comes behind them on the partition is obeyed."""
    await stack.bus.publish_raw(topic, b"session-1", b"poison")
    await stack.until(lambda: bool(stack.bus.records(f"{topic}.proxy.dead")))
    assert stack.bus.records(f"{topic}.proxy.dead")[0].value == b"poison"
    if topic == "rollout.state":
        await stack.bus.publish_raw(topic, b"session-1", None)
        await stack.until(lambda: bool(stack.seals))


async def test_an_unknown_schema_stops_the_view_and_says_so(stack: Stack) -> None:
    """A record of a newer schema is waited for, not thrown away: health is 503 and names the id."""
    await stack.bus.publish_raw("rollout.state", b"session-1", b"\x00" + (987_654).to_bytes(4, "big") + b"body")
    await stack.until(lambda: bool(stack.proxy.view.problems))
    status, health = await stack.admin("GET", "/health")
    assert status == 503
    assert "987654" in health["problem"]
    assert not stack.bus.records("rollout.state.proxy.dead")
    assert (await ask(stack, WIRES[0], stream=False))[0] == 200
