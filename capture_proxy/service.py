"""Wires settings to parts, runs them, and takes them down in order."""

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
from capture_proxy.admin import Admin
from capture_proxy.authority import ensure_authority
from capture_proxy.body_gate import set_gate
from capture_proxy.engine_pool import EnginePool
from capture_proxy.engines import Engine, make_engine
from capture_proxy.leases import LeaseBook, LeaseState
from capture_proxy.lineage.book import Lineages
from capture_proxy.lineage.rebuild import Rebuilder
from capture_proxy.loop_lag import LoopLag
from capture_proxy.mitm import Listener
from capture_proxy.pipeline import pipeline
from capture_proxy.ports import now_ms
from capture_proxy.presence import Pulse, write_ports
from capture_proxy.recorder import Recorder
from capture_proxy.rendering.base import Renderer
from capture_proxy.sessions import SessionsView
from capture_proxy.settings import ProxySettings
from capture_proxy.spool import Spool, SpoolRefusalError
from capture_proxy.spool.adoption import Adopter
from capture_proxy.tap import Tap
from schemas.records import Heartbeat, Held, Stage

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
        self._pulse = Pulse(bus, self._heartbeat_record, every_s=settings.heartbeat_s)
        self._is_running = self._is_stopping = False
        self._authority_pem = ""

    async def start(self) -> None:
        """Builds and starts the parts; raises OSError when the spool or a port can't be had, and then nothing is left running."""
        self._build()
        try:
            await self._start_parts()
        except BaseException:  # whatever it was, nothing may be left running
            await self._close()
            raise
        if self.settings.ports_file is not None:
            write_ports(self.settings.ports_file, self._ports())
        log.info("proxy.started", proxy_id=self.settings.proxy_id, data=self.data_address, admin=self.admin_address)

    def _build(self) -> None:
        settings = self.settings
        root, name = settings.spool_dir, f"{settings.proxy_id}-{self.incarnation}"
        self.spool = Spool.create(
            root,
            name,
            self._bus,
            segment_bytes=settings.spool_segment_bytes,
            fsync=self._fsync,
            limit_bytes=settings.spool_limit_bytes,
            ack_wait_s=settings.ack_wait_ms / 1000.0,
            commit_timeout_s=settings.commit_timeout_s,
        )
        self.adopter = Adopter(root, name, self._bus, every_s=settings.adopt_every_s)
        self.rebuilder = Rebuilder(self._bus, adopt=self.adopter.adopt_now, wait_s=settings.takeover_wait_s)
        self.recorder = Recorder(
            self.spool,
            LeaseBook(),
            lineages=Lineages(
                max_bytes=settings.lineage_max_bytes,
                rebuilder=self.rebuilder,
                is_relayed=self.spool.relay.is_relayed,
            ),
            proxy_id=settings.proxy_id,
            incarnation=self.incarnation,
            seal_drain_s=settings.seal_drain_s,
            seal_delivery_s=settings.seal_delivery_s,
        )
        self.engines = EnginePool(
            self._make,
            self._renderer,
            context_length=settings.context_length,
            logprobs_mode=settings.logprobs_mode,
            # Twice at most, for its context's size and for a call: together less than a stream waits for the engine's status.
            wait_s=settings.engine_status_wait_s * 0.4,
        )
        self.tap = Tap(
            self.recorder,
            self.engines,
            status_wait_s=settings.engine_status_wait_s,
            keepalive_s=settings.keepalive_s,
            call_timeout_s=settings.call_timeout_s,
            stalled_s=settings.stalled_s,
            max_resumes=settings.max_resumes,
        )
        self.recorder.on_abort = self.tap.abort_lease
        self.lag = LoopLag()
        self.listener = Listener()
        self._steps = pipeline(
            settings,
            self.recorder,
            self.engines,
            self._renderer,
            tap=self.tap,
            lag=self.lag,
            cut=self.listener.cut,
        )
        set_gate(self._steps.gate)
        self.view = SessionsView(self._bus, self.recorder, self.engines, on_drain=self.drain)
        self.recorder.lineages.since_of = self.view.since_of
        self.recorder.newest_attempt = self.view.attempt_of
        self.admin = Admin(self.recorder, settings.admin_key.get_secret_value(), health=self.health)

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
            self._authority_pem = await asyncio.to_thread(ensure_authority, authority_dir)
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
        return f"http://{self.settings.advertise_host or self.settings.host}:{self.listener.port}"

    @property
    def forward_address(self) -> str:
        """The forward listener's URL, for `HTTPS_PROXY`; empty where there is none."""
        if not self.listener.forward_port:
            return ""
        return f"http://{self.settings.advertise_host or self.settings.forward_host}:{self.listener.forward_port}"

    @property
    def admin_address(self) -> str:
        """The admin listener's URL."""
        return f"http://{self.settings.advertise_host or self.settings.admin_host}:{self.admin.port}"

    def drain(self, is_draining: bool = True) -> None:
        """Takes no further leases, the open ones go on; or takes them again, unless it stops."""
        self.recorder.is_draining = is_draining or self._is_stopping
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
        self._is_stopping = True
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

    def _heartbeat_record(self, seq: int) -> Heartbeat:
        return Heartbeat(
            node_id=self.settings.proxy_id,
            role="proxy",
            incarnation=self.incarnation,
            data_address=self.data_address,
            admin_address=self.admin_address,
            holds=[
                Held(session_id=lease.session_id, attempt=lease.attempt, lease_id=lease.lease_id, stage=Stage.RUNNING)
                for lease in self.recorder.book.active()
            ],
            is_draining=self.recorder.is_draining,
            interval_s=self.settings.heartbeat_s,
            seq=seq,
            details=self._details(),
            at=now_ms(),
        )

    def _forward_details(self) -> dict[str, Any]:
        """How a harness is sent through the forward listener: its address, and the authority (public) that it must trust."""
        if not self.forward_address:
            return {}
        return {"forward": {"address": self.forward_address, "ca_pem": self._authority_pem}}

    def _details(self) -> dict[str, Any]:
        stopping = {"is_stopping": True} if self._is_stopping else {}
        return {**self._forward_details(), **stopping}

    def _ports(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "proxy_id": self.settings.proxy_id,
            "incarnation": self.incarnation,
            "host": self.settings.host,
            "port": self.listener.port,
            "admin_host": self.settings.admin_host,
            "admin_port": self.admin.port,
            "data_address": self.data_address,
            "forward_address": self.forward_address,
            "admin_address": self.admin_address,
        }


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
