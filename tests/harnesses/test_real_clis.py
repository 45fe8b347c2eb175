"""The real CLIs, installed as pinned, launched by their plans in runtime `local`, against a model endpoint of our own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import harnesses
from compose.trial.record import SECRET, Recording, record
from compose.trial.script import CONTENT, FILE, STEPS
from compose.trial.session import MODEL
from harnesses.wire_summary import differences, recorded
from tests.harnesses import mcp_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CLIS = [adapter.name for adapter in harnesses.list_harnesses() if adapter.install is not None]
# A run beside others on two cores; alone it takes a tenth of that.
RUN_S = 360.0


async def recording_of(name: str, wire: str | None = None, **fields: object) -> Recording:
    adapter = harnesses.get(name)
    return await record(adapter, wire or adapter.dialect, timeout_s=RUN_S, **fields)  # type: ignore[arg-type]


def said(made: Recording) -> str:
    result = made.run.result
    return f"{made.run.verdict}, exit {result.exit_code}, timed out {result.timed_out}: {result.tail(2000)}"


def check_wire(name: str, wire: str, made: Recording) -> None:
    """The run is good, its key and model are the plan's, and nothing of its wire is other than what was recorded for the pin."""
    assert made.run.verdict.succeeded, said(made)
    assert made.run.files[FILE] == CONTENT.encode()
    assert [(exchange.status, exchange.path.startswith(f"/s/{SECRET}/")) for exchange in made.exchanges] == [
        (200, True)
    ] * STEPS
    for exchange in made.exchanges:
        keys = {exchange.headers.get(name, "") for name in ("x-api-key", "x-goog-api-key", "authorization")}
        assert SECRET in {key.removeprefix("Bearer ") for key in keys}
        assert exchange.request is not None
        assert MODEL in {exchange.request.model, exchange.request.model.removeprefix("models/")}
    pinned = recorded(name)
    assert pinned is not None
    assert pinned["version"] == harnesses.get(name).version
    hint = f"if that is as it should be: polynya harness record {name} --write harnesses/wires"
    assert differences(pinned["wires"][wire], made.summary) == [], hint


@pytest.mark.parametrize("name", CLIS)
def test_version(name: str, tmp_path: Path) -> None:
    """What was installed is what was pinned, by its own word."""
    adapter = harnesses.get(name)
    installed = harnesses.ensure_installed(adapter)
    assert adapter.install is not None
    env = {"PATH": ":".join((*installed.path_dirs, "/usr/bin:/bin")), "HOME": str(tmp_path)}
    asked = ["--version"]
    if adapter.install.registry == "pypi":
        asked = ["-c", f"import importlib.metadata as m; print(m.version({adapter.install.package!r}))"]
    answer = subprocess.run(
        [installed.executable, *asked], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    assert adapter.version in answer.stdout.split()


@pytest.mark.parametrize("name", CLIS)
async def test_its_wire_is_the_recorded_one(name: str) -> None:
    """On its default wire a pinned harness sends what stands in its file: endpoints, headers, fields, tools, order."""
    wire = harnesses.get(name).dialect
    check_wire(name, wire, await recording_of(name, wire))


@pytest.mark.all_wires
@pytest.mark.parametrize(("name", "wire"), [(name, wire) for name in CLIS for wire in harnesses.get(name).dialects[1:]])
async def test_its_other_wires_are_the_recorded_ones(name: str, wire: str) -> None:
    """The same on every other wire."""
    check_wire(name, wire, await recording_of(name, wire))


# How each ends after a model call that failed for good: exit codes say little.
FAILED_EXITS = {"pi": 0, "gemini_cli": 400 % 256}


@pytest.mark.parametrize("name", CLIS)
async def test_failed_call_is_a_failed_run(name: str) -> None:
    """A model call that fails for good makes a failed run, whatever the exit code says, and isn't asked again for ever."""
    options = {"max_tries": 1} if name == "mini_swe_agent" else {}
    made = await recording_of(name, status=400, options=options)
    assert not made.run.verdict.succeeded
    assert made.run.verdict.error
    assert not made.run.result.timed_out
    # Claude Code drops one beta after the other before it believes a 400.
    assert 1 <= len(made.exchanges) <= (3 if name == "claude_code" else 2)
    assert made.run.result.exit_code == FAILED_EXITS.get(name, 1)


SKILL = "---\nname: harbour-pilot\ndescription: How to bring a ship into this harbour.\n---\n\nAsk the pilot.\n"


@pytest.mark.parametrize("name", [name for name in CLIS if "skills" in harnesses.get(name).options])
async def test_mcp_servers_and_skills_reach_the_model(name: str) -> None:
    """What a task registers is offered to the model: a server's tool by its name, a skill by its description."""
    options: dict[str, object] = {"skills": {"harbour-pilot": SKILL}}
    if "mcp_servers" in harnesses.get(name).options:
        command = {"command": sys.executable, "args": [mcp_server.__file__]}
        options["mcp_servers"] = {"tides": command}
    made = await recording_of(name, options=options)
    assert made.run.verdict.succeeded, said(made)
    asked = b"".join(exchange.body for exchange in made.exchanges)
    assert b"harbour-pilot" in asked
    assert ("mcp_servers" in options) == (mcp_server.TOOL.encode() in asked)


async def test_two_at_once_do_not_meet() -> None:
    """Two runs of one harness at a time share nothing but the installation."""
    first, second = await asyncio.gather(recording_of("pi"), recording_of("pi"))
    assert first.run.verdict.succeeded
    assert second.run.verdict.succeeded
    assert first.summary == second.summary
