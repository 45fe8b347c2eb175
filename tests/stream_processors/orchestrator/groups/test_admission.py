"""Which groups are admitted when: priority, controls, and the lag of the slowest trainer that lives."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.records import (
    BatchConsumed,
    Control,
    ControlAction,
    GroupEvent,
    PartitionOffset,
    SkippedGroup,
    TrainerRegistered,
)
from schemas.records import GroupEventType as Fact
from stream_processors.orchestrator.controls import Controls
from stream_processors.orchestrator.groups.admission import SeenGroups, Wait, admissions, why_waiting
from stream_processors.orchestrator.groups.ledger import KEEP_MS, Ledger
from stream_processors.orchestrator.groups.row import GroupRow
from stream_processors.orchestrator.groups.states import GroupStage


def waiting(group_id: str, *, at: int = 0, **fields: Any) -> GroupRow:
    base = {"task_id": f"t-{group_id}", "policy_id": "p", "harness": "pi", "submitted_at": at}
    return GroupRow(group_id, stage=GroupStage.WAITING, **{**base, **fields})


def admitted(group_id: str, **fields: Any) -> GroupEvent:
    base = {"task_id": f"t-{group_id}", "policy_id": "p", "harness": "pi"}
    return GroupEvent(group_id=group_id, type=Fact.ADMITTED, **{**base, **fields})


def trainer(trainer_id: str = "a", *, start: Any = "earliest", ttl_s: float = 60.0, **fields: Any) -> TrainerRegistered:
    return TrainerRegistered(trainer_id=trainer_id, start=start, ttl_s=ttl_s, **fields)


def ledger(*groups: str, beats: tuple[TrainerRegistered, ...] = (), at: int = 1000) -> Ledger:
    view = Ledger()
    for beat in beats:
        view.take_beat(beat, at)
    for n, group in enumerate(groups):
        view.take_group(admitted(group), at + n, home=n % 2)
    return view


def due(
    rows: list[GroupRow], view: Ledger | None = None, *, max_lag: int = 2, now: int = 2000, **fields: Any
) -> list[str]:
    controls = fields.pop("controls", Controls())
    facts = admissions(SeenGroups(rows, controls, view or Ledger(), max_lag, now, **fields))
    return [f.group_id for f in facts if f.type is Fact.ADMITTED]


def test_without_a_trainer_everything_is_admitted_by_priority_then_age() -> None:
    """Nobody waits for anybody: the order is what matters to those who run them."""
    rows = [waiting("young", at=9), waiting("old", at=1), waiting("urgent", at=99, priority=5)]
    assert due(rows) == ["urgent", "old", "young"]


def test_whole_groups_are_admitted_up_to_the_lag() -> None:
    """One is out, two may be: the most urgent one of those that wait."""
    view = ledger("out", beats=(trainer(),))
    assert due([waiting("w1", at=1), waiting("w2", at=2), waiting("w3", priority=1)], view) == ["w3"]


def test_what_was_admitted_a_moment_ago_counts() -> None:
    """Published and not read back yet, it is on its way; it isn't admitted twice either."""
    view = ledger("out", beats=(trainer(),))
    rows = [waiting("w1"), waiting("w2")]
    assert due(rows, view, pending=[admitted("w1")]) == []
    assert due(rows, view, pending=[admitted("w1")], max_lag=3) == ["w2"]


def test_the_slowest_trainer_decides() -> None:
    """Two read the same groups; one has consumed them, the other hasn't."""
    view = ledger("g1", "g2", beats=(trainer("fast"), trainer("slow")))
    view.take_batch(BatchConsumed(trainer_id="fast", step=1, groups=["g1", "g2"]))
    assert due([waiting("w")], view) == []
    view.take_batch(
        BatchConsumed(trainer_id="slow", step=1, groups=["g1"], skipped=[SkippedGroup(group_id="g2", reason="stale")])
    )
    assert due([waiting("w")], view) == ["w"]


@pytest.mark.parametrize(
    "beat",
    [
        trainer(policy_id="other"),
        trainer(filter={"policy_id": "other"}),
        trainer(filter={"task_ids": ["x"]}),
        trainer(filter={"harnesses": ["x"]}),
    ],
    ids=["policy", "filter policy", "task", "harness"],
)
def test_a_trainer_that_wants_other_groups_holds_nothing_back(beat: TrainerRegistered) -> None:
    """Its filter doesn't match: neither what is out nor what waits is for it."""
    assert due([waiting("w")], ledger("g1", "g2", "g3", beats=(beat,))) == ["w"]


