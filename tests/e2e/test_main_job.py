"""The whole line on real parts: a task in, scored trajectories out."""

from __future__ import annotations

import asyncio
import io
import json
import time
from pathlib import Path

import avro.datafile
import avro.io
import avro.schema
import numpy as np
import pyarrow.parquet as pq
import pytest

from schemas.arrays import unpack_ids, unpack_logprobs, unpack_mask
from schemas.records import (
    CallDisposition,
    CompletionDelivery,
    CompletionRecord,
    LineageStatus,
    ScoredTrajectory,
    SessionEventType,
    SessionSealed,
    Status,
)
from schemas.resolve import resolve
from schemas.topics import TOPICS
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(300)]


async def test_a_shell_agent_becomes_scored_trajectories(stack: Stack) -> None:
    """Two sessions of three calls each: every call on the log, one trace per session, exact masks and counts."""
    task = stack.agent_task(
        "turns=2 please",
        task_id="line",
        num_samples=2,
        prepare=[{"upload": {"path": "hello.txt", "content": "hello"}}],
        evaluator={"name": "command", "options": {"command": "test -s hello.txt"}},
    )
    stack.submit(task, wait=True)
    results = await stack.results("line")
    assert [(r.status, r.reward) for r in results] == [(Status.COMPLETED, 1.0)] * 2
    assert {r.spec.index for r in results if r.spec} == {0, 1}
    calls = [
        r
        for r in await stack.read("capture.completions")
        if getattr(r, "session_id", "") in {s.session_id for s in results}
    ]
    for result in results:
        mine = [c for c in calls if c.session_id == result.session_id]  # type: ignore[attr-defined]
        completions = [c for c in mine if isinstance(c, CompletionRecord)]
        assert [c.call_seq for c in completions] == [1, 2, 3]
        assert {d.completion_id for d in mine if isinstance(d, CompletionDelivery) and d.delivered} == {
            c.completion_id for c in completions
        }
        assert [s.last_seq for s in mine if isinstance(s, SessionSealed)] == [3]
        check_trace(result, completions)


def check_trace(result: ScoredTrajectory, completions: list[CompletionRecord]) -> None:
    """The trace's tokens are the last call's prompt and answer; the mask is 1 on exactly the sampled tokens."""
    assert result.trajectory is not None
    (trace,) = result.trajectory.traces
    counts = result.trajectory.counts
    assert (counts.calls, counts.trained, counts.context, counts.untrainable) == (3, 3, 0, {})
    assert {c.disposition for c in result.trajectory.calls} == {CallDisposition.TRAINED}
    whole = np.concatenate([unpack_ids(trace.prompt_ids), unpack_ids(trace.response_ids)])
    first, *later = completions
    resolved = resolve(completions).calls
    assert whole.tolist() == unpack_ids(resolved[completions[-1].completion_id].reach()).tolist()
    assert first.lineage is LineageStatus.ROOT
    assert {c.lineage for c in later} == {LineageStatus.RESOLVED}
    assert [c.parent_id for c in later] == [c.completion_id for c in completions[:-1]]
    assert all(c.prefix_len == resolved[c.parent_id].reach_len for c in later)
    mask, logprobs = unpack_mask(trace.loss_mask), unpack_logprobs(trace.logprobs)
    sampled = np.concatenate([unpack_ids(c.output_ids) for c in completions])
    assert unpack_ids(trace.response_ids)[mask == 1].tolist() == sampled.tolist()
    assert logprobs[mask == 1].tolist() == np.concatenate([unpack_logprobs(c.logprobs) for c in completions]).tolist()
    assert not logprobs[mask == 0].any()
    assert counts.trainable_tokens == int(mask.sum()) == len(sampled)


async def test_every_fact_of_a_session_happens_once_and_in_order(stack: Stack) -> None:
    """The facts of one session tell its life, with one terminal event."""
    stack.submit(stack.agent_task("turns=1", task_id="life"), wait=True)
    # The trajectory is built while the session is graded; the orchestrator may hear of it before or after the end.
    deadline = time.monotonic() + 30
    while SessionEventType.BUILT not in (told := [e.type for e in await stack.facts("life")]):
        assert time.monotonic() < deadline, (told, stack.logs())
        await asyncio.sleep(0.2)
    assert told.count(SessionEventType.BUILT) == 1
    assert told.index(SessionEventType.BUILT) > told.index(SessionEventType.SEALED)
    kinds = [kind for kind in told if kind is not SessionEventType.BUILT]
    assert kinds == [
        SessionEventType.REGISTERED,
        SessionEventType.INIT_ASSIGNED,
        SessionEventType.READY,
        SessionEventType.GRANTED,
        SessionEventType.STARTED,
        SessionEventType.FINISHED,
        SessionEventType.SEALED,
        SessionEventType.GRADED,
        SessionEventType.ENDED,
    ]


