"""The proxy against the real Kafka: calls of both dialects arrive on the topic, in order, and sealed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bus import KafkaBus
from schemas.records import CompletionRecord, SessionOpened, SessionSealed
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import FakeEngine
from tests.capture_proxy.test_service import ask
from tests.capture_proxy.wire import WIRES


@pytest.mark.broker
async def test_a_session_arrives_on_the_topic(kafka_bus: KafkaBus, engine: FakeEngine, tmp_path: Path) -> None:
    """Eight calls at once and a seal: opened first, each call once with its delivery, sealed last."""
    async with aiohttp.ClientSession() as http:
        stack = Stack(tmp_path, kafka_bus, engine, http, {"stop_relay_s": 40.0})  # type: ignore[arg-type]
        engine.context_length = 200_000
        await stack.start()
        try:
            assert (await stack.open())[0] == 200
            long = "x" * 100_000  # above the claim check's limit
            answers = await asyncio.gather(
                *(ask(stack, WIRES[i % 2], stream=i % 3 > 0, text=long if i == 5 else "Hi") for i in range(8))
            )
            assert [status for status, _ in answers] == [200] * 8
            assert (await stack.seal())[1]["last_seq"] == 8
        finally:
            await stack.proxy.stop()
    records: list[Any] = [d.decode() async for d in kafka_bus.tail(["capture.completions"], until_end=True)]
    assert isinstance(records[0], SessionOpened)
    assert isinstance(records[-1], SessionSealed)
    calls = [r for r in records if isinstance(r, CompletionRecord)]
    assert sorted(r.call_seq for r in calls) == list(range(1, 9))
    assert all(r.trainable for r in calls)
    assert max(r.prompt_len for r in calls) > 100_000
    assert len(records) == 2 + 8 * 2
