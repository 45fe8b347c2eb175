"""The example trainer on the bus in memory: its filter, its position, and going on behind it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from examples.two_trainers import trainer
from tests.trainer_sink.scored import whole


async def run(monkeypatch: pytest.MonkeyPatch, bus: MemoryBus, state: Path, *args: str) -> None:
    """The program with these arguments, on this bus."""

    @asynccontextmanager
    async def connect(_: object) -> AsyncIterator[MemoryBus]:
        yield bus

    monkeypatch.setattr(trainer, "connect", connect)
    monkeypatch.setattr(sys, "argv", ["trainer.py", "nowhere:1", "--state", str(state), *args])
    await trainer.main(trainer.parse())


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_each_trains_its_own_groups_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The slow one sees only its task, the fast one every group; started again, it goes on behind the last that it trained."""
    async with MemoryBus() as bus:
        for task in ("gulls", "herons", "terns"):
            for one in whole(task, 2):
                await bus.publish(one)
        await run(monkeypatch, bus, tmp_path, "--id", "slow", "--task", "herons", "--groups", "1")
        assert [one["task"] for one in told(capsys)] == ["herons"]
        await run(monkeypatch, bus, tmp_path, "--id", "fast", "--harness", "shell", "--groups", "2")
        await run(monkeypatch, bus, tmp_path, "--id", "fast", "--harness", "shell", "--groups", "1")
        trained = told(capsys)
    assert sorted(one["task"] for one in trained) == ["gulls", "herons", "terns"]
    assert {one["tokens"] for one in trained} == {4}
    assert json.loads((tmp_path / "fast.json").read_text())["step"] == 3
