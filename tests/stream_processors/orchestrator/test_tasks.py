"""From a task to its registered sessions."""

from __future__ import annotations

import pytest

from bus import PoisonError
from schemas import ids
from schemas.records import GroupEvent, GroupEventType, SessionEvent, TaskRequest
from stream_processors.orchestrator.groups.core import apply
from stream_processors.orchestrator.groups.outputs import outputs
from stream_processors.orchestrator.tasks import register

SPEC = {
    "instruction": "do it",
    "harness": {"name": "pi", "version": "1.6.0"},
    "builder": {"name": "per_request"},
    "sampling": {"temperature": 0.7},
    "metadata": {"repo": "r"},
}


def test_a_task_registers_its_group_and_every_session() -> None:
    """The group's fact carries the task; its admission registers one session per sample, each with the spec that others need."""
    request = TaskRequest(task_id="t", policy_id="p", num_samples=3, spec=SPEC, submitted_at=77)
    group = register(request, 100)
    assert (group.group_id, group.size, group.at) == (ids.group_id("t"), 3, 77)
    assert (group.policy_id, group.harness, group.max_requeues) == ("p", "pi", 1)
    row = apply(None, group, 0, 100)
    row = apply(row, GroupEvent(group_id=group.group_id, type=GroupEventType.ADMITTED), 1, 200)
    assert row is not None
    (sessions,) = outputs(row, group, group)
    assert [s.session_id for s in sessions if isinstance(s, SessionEvent)] == [
        ids.session_id(group.group_id, n) for n in range(3)
    ]
    first = sessions[0]
    assert isinstance(first, SessionEvent)
    assert first.at == 77
    assert first.spec is not None
    assert (first.spec.harness, first.spec.harness_version, first.spec.builder) == ("pi", "1.6.0", "per_request")
    assert (first.spec.sampling, first.spec.metadata, first.spec.group_size) == ({"temperature": 0.7}, {"repo": "r"}, 3)
    assert first.task["budgets"]["run_s"] == 1800.0


def test_a_tasks_seed_counts_on_from_sample_to_sample() -> None:
    """A pinned seed makes a task's samples repeatable, and still different from one another."""
    request = TaskRequest(task_id="t", num_samples=3, spec={**SPEC, "sampling": {"seed": 40}})
    group = register(request, 100)
    row = apply(apply(None, group, 0, 100), GroupEvent(group_id=group.group_id, type=GroupEventType.ADMITTED), 1, 200)
    assert row is not None
    (sessions,) = outputs(row, group, group)
    specs = [s.spec for s in sessions if isinstance(s, SessionEvent)]
    assert [spec.sampling for spec in specs if spec] == [{"seed": 40}, {"seed": 41}, {"seed": 42}]


def test_a_task_may_be_for_one_trainer() -> None:
    """Its group and its sessions say so, and other trainers pass them over."""
    group = register(TaskRequest(task_id="t", spec={**SPEC, "for_trainer": "evaluation"}), 100)
    assert group.for_trainer == "evaluation"
    row = apply(apply(None, group, 0, 100), GroupEvent(group_id=group.group_id, type=GroupEventType.ADMITTED), 1, 200)
    assert row is not None
    ((session,),) = outputs(row, group, group)
    assert isinstance(session, SessionEvent)
    assert session.spec is not None
    assert session.spec.for_trainer == "evaluation"


def test_the_same_task_again_registers_the_same_facts() -> None:
    """Ids and times come from the request: a re-delivered task changes nothing."""
    request = TaskRequest(task_id="t", policy_id="p", num_samples=2, spec=SPEC, submitted_at=77)
    assert register(request, 100) == register(request, 200)


@pytest.mark.parametrize(
    "request_",
    [
        TaskRequest(task_id="t", spec={}),
        TaskRequest(task_id="t", spec={**SPEC, "colour": "red"}),
        TaskRequest(task_id="", spec=SPEC),
        TaskRequest(task_id="t", num_samples=0, spec=SPEC),
    ],
    ids=["empty", "unknown field", "no id", "no samples"],
)
def test_a_task_that_cannot_run_is_poison(request_: TaskRequest) -> None:
    """It goes to the dead letters with the reason, and nothing half-registered stays."""
    with pytest.raises(PoisonError) as caught:
        register(request_, 1)
    assert caught.value.reason == "invalid_task"
