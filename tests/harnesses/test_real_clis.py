"""The real CLIs, installed as pinned, launched by their plans in runtime `local`, against a scripted model endpoint."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

import harnesses
from stage_workers.output import Lines
from stage_workers.runtimes import ExecResult, LocalRuntime
from tests.harnesses.scripted_model import scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SECRET = "the-secret.of_this~lease"
CLIS = ["pi", "claude_code"]


@pytest.fixture(params=CLIS)
def adapter(request: pytest.FixtureRequest) -> harnesses.Adapter:
    return harnesses.get(request.param)


async def launch(adapter: harnesses.Adapter, address: str, place: LocalRuntime) -> tuple[ExecResult, harnesses.Verdict]:
    installed = await asyncio.to_thread(harnesses.ensure_installed, adapter)
    plan = harnesses.launch_plan(
        adapter,
        {},
        instruction='Make the file made.txt; don\'t ask "why" ($HOME).',
        urls=harnesses.base_urls(address, SECRET, adapter.url_form),
        secret=SECRET,
        model="my-local-policy",
        home=place.home,
        workdir=place.workdir,
        executable=installed.executable,
        path_dirs=installed.path_dirs,
    )
    for path, content in plan.files.items():
        await place.upload(path, content, 0o600)
    judge = harnesses.Judge(adapter.verdict)
    lines = Lines(judge.feed)
    result = await place.exec(
        plan.argv,
        timeout_s=120,
        env=plan.env,
        cwd=plan.cwd,
        path_dirs=plan.path_dirs,
        on_output=lambda stream, data: lines.feed(data) if stream == "stdout" else None,
    )
    lines.close()
    return result, judge.verdict(result.exit_code)


@pytest.fixture
async def place(tmp_path: Path):
    runtime = LocalRuntime(tmp_path, "one", owner="tests")
    await runtime.start()
    yield runtime
    await runtime.stop()


def test_version(adapter: harnesses.Adapter, tmp_path: Path) -> None:
    """What was installed is what was pinned, by its own word."""
    installed = harnesses.ensure_installed(adapter)
    env = {"PATH": ":".join((*installed.path_dirs, "/usr/bin:/bin")), "HOME": str(tmp_path)}
    said = subprocess.run(
        [installed.executable, "--version"], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.split()[0] == adapter.version


async def test_one_tool_call_then_done(adapter: harnesses.Adapter, place: LocalRuntime) -> None:
    """The CLI calls the model twice, acts on the tool call, and succeeds; key and model are what the plan says."""
    with scripted_model() as (address, calls):
        result, verdict = await launch(adapter, address, place)
    assert verdict.succeeded, (result, verdict)
    assert await place.download("made.txt") == b"made by a tool\n"
    assert len(calls) == 2
    for call in calls:
        assert call["path"].startswith(f"/s/{SECRET}/v1/")
        assert call["body"]["model"] == "my-local-policy"
        assert call["body"]["stream"] is True
        headers = {name.lower(): value for name, value in call["headers"].items()}
        assert SECRET in {headers.get("x-api-key"), headers.get("authorization", "").removeprefix("Bearer ")}


async def test_failed_call_is_a_failed_run(adapter: harnesses.Adapter, place: LocalRuntime) -> None:
    """A model call that fails for good makes a failed run, whatever the exit code says."""
    with scripted_model(status=400) as (address, calls):
        result, verdict = await launch(adapter, address, place)
    assert calls
    assert not verdict.succeeded
    assert verdict.error
    if adapter.name == "pi":
        assert result.exit_code == 0
        assert "no luck today" in verdict.error
