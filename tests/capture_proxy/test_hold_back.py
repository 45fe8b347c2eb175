"""Nothing that a harness can act on leaves before its record is durable: withheld acks, a withheld fsync, a killed proxy."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from capture_proxy.service import CaptureProxy
from schemas import ids
from schemas.records import CompletionState
from tests.capture_proxy.conftest import ADMIN_KEY, Stack
from tests.capture_proxy.fakes import tool_call
from tests.capture_proxy.test_service import both, streamed_or_not
from tests.capture_proxy.wire import WIRES, Reader, Wire

MakeStack = Callable[..., Awaitable[Stack]]

# So long nothing may come; long enough that what is wrongly let go would be here.
QUIET_S = 0.4


def looks_and_acts(_prompt: str, _request: object) -> str:
    """A policy that says something and calls a tool."""
    return "Let me look. " + tool_call("bash", {"command": "rm -rf /"})


class HeldDisk:
    """An fsync that doesn't return until it may."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def __call__(self, fd: int) -> None:
        self.may.wait(20.0)
        os.fdatasync(fd)


async def hold(stack: Stack) -> HeldDisk:
    """Withholds Kafka's acks and the disk's fsync, with a lease already open."""
    await stack.open()
    disk = HeldDisk()
    stack.fsync = disk
    stack.bus.acks.clear()
    stack.engine.script = looks_and_acts
    return disk


def is_recorded(proxy: CaptureProxy) -> bool:
    """Whether the call's record is appended (though not durable)."""
    return bool(proxy.recorder.counts.get("finished"))


@both
@pytest.mark.parametrize("released_by", ["kafka", "fsync"])
async def test_a_streamed_tool_call_waits_for_the_record(make_stack: MakeStack, wire: Wire, released_by: str) -> None:
    """The text streams; the tool call comes only when Kafka's ack or the disk's fsync lets it, whichever is first."""
    stack = await make_stack(ack_wait_ms=1)
    disk = await hold(stack)
    try:
        async with stack.http.post(stack.url(wire.stream_path), json=wire.request(stream=True, tools=True)) as response:
            reader = Reader(response)
            await stack.until(lambda: is_recorded(stack.proxy))
            while await reader.more(QUIET_S):
                pass
            assert wire.read_stream(reader.body).text.startswith("Let me look.")
            assert not wire.read_stream(reader.body).finish
            assert not wire.read_stream(reader.body).tools
            assert "<tool_call>" not in reader.body
            assert "rm -rf" not in reader.body
            assert not stack.calls
            if released_by == "kafka":
                stack.bus.acks.set()
            else:
                disk.may.set()
            while await reader.more(5.0):
                pass
        said = wire.read_stream(reader.body)
        assert said.tools == [("bash", {"command": "rm -rf /"})]
        assert said.is_over
    finally:
        disk.may.set()


@both
async def test_a_whole_answer_waits_for_the_record(make_stack: MakeStack, wire: Wire) -> None:
    """Not even the status comes before the record is durable."""
    stack = await make_stack(ack_wait_ms=1)
    disk = await hold(stack)
    try:
        request = asyncio.create_task(stack.http.post(stack.url(wire.path), json=wire.request(tools=True)).__aenter__())
        await stack.until(lambda: is_recorded(stack.proxy))
        done, _ = await asyncio.wait({request}, timeout=QUIET_S)
        assert not done
        disk.may.set()
        response = await asyncio.wait_for(request, 5.0)
        assert wire.read_whole(await response.json()).tools == [("bash", {"command": "rm -rf /"})]
        response.close()
    finally:
        disk.may.set()


