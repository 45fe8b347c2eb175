"""One proxy's life: its parts are started, drained and taken down in order."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

import structlog

from bus import EventLog
from capture_proxy.assembly import assemble
from capture_proxy.authority import ensure_authority
from capture_proxy.body_gate import set_gate
from capture_proxy.engines import Engine, make_engine
from capture_proxy.leases import LeaseState
from capture_proxy.presence import Presence, Pulse, write_ports
from capture_proxy.rendering.base import Renderer
from capture_proxy.settings import ProxySettings
from capture_proxy.spool import SpoolRefusalError

log = structlog.get_logger(__name__)

_HAND_OVER_LOOK_S = 0.05


class CaptureProxy:
    """One proxy incarnation. `start` returns when it takes calls; `stop` drains, seals, relays and closes."""

    def __init__(
        self,
        settings: ProxySettings,
        bus: EventLog,
        renderer: Renderer,
        *,
        make: Callable[[str, str], Engine] = make_engine,
        fsync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        self.settings = settings
        self.incarnation = uuid.uuid4().hex
        self._bus = bus
        self._renderer = renderer
        self._make = make
        self._fsync = fsync
        self._is_running = False

    async def start(self) -> None:
        """Builds and starts the parts; raises OSError when the spool or a port can't be had, and then nothing is left running."""
        self._build()
        try:
            await self._start_parts()
        except BaseException:  # whatever it was, nothing may be left running
            await self._close()
            raise
        if self.settings.ports_file is not None:
            write_ports(self.settings.ports_file, self.presence.ports())
        log.info("proxy.started", proxy_id=self.settings.proxy_id, data=self.data_address, admin=self.admin_address)

    def _build(self) -> None:
        parts = assemble(
            self.settings,
            self._bus,
            self._renderer,
            incarnation=self.incarnation,
            make=self._make,
            fsync=self._fsync,
            health=self.health,
            on_drain=self.drain,
        )
        self.spool, self.adopter, self.rebuilder = parts.spool, parts.adopter, parts.rebuilder
        self.recorder, self.engines, self.tap = parts.recorder, parts.engines, parts.tap
        self.listener, self.lag, self._steps = parts.listener, parts.lag, parts.steps
        self.view, self.admin = parts.view, parts.admin
        set_gate(self._steps.gate)
        self.presence = Presence(self.settings, self.incarnation, self.recorder, self.listener, self.admin)
        self._pulse = Pulse(self._bus, self.presence.heartbeat, every_s=self.settings.heartbeat_s)

    async def _start_parts(self) -> None:
        settings = self.settings
        self.spool.start()
        await self.adopter.start()
        for engine in settings.engines:
            key = engine.api_key.get_secret_value() if engine.api_key else None
            client = make_engine(engine.kind, engine.url, key) if key else None
            self.engines.add(engine.policy_id, engine.url, engine.kind, engine=client)
        self.lag.start()
        await self.tap.start()
        authority_dir = None
        if settings.forward_port is not None:
            authority_dir = settings.authority_dir or settings.spool_dir.parent / "ca"
            self.presence.authority_pem = await asyncio.to_thread(ensure_authority, authority_dir)
        await self.listener.start(
            self._steps.addons,
            host=settings.host,
            port=settings.port,
            upstream_port=self.tap.port,
            idle_s=settings.call_timeout_s + 60.0,
            forward=None if settings.forward_port is None else (settings.forward_host, settings.forward_port),
            authority_dir=authority_dir,
        )
        await self.admin.start(settings.admin_host, settings.admin_port)
        self.view.start()
        self._pulse.start()
        self._is_running = True

    @property
    def data_address(self) -> str:
        """The data listener's URL."""
        return self.presence.data_address

    @property
    def forward_address(self) -> str:
        """The forward listener's URL, for `HTTPS_PROXY`; empty where there is none."""
        return self.presence.forward_address

    @property
    def admin_address(self) -> str:
        """The admin listener's URL."""
        return self.presence.admin_address

    def drain(self, is_draining: bool = True) -> None:
        """Takes no further leases, the open ones go on; or takes them again, unless it stops."""
        self.recorder.is_draining = is_draining or self.presence.is_stopping
        self._pulse.beat_now()

    def health(self) -> dict[str, Any]:
        """What an operator asks first: may calls be made, and if not, why."""
        problem = ""
        try:
            self.spool.check_room()
        except SpoolRefusalError as exc:
            problem = str(exc)
        problem = problem or "; ".join(f"{name}: {why}" for name, why in self.view.problems.items())
        return {
            "is_healthy": not problem,
            "problem": problem,
            "proxy_id": self.settings.proxy_id,
            "incarnation": self.incarnation,
            "is_draining": self.recorder.is_draining,
            "open_leases": len(self.recorder.book.active()),
            "in_flight": self.tap.in_flight,
            "lineage": self.recorder.lineages.describe(),
            "undelivered_bytes": self.tap.undelivered.size_bytes,
            "connections": self.listener.connections,
            "loop_lag": self.lag.describe(),
            "counts": dict(self.recorder.counts),
            "engines": self.engines.describe(),
            "spool": {
                **self.spool.describe(),
                "adopted": len(self.adopter.adopted),
                "unreadable": dict(self.adopter.unreadable),
            },
        }

    async def stop(self) -> None:
        """No new leases; those that can move do; running calls get the drain's time; every lease is sealed; the spool is relayed."""
        if not self._is_running:
            return
        self._is_running = False
        self.presence.is_stopping = True
        self.drain()
        await self._hand_over()
        leases = self.recorder.book.active()
        for lease in leases:
            self.recorder.begin_seal(lease, "proxy_stopped")
        for lease in leases:
            await lease.sealed.wait()
        await self._close()

    async def _hand_over(self) -> None:
        """Gives those who can a moment to open their leases elsewhere: they seal ours as they go."""
        until = time.monotonic() + self.settings.handover_s
        while any(lease.can_move and lease.state is LeaseState.OPEN for lease in self.recorder.book.active()):
            if time.monotonic() > until:
                return
            await asyncio.sleep(_HAND_OVER_LOOK_S)

    async def _close(self) -> None:
        await self._pulse.stop()
        await self.view.stop()
        await self.rebuilder.stop()
        await self.admin.stop()
        await self.listener.stop()
        set_gate(None)
        await self.lag.stop()
        await self.tap.stop()
        await self.adopter.stop(self.settings.stop_relay_s)
        is_done = await self.spool.stop(self.settings.stop_relay_s)
        await self.engines.close()
        log.info("proxy.stopped", proxy_id=self.settings.proxy_id, spool_is_empty=is_done)


async def run(settings: ProxySettings) -> None:
    """Runs one proxy until SIGTERM or SIGINT."""
    import bus
    from capture_proxy.rendering.load import load_renderer

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    renderer = await asyncio.to_thread(load_renderer, settings.model_dir, family=settings.model_family)
    connected = bus.connect(settings.bus)
    async with connected:
        proxy = CaptureProxy(settings, connected, renderer)
        try:
            await proxy.start()
            await stopping.wait()
        finally:
            await proxy.stop()
