"""A proxy dies, freezes or is replaced under a running session: the harness goes on, and its trajectory is whole."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.records import (
    CompletionRecord,
    LineageStatus,
    ScoredTrajectory,
    SessionEventType,
    SessionOpened,
    SessionSealed,
    Status,
)
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Stack]:
    """A stack with two proxies and two workers."""
    state_dir: Path = tmp_path_factory.mktemp("failover")
    with Stack(
        state_dir, engine_url, env={"POLYNYA_PROXIES": "2", "POLYNYA_WORKERS": "2", "POLYNYA_HEARTBEAT_S": "0.5"}
    ).running() as stack:
        yield stack


async def proxy_of(stack: Stack, task_id: str) -> str:
    """The proxy that a task's one session was opened at, once its first answer is there."""
    deadline = time.monotonic() + 90
    while True:
        started = [e for e in await stack.facts(task_id) if e.type is SessionEventType.STARTED]
        if started and stack.journal():
            return str(started[-1].details["proxy"])
        assert time.monotonic() < deadline, stack.logs()
        await asyncio.sleep(0.1)


async def result_of(stack: Stack, task_id: str) -> ScoredTrajectory:
    deadline = time.monotonic() + 120
    while not (results := await stack.results(task_id)):
        assert time.monotonic() < deadline, stack.logs(40)
        await asyncio.sleep(0.3)
    return results[0]


async def check_whole(stack: Stack, task_id: str, turns: int, writers: list[int]) -> list[CompletionRecord]:
    """The session ended well, was opened and sealed by these writers, and every answer that the agent got is trained once."""
    result = await result_of(stack, task_id)
    assert (result.status, result.reward, result.attempt) == (Status.COMPLETED, 1.0, 1), result.error
    facts = await stack.facts(task_id)
    assert [e.writers for e in facts if e.type is SessionEventType.STARTED] == [
        writers[: n + 1] for n in range(len(writers))
    ]
    assert [e.writers for e in facts if e.type is SessionEventType.SEALED] == [writers]
    records = [r for r in await stack.read("capture.completions") if getattr(r, "session_id", "") == result.session_id]
    opened = {r.writer: r for r in records if isinstance(r, SessionOpened)}
    assert [(w, opened[w].takes_over) for w in writers] == [(w, w - 1) for w in writers]
    assert {r.writer for r in records if isinstance(r, SessionSealed)} == set(writers)
    calls = [r for r in records if isinstance(r, CompletionRecord)]
    assert result.trajectory is not None
    received = [entry["id"] for entry in stack.journal()]
    trained = {c.completion_id for c in result.trajectory.calls if c.disposition == "trained"}
    assert len(received) == len(set(received)) == turns + 1
    assert len(trained) == turns + 1
    (trace,) = result.trajectory.traces
    assert trace.response_ids
    return sorted(calls, key=lambda call: (call.writer, call.call_seq))


@pytest.fixture(autouse=True)
def _fresh_journal(stack: Stack) -> None:
    for path in stack.journals.glob("*"):
        path.unlink()


async def test_a_killed_proxy_costs_the_session_nothing(stack: Stack) -> None:
    """SIGKILL in mid-session: writer 2 at the other proxy, the next turn goes on from its parent, one whole trace."""
    stack.submit(stack.agent_task("turns=6 delay_ms=40", task_id="killed", evaluator={"name": "session_completed"}))
    stack.kill(await proxy_of(stack, "killed"))
    calls = await check_whole(stack, "killed", 6, [1, 2])
    later = [call for call in calls if call.writer == 2]
    assert later
    assert {call.lineage for call in later if call.state == "finished"} == {LineageStatus.RESOLVED}
    by_id = {call.completion_id: call for call in calls}
    assert by_id[later[0].parent_id].writer == 1


async def test_a_frozen_proxy_is_left_behind(stack: Stack) -> None:
    """SIGSTOP: it refuses nothing and answers nothing; the session goes on elsewhere within seconds, and ends completed."""
    stack.submit(stack.agent_task("turns=6 delay_ms=40", task_id="frozen", evaluator={"name": "session_completed"}))
    name = await proxy_of(stack, "frozen")
    pid = stack.kill(name, signal.SIGSTOP)
    try:
        result = await result_of(stack, "frozen")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (result.status, result.attempt) == (Status.COMPLETED, 1), result.error
    sealed = [e.writers for e in await stack.facts("frozen") if e.type is SessionEventType.SEALED]
    assert sealed == [[1, 2]]


async def test_a_proxy_that_stops_hands_its_sessions_over(stack: Stack) -> None:
    """SIGTERM, as in a roll-out of a new version: no answer is cut, and nothing is lost."""
    stack.submit(stack.agent_task("turns=8 delay_ms=40", task_id="stopped", evaluator={"name": "session_completed"}))
    stack.kill(await proxy_of(stack, "stopped"), signal.SIGTERM)
    calls = await check_whole(stack, "stopped", 8, [1, 2])
    assert {str(call.state) for call in calls} == {"finished"}
