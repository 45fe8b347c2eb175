"""The admin listener: its key, opening, sealing, health."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from schemas import ids
from schemas.records import CompletionState, SessionState, Stage
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.test_service import ask, both
from tests.capture_proxy.wire import WIRES, Wire

MakeStack = Callable[..., Awaitable[Stack]]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/leases/open"), ("POST", "/leases/seal"), ("GET", "/leases"), ("GET", "/health")]
)
async def test_every_endpoint_wants_the_admin_key(stack: Stack, method: str, path: str) -> None:
    """A wrong key, no key and a lease's own secret are all 401."""
    for key in ("wrong", "", stack.secret):
        status, body = await stack.admin(method, path, {} if method == "POST" else None, key=key)
        assert status == 401
        assert "POLYNYA_ADMIN_KEY" in body["error"]


async def test_opening_is_answered_when_it_is_on_the_log_or_disk(make_stack: MakeStack) -> None:
    """The answer names lease and writer; `SessionOpened` carries the spec and the secret's hash."""
    stack = await make_stack()
    status, body = await stack.open()
    assert (status, body) == (200, {"lease_id": stack.lease_id, "writer": 1})
    await stack.until(lambda: bool(stack.openings))
    [opened] = stack.openings
    assert opened.secret_hash == ids.secret_hash(stack.secret)
    assert opened.spec is not None
    assert (opened.spec.task_id, opened.spec.harness, opened.proxy_id) == ("task-1", "shell", "proxy-a")


async def test_opening_again_is_the_same_opening(stack: Stack) -> None:
    """A retried open gives the same answer and no second fact; another secret for the same writer is refused."""
    assert await stack.open() == (200, {"lease_id": stack.lease_id, "writer": 1})
    status, body = await stack.open(secret_hash=ids.secret_hash("other"))
    assert (status, "another secret" in body["error"]) == (409, True)
    await stack.seal()
    await stack.until(lambda: bool(stack.seals))
    assert len(stack.openings) == 1


async def test_a_sealed_writer_cant_be_opened_again_but_the_next_can(stack: Stack) -> None:
    """After a seal the same writer is refused, and the next writer of the lease may come with the same secret."""
    await stack.seal()
    assert (await stack.open())[0] == 409
    assert (await stack.open(writer=2, takes_over=1))[0] == 200
    status, _ = await ask(stack, WIRES[0], stream=False)
    assert status == 200
    await stack.until(lambda: bool(stack.calls))
    assert (stack.calls[0].writer, stack.calls[0].call_seq) == (2, 1)


async def test_a_secret_belongs_to_one_lease(stack: Stack) -> None:
    """Opening another lease with a secret that is in use is refused."""
    status, body = await stack.open(lease_id="another-lease", session_id="session-2")
    assert (status, "already belongs" in body["error"]) == (409, True)


@pytest.mark.parametrize(
    "change",
    [{"attempt": 0}, {"secret_hash": "short"}, {"lease_id": ""}, {"surprise": 1}, {"spec": {"index": "no"}}],
    ids=lambda change: next(iter(change)),
)
async def test_a_bad_opening_is_a_400_that_names_the_field(make_stack: MakeStack, change: dict[str, object]) -> None:
    """What doesn't fit is refused with its path."""
    stack = await make_stack()
    status, body = await stack.open(**change)
    assert status == 400
    assert next(iter(change)) in body["error"]


async def test_sealing_twice_gives_one_fact(stack: Stack) -> None:
    """Seal is idempotent: the same last_seq, one `SessionSealed`."""
    await ask(stack, WIRES[0], stream=False)
    answers = await asyncio.gather(*(stack.seal() for _ in range(3)))
    assert {a[0] for a in answers} == {200}
    assert {a[1]["last_seq"] for a in answers} == {1}
    assert (await stack.seal())[1]["last_seq"] == 1
    await stack.until(lambda: bool(stack.seals))
    assert [(s.last_seq, s.reason) for s in stack.seals] == [(1, "done")]


async def test_sealing_what_isnt_known_is_a_404(stack: Stack) -> None:
    """A lease or writer that was never opened here can't be sealed here."""
    assert (await stack.seal(lease_id="nobody"))[0] == 404
    assert (await stack.seal(writer=7))[0] == 404


@both
async def test_a_seal_waits_for_running_calls(stack: Stack, wire: Wire) -> None:
    """A call in flight finishes within the drain; the seal comes after its record and its delivery."""
    stack.engine.pause_at = 4
    stack.engine.go.clear()
    asking = asyncio.create_task(ask(stack, wire, stream=True))
    await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
    sealing = asyncio.create_task(stack.seal())
    lease = stack.proxy.recorder.book.find(stack.lease_id, 1)
    assert lease is not None
    await stack.until(lambda: lease.state == "sealing")
    refused, _ = await ask(stack, wire, stream=False)
    assert refused == 409
    stack.engine.go.set()
    status, body = await asking
    assert (status, wire.read_stream(body).text) == (200, "Hello there.")
    assert (await sealing)[1]["last_seq"] == 1
    await stack.until(lambda: bool(stack.seals))
    kinds = [type(d.decode()).__name__ for d in stack.bus.records("capture.completions")]
    assert kinds == ["SessionOpened", "CompletionRecord", "CompletionDelivery", "SessionSealed"]


