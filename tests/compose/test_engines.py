"""Engines on the timeline."""

from __future__ import annotations

from bus.memory import MemoryBus
from compose.engines import RegisteredEngine, add_engine, registered_engines, remove_engine, replace_own_engine


async def urls(bus: MemoryBus) -> list[tuple[str, str, str]]:
    """Policy, address and kind of what is registered."""
    return [(e.policy_id, e.url, e.kind) for e in await registered_engines(bus)]


async def test_engines_come_and_go() -> None:
    """Added ones are there until they are removed, whatever slash their address ends with; policies are apart."""
    async with MemoryBus(partitions=2) as bus:
        await add_engine(bus, policy_id="a", url="http://one:1/", kind="sglang")
        await add_engine(bus, policy_id="b", url="http://one:1", kind="vllm")
        assert sorted(await urls(bus)) == [("a", "http://one:1", "sglang"), ("b", "http://one:1", "vllm")]
        await remove_engine(bus, policy_id="a", url="http://one:1")
        assert await urls(bus) == [("b", "http://one:1", "vllm")]


async def test_a_stack_takes_back_what_a_crash_left() -> None:
    """An engine that the same stack had before, at another port, is removed; other people's engines stay."""
    async with MemoryBus(partitions=1) as bus:
        await add_engine(bus, policy_id="p", url="http://mine:1", kind="sglang", added_by="up /x")
        await add_engine(bus, policy_id="p", url="http://theirs:1", kind="vllm", added_by="polynya engine add")
        await replace_own_engine(bus, RegisteredEngine("p", "http://mine:2/", "sglang", added_by="up /x"))
        assert await urls(bus) == [("p", "http://theirs:1", "vllm"), ("p", "http://mine:2", "sglang")]
        await replace_own_engine(bus, RegisteredEngine("p", "http://mine:2", "sglang", added_by="up /x"))
        assert await urls(bus) == [("p", "http://theirs:1", "vllm"), ("p", "http://mine:2", "sglang")]
