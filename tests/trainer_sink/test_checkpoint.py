"""Checkpoints: what they hold, what they refuse, and that nothing is trained twice or never."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.records import BatchConsumed, ScoredTrajectory, SkippedGroup
from tests.trainer_sink.scored import whole
from trainer_sink.checkpoint import Checkpoint
from trainer_sink.errors import CheckpointMismatchError
from trainer_sink.filters import GroupFilter
from trainer_sink.groups import Finished, GroupAssembler, Source

ENDS = {0: 10, 1: 10}


def _checkpoint(**more: Any) -> Checkpoint:
    fields: dict[str, Any] = {
        "trainer_id": "me",
        "topic": "trajectory.scored",
        "partition_count": 2,
        "start": "earliest",
        "watermarks": {0: 5, 1: 10},
        "finished": {0: {"g1": Finished("trained", 7), "g2": Finished("policy", 3)}, 1: {}},
        "skipped": {"g2": "policy"},
        "last_batch": BatchConsumed(trainer_id="me", step=3, groups=["g1"], skipped=[SkippedGroup(group_id="g2")]),
    }
    return Checkpoint(**(fields | more))


def _check(checkpoint: Checkpoint, **more: Any) -> None:
    arguments: dict[str, Any] = {
        "trainer_id": "me",
        "topic": "trajectory.scored",
        "ends": ENDS,
        "partitions": frozenset(ENDS),
    }
    checkpoint.check(**(arguments | more))


def test_a_checkpoint_survives_json() -> None:
    """Everything comes back from a file, the last batch with its own id."""
    checkpoint = _checkpoint()
    back = Checkpoint.from_state(json.loads(json.dumps(checkpoint.to_state())))
    assert back == checkpoint
    assert back.last_batch is not None
    assert back.last_batch.event_id == checkpoint.last_batch.event_id  # type: ignore[union-attr]


def test_a_checkpoint_of_this_log_passes() -> None:
    """Its own trainer, topic and partitions."""
    _check(_checkpoint())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trainer_id": "other"}, "of trainer 'me'"),
        ({"topic": "another.topic"}, "another.topic"),
        ({"ends": {0: 10, 1: 10, 2: 0}}, "2 partitions.* 3"),
        ({"ends": {0: 4, 1: 10}}, r"\[0\] ends at 4, before the checkpoint's position 5.*made anew"),
        ({"partitions": frozenset([0])}, r"partitions \[1\]"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(arguments: dict[str, Any], message: str) -> None:
    """Another trainer, another topic, other partitions, or a topic that was made anew: never a silent restart."""
    with pytest.raises(CheckpointMismatchError, match=message):
        _check(_checkpoint(), **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format 1"),
        ({"partitions": {"0": {}}}, "damaged"),
        ({"partitions": None}, "damaged"),
        ({"last_batch": "not base64!"}, "damaged"),
        ({"last_batch": "AAAA"}, "damaged"),
        ({"last_batch": "AP////8AAA=="}, "newer release"),
        ({"start": "middle"}, "damaged.*middle"),
        ({"skipped": []}, "damaged"),
        ({"anchor": [0]}, "damaged"),
        ({"anchor": [0, -7, "e"]}, "damaged"),
        ({"partitions": {"0": {"watermark": -3, "finished": {}}}}, "damaged.*-3"),
    ],
)
def test_damage_is_noticed(change: dict[str, Any], message: str) -> None:
    """A file that isn't a checkpoint says so, instead of starting somewhere."""
    with pytest.raises(CheckpointMismatchError, match=message):
        Checkpoint.from_state(_checkpoint().to_state() | change)
    for nothing in ({}, None, [], "text"):
        with pytest.raises(CheckpointMismatchError, match="no sink checkpoint"):
            Checkpoint.from_state(nothing)  # type: ignore[arg-type]


class _Trainer:
    """A model that remembers what it was trained on; save and load carry the sink's state along, as weights would."""

    def __init__(self, log: list[list[ScoredTrajectory]], saved: tuple[list[str], str] | None = None) -> None:
        self.log = log
        self.assembler = GroupAssembler("me", GroupFilter.of(policy_id="mine"))
        self.weights: list[str] = []
        self.next = dict.fromkeys(range(len(log)), 0)
        if saved is not None:
            self.weights = list(saved[0])
            checkpoint = Checkpoint.from_state(json.loads(saved[1]))
            self.assembler.restore(checkpoint.watermarks, checkpoint.finished, checkpoint.skipped)
            self.next |= checkpoint.watermarks

    def read(self, partition: int) -> None:
        offset = self.next[partition]
        if offset < len(self.log[partition]):
            self.assembler.add(self.log[partition][offset], Source(partition, offset))
            self.next[partition] += 1

    def save(self) -> tuple[list[str], str]:
        state = Checkpoint(
            trainer_id="me",
            topic="trajectory.scored",
            partition_count=len(self.log),
            start="earliest",
            watermarks=self.assembler.watermarks(),
            finished=self.assembler.finished(),
            skipped=self.assembler.skipped,
        ).to_state()
        return list(self.weights), json.dumps(state)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 8), st.integers(1, 3), st.integers(1, 2))
def test_restarts_train_every_group_exactly_once(rng: random.Random, n_groups: int, size: int, n_parts: int) -> None:
    """Whatever the interleaving of reading, training, saving and crashing: the final weights hold each group once."""
    log: list[list[ScoredTrajectory]] = [[] for _ in range(n_parts)]
    queues = []
    for g in range(n_groups):
        group = whole(f"g{g}", size, spec={"policy_id": "theirs" if g % 4 == 3 else "mine"})
        repeats = [s for s in group if rng.random() < 0.3]
        queues.append((g % n_parts, group + repeats))
    while queues:
        part, queue = rng.choice(queues)
        log[part].append(queue.pop(0))
        queues = [q for q in queues if q[1]]

    trainer, saved = _Trainer(log), None
    for _ in range(rng.randint(20, 80)):
        action = rng.random()
        if action < 0.6:
            trainer.read(rng.randrange(n_parts))
        elif action < 0.8 and (group := trainer.assembler.take()) is not None:
            if rng.random() < 0.7:
                # Everything that is out is trained and committed together.
                trainer.weights += trainer.assembler.yielded
                trainer.assembler.trained(trainer.assembler.yielded)
        elif action < 0.9:
            saved = trainer.save()
        else:
            trainer = _Trainer(log, saved)
    trainer = _Trainer(log, saved)  # the last crash, then undisturbed to the end
    for part in range(n_parts):
        for _ in log[part]:
            trainer.read(part)
    while trainer.assembler.take() is not None:
        pass
    trainer.weights += trainer.assembler.yielded

    wanted = {records.group_id for part in log for records in part if records.policy_id == "mine"}
    assert sorted(trainer.weights) == sorted(wanted)
    theirs = {r.group_id for part in log for r in part if r.policy_id == "theirs"}
    assert set(trainer.assembler.skipped) == theirs
