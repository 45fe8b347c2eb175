"""A running session keeps its lease: through the death, the restart, the freeze and the stop of its proxy."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from bus.memory import MemoryBus
from schemas import ids
from schemas.records import Boundary, SessionEvent, SessionEventType, Status
from stage_workers.keeper import LeaseKeeper
from stage_workers.model_socket import RouteOver
from stage_workers.proxies import ProxyNode
from stage_workers.sessions import OpenLease
from tests.stage_workers.model_socket.stubs import Handler, StubProxy, echo, half, silent
from tests.stage_workers.world import FakeProxy, World, task, world

# One call, as a client makes it; what it got is its output. `tries` is how often it tries.
CLIENT = """
import os, sys, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat"
for n in range(int(sys.argv[1])):
    try:
        print(urllib.request.urlopen(url, b"call", timeout=30).read().decode(), flush=True)
        break
    except OSError as error:
        print("failed:", error, flush=True)
else:
    sys.exit(int(sys.argv[2]))
"""


def client(tries: int = 1, code: int = 5, after: str = "") -> dict[str, Any]:
    return task(["/bin/sh", "-c", f'"{sys.executable}" -c "$0" {tries} {code}{after}', CLIENT])


@dataclass
class Node:
    """A proxy with both its listeners, which can be killed."""

    name: str
    admin: FakeProxy
    data: StubProxy
    _up: AsyncExitStack = field(default_factory=AsyncExitStack)

    @classmethod
    async def start(cls, name: str, serve: Handler) -> Node:
        node = cls(name, FakeProxy(incarnation=f"{name}.1"), StubProxy(f"{name}:".encode(), serve))
        await node._up.enter_async_context(node.admin.serving())
        upstream = await node.data.start()
        node._up.push_async_callback(node.data.stop)
        node.admin.data_address = f"http://127.0.0.1:{upstream.port}"
        return node

    async def kill(self) -> None:
        """Nothing of it answers any more."""
        await self._up.aclose()

    async def announce(self, around: World, **fields: Any) -> None:
        await around.announce_proxy(
            **{
                "node_id": self.name,
                "incarnation": self.admin.incarnation,
                "admin_address": self.admin.address,
                "data_address": self.admin.data_address,
            }
            | fields
        )


class Fleet:
    """Proxies of one test; whatever is left is stopped at its end."""

    def __init__(self, around: World) -> None:
        self.around = around
        self.nodes: list[Node] = []

    async def add(self, name: str, serve: Handler = echo) -> Node:
        node = await Node.start(name, serve)
        self.nodes.append(node)
        await node.announce(self.around)
        return node


@pytest.fixture
async def fleet(memory_bus: MemoryBus, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A worker that looks often, and no proxy yet."""
    settings = {"probe_every_s": 0.2, "probe_deadline_s": 1.0, "proxy_fresh_s": 60.0}
    async with world(memory_bus, tmp_path / "state", has_proxy=False, **settings) as around:
        found = Fleet(around)
        try:
            yield found
        finally:
            for node in found.nodes:
                await node.kill()


async def heard(around: World, kind: SessionEventType, count: int = 1) -> SessionEvent:
    def find() -> SessionEvent | None:
        found = [event for event in around.events("s1") if event.type is kind]
        return found[count - 1] if len(found) >= count else None

    event = await around.until(find, f"{kind} number {count}")
    assert isinstance(event, SessionEvent)
    return event


def said(around: World) -> str:
    return (around.settings.state_dir / "logs" / "s1" / "attempt-1" / "stdout.log").read_text()


async def test_a_dead_proxy_is_replaced(fleet: Fleet) -> None:
    """The unanswered call is answered by the next proxy, where the lease is open as writer 2; every writer is told and listed."""
    around = fleet.around
    first = await fleet.add("one", silent)
    await around.to_running("s1", client())
    await first.data.arrived.wait()
    second = await fleet.add("two")
    await first.kill()
    sealed = await heard(around, SessionEventType.SEALED)
    assert said(around) == "two:call\n"
    (opened,) = second.admin.opened
    (before,) = first.admin.opened
    assert (opened["writer"], opened["takes_over"], opened["lease_id"]) == (2, 1, ids.lease_id("s1", 1))
    assert opened["secret_hash"] == before["secret_hash"]
    assert 0 < opened["since_at"] == before["since_at"]
    assert sealed.writers == [1, 2]
    assert [body["writer"] for body in second.admin.sealed] == [2]
    started = [event for event in around.events("s1") if event.type is SessionEventType.STARTED]
    assert [event.writers for event in started] == [[1], [1, 2]]
    assert started[0].event_id != started[1].event_id
    assert (await heard(around, SessionEventType.FINISHED)).status is Status.COMPLETED


