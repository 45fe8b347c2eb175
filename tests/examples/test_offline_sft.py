"""The example that makes SFT data, over an archive of sessions."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from bus.archive import archive
from bus.memory import MemoryBus
from schemas.records import Status
from tests.trainer_sink.export.talks import run, says, talk, traced
from trainer_sink.export.manifest import read_manifest

EXAMPLE = Path(__file__).parents[2] / "examples" / "offline_sft" / "generate.py"


async def test_data_and_the_table_by_repository(tmp_path: Path) -> None:
    """Attempted, completed, accepted, turns and tokens are those of the sessions; the rows are the accepted ones."""
    django, flask = ({"metadata": {"repo": f"{name}/{name}"}} for name in ("django", "flask"))
    later = traced([{"role": "user", "content": "go on"}, says("ok")], index=1, size=8)
    async with MemoryBus(partitions=2) as bus:
        for record in (
            run("d1", 0, group_size=2, traces=[traced(talk("a", steps=3), size=20), later], spec=django),
            run("d1", 1, group_size=2, reward=0.0, spec=django),
            run("d2", 0, status=Status.TIMEOUT, reward=None, spec=django),
            run("f1", 0, *talk("b", steps=2), spec=flask),
            run("x1", 0, status=Status.FAILED, reward=None, traces=[]),
        ):
            await bus.publish(record)
        await archive(bus, tmp_path / "archive")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLE), "sft", "--archive", "archive", "--validation", "0.5"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[2])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0, err.decode()
    assert out.decode().splitlines()[2:] == [
        "| (none) | 1 | 0 | 0 | 0% | - | 0 |",
        "| django/django | 3 | 2 | 1 | 33% | 2.5 | 28 |",
        "| flask/flask | 1 | 1 | 1 | 100% | 3.0 | 6 |",
        "| all | 5 | 3 | 2 | 40% | 2.7 | 34 |",
    ]
    assert (tmp_path / "sft" / "ACCEPTANCE.md").read_text() == out.decode()
    manifest = read_manifest(tmp_path / "sft" / "manifest.json")
    assert manifest.runs[0].counts.refused == {"reward": 1, "status_timeout": 1, "status_failed": 1}
    rows = [json.loads(x) for name in manifest.files for x in (tmp_path / "sft" / name).read_text().split("\n") if x]
    assert sorted(row["task_id"] for row in rows) == ["d1", "d1", "f1"]
