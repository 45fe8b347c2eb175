"""Every part is killed in turn during a run; nothing that a harness received is missing, nothing is emitted twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.records import CompletionRecord, ScoredTrajectory
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(600)]

SESSIONS = 8


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Stack]:
    """A stack whose processors run apart, so that each can be killed alone."""
    state_dir: Path = tmp_path_factory.mktemp("chaos")
    env = {
        "POLYNYA_PROCESSORS": "apart",
        "POLYNYA_LEASE_TTL_S": "6",
        "POLYNYA_HEARTBEAT_S": "0.5",
        "POLYNYA_SEAL_GRACE_S": "15",
        "POLYNYA_RUN_SLOTS": "8",
        "POLYNYA_INIT_SLOTS": "8",
        "POLYNYA_READY_SLOTS": "8",
    }
    with Stack(state_dir, engine_url, env=env).running() as stack:
        yield stack


async def test_kill_9_of_each_part_in_turn_loses_and_repeats_nothing(stack: Stack) -> None:
    """Eight sessions, four kills: each finished answer is on the log exactly once; each session is delivered once."""
    stack.submit(stack.agent_task("turns=12 delay_ms=25", task_id="storm", num_samples=SESSIONS, max_attempts=3))
    stack.until(lambda: len(stack.journal()) >= SESSIONS, 90, "the first answers")
    for part in ("assembler", "orchestrator", "proxy", "worker"):
        before = len(stack.journal())
        stack.kill_and_await_restart(part)
        await progress(stack, before)
    deadline = time.monotonic() + 240
    while len({r.session_id for r in await stack.results("storm")}) < SESSIONS:
        assert time.monotonic() < deadline, stack.logs()
        await asyncio.sleep(1)
    await check_log(stack)


async def progress(stack: Stack, before: int) -> None:
    """Let the run go on a little between two kills, if it isn't over."""
    deadline = time.monotonic() + 20
    while len(stack.journal()) < before + 4 and time.monotonic() < deadline:
        if len({r.session_id for r in await stack.results("storm")}) == SESSIONS:
            return
        await asyncio.sleep(0.2)


async def check_log(stack: Stack) -> None:
    """Compare what the agents received with what the log holds and what a consumer gets."""
    by_id: dict[str, set[str]] = {}
    for record in await stack.read("capture.completions"):
        if isinstance(record, CompletionRecord):
            by_id.setdefault(record.completion_id, set()).add(record.request_digest + record.text)
    assert all(len(contents) == 1 for contents in by_id.values()), "one id, two contents"
    received = [entry["id"].removeprefix("chatcmpl-") for entry in stack.journal()]
    assert Counter(received).most_common(1)[0][1] == 1, "one answer reached an agent twice"
    missing = [r for r in received if r not in by_id]
    assert not missing, f"{len(missing)} of {len(received)} received answers aren't on the log"
    results = await stack.results("storm")
    firsts = {(r.trajectory_id, r.revision): r for r in results}
    per_session = Counter(r.session_id for r in firsts.values() if r.revision == 1)
    assert set(per_session.values()) == {1}, per_session
    for result in firsts.values():
        check_sums(result)


def check_sums(result: ScoredTrajectory) -> None:
    """Calls = trained + context + all untrainable, and the trained ones belong to the winning lease."""
    if result.trajectory is None:
        return
    counts = result.trajectory.counts
    assert counts.calls == counts.trained + counts.context + sum(counts.untrainable.values())
    assert {c.lease_id for c in result.trajectory.calls if c.disposition == "trained"} <= {result.lease_id}