def test_a_trainer_of_one_data_set_is_behind_with_that_only() -> None:
    """By the task's labels and by globs: its groups wait for it, others are admitted past it, and none else is in its lag."""
    beat = trainer(filter={"metadata": {"data_set": ["gsm*"]}, "task_ids": ["t-*"]})
    view = Ledger()
    view.take_beat(beat, 1000)
    for name, data_set in (("g1", "gsm8k"), ("g2", "gsm8k"), ("m1", "math"), ("u1", None)):
        view.take_group(admitted(name, metadata={} if data_set is None else {"data_set": [data_set]}), 1001, home=0)
    assert view.lag(view.trainers["a"]) == 2
    rows = [
        waiting("g3", metadata={"data_set": ["gsm8k"]}),
        waiting("m2", metadata={"data_set": ["math"]}),
        waiting("u2"),
    ]
    assert due(rows, view) == ["m2", "u2"]
    assert due(rows, view, pending=[admitted("g9", metadata={"data_set": ["gsm8k"]})], max_lag=3) == ["m2", "u2"]


def test_a_group_run_again_for_one_rank_is_in_the_lag_of_the_rank_that_reads_it() -> None:
    """It lands in whatever partition its id names."""
    view = Ledger()
    for n in (0, 1):
        view.take_beat(trainer(f"a.rank{n}", partitions=[n]), 1000)
    view.take_group(admitted("again", for_trainer="a.rank0"), 1001, home=1)
    assert [view.lag(view.trainers[f"a.rank{n}"]) for n in (0, 1)] == [0, 1]


def test_groups_that_ran_for_another_trainer_are_not_in_the_lag() -> None:
    """Others skip them, and they are exempt for the one that waits for them."""
    view = ledger(beats=(trainer("a"), trainer("b")))
    view.take_group(admitted("r1", for_trainer="b", requeue_of="g"), 1000, 0)
    view.take_group(admitted("r2", for_trainer="b", requeue_of="h"), 1000, 0)
    assert len(view.trainers["a"].waiting) == 0
    assert len(view.trainers["b"].waiting) == 2
    assert due([waiting("w"), waiting("r3", requeue_of="i", for_trainer="b")], view) == ["r3"]


def test_a_trainer_whose_time_ran_out_no_longer_counts_until_it_beats_again() -> None:
    """Silence for longer than its time to live; a beat brings its lag back."""
    view = ledger("g1", "g2", beats=(trainer(ttl_s=5),), at=1000)
    assert due([waiting("w")], view, now=6000) == []
    assert due([waiting("w")], view, now=6001) == ["w"]
    view.take_beat(trainer(ttl_s=5), 6500)
    assert due([waiting("w")], view, now=7000) == []


def test_a_trainer_may_name_its_own_limit() -> None:
    """A small fast one asks for little, whatever the fleet's limit."""
    view = ledger("g1", "g2", beats=(trainer(max_lag=3),))
    assert due([waiting("w1", at=1), waiting("w2", at=2)], view, max_lag=1) == ["w1"]


@pytest.mark.parametrize(
    ("start", "lag"), [("earliest", 3), (1001, 2), ("latest", 1), ("checkpoint", 1)], ids=["all", "time", "end", "ckpt"]
)
def test_what_was_admitted_before_a_trainers_start_is_not_for_it(start: Any, lag: int) -> None:
    """From the beginning, a time, or from when it started; a checkpoint of somebody who isn't known begins now."""
    view = ledger("g1", "g2", at=1000)
    view.take_beat(trainer(start=start, started_at=1100), 1105)
    view.take_group(admitted("g3"), 1200, 0)
    assert view.lag(view.trainers["a"]) == lag


def test_a_trainers_own_clock_says_nothing_of_its_start() -> None:
    """An hour behind, it isn't held to owe what was admitted before; nor when it changes its filter later on."""
    view = ledger("g1", "g2", at=3_600_000)
    view.take_beat(trainer(start="latest", started_at=100), 3_600_100)
    assert view.trainers["a"].waiting == set()
    view.take_group(admitted("g3"), 3_600_200, 0)
    view.take_beat(trainer(start="latest", started_at=100, filter={"policy_id": "p"}), 3_600_300)
    assert view.trainers["a"].since_at == 3_600_100


