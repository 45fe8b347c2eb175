"""Attached sessions refuse what can't work, before anything is registered."""

from __future__ import annotations

import pytest

from bus.memory import MemoryBus
from compose.attached import AttachedSessions
from compose.engines import add_engine
from compose.errors import CommandError


async def _never(*_: object) -> dict[str, object]:
    raise AssertionError("no proxy is asked")


async def open_under(bus: MemoryBus, policy_id: str) -> None:
    """Open a session under a policy."""
    sessions = AttachedSessions(bus, _never)
    await sessions.open(policy_id=policy_id, harness="external", instruction="x", deadline_s=60)


async def test_a_policy_that_no_engine_serves_is_refused(memory_bus: MemoryBus) -> None:
    """With those that are served; nothing of the session stands on the log, and garbage on the timeline doesn't matter."""
    await memory_bus.publish_raw("policy.timeline", b"x", b"no avro")
    for policy in ("solver", "judge"):
        await add_engine(memory_bus, policy_id=policy, url="http://e", kind="sglang")
    with pytest.raises(CommandError, match="no engine serves the policy 'sovler'") as caught:
        await open_under(memory_bus, "sovler")
    assert caught.value.hint == "--policy judge or solver"
    assert not memory_bus.records("rollout.sessions")


@pytest.mark.parametrize("registered", ["solver", "*", ""], ids=["known", "served by any", "none registered"])
async def test_a_policy_that_may_be_served_is_let_through(memory_bus: MemoryBus, registered: str) -> None:
    """It comes as far as looking for a proxy, which isn't here; without any registered engine nobody can say."""
    if registered:
        await add_engine(memory_bus, policy_id=registered, url="http://e", kind="sglang")
    with pytest.raises(CommandError, match="no capture proxy"):
        await open_under(memory_bus, "solver")
