"""The example that a trainer's author copies, run as its first lines say."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from bus import KafkaBus
from schemas import ids
from schemas.records import BatchConsumed
from tests.trainer_sink.scored import scored

EXAMPLE = Path(__file__).parents[2] / "examples" / "read_groups.py"


async def _run(bus: KafkaBus, directory: Path, steps: int) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE),
        bus.settings.bootstrap,
        str(steps),
        cwd=directory,
        env={**os.environ, "POLYNYA_TOPIC_PREFIX": bus.settings.topic_prefix},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.broker
async def test_two_runs_train_every_group_once(kafka_bus: KafkaBus, tmp_path: Path) -> None:
    """The second run goes on after the first one's last commit."""
    for name in ("a", "b", "c"):
        for index in range(2):
            await kafka_bus.publish(scored(name, index, 2, reward=float(index), spec={"policy_id": "default"}))
    text = await _run(kafka_bus, tmp_path, 1) + await _run(kafka_bus, tmp_path, 2)
    groups = [line.split(" ")[0] for line in text.splitlines()]
    assert sorted(groups) == sorted([ids.group_id(n) for n in ("a", "b", "c")] * 2)
    assert text.count("advantage -0.500 on 2 tokens") == 3
    batches = [d.decode() async for d in kafka_bus.tail(["trainer.consumed"], until_end=True)]
    assert {b.step for b in batches if isinstance(b, BatchConsumed)} == {1, 2, 3}
