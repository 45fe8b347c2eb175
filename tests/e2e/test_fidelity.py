"""What was captured is what was sampled, and the past can be made again: verify, archive, replay and export on a real stack."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from compose.cpu_engine.tiny_model import ensure_tiny_model
from schemas.codec import encode
from schemas.records import Trajectory
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(600)]


async def test_a_session_verifies_and_can_be_made_again(stack: Stack, tmp_path: Path) -> None:
    """Every trained token within 1e-4 of the model; from the log and from files a replay gives what the assembler gave."""
    stack.submit(stack.agent_task("turns=3 please", task_id="fidelity", num_samples=2), wait=True)
    first, second = await stack.results("fidelity")
    assert first.trajectory is not None
    model = str(ensure_tiny_model())

    for target in (first.session_id[:13], "trajectory.built"):
        verified = stack.cli("verify", target, "--model", model, "--json")
        report = json.loads(verified.stdout)
        (version,) = report["versions"].values()
        assert version["largest"] <= 1e-4
        assert report["unchecked"] == []
        if target != "trajectory.built":
            assert version["checked"] == first.trajectory.counts.trainable_tokens

    archive = tmp_path / "archive"
    copied = json.loads(stack.cli("archive", str(archive), "--json").stdout)
    assert copied["records"]["capture.completions"] >= 2 * 10
    assert json.loads(stack.cli("archive", str(archive), "--json").stdout)["records"].keys() <= {"rollout.sessions"}

    sessions = ["--session", first.session_id, "--session", second.session_id]
    stack.cli("replay", "--out", "trajectory.replay.again", *sessions)
    replayed = {t.session_id: t for t in await stack.read("trajectory.replay.again") if isinstance(t, Trajectory)}
    for built in await stack.read("trajectory.built"):
        if isinstance(built, Trajectory) and built.session_id in replayed:
            again = replace(replayed[built.session_id], built_at=built.built_at)
            assert encode(again).value == encode(built).value
    assert len(replayed) == 2

    flat = tmp_path / "flat.parquet"
    told = stack.cli(
        "replay", "--builder", "per_request", "--out", str(flat), "--archive", str(archive), *sessions, "--json"
    )
    assert json.loads(told.stdout)["traces"] == pq.read_table(flat).num_rows == 2 * 4

    calls = tmp_path / "calls.parquet"
    stack.cli("export", "completions", str(calls), "--session", first.session_id)
    rows = pq.read_table(calls).to_pylist()
    assert [len(r["prompt_ids"]) for r in rows] == sorted(len(r["prompt_ids"]) for r in rows)
    assert all(r["prompt_problem"] == "" and r["is_delivered"] for r in rows)

    status = stack.cli("status", first.session_id[:13]).stdout
    assert "4 calls = 4 trained + 0 context" in status