async def test_a_cut_answer_is_asked_for_again(fleet: Fleet) -> None:
    """An answer that had begun is broken off: the harness' own retry gets the next proxy's."""
    around = fleet.around
    first = await fleet.add("one", half)
    await around.to_running("s1", client(tries=3))
    await first.data.arrived.wait()
    await fleet.add("two")
    await first.kill()
    await heard(around, SessionEventType.SEALED)
    assert said(around).endswith("two:call\n")
    assert (await heard(around, SessionEventType.FINISHED)).status is Status.COMPLETED


async def test_a_restarted_proxy_is_another_one(fleet: Fleet) -> None:
    """The same proxy at the same addresses in a new incarnation knows nothing of the lease: it is opened there again."""
    around = fleet.around
    node = await fleet.add("one", silent)
    await around.to_running("s1", client())
    await node.data.arrived.wait()
    node.admin.incarnation = "one.2"
    node.data._serve = echo
    await node.announce(around)
    sealed = await heard(around, SessionEventType.SEALED)
    assert [(body["writer"], body["takes_over"]) for body in node.admin.opened] == [(1, 0), (2, 1)]
    assert (said(around), sealed.writers) == ("one:call\n", [1, 2])


async def test_a_frozen_proxy_is_noticed(fleet: Fleet) -> None:
    """A proxy that keeps its connections and says nothing, not even to a look, is given up after the look's deadline."""
    around = fleet.around
    first = await fleet.add("one", silent)
    await around.to_running("s1", client())
    await first.data.arrived.wait()
    await fleet.add("two")
    first.admin.is_frozen = True
    sealed = await heard(around, SessionEventType.SEALED)
    assert (said(around), sealed.writers) == ("two:call\n", [1, 2])


