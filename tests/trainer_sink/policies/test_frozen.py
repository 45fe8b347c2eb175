"""A real process that is stopped in the middle of a push, superseded, and continued."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.trainer_sink.policies.fake_engine import FakeEngine, serving
from trainer_sink.policies.fence import MAX_AGE_S

ROOT = Path(__file__).parents[3]
WITHIN_S = 60.0
UPDATE = "/update_weights_from_disk"


async def until(condition: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    """Waits for a condition; AssertionError when the process ends first, or it takes too long."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert process.poll() is None, f"the trainer ended with {process.returncode} before: {what}"
        assert time.monotonic() < deadline, f"not within {WITHIN_S} s: {what}"
        await asyncio.sleep(0.02)


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether a signal has stopped it."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def test_a_frozen_trainer_notices_that_it_was_superseded(tmp_path: Path) -> None:
    """Stopped before a push or within it, no weights of it reach an engine after another trainer's claim.

    Stopped between its last look at the log and the very request, they do: then it says where and under which number, and
    publishes nothing.
    """
    moments = ["idle", "/pause_generation", UPDATE]
    claims, report = tmp_path / "claims", tmp_path / "report"
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_text("w")
    claims.touch()
    report.touch()
    async with serving(FakeEngine()) as engine:
        arguments = [f"file:{claims}", "p", engine.url, str(checkpoint), str(report), *moments]
        command = [sys.executable, "-m", "tests.trainer_sink.policies.frozen_trainer", *arguments]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            for number, moment in enumerate(moments):
                (tmp_path / f"go-{number}").touch()
                await until(lambda: is_stopped(process), process, f"stopped at {moment}")
                served, updates = engine.version, engine.asked.count(UPDATE)
                with claims.open("a") as file:
                    file.write(f"new-{number}\n")
                await asyncio.sleep(MAX_AGE_S)  # frozen for longer than a reading of the log is believed
                process.send_signal(signal.SIGCONT)
                await until(
                    lambda: len(report.read_text().splitlines()) > number,  # noqa: B023 - awaited within the round
                    process,
                    f"told of {moment}",
                )
                told = json.loads(report.read_text().splitlines()[number])
                assert told["by"] == f"new-{number}"
                assert "pushed" not in told
                assert not engine.is_paused
                if moment == UPDATE:
                    assert told["reached"] == [engine.url]
                    assert engine.version == told["version"] != served
                else:
                    assert told["reached"] == []
                    assert (engine.version, engine.asked.count(UPDATE)) == (served, updates)
        finally:
            process.kill()
            process.wait(10)
