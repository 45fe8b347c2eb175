"""Whole sessions in sandboxes: the real Pi in a container that has no network but its model, and programs that try to get out."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from schemas.records import Reward, SessionEventType, Status
from tests.e2e.stack import Stack
from tests.e2e.trials import check, run_trials, task_of
from tests.stage_workers.runtimes.engine import IMAGE

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(600)]

DOCKER = {"kind": "docker", "image": IMAGE, "memory_mb": 2048, "cpus": 2, "pids": 256}

# Tries each address, and says which it reached; then asks Kafka, by hand, to take a record: the first bytes of its protocol.
ESCAPE = """
import json, socket, sys
reached = []
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 3) as sock:
            sock.settimeout(3)
            sock.sendall(b"\\x00\\x00\\x00\\x0e\\x00\\x12\\x00\\x00\\x00\\x00\\x00\\x01\\x00\\x04evil")
            reached.append(address)
    except OSError:
        pass
print(json.dumps({"reached": reached}))
open("reached.json", "w").write(json.dumps(reached))
"""


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Stack]:
    """A stack whose worker knows the tests' Docker engine, where there is one."""
    try:
        env = {"DOCKER_HOST": request.getfixturevalue("docker_engine")}
    except pytest.skip.Exception:
        # What needs none runs all the same.
        env = {}
    with Stack(tmp_path_factory.mktemp("sandboxes"), engine_url, env=env).running() as stack:
        yield stack


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
async def test_pi_in_a_container(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real Pi solves its trial in a container without a network, every call captured, as it does outside."""

    def in_a_container(harness: str, wire: str) -> dict[str, Any]:
        return task_of(harness, wire) | {"runtime": DOCKER}

    monkeypatch.setattr("tests.e2e.trials.task_of", in_a_container)
    tried = await run_trials(stack, [("pi", "openai_chat")], timeout_s=400)
    assert ("pi", "openai_chat") in tried, stack.logs()
    check(tried["pi", "openai_chat"])
    (started,) = [fact for fact in await stack.facts("trial-pi-openai_chat") if fact.type is SessionEventType.STARTED]
    assert started.details["is_trusted"] is False


@pytest.mark.parametrize(
    "runtime", [pytest.param(DOCKER, marks=pytest.mark.docker, id="docker"), pytest.param({}, id="local")]
)
async def test_no_way_out(stack: Stack, runtime: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """A program reaches neither Kafka, nor the proxy, nor an admin listener, nor another session's model; no reward is forged."""
    if runtime:
        request.getfixturevalue("docker_engine")
    name = f"escape-{request.node.callspec.id}"
    other = stack.agent_task("turns=1 delay_ms=300", task_id=f"{name}-other", max_attempts=1)
    stack.submit(other)
    outside = _addresses(stack)
    for address in outside:
        # They are there: from outside the sandbox each is reached.
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), 5).close()
    targets = [*outside, *await _address_of_another(stack)]
    assert len(targets) >= 5, targets
    python = sys.executable if not runtime else "python3"
    task = {
        "task_id": name,
        "instruction": "get out",
        "harness": {"name": "shell", "options": {"command": f"{python} escape.py {' '.join(targets)}"}},
        "prepare": [{"upload": {"path": "escape.py", "content": ESCAPE}}],
        "evaluator": {"name": "command", "options": {"command": "test \"$(cat reached.json)\" = '[]'"}},
        "runtime": runtime,
        "max_attempts": 1,
    }
    stack.submit(task, wait=True)
    (result,) = await stack.results(name)
    assert (result.status, result.reward) == (Status.COMPLETED, 1.0), result.error
    rewards = [r for r in await stack.read("reward.assigned") if isinstance(r, Reward)]
    assert {r.grader for r in rewards if r.session_id == result.session_id} == {"command"}


def _addresses(stack: Stack) -> list[str]:
    """Kafka, and what the stack's parts listen on, as hosts and ports: engine, proxy, admin listener, forward proxy."""
    info = stack.info
    urls = (info.engine_url, info.proxy_address, info.proxy_admin_address, info.forward_address)
    found = {f"{parts.hostname}:{parts.port}" for parts in map(urlsplit, filter(None, urls))}
    return sorted({*info.bootstrap.split(","), *found})


async def _address_of_another(stack: Stack) -> list[str]:
    """The model socket of a session that runs just now, as found on the command line of its program."""
    async with asyncio.timeout(120):
        while True:
            for entry in Path("/proc").iterdir():
                try:
                    words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                except OSError:
                    continue
                found = [urlsplit(word) for word in words if word.startswith("http://")]
                if found and any(word.startswith(str(stack.journals)) for word in words):
                    return [f"{found[0].hostname}:{found[0].port}"]
            await asyncio.sleep(0.1)