async def test_an_attached_session_is_delivered_like_any_other(stack: Stack) -> None:
    """Open → calls by hand → show → close with a reward → a scored trajectory with manual provenance."""
    import subprocess
    import sys

    from tests.e2e.stack import AGENT

    opened = json.loads(stack.cli("session", "open", "--json").stdout)
    journal = stack.journals / "attached"
    url = opened["base_urls"]["openai_chat"]
    subprocess.run([sys.executable, str(AGENT), url, opened["secret"], str(journal), "turns=1"], check=True, timeout=60)
    shown = json.loads(stack.cli("session", "show", opened["session_id"], "--json").stdout)
    assert [c["call_seq"] for c in shown["completions"]] == [1, 2]
    assert shown["trajectory"]["counts"]["calls"] == 2
    assert not shown["is_final"]
    stack.cli("session", "close", opened["session_id"], "--reward", "0.5")
    (scored,) = [
        s for s in await stack.read("trajectory.scored") if getattr(s, "session_id", "") == opened["session_id"]
    ]
    assert isinstance(scored, ScoredTrajectory)
    assert (scored.status, scored.reward, scored.rewards[0].provenance) == (Status.COMPLETED, 0.5, "manual")
    assert scored.trajectory is not None
    assert scored.trajectory.counts.trained == 2
    late = subprocess.run(
        [sys.executable, str(AGENT), url, opened["secret"], str(journal), "turns=0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert late.returncode != 0


async def test_the_parquet_file_has_one_row_per_trace(stack: Stack, tmp_path: Path) -> None:
    """`polynya export parquet` writes what trainers read, with equal lengths of ids, mask and logprobs."""
    stack.submit(stack.agent_task("turns=1", task_id="rows", num_samples=2), wait=True)
    stack.cli("export", "parquet", str(tmp_path / "t.parquet"), "--task", "rows")
    rows = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert len(rows) == 2
    for row in rows:
        assert len(row["response_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])
        assert sum(row["loss_mask"]) > 0


async def test_a_plain_avro_client_reads_every_topic(stack: Stack) -> None:
    """With Confluent's framing and the registry file alone, the `avro` library decodes whatever stands on a topic."""
    stack.submit(stack.agent_task("turns=0", task_id="plain"), wait=True)
    avro_dir = Path(__file__).parents[2] / "schemas" / "avro"
    registry = {e["id"]: e for e in json.loads((avro_dir / "registry.json").read_text())}
    seen: dict[str, int] = {}
    async with stack.bus() as bus:
        for topic in TOPICS:
            async for delivery in bus.tail([topic], start="earliest", until_end=True):
                value = delivery.value
                if not value:
                    continue
                assert value[0] == 0
                entry = registry[int.from_bytes(value[1:5], "big")]
                schema = avro.schema.parse((avro_dir / entry["record"] / f"v{entry['version']}.avsc").read_text())
                record = avro.io.DatumReader(schema).read(avro.io.BinaryDecoder(io.BytesIO(value[5:])))
                assert isinstance(record, dict)
                seen[topic] = seen.get(topic, 0) + 1
    used = {
        "rollout.tasks",
        "rollout.groups",
        "rollout.sessions",
        "rollout.state",
        "rollout.nodes",
        "capture.completions",
        "trajectory.built",
        "reward.assigned",
        "trajectory.scored",
        "rollout.stage.init",
        "rollout.stage.run",
        "rollout.stage.postrun",
    }
    assert used <= set(seen)


def test_mistakes_end_with_exit_code_2_and_submit_nothing(stack: Stack) -> None:
    """A bad task file names the field's path; the log holds no new task."""
    before = sorted(stack.cli("tail", "rollout.tasks").stdout.splitlines())  # partitions come in any order
    for broken in ({"instruction": "x"}, stack.agent_task("x", budgets={"run_s": -1}), stack.agent_task("x", oops=1)):
        done = stack.cli("submit", "-", stdin=json.dumps([stack.agent_task("fine"), broken]), check=False)
        assert done.returncode == 2, done.stderr
        assert "task 2" in done.stderr
    assert sorted(stack.cli("tail", "rollout.tasks").stdout.splitlines()) == before


def test_without_a_stack_commands_say_what_to_type(tmp_path: Path) -> None:
    """Exit code 3 and a hint when nothing runs."""
    done = Stack(tmp_path / "none").cli("status", check=False)
    assert done.returncode == 3
    assert "polynya up --detach" in done.stderr
