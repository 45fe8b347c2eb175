"""`kill -9` of a proxy between two turns, on the real Kafka: the next turn, at another proxy, still goes on from the first."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bus import KafkaBus, read_session
from schemas import arrays
from schemas.records import CompletionRecord, LineageStatus, SessionSealed
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import FakeEngine
from tests.capture_proxy.test_lineage import chat, user

pytestmark = [pytest.mark.broker, pytest.mark.chaos]


class Elsewhere:
    """Stands for a proxy in another process where a stack wants one."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.data_address, self.admin_address = addresses["data"], addresses["admin"]


@asynccontextmanager
async def victim(root: Path, engine: FakeEngine, bus: KafkaBus) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process; killed at the end, if it still lives."""
    argv = ["-m", "tests.capture_proxy.kafka_victim", str(root / "spool"), engine.url, bus.settings.model_dump_json()]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_next_turn_still_finds_its_parent(kafka_bus: KafkaBus, engine: FakeEngine, tmp_path: Path) -> None:
    """Turns one and two at a proxy that is killed, turn three at one on the same machine: one line, token by token."""
    async with aiohttp.ClientSession() as http, victim(tmp_path, engine, kafka_bus) as process:
        stack = Stack(tmp_path, kafka_bus, engine, http, {"stop_relay_s": 40.0})  # type: ignore[arg-type]
        assert process.stdout is not None
        async with asyncio.timeout(60):
            stack.proxy = Elsewhere(json.loads(await process.stdout.readline()))  # type: ignore[assignment]
        assert (await stack.open())[0] == 200
        messages: list[dict[str, Any]] = [user("Hi")]
        for text in ("on", "and"):
            messages += [await chat(stack, messages), user(text)]
        process.kill()
        await process.wait()
        await stack.start()
        try:
            assert (await stack.open(writer=2, takes_over=1))[0] == 200
            async with asyncio.timeout(60):
                await chat(stack, messages)
            assert (await stack.seal(writer=2))[0] == 200
        finally:
            await stack.proxy.stop()
    calls = {(c.record.writer, c.record.call_seq): c async for c in read_session(kafka_bus, "session-1")}
    assert sorted(calls) == [(1, 1), (1, 2), (2, 1)]
    assert [c.call.problem for c in calls.values()] == ["", "", ""]
    last = calls[2, 1]
    assert (last.record.lineage, last.record.lineage_reason) == (LineageStatus.RESOLVED, "")
    assert last.record.parent_id == calls[1, 2].record.completion_id
    assert last.call.prompt().startswith(calls[1, 2].call.reach())
    assert arrays.unpack_ids(last.call.prompt()).tolist() == engine.requests[-1]["input_ids"]
    assert last.call.messages()[-1] == user("and")
    records = [d.decode() async for d in kafka_bus.tail(["capture.completions"], until_end=True)]
    seals = {r.writer: r.last_seq for r in records if isinstance(r, SessionSealed)}
    assert seals == {1: 2, 2: 1}
    # What the victim had published and not yet crossed off comes again out of its spool, as the same fact.
    assert len({r.event_id for r in records if isinstance(r, CompletionRecord)}) == 3
