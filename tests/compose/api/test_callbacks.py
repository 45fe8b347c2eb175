"""Callbacks: at least once, signed, through failures, kills and restarts, and only where the operator allows it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr

from bus.memory import MemoryBus
from compose.api.callbacks.allowed import refusal
from compose.api.callbacks.sender import Sender
from compose.api.callbacks.service import RESULTS_GROUP
from schemas.records import Callback, CallbackState, Status
from tests.compose.api import facts
from tests.compose.api.conftest import serving, settings, settled
from trainer_sink.client import verify_callback

SECRET = "sign-with-this"


class Receiver:
    """A real HTTP server that answers with the statuses that it is given, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.url = ""
        self._changed = asyncio.Condition()

    async def _take(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        async with self._changed:
            self._changed.notify_all()
        status = self.statuses.pop(0) if self.statuses else 200
        headers = {"Location": "http://169.254.169.254/"} if status == 302 else {}
        return web.Response(status=status, headers=headers)

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[Receiver]:
        """Listen for the block."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/hook", self._take)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def wait_for(self, count: int) -> list[tuple[dict[str, str], bytes]]:
        """Wait until so many requests came."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.got) >= count)
        return self.got

    def bodies(self) -> list[dict[str, Any]]:
        """What was posted."""
        return [json.loads(body) for _, body in self.got]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver that takes everything."""
    async with Receiver().listening() as made:
        yield made


def calling(bus: MemoryBus, **fields: Any) -> Any:
    """An API that makes callbacks to this machine."""
    given = {"callback_hosts": ("127.0.0.1",), "callback_first_pause_s": 0.05, "callback_longest_pause_s": 0.2}
    return serving(bus, callback_key=SecretStr(SECRET), **{**given, **fields})


async def ends(bus: MemoryBus, *states: CallbackState) -> list[Callback]:
    """The callbacks that stand in these states, once there is one in each."""
    async with asyncio.timeout(20):
        async for _ in bus.tail(["rollout.callbacks"]):
            found = [d.decode() for d in bus.records("rollout.callbacks")]
            kept = [c for c in found if isinstance(c, Callback) and c.state in states]
            if {c.state for c in kept} == set(states):
                return kept
    raise AssertionError


async def test_each_session_and_the_task_are_told_signed(memory_bus, receiver, task):
    """One signed summary per session, one for the task's end; the task says how its callbacks went."""
    async with calling(memory_bus) as client:
        await client.post("/api/tasks", json=task(task_id="t-1", num_samples=2, callback_url=receiver.url))
        await facts.lived(memory_bus, "t-1", 2)
        got = await receiver.wait_for(3)
        for headers, body in got:
            assert verify_callback(SECRET, body, headers["Polynya-Signature"])
            assert not verify_callback("another key", body, headers["Polynya-Signature"])
            assert not verify_callback(SECRET, body + b" ", headers["Polynya-Signature"])
            assert headers["Polynya-Delivery"] == json.loads(body)["delivery_id"]
        events = [body["event"] for body in receiver.bodies()]
        assert sorted(events) == ["session.scored", "session.scored", "task.scored"]
        session = next(b for b in receiver.bodies() if b["event"] == "session.scored")
        assert (session["task_id"], session["status"], session["reward"]) == ("t-1", "completed", 1.0)
        last = next(b for b in receiver.bodies() if b["event"] == "task.scored")
        assert [s["index"] for s in last["sessions"]] == [0, 1]
        async with asyncio.timeout(10):
            while (state := (await client.get("/api/tasks/t-1")).json()["callbacks"])["delivered"] < 3:
                await asyncio.sleep(0.01)
        assert (state["due"], state["given_up"]) == (0, 0)


async def test_a_receiver_that_fails_twice_is_tried_a_third_time(memory_bus, task):
    """Between the tries the callback stands on the log; the third try has the same delivery id and a fresh signature."""
    async with Receiver(500, 503).listening() as receiver, calling(memory_bus) as client:
        await client.post("/api/tasks", json=task(task_id="t-1", callback_url=receiver.url))
        await facts.registered(memory_bus, "t-1", 2)
        await facts.told(memory_bus, "t-1", 0, 2)
        got = await receiver.wait_for(3)
        (delivered,) = await ends(memory_bus, CallbackState.DELIVERED)
    assert len({headers["Polynya-Delivery"] for headers, _ in got}) == 1
    assert all(verify_callback(SECRET, body, headers["Polynya-Signature"]) for headers, body in got)
    assert delivered.tries >= 3


async def test_a_callback_survives_the_end_of_its_process(memory_bus, task):
    """What one process couldn't deliver, the next one does, and nothing that was delivered comes again."""
    async with Receiver().listening() as receiver:
        url, port = receiver.url, int(receiver.url.split(":")[2].split("/")[0])
    async with calling(memory_bus) as client:  # nobody listens there now
        await client.post("/api/tasks", json=task(task_id="t-1", callback_url=url))
        await facts.registered(memory_bus, "t-1", 2)
        await facts.told(memory_bus, "t-1", 0, 2)
        await ends(memory_bus, CallbackState.DUE)
    async with receiver.listening(port), calling(memory_bus):
        await receiver.wait_for(1)
        await ends(memory_bus, CallbackState.DELIVERED)
    assert [b["event"] for b in receiver.bodies()] == ["session.scored"]
    async with receiver.listening(port), calling(memory_bus) as client:
        await settled(client)
        await facts.told(memory_bus, "t-1", 1, 2)
        await receiver.wait_for(3)
    assert [b["event"] for b in receiver.bodies()] == ["session.scored", "session.scored", "task.scored"]


async def test_a_killed_process_repeats_at_most_what_it_had_in_hand(memory_bus, receiver, task):
    """Killed between the delivery and its fact, the callback comes twice, under one id: at least once."""
    async with calling(memory_bus) as client:
        await client.post("/api/tasks", json=task(task_id="t-1", callback_url=receiver.url))
        await facts.registered(memory_bus, "t-1", 2)
        await settled(client)
        real, blocked = memory_bus.publish, asyncio.Event()

        async def never(record: Any, **options: Any) -> Any:
            if isinstance(record, Callback):
                blocked.set()
                await asyncio.Event().wait()
            return await real(record, **options)

        memory_bus.publish = never
        await facts.told(memory_bus, "t-1", 0, 2)
        await blocked.wait()
        app_callbacks = client._transport.app.state.callbacks
        for running in app_callbacks._running:
            running.cancel()
        memory_bus.publish = real
    assert not any(memory_bus.committed(RESULTS_GROUP).values())
    async with calling(memory_bus):
        got = await receiver.wait_for(2)
    assert len({headers["Polynya-Delivery"] for headers, _ in got}) == 1


async def test_after_the_deadline_it_is_given_up_with_a_reason(memory_bus, task):
    """Not for ever: the fact says why, and so does the task."""
    async with Receiver(*[500] * 50).listening() as receiver, calling(memory_bus, callback_deadline_s=0.3) as client:
        await client.post("/api/tasks", json=task(task_id="t-1", callback_url=receiver.url))
        await facts.registered(memory_bus, "t-1", 2)
        await facts.told(memory_bus, "t-1", 0, 2)
        (given_up,) = await ends(memory_bus, CallbackState.GIVEN_UP)
        await settled(client)
        told = (await client.get("/api/tasks/t-1")).json()["callbacks"]
    assert "not delivered within 0.3 s: answered 500" in given_up.error
    assert (told["given_up"], told["last_error"]) == (1, given_up.error)


async def test_a_redirect_is_a_failure(memory_bus, task):
    """Who is allowed can't send us elsewhere."""
    async with Receiver(302).listening() as receiver, calling(memory_bus) as client:
        await client.post("/api/tasks", json=task(task_id="t-1", callback_url=receiver.url))
        await facts.registered(memory_bus, "t-1", 2)
        await facts.told(memory_bus, "t-1", 0, 2)
        due = await ends(memory_bus, CallbackState.DUE)
        await receiver.wait_for(2)
    assert any("redirects aren't followed" in c.error for c in due)


async def test_a_url_that_came_past_the_api_is_checked_before_it_is_called(memory_bus, receiver, task):
    """A task on the log names a host that isn't allowed (any more): given up, not called."""
    host = receiver.url.replace("127.0.0.1", "localhost")
    await facts.registered(memory_bus, "t-1", 2, task(callback_url=host))
    async with calling(memory_bus):
        await facts.told(memory_bus, "t-1", 0, 2)
        (given_up,) = await ends(memory_bus, CallbackState.GIVEN_UP)
    assert "localhost" in given_up.error
    assert receiver.got == []


async def test_a_dead_receiver_holds_up_nobody_else(memory_bus, receiver, task):
    """While one host fails, another's callbacks go out at once."""
    async with calling(memory_bus, callback_longest_pause_s=60, callback_first_pause_s=60) as client:
        await client.post("/api/tasks", json=task(task_id="dead", callback_url="http://127.0.0.1:9/"))
        await client.post("/api/tasks", json=task(task_id="alive", callback_url=receiver.url))
        for name in ("dead", "alive"):
            await facts.registered(memory_bus, name, 8)
            for index in range(7):
                await facts.told(memory_bus, name, index, 8)
        await receiver.wait_for(7)
        assert {b["task_id"] for b in receiver.bodies()} == {"alive"}


async def test_a_host_that_answers_byte_by_byte_is_left_in_time() -> None:
    """Each byte would begin the client's time-out anew; a whole try has a limit of its own."""
    left = asyncio.Event()

    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        left.set()

    server = await asyncio.start_server(dribble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sender = Sender(settings(callback_key=SecretStr(SECRET), callback_timeout_s=0.1))
    try:
        async with asyncio.timeout(10):
            outcome = await sender.post(f"http://127.0.0.1:{port}/", b"{}", event="x", delivery_id="d")
    finally:
        await sender.close()
        async with asyncio.timeout(10):
            await left.wait()
        server.close()
        await server.wait_closed()
    assert (outcome.is_delivered, outcome.status_code) == (False, 0)
    assert "TimeoutError" in outcome.error


async def test_in_polars_shape_the_task_is_told_whole(memory_bus, receiver):
    """A task of Polar's form gets one TaskResult with every session's traces, at its end."""
    async with calling(memory_bus) as client:
        body = {
            "task_id": "p-1",
            "instruction": "hi",
            "num_samples": 2,
            "agent": {"harness": "shell", "custom_shell": "true"},
            "callback_url": receiver.url,
        }
        assert (await client.post("/rollout/task/submit", json=body)).status_code == 200
        await facts.registered(memory_bus, "p-1", 2)
        await facts.told(memory_bus, "p-1", 0, 2)
        await facts.told(memory_bus, "p-1", 1, 2, status=Status.TIMEOUT)
        await receiver.wait_for(1)
        await ends(memory_bus, CallbackState.DELIVERED)
    (result,) = receiver.bodies()
    assert (result["task_id"], result["status"]) == ("p-1", "completed")
    assert [r["status"] for r in result["results"]] == ["COMPLETED", "TIMEOUT"]
    assert result["results"][0]["trajectory"]["traces"][0]["response_ids"] == [3, 4, 5]


@pytest.mark.parametrize(
    ("url", "hosts", "is_allowed"),
    [
        ("http://a.example/x", ("a.example",), True),
        ("http://A.EXAMPLE/x", ("a.example",), True),
        ("https://b.a.example", ("*.a.example",), True),
        ("https://a.example", ("*.a.example",), False),
        ("https://evila.example", ("*.a.example",), False),
        ("http://a.example:81", ("a.example:80",), False),
        ("http://a.example", ("a.example:80",), True),
        ("http://[::1]:9/", ("::1",), True),
        ("http://[::1]:9/", ("[::1]:9",), True),
        ("http://user:pw@a.example/", ("a.example",), False),
        ("http://a.example@evil/", ("a.example",), False),
        ("ftp://a.example/", ("a.example",), False),
        ("http://a.example", (), False),
        ("http://a.example:x/", ("a.example",), False),
        ("http:///x", ("",), False),
    ],
)
def test_only_the_operators_hosts_are_called(url: str, hosts: tuple[str, ...], is_allowed: bool) -> None:
    """Host and port as a client would see them, against the operator's list."""
    made = settings(callback_key=SecretStr("k"), callback_hosts=hosts)
    assert (refusal(url, made) == "") == is_allowed


def test_a_signature_has_an_age() -> None:
    """A body that is replayed later is refused; headers that are none are refused, too."""
    from trainer_sink.client.callbacks import sign_callback

    header = sign_callback("k", b"{}", 1000)
    assert verify_callback("k", b"{}", header, now_s=1200)
    assert not verify_callback("k", b"{}", header, now_s=1301)
    for odd in ("", "t=1000", "v1=00", "t=x,v1=y", "t=²,v1=y", f"t={'9' * 5000},v1=y", header.replace("v1=", "v2=")):
        assert not verify_callback("k", b"{}", odd, now_s=1000)
