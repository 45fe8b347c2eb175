"""The addons in the order in which a call meets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capture_proxy.addons.admit import Admit
from capture_proxy.addons.authorise import Authorise
from capture_proxy.addons.deliver import Deliver
from capture_proxy.addons.detect import Detect
from capture_proxy.addons.forward import Forward
from capture_proxy.addons.normalise import Normalise
from capture_proxy.addons.render import Render
from capture_proxy.addons.transcode import Transcode
from capture_proxy.addons.tunnel import Tunnel
from capture_proxy.body_gate import Gate
from capture_proxy.engine_pool import EnginePool
from capture_proxy.loop_lag import LoopLag
from capture_proxy.recorder import Recorder
from capture_proxy.rendering.base import Renderer
from capture_proxy.settings import ProxySettings
from capture_proxy.tap import Tap
from capture_proxy.vendors import HostList


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The addons, and the gate that request bodies pass before them."""

    addons: list[Any]
    gate: Gate


def pipeline(
    settings: ProxySettings,
    recorder: Recorder,
    engines: EnginePool,
    renderer: Renderer,
    *,
    tap: Tap,
    lag: LoopLag,
    cut: Callable[[str, str], None],
) -> Steps:
    """Admit → tunnel → detect → authorise → normalise → render → forward, then the tap, then transcode → deliver.

    Each step works only on requests that no earlier one answered. `cut` ends a client's connection.
    """
    tunnel = Tunnel(recorder, tap, HostList.of(settings.forward_vendors, settings.forward_pass_through))
    admit = Admit(
        recorder,
        tap,
        lag,
        place=tunnel.place,
        cut=cut,
        max_request_bytes=settings.max_request_bytes,
        max_bodies_bytes=settings.max_bodies_bytes,
        max_calls=settings.max_calls,
        max_lag_s=settings.max_loop_lag_s,
        read_s=settings.request_read_s,
    )
    addons = [
        admit,
        tunnel,
        Detect(recorder, max_request_bytes=settings.max_request_bytes),
        Authorise(recorder),
        Normalise(recorder, engines, model_names=settings.model_names),
        Render(
            recorder,
            engines,
            renderer,
            sampling_defaults=settings.sampling_defaults,
            default_max_tokens=settings.default_max_tokens,
        ),
        Forward(recorder, tap),
        Transcode(tap, keepalive_s=settings.keepalive_s),
        Deliver(recorder, tap, on_settled=admit.settled),
    ]
    return Steps(addons=addons, gate=admit.gate)
