"""Engines on the timeline."""

from __future__ import annotations

import time

from bus.memory import MemoryBus
from compose.engines import (
    RegisteredEngine,
    add_engine,
    engine_states,
    live_proxies,
    registered_engines,
    remove_engine,
    replace_own_engine,
)
from schemas.records import Heartbeat


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


def test_the_worst_that_a_proxy_found_out_is_an_engines_state() -> None:
    """Each proxy probes for itself; one that can't use an engine is what somebody has to know."""
    good = {"policy_id": "p", "url": "http://e", "is_probed": True, "refusal": "", "gaps": []}
    mute = {**good, "is_probed": False}
    gaps = {**good, "gaps": ["no versions", "no tools"]}
    for seen, state in (
        ([good], "used"),
        ([good, gaps], "used, but: no versions; no tools"),
        ([mute, gaps], "doesn't answer"),
        ([mute, {**good, "refusal": "another tokenizer"}], "refused: another tokenizer"),
    ):
        assert engine_states({"engines": [one]} for one in seen) == {("p", "http://e"): state}
    assert engine_states([{}]) == {}


async def test_proxies_that_live_and_take_sessions() -> None:
    """By their newest heartbeat; one that drains, or said nothing for a while, isn't one of them."""
    now = int(time.time() * 1000)
    async with MemoryBus(partitions=1) as bus:
        for node, draining, seq in (("a", False, 1), ("b", False, 1), ("b", True, 2)):
            await bus.publish(Heartbeat(node_id=node, role="proxy", is_draining=draining, seq=seq, at=now))
        await bus.publish(Heartbeat(node_id="w", role="worker", at=now))
        assert [beat.node_id for beat in await live_proxies(bus)] == ["a"]