def test_a_restarted_trainer_goes_on_from_its_checkpoint() -> None:
    """What it consumed before counts; a fresh start at the log's end leaves behind what was out."""
    view = ledger("g1", "g2", "g3", beats=(trainer(started_at=1),))
    view.take_batch(BatchConsumed(trainer_id="a", step=1, groups=["g1"]))
    view.take_beat(trainer(start="checkpoint", started_at=2000), 2000)
    assert view.trainers["a"].waiting == {"g2", "g3"}
    view.take_beat(trainer(start="latest", started_at=3000), 3000)
    assert view.trainers["a"].waiting == set()


def test_a_beat_is_not_a_start() -> None:
    """Repeated registrations of one life change nothing but the time."""
    view = ledger(beats=(trainer(start="latest", started_at=900),))
    view.take_group(admitted("g"), 1500, 0)
    view.take_beat(trainer(start="latest", started_at=900), 2000)
    assert view.trainers["a"].waiting == {"g"}


def test_what_a_trainer_has_read_past_is_finished_for_it() -> None:
    """A group that it never saw whole (it began in the middle) would hold admission back for ever."""
    view = ledger("g1", "g2", beats=(trainer(),))
    for group, offset in (("g1", 10), ("g2", 20)):
        view.take_group(GroupEvent(group_id=group, type=Fact.CLOSED, partition=1, offset=offset), 1500, 1)
    view.take_batch(
        BatchConsumed(trainer_id="a", step=1, groups=["x"], offsets=[PartitionOffset(partition=1, offset=11)])
    )
    assert view.trainers["a"].waiting == {"g2"}


def test_a_trainer_that_reads_some_partitions_waits_for_their_groups_only() -> None:
    """Groups at home elsewhere are another's."""
    view = ledger("g1", "g2", "g3", beats=(trainer(partitions=[0]),))
    assert view.trainers["a"].waiting == {"g1", "g3"}


@pytest.mark.parametrize("order", ["batch first", "beat first"])
def test_the_two_topics_may_be_read_in_any_order(order: str) -> None:
    """What was consumed is remembered until its admission, and its trainer, are read."""
    view = Ledger()
    batch = BatchConsumed(trainer_id="a", step=1, groups=["g1"])
    if order == "batch first":
        view.take_batch(batch)
        view.take_beat(trainer(), 1000)
    else:
        view.take_beat(trainer(), 1000)
        view.take_batch(batch)
    view.take_group(admitted("g1"), 900, 0)
    view.take_group(admitted("g2"), 900, 0)
    assert view.trainers["a"].waiting == {"g2"}


def test_old_groups_are_forgotten() -> None:
    """After the retention of trajectory.scored nobody can read them any more."""
    view = ledger("g1", beats=(trainer(),))
    view.forget(1000 + KEEP_MS)
    assert view.trainers["a"].waiting == {"g1"}
    view.forget(1001 + KEEP_MS)
    assert not view.admitted
    assert not view.trainers


@pytest.mark.parametrize(
    ("kind", "target"), [("policy", "p"), ("task", "t-w"), ("group", "w"), ("fleet", "*")], ids=str
)
@pytest.mark.parametrize(
    ("action", "why"), [(ControlAction.PAUSE, Wait.PAUSED), (ControlAction.DRAIN, Wait.DRAINING)], ids=str
)
def test_what_is_paused_or_drained_is_not_admitted(kind: str, target: str, action: ControlAction, why: Wait) -> None:
    """Nor is a re-queue; other groups go on; a resume ends it."""
    pause = Control(control_id="1", target_kind=kind, target=target, action=action, at=100)
    rows = [waiting("w"), waiting("w2", policy_id="q", task_id="u")]
    controls = Controls.of(pause)
    assert due(rows, controls=controls) == ([] if target == "*" else ["w2"])
    seen = SeenGroups(rows, controls, Ledger(), 2, 2000)
    assert why_waiting(waiting("w", requeue_of="x"), seen) is why
    resume = Control(control_id="2", target_kind=kind, target=target, action=ControlAction.RESUME, at=200)
    assert due(rows, controls=Controls.of(pause, resume)) == ["w", "w2"]


def test_a_cancelled_group_is_called_off_even_when_it_is_paused() -> None:
    """It has nothing to wait for; a cancel from before its submission means an earlier one."""
    pause = Control(control_id="1", target="*", target_kind="fleet", action=ControlAction.PAUSE, at=100)
    cancel = Control(control_id="2", target="p", target_kind="policy", action=ControlAction.CANCEL, at=150, reason="no")
    seen = SeenGroups([waiting("w", at=150), waiting("later", at=151)], Controls.of(pause, cancel), Ledger(), 2, 2000)
    assert [(f.group_id, f.type, f.reason) for f in admissions(seen)] == [("w", Fact.CANCEL_REQUESTED, "no")]
