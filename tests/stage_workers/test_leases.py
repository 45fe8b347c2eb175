"""Opening a lease's writers: which proxy is asked, and what its answer means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from pydantic import SecretStr

from schemas.records import Heartbeat
from stage_workers.admin import AdminClient, ProxyRefusedError
from stage_workers.guard import ProxyGuard
from stage_workers.leases import LeaseOpener
from stage_workers.proxies import ProxyView
from stage_workers.sessions import Session
from tests.stage_workers.test_sessions import session
from tests.stage_workers.world import ADMIN_KEY, FakeProxy, now_ms


@asynccontextmanager
async def opening(*proxies: FakeProxy) -> AsyncIterator[tuple[LeaseOpener, Session, ProxyView, AdminClient]]:
    """An opener that has heard of these proxies (p0, p1, …)."""
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(AdminClient(SecretStr(ADMIN_KEY)))
        view = ProxyView(60.0, now_ms)
        for number, proxy in enumerate(proxies):
            await stack.enter_async_context(proxy.serving())
            view.take(
                Heartbeat(
                    node_id=f"p{number}",
                    role="proxy",
                    incarnation=proxy.incarnation,
                    admin_address=proxy.address,
                    at=now_ms(),
                )
            )
        settings = SimpleNamespace(open_deadline_s=5.0, probe_deadline_s=1.0)
        guard = ProxyGuard(admin, view, every_s=0.1, deadline_s=1.0)
        kit = SimpleNamespace(settings=settings, proxies=view, admin=admin, guard=guard, now_ms=now_ms)
        held = session()
        held.lease_id = "lease"
        yield LeaseOpener(cast("Any", kit), held, "secret"), held, view, admin


class Draining(FakeProxy):
    """Says that it did nothing, and always will."""

    asked = 0

    async def open(self, request: Any) -> Any:
        self.asked += 1
        response = await super().open(request)
        response.set_status(503)
        response.text = '{"error": "this proxy is draining", "is_certain": true}'
        return response


async def test_a_proxy_that_did_nothing_is_left_for_another_one() -> None:
    """A proxy that began to drain before we heard of it isn't asked for ever; writer 1 is still free for the next one."""
    proxies = [FakeProxy(), FakeProxy()]
    async with opening(*proxies) as (_, held, view, _admin):
        chosen = int((await view.choose(held.session_id)).node_id[1:])
    draining = Draining()
    proxies[chosen], proxies[1 - chosen] = draining, FakeProxy()
    async with opening(*proxies) as (opener, held, _, _admin):
        lease = await opener.first()
        assert (lease.node.node_id, lease.writer, held.writers) == (f"p{1 - chosen}", 1, [1])
        assert draining.asked == 1


async def test_a_proxy_that_thaws_keeps_its_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only proxy didn't answer to a look, then refuses a second writer for the secret that it has: the first one goes on."""
    proxy = FakeProxy()
    async with opening(proxy) as (opener, held, _, admin):
        first = await opener.first()
        proxy.refusals = [409]
        look, looks = admin.lease, 0

        async def frozen_once(*args: Any) -> Any:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise ProxyRefusedError("frozen")
            return await look(*args)

        monkeypatch.setattr(admin, "lease", frozen_once)
        assert await opener.next(frozenset({"p0"}), held=first) is first
        assert (looks, held.writers) == (2, [1])


async def test_a_restart_that_is_heard_of_late_costs_no_writer() -> None:
    """The lease was opened at the new incarnation already, at the same address: it stays, noted as that one's."""
    proxy = FakeProxy(incarnation="p2")
    async with opening(proxy) as (opener, held, view, _admin):
        proxy_beat: dict[str, Any] = {"node_id": "p0", "role": "proxy", "admin_address": proxy.address}
        view.take(Heartbeat(incarnation="p1", at=now_ms() + 1, **proxy_beat))
        first = await opener.first()
        assert first.node.incarnation == "p1"
        view.take(Heartbeat(incarnation="p2", at=now_ms() + 2, **proxy_beat))
        kept = await opener.next(frozenset({"p0"}), held=first)
        assert (kept.writer, kept.node.incarnation, held.leases, len(proxy.opened)) == (1, "p2", [kept], 1)
        await opener.next(frozenset({"p0"}), held=None)
        assert held.writers == [1, 2]


class FrozenOnce(FakeProxy):
    """Opens what it is asked for, but its first answer, and those to looks, come too late; then it is well again."""

    by_number: int = 0

    async def open(self, request: Any) -> Any:
        body = await request.json()
        if self.by_number not in {0, body["writer"]}:
            return web.json_response({"error": "the secret belongs to another writer"}, status=409)
        is_first, self.by_number = not self.by_number, body["writer"]
        if not is_first:
            return await super().open(request)
        return web.json_response({"error": "late"}, status=504)

    async def health(self, request: Any) -> Any:
        return web.json_response({"incarnation": "" if self.opened else "another"})


async def test_a_number_that_may_be_open_is_asked_for_again_where_it_may_be() -> None:
    """The only proxy is given up with writer 1 perhaps open there, and is there after all: no second writer, which it would refuse."""
    async with opening(FrozenOnce()) as (opener, held, _, _admin):
        lease = await opener.first()
        assert (lease.writer, held.writers) == (1, [1])


async def test_a_frozen_proxy_keeps_nobody_from_the_others() -> None:
    """However many seals wait for it (every session that it had): the next proxy is looked at and asked all the same."""
    frozen, well = FakeProxy(is_frozen=True), FakeProxy(incarnation="p2")
    async with opening(frozen, well) as (_, _held, _view, admin), asyncio.TaskGroup() as group:
        seals = [group.create_task(admin.seal(frozen.address, "lease", n, "taken_over")) for n in range(150)]
        async with asyncio.timeout(20):
            while frozen.waiting < len(seals):
                await asyncio.sleep(0.01)
        assert await admin.incarnation(well.address, 5.0) == "p2"
        frozen.is_frozen = False
    assert len(frozen.sealed) == len(seals)
