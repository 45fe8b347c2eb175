"""The addons in the order in which a call meets them."""

from __future__ import annotations

from typing import Any

from capture_proxy.addons.authorise import Authorise
from capture_proxy.addons.deliver import Deliver
from capture_proxy.addons.detect import Detect
from capture_proxy.addons.forward import Forward
from capture_proxy.addons.normalise import Normalise
from capture_proxy.addons.render import Render
from capture_proxy.addons.transcode import Transcode
from capture_proxy.engine_pool import EnginePool
from capture_proxy.recorder import Recorder
from capture_proxy.rendering.base import Renderer
from capture_proxy.settings import ProxySettings
from capture_proxy.tap import Tap


def pipeline(
    settings: ProxySettings, recorder: Recorder, engines: EnginePool, renderer: Renderer, tap: Tap
) -> list[Any]:
    """Detect → authorise → normalise → render → forward, then the tap, then transcode → deliver.

    Each step works only on requests that no earlier one answered.
    """
    return [
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
        Transcode(),
        Deliver(recorder, tap),
    ]
