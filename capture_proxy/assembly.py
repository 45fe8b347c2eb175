"""One proxy's parts, tied together by its settings. Nothing runs yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bus import EventLog
from capture_proxy.admin import Admin
from capture_proxy.engine_pool import EnginePool
from capture_proxy.engines import Engine
from capture_proxy.leases import LeaseBook
from capture_proxy.lineage.book import Lineages
from capture_proxy.lineage.rebuild import Rebuilder
from capture_proxy.loop_lag import LoopLag
from capture_proxy.mitm import Listener
from capture_proxy.pipeline import Steps, pipeline
from capture_proxy.recorder import Recorder
from capture_proxy.rendering.base import Renderer
from capture_proxy.sessions import SessionsView
from capture_proxy.settings import ProxySettings
from capture_proxy.spool import Spool
from capture_proxy.spool.adoption import Adopter
from capture_proxy.tap import Tap


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one incarnation of a proxy is made of."""

    spool: Spool
    adopter: Adopter
    rebuilder: Rebuilder
    recorder: Recorder
    engines: EnginePool
    tap: Tap
    lag: LoopLag
    listener: Listener
    steps: Steps
    view: SessionsView
    admin: Admin


def assemble(
    settings: ProxySettings,
    bus: EventLog,
    renderer: Renderer,
    *,
    incarnation: str,
    make: Callable[[str, str], Engine],
    fsync: Callable[[int], None],
    health: Callable[[], dict[str, Any]],
    on_drain: Callable[[bool], None],
) -> Parts:
    """Makes and connects the parts. Raises OSError when the spool's directory can't be had; then there is nothing to close."""
    root, name = settings.spool_dir, f"{settings.proxy_id}-{incarnation}"
    spool = Spool.create(
        root,
        name,
        bus,
        segment_bytes=settings.spool_segment_bytes,
        fsync=fsync,
        limit_bytes=settings.spool_limit_bytes,
        ack_wait_s=settings.ack_wait_ms / 1000.0,
        commit_timeout_s=settings.commit_timeout_s,
    )
    adopter = Adopter(root, name, bus, every_s=settings.adopt_every_s)
    rebuilder = Rebuilder(bus, adopt=adopter.adopt_now, wait_s=settings.takeover_wait_s)
    recorder = Recorder(
        spool,
        LeaseBook(),
        lineages=Lineages(max_bytes=settings.lineage_max_bytes, rebuilder=rebuilder, is_relayed=spool.relay.is_relayed),
        proxy_id=settings.proxy_id,
        incarnation=incarnation,
        seal_drain_s=settings.seal_drain_s,
        seal_delivery_s=settings.seal_delivery_s,
    )
    engines = EnginePool(
        make,
        renderer,
        context_length=settings.context_length,
        logprobs_mode=settings.logprobs_mode,
        # Twice at most, for its context's size and for a call: together less than a stream waits for the engine's status.
        wait_s=settings.engine_status_wait_s * 0.4,
    )
    tap = Tap(
        recorder,
        engines,
        status_wait_s=settings.engine_status_wait_s,
        keepalive_s=settings.keepalive_s,
        call_timeout_s=settings.call_timeout_s,
        stalled_s=settings.stalled_s,
        max_resumes=settings.max_resumes,
    )
    recorder.on_abort = tap.abort_lease
    lag = LoopLag()
    listener = Listener()
    steps = pipeline(settings, recorder, engines, renderer, tap=tap, lag=lag, cut=listener.cut)
    view = SessionsView(bus, recorder, engines, on_drain=on_drain)
    recorder.lineages.since_of = view.since_of
    recorder.newest_attempt = view.attempt_of
    return Parts(
        spool=spool,
        adopter=adopter,
        rebuilder=rebuilder,
        recorder=recorder,
        engines=engines,
        tap=tap,
        lag=lag,
        listener=listener,
        steps=steps,
        view=view,
        admin=Admin(recorder, settings.admin_key.get_secret_value(), health=health),
    )
