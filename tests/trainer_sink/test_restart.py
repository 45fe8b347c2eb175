"""A trainer killed at any point of a step, again and again, on the real Kafka: every group is in its weights exactly once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from bus import KafkaBus
from schemas import ids
from schemas.records import BatchConsumed, ScoredTrajectory
from tests.trainer_sink import restartable
from tests.trainer_sink.scored import POLICY, whole

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

GROUPS = 60
KILLS = 10
LIFE_WITHIN_S = 60.0
WISHES = {"policy_id": POLICY, "require_variance": True, "min_usable": 2}


def _records() -> list[ScoredTrajectory]:
    """Groups of two and three sessions, interleaved, with some that nobody wants and some records twice."""
    rng = random.Random(7)
    queues = []
    for n in range(GROUPS):
        group = whole(f"g{n}", 2 + n % 2)
        group[0] = _with_reward(group[0], 0.0 if n % 6 else 1.0)  # every sixth has nothing to compare
        queues.append(group + group[:1] * (n % 4 == 0))
    queues += [whole(f"theirs{n}", 2, spec={"policy_id": "another"}) for n in range(5)]
    records = []
    while queues:
        queue = rng.choice(queues[:8])
        records.append(queue.pop(0))
        if not queue:
            queues.remove(queue)
    return records


def _with_reward(one: ScoredTrajectory, reward: float) -> ScoredTrajectory:
    import dataclasses

    return dataclasses.replace(one, reward=reward)


class Lives:
    """The lives of one trainer, each in a process that a fork server makes at once."""

    def __init__(self, bus: KafkaBus, trainer_id: str, checkpoint: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.trainer_sink.restartable"])
        self._settings = bus.settings.model_dump_json()
        self._trainer_id = trainer_id
        self.checkpoint = checkpoint

    def live(self, *, phases: int | None, delay_s: float = 0.0, saves_in_commit: bool = True) -> bool:
        """One life: killed so long after so many phases, or to its end. Whether it was killed."""
        ours, theirs = self._context.Pipe()
        recipe = restartable.Recipe(self._settings, self._trainer_id, self.checkpoint, saves_in_commit, WISHES)
        process = self._context.Process(target=restartable.life, args=(recipe, theirs), daemon=True)
        process.start()
        theirs.close()
        deadline = time.monotonic() + LIFE_WITHIN_S
        try:
            seen = 0
            while phases is None or seen < phases:
                assert ours.poll(max(0.0, deadline - time.monotonic())), "the trainer is stuck"
                ours.recv()
                ours.send(None)
                seen += 1
            time.sleep(delay_s)
        except EOFError:  # it came to its end first
            process.join(LIFE_WITHIN_S)
            assert process.exitcode == 0
            return False
        finally:
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
            process.join(LIFE_WITHIN_S)
            ours.close()
        return process.exitcode == -signal.SIGKILL

    @property
    def trained(self) -> Counter[str]:
        """What is in the weights, with multiplicity."""
        return Counter(restartable.load(self.checkpoint)["trained"])


async def test_ten_kills_train_what_an_uninterrupted_run_trains(kafka_bus: KafkaBus, tmp_path: Path) -> None:
    """SIGKILL while it reads, between taking and saving, within the saving, before and after the publication; both orders of the two."""
    for record in _records():
        await kafka_bus.publish(record)
    wanted = {ids.group_id(f"g{n}") for n in range(GROUPS) if n % 6}
    whole_run = Lives(kafka_bus, "whole", tmp_path / "whole.json")
    assert not await asyncio.to_thread(whole_run.live, phases=None)
    assert whole_run.trained == Counter(wanted)

    rng = random.Random(11)
    lives = Lives(kafka_bus, "killed", tmp_path / "killed.json")
    kills = 0
    for attempt in range(KILLS):
        killed = await asyncio.to_thread(
            lives.live, phases=rng.randint(0, 9), delay_s=rng.random() * 0.02, saves_in_commit=bool(attempt % 2)
        )
        kills += killed
        assert set(lives.trained.values()) <= {1}
    assert kills == KILLS
    assert 0 < len(lives.trained) < len(wanted)
    assert not await asyncio.to_thread(lives.live, phases=None)
    assert lives.trained == whole_run.trained
    told = [d.decode() async for d in kafka_bus.tail(["trainer.consumed"], until_end=True)]
    batches = [b for b in told if isinstance(b, BatchConsumed) and b.trainer_id == "killed"]
    # What the weights hold was told; a step that was told and whose saving a kill prevented was told again.
    assert {g for b in batches for g in b.groups} == wanted
    skipped = {s.group_id: s.reason for b in batches for s in b.skipped}
    assert set(skipped.values()) == {"no_variance", "policy"}
    assert skipped.keys().isdisjoint(wanted)
    assert len(skipped) == GROUPS - len(wanted) + 5