async def test_a_slow_proxy_is_not_left(fleet: Fleet) -> None:
    """A call that takes long at a proxy that answers to looks stays there, whatever else there is."""
    around = fleet.around

    async def slow(proxy: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.arrived.set()
        await asyncio.sleep(1.5)  # several looks
        await echo(proxy, reader, writer)

    await fleet.add("one", slow)
    await around.to_running("s1", client())
    second = await fleet.add("two")
    sealed = await heard(around, SessionEventType.SEALED)
    assert (said(around), sealed.writers) == ("one:call\n", [1])
    assert second.admin.opened == []


async def test_a_dropped_connection_is_no_death(fleet: Fleet) -> None:
    """A proxy that is well may drop a connection: the call is made there again, under the same writer."""
    around = fleet.around

    async def dropping(proxy: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not proxy.arrived.is_set():
            proxy.arrived.set()
            await reader.readuntil(b"call")
            return
        await echo(proxy, reader, writer)

    await fleet.add("one", dropping)
    await fleet.add("two", dropping)
    await around.to_running("s1", client())
    sealed = await heard(around, SessionEventType.SEALED)
    assert (said(around)[3:], sealed.writers) == (":call\n", [1])


async def test_a_proxy_that_stops_is_left_in_order(fleet: Fleet) -> None:
    """It says that it stops: the lease opens elsewhere, the answer that is under way still comes, and its writer is sealed."""
    around = fleet.around

    async def later(proxy: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.arrived.set()
        await proxy.go_on.wait()
        await echo(proxy, reader, writer)

    first = await fleet.add("one", later)
    await around.to_running("s1", client())
    await first.data.arrived.wait()
    second = await fleet.add("two")
    await first.announce(around, is_draining=True, details={"is_stopping": True})
    await heard(around, SessionEventType.STARTED, 2)
    assert [body["writer"] for body in second.admin.opened] == [2]
    first.data.go_on.set()
    await heard(around, SessionEventType.SEALED)
    assert said(around) == "one:call\n"
    assert 1 in [body["writer"] for body in first.admin.sealed]


async def test_a_lease_that_is_over_ends_the_run(fleet: Fleet) -> None:
    """A proxy that says that the lease is over (a zombie's, for example): the harness is killed at once, boundary provider."""
    around = fleet.around
    first = await fleet.add("one", silent)
    await around.to_running("s1", task("sleep 60"))
    second = await fleet.add("two")
    second.admin.refusals = [409]
    first.admin.incarnation = "one.2"
    await first.announce(around, is_draining=True)
    finished = await heard(around, SessionEventType.FINISHED)
    assert (finished.status, finished.boundary) == (Status.FAILED, Boundary.PROVIDER)
    assert "409" in finished.error


async def test_without_any_proxy_the_run_waits(fleet: Fleet) -> None:
    """Connections are held until a proxy comes, however late."""
    around = fleet.around
    first = await fleet.add("one", silent)
    await around.to_running("s1", client())
    await first.data.arrived.wait()
    await first.kill()
    await asyncio.sleep(1.0)  # several tries to open at what isn't there
    assert around.kinds("s1") == ["ready", "started"]
    await fleet.add("two")
    await heard(around, SessionEventType.SEALED)
    assert said(around) == "two:call\n"


@pytest.mark.parametrize(
    ("last_call", "code", "status", "boundary"),
    [
        (
            {"state": "failed", "boundary": "provider", "kind": "engine_error", "message": "boom"},
            0,
            Status.FAILED,
            "provider",
        ),
        (
            {"state": "refused", "boundary": "provider", "kind": "overloaded", "message": "no"},
            3,
            Status.FAILED,
            "provider",
        ),
        ({"state": "failed", "boundary": "provider", "kind": "context_overflow"}, 0, Status.COMPLETED, "none"),
        ({"state": "failed", "boundary": "provider", "kind": "bad_request"}, 3, Status.FAILED, "harness"),
        ({"state": "finished", "boundary": "none"}, 0, Status.COMPLETED, "none"),
        ({"state": "aborted", "boundary": "none"}, 3, Status.FAILED, "harness"),
        (None, 0, Status.COMPLETED, "none"),
    ],
)
async def test_the_last_call_settles_whose_fault_it_was(
    fleet: Fleet, last_call: dict[str, Any] | None, code: int, status: Status, boundary: str
) -> None:
    """A provider's failure on the last call is the run's, also at exit code 0; a request that no model could serve is not."""
    around = fleet.around
    node = await fleet.add("one")
    node.admin.last_call = last_call
    await around.to_running("s1", task(f"exit {code}"))
    finished = await heard(around, SessionEventType.FINISHED)
    assert (finished.status, str(finished.boundary), finished.exit_code) == (status, boundary, code)
    if boundary == "provider":
        assert str((last_call or {})["message"]) in finished.error


async def test_giving_up_after_a_cut_is_the_providers_fault(fleet: Fleet) -> None:
    """A harness that ends with 0 after its answer was cut, without another call, didn't end by its own doing."""
    around = fleet.around
    first = await fleet.add("one", half)
    await around.to_running("s1", client(tries=1, code=0))
    await first.data.arrived.wait()
    await fleet.add("two")
    await first.kill()
    finished = await heard(around, SessionEventType.FINISHED)
    assert (finished.status, finished.boundary, finished.exit_code) == (Status.FAILED, Boundary.PROVIDER, 0)


async def test_after_its_end_a_keeper_opens_nothing() -> None:
    """A connection that finds its proxy dead while the run is being closed begins no look and no take-over that would outlive it."""
    keeper = LeaseKeeper(cast("Any", None), cast("Any", None), "secret", is_forward=False)
    node = ProxyNode(node_id="p", incarnation="i", data_address="", admin_address="", fresh_until=0, is_draining=False)
    lease = OpenLease(node=node, secret="secret", writer=1)
    keeper._use(lease)
    await keeper.close()
    with pytest.raises(RouteOver):
        await keeper.examined(1)
    keeper._lose(lease, "gone")
    assert keeper.peek() is lease
    assert not keeper._tasks
