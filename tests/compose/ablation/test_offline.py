"""The ablation on a small captured set in memory, with the reference trainer's own update on a tiny model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bus.memory import MemoryBus
from compose.ablation import ARMS, Arm, ArmResult, CapturedSet, read_set, train_arm
from compose.ablation.offline import settings_of
from schemas import ids
from schemas.records import (
    Record,
    ScoredTrajectory,
    SessionEvent,
    SessionEventType,
    SessionOpened,
    SessionSealed,
    SessionSpec,
    Status,
    Trajectory,
    VersionSpan,
)
from tests.stream_processors.helpers import call, delivered
from tests.trainer_sink.reference.tiny import write_model

pytestmark = pytest.mark.component

END = 40
PER_GROUP = 4


def session(group: str, index: int, calls: int, reward: float | None) -> list[Record]:
    """A session whose prompts only grow: one trace of all its calls by merging, one for each call without."""
    group_id = ids.group_id(group)
    session_id = ids.session_id(group_id, index)
    lease_id = ids.lease_id(session_id, 1)
    spec = SessionSpec(
        task_id=group, group_id=group_id, index=index, group_size=PER_GROUP, policy_id="policy", harness="shell"
    )
    place = {"session_id": session_id, "lease_id": lease_id}
    prompt, made = [1, 2, 3 + index], []
    for seq in range(1, calls + 1):
        reply = [10 + seq, 20 + index, END]
        spans = [VersionSpan(version="0", start=0, end=len(reply))]
        made.append(call(seq, prompt, reply, lease=lease_id, session=session_id, version_spans=spans))
        prompt = [*prompt, *reply, 5, 6]
    return [
        SessionEvent(**place, type=SessionEventType.GRANTED, attempt=1, spec=spec),
        SessionOpened(**place, attempt=1, writer=1, spec=spec, opened_at=1000),
        *delivered(*made),
        SessionSealed(**place, attempt=1, writer=1, last_seq=calls),
        SessionEvent(**place, type=SessionEventType.SEALED, attempt=1, writers=[1]),
        ScoredTrajectory(
            session_id=session_id,
            group_id=group_id,
            task_id=group,
            policy_id="policy",
            trajectory_id=ids.trajectory_id(session_id, lease_id, "prefix_merging"),
            status=Status.COMPLETED,
            reward=reward,
            trajectory=Trajectory(session_id=session_id, lease_id=lease_id),
            spec=spec,
        ),
    ]


@pytest.fixture
async def captured() -> CapturedSet:
    """Two groups of four sessions with 1, 2, 3 and 6 calls, whose rewards differ; and one session without a reward."""
    async with MemoryBus() as bus:
        for group in ("a", "b"):
            for index, calls in enumerate((1, 2, 3, 6)):
                for record in session(group, index, calls, float(index % 2)):
                    await bus.publish(record)
        for record in session("c", 0, 2, None):
            await bus.publish(record)
        return await read_set(bus)


def trained(captured: CapturedSet, tmp_path: Path) -> dict[Arm, ArmResult]:
    """All arms, four sequences an update."""
    model = write_model(tmp_path / "model")
    return {
        arm: train_arm(arm, captured, settings_of(arm, model, tmp_path / "out"), sequences_per_update=4) for arm in ARMS
    }


async def test_every_arm_trains_the_same_calls_of_one_set(captured: CapturedSet, tmp_path: Path) -> None:
    """A trace per call against one per session: the same trained tokens, three times the updates, more tokens computed."""
    assert captured.versions == ("0",)
    assert captured.left_out == {"unrewarded": 1}
    results = trained(captured, tmp_path)
    for arm, result in results.items():
        assert (result.sessions, result.calls, result.trained_tokens) == (8, 24, 72), arm
        assert result.traces == (24 if arm.builder == "per_request" else 8)
        assert result.trainer_updates == (6 if arm.builder == "per_request" else 2)
        assert result.trainer_cpu_s > 0
    per_request, merged = results[ARMS[0]], results[ARMS[3]]
    assert per_request.computed_tokens > 1.5 * merged.computed_tokens


async def test_only_a_session_that_counts_once_weighs_the_same_however_long(
    captured: CapturedSet, tmp_path: Path
) -> None:
    """By broadcast per call the two longest of eight sessions have half of the loss; with 1/traces, or merged, a quarter."""
    shares = {arm: result.longest_quarter_share for arm, result in trained(captured, tmp_path).items()}
    assert shares[ARMS[0]] == pytest.approx(12 / 24)
    assert [shares[arm] for arm in ARMS[1:]] == [pytest.approx(0.25)] * 3


async def test_a_graders_rewards_per_trace_are_no_part_of_the_comparison(captured: CapturedSet) -> None:
    """All arms have the session's outcome on each trace."""
    for groups in captured.groups.values():
        assert {t.reward for g in groups for s in g.scored for t in (s.trajectory.traces if s.trajectory else [])} == {
            None
        }
    assert sorted(captured.rewards) == [0.0] * 4 + [1.0] * 4
    one = captured.groups["per_request"][0].scored[0]
    assert replace(one, trajectory=None) == replace(captured.groups["prefix_merging"][0].scored[0], trajectory=None)