@both
@streamed_or_not
async def test_a_reply_that_cant_be_recorded_is_never_released(make_stack: MakeStack, wire: Wire, stream: bool) -> None:
    """With Kafka silent and the disk failing, the call ends with an error after the deadline, without its tool call."""
    stack = await make_stack(ack_wait_ms=1, commit_timeout_s=0.3)
    await hold(stack)

    def broken(_fd: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    stack.fsync = broken
    path = wire.stream_path if stream else wire.path
    async with stack.http.post(stack.url(path), json=wire.request(stream=stream, tools=True)) as response:
        body = await response.text()
    assert "rm -rf" not in body
    assert "error" in body
    if not stream:
        assert response.status == 500


@both
async def test_a_proxy_killed_before_the_record_is_durable_never_showed_the_tool_call(
    make_stack: MakeStack, tmp_path: Path, wire: Wire
) -> None:
    """SIGKILL between sampling and durability: no tool call reached the harness, and the next proxy finishes the call."""
    stack = await make_stack(adopt_every_s=60)
    stack.engine.script = looks_and_acts
    victim = await Victim.start(tmp_path, stack.engine.url)
    secret = "the-victims-secret"
    body = stack.open_body(session_id="session-v", secret_hash=ids.secret_hash(secret), lease_id="lease-v")
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    async with stack.http.post(f"{victim.admin}/leases/open", json=body, headers=headers) as response:
        assert response.status == 200
    await victim.tell("hold")
    url = f"{victim.data}/s/{secret}{wire.stream_path}"
    async with stack.http.post(url, json=wire.request(stream=True, tools=True)) as response:
        reader = Reader(response)
        while "look" not in wire.read_stream(reader.body).text:
            assert await reader.more(5.0)
        await victim.tell("wait-recorded")
        while await reader.more(QUIET_S):
            pass
        victim.kill()
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            while await reader.more(5.0):
                pass
    assert "rm -rf" not in reader.body
    assert not wire.read_stream(reader.body).finish
    await victim.gone()
    await stack.proxy.adopter._adopt()
    await stack.until(lambda: bool(stack.seals))
    [record] = stack.calls
    assert record.state is CompletionState.FINISHED  # it stood in the spool, though nobody was told
    assert stack.seals[0].last_seq == 1
    assert stack.seals[0].reason == "proxy_crash"
    assert not stack.deliveries


class Victim:
    """A proxy in a process of its own, whose spool is ours to adopt."""

    def __init__(self, process: asyncio.subprocess.Process, ports: dict[str, str]) -> None:
        self._process = process
        self.data, self.admin = ports["data_address"], ports["admin_address"]

    @classmethod
    async def start(cls, root: Path, engine_url: str) -> Victim:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.capture_proxy.victim", str(root / "spool"), engine_url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60.0)
        return cls(process, json.loads(line))

    async def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command.encode() + b"\n")
        await self._process.stdin.drain()
        assert (await asyncio.wait_for(self._process.stdout.readline(), 20.0)).strip() == b"ok"

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    async def gone(self) -> None:
        await asyncio.wait_for(self._process.wait(), 10.0)
        # The pipe's transport is closed by asyncio; without this it would warn when collected.
        self._process._transport.close()  # type: ignore[attr-defined]


async def test_a_call_cut_by_a_crash_is_recorded_as_such(make_stack: MakeStack, tmp_path: Path) -> None:
    """SIGKILL in mid-sampling: the next proxy records `proxy_crash`, seals the lease, and its numbers are contiguous."""
    stack = await make_stack(adopt_every_s=60)
    stack.engine.pause_at = 5
    stack.engine.go.clear()
    victim = await Victim.start(tmp_path, stack.engine.url)
    secret = "the-victims-secret"
    body = stack.open_body(session_id="session-v", secret_hash=ids.secret_hash(secret), lease_id="lease-v")
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    async with stack.http.post(f"{victim.admin}/leases/open", json=body, headers=headers) as response:
        assert response.status == 200
    url = f"{victim.data}/s/{secret}{WIRES[0].path}"
    asking = asyncio.create_task(stack.http.post(url, json=WIRES[0].request()).__aenter__())
    await asyncio.wait_for(stack.engine.reached.wait(), 10.0)
    victim.kill()
    await victim.gone()
    with pytest.raises(Exception):  # noqa: B017 - the connection is cut, in whatever way
        await asking
    await stack.proxy.adopter._adopt()
    await stack.until(lambda: bool(stack.seals))
    [record] = stack.calls
    assert (record.state, record.untrainable_reason) == (CompletionState.FAILED, "proxy_crash")
    assert record.error is not None
    assert record.error.kind == "proxy_crash"
    assert (record.session_id, record.call_seq, record.prompt_len) == (
        "session-v",
        1,
        len(stack.engine.requests[0]["input_ids"]),
    )
    assert (stack.seals[0].last_seq, stack.seals[0].reason) == (1, "proxy_crash")