@both
async def test_a_seal_aborts_what_doesnt_end(make_stack: MakeStack, wire: Wire) -> None:
    """After the drain's time the call is aborted at the engine, recorded, and the client hears the dialect's error."""
    stack = await make_stack(seal_drain_s=0.2)
    await stack.open()
    stack.engine.pause_at = 4
    stack.engine.go.clear()
    asking = asyncio.create_task(ask(stack, wire, stream=False))
    await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
    _, sealed = await stack.seal()
    assert sealed["last_seq"] == 1
    status, _ = await asking
    assert status == 409
    await stack.until(lambda: bool(stack.seals and stack.engine.aborts))
    [record] = stack.calls
    assert record.state is CompletionState.ABORTED
    assert record.error is not None
    assert record.error.kind == "sealed"


async def test_leases_and_health_show_what_is_open(stack: Stack) -> None:
    """An operator sees leases, counts, engines and the spool; no secret and no hash."""
    await ask(stack, WIRES[0], stream=False)
    _, leases = await stack.admin("GET", "/leases")
    assert [(x["session_id"], x["state"], x["last_seq"]) for x in leases["leases"]] == [("session-1", "open", 1)]
    await stack.until(lambda: stack.proxy.spool.relay.unacked == 0)
    status, health = await stack.admin("GET", "/health")
    assert status == 200
    assert health["is_healthy"]
    assert health["counts"]["finished"] == 1
    assert health["spool"]["unacked_entries"] == 0
    assert health["engines"][0]["url"] == stack.engine.url
    assert stack.secret not in str((leases, health))


async def test_a_draining_proxy_opens_nothing_new(stack: Stack) -> None:
    """Drain: open leases go on, new ones are told to go elsewhere."""
    stack.proxy.drain()
    status, said = await stack.open(lease_id="another", session_id="s2", secret_hash=ids.secret_hash("x"))
    assert (status, said["is_certain"]) == (503, True)
    assert (await ask(stack, WIRES[0], stream=False))[0] == 200


async def test_a_writer_says_how_its_last_call_ended(stack: Stack) -> None:
    """None before the first call, then the call's end, also at the seal; what isn't known here is a 404."""
    path = f"/leases/{stack.lease_id}/1"
    status, found = await stack.admin("GET", path)
    assert (status, found["state"], found["last_call"]) == (200, "open", None)
    await ask(stack, WIRES[0], stream=False)
    _, found = await stack.admin("GET", path)
    assert (found["last_call"]["call_seq"], found["last_call"]["state"], found["last_call"]["boundary"]) == (
        1,
        "finished",
        "none",
    )
    await stack.proxy.engines.remove("*", stack.engine.url)
    assert (await ask(stack, WIRES[0], stream=False))[0] == 503
    _, sealed = await stack.admin("POST", "/leases/seal", {"lease_id": stack.lease_id, "writer": 1, "reason": "x"})
    assert (sealed["last_call"]["state"], sealed["last_call"]["boundary"]) == ("failed", "provider")
    assert sealed["last_call"]["kind"] == "engine_unavailable"
    assert (await stack.admin("GET", path))[1]["state"] == "sealed"
    assert (await stack.admin("GET", f"/leases/{stack.lease_id}/2"))[0] == 404


async def test_a_given_up_attempt_opens_nothing(stack: Stack) -> None:
    """A worker that was thought dead can't open another writer of its lease once a later attempt is known."""
    later = SessionState(session_id="session-1", attempt=2, stage=Stage.INIT, state_version=7)
    stack.proxy.view.take_state(later)
    status, body = await stack.open(writer=2, takes_over=1)
    assert (status, "given up" in body["error"]) == (409, True)


async def test_a_stopping_proxy_waits_for_leases_that_move(make_stack: MakeStack) -> None:
    """It says that it stops, keeps a lease open whose worker can move it, and is gone as soon as that is sealed."""
    stack = await make_stack(handover_s=20.0)
    assert (await stack.open(can_move=True))[0] == 200
    stopping = asyncio.create_task(stack.proxy.stop())
    while not stack.proxy.presence.heartbeat(1).details.get("is_stopping"):
        await asyncio.sleep(0.01)
    assert (await ask(stack, WIRES[0], stream=False))[0] == 200
    await stack.seal()
    async with asyncio.timeout(15.0):
        await stopping


async def test_a_stopping_proxy_waits_no_longer_than_told(make_stack: MakeStack) -> None:
    """Where nobody moves the lease, it is sealed after `handover_s`."""
    stack = await make_stack(handover_s=0.2)
    assert (await stack.open(can_move=True))[0] == 200
    await stack.proxy.stop()
    assert [sealed.reason for sealed in stack.seals] == ["proxy_stopped"]
