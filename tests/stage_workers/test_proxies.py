"""The view of the proxies."""

from __future__ import annotations

import asyncio
from typing import Any

from schemas.records import Heartbeat
from stage_workers.proxies import ProxyView


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def beat(node_id: str, at: int, **fields: Any) -> Heartbeat:
    return Heartbeat(node_id=node_id, role="proxy", admin_address=f"http://{node_id}:1", at=at, **fields)


def view() -> tuple[ProxyView, Clock]:
    clock = Clock()
    return ProxyView(10.0, clock), clock


def test_silent_proxies_go_stale() -> None:
    """A proxy counts for as long as it beats; one that beats slowly gets three of its own intervals."""
    proxies, clock = view()
    proxies.take(beat("quick", clock.now))
    proxies.take(beat("slow", clock.now, interval_s=10.0))
    proxies.take(beat("old", clock.now - 11_000))
    assert sorted(node.node_id for node in proxies.fresh()) == ["quick", "slow"]
    clock.now += 11_000
    assert [node.node_id for node in proxies.fresh()] == ["slow"]
    clock.now += 20_000
    assert proxies.fresh() == []


def test_a_proxys_own_clock_does_not_matter() -> None:
    """Beats are dated by the log: a proxy that is an hour behind counts, also when it comes back on such a machine."""
    proxies, clock = view()
    proxies.take(beat("p", clock.now, incarnation="1"), clock.now)
    proxies.take(beat("p", clock.now - 3_600_000, incarnation="2"), clock.now + 1)
    (node,) = proxies.fresh()
    assert node.incarnation == "2"
    clock.now += 11_000
    assert proxies.fresh() == []


def test_others_do_not_count() -> None:
    """Workers, draining proxies, and those without an admin address can't open a lease."""
    proxies, clock = view()
    proxies.take(Heartbeat(node_id="w", role="worker", admin_address="http://w:1", at=clock.now))
    proxies.take(beat("leaving", clock.now, is_draining=True))
    proxies.take(Heartbeat(node_id="half", role="proxy", at=clock.now))
    assert proxies.fresh() == []


def test_late_beats_do_not_take_us_back() -> None:
    """A beat that was overtaken by a newer one changes nothing."""
    proxies, clock = view()
    proxies.take(beat("p", clock.now, incarnation="new"))
    proxies.take(beat("p", clock.now - 1000, incarnation="old"))
    (node,) = proxies.fresh()
    assert node.incarnation == "new"


async def test_sessions_stay_and_spread() -> None:
    """A session always gets the same proxy, sessions spread over all, and only a dead proxy's sessions move."""
    proxies, clock = view()
    for name in ("a", "b", "c"):
        proxies.take(beat(name, clock.now))
    sessions = [f"session-{n}" for n in range(300)]
    first = {session: (await proxies.choose(session)).node_id for session in sessions}
    assert first == {session: (await proxies.choose(session)).node_id for session in sessions}
    assert all(60 < list(first.values()).count(name) < 140 for name in "abc")
    clock.now += 20_000
    for name in ("a", "b"):
        proxies.take(beat(name, clock.now))
    second = {session: (await proxies.choose(session)).node_id for session in sessions}
    assert all(second[session] == first[session] for session in sessions if first[session] != "c")


async def test_avoided_only_while_there_are_others() -> None:
    """A proxy to avoid is still better than none."""
    proxies, clock = view()
    proxies.take(beat("a", clock.now))
    assert (await proxies.choose("s", frozenset({"a"}))).node_id == "a"
    proxies.take(beat("b", clock.now))
    assert (await proxies.choose("s", frozenset({"a"}))).node_id == "b"


async def test_waits_for_the_first() -> None:
    """Without any proxy it waits until one announces itself."""
    proxies, clock = view()
    waiting = asyncio.create_task(proxies.choose("s"))
    await asyncio.sleep(0)
    assert not waiting.done()
    proxies.take(beat("a", clock.now))
    async with asyncio.timeout(10):
        assert (await waiting).node_id == "a"


def test_restart_is_noticed() -> None:
    """A proxy that came back is another one, at its new address."""
    proxies, clock = view()
    proxies.take(beat("p", clock.now, incarnation="1"))
    (node,) = proxies.fresh()
    assert proxies.is_same(node)
    proxies.take(Heartbeat(node_id="p", role="proxy", incarnation="2", admin_address="http://p:2", at=clock.now + 1))
    assert not proxies.is_same(node)
    assert proxies.admin_address(node) == "http://p:2"
