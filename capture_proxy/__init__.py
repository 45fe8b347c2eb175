"""The capture proxy: an unmodified harness asks it for its model, and every call lands on the log, token by token.

In: HTTP requests of a vendor's dialect (reverse proxy), leases over the admin listener, `rollout.state`, `rollout.control`
and `policy.timeline` read along. Out: answers of the dialect; `capture.completions`, `capture.rejections`, heartbeats on
`rollout.nodes`. `CaptureProxy` is one incarnation, `run(settings)` a whole process.
"""

from __future__ import annotations

from capture_proxy.settings import EngineSettings, ProxySettings

__all__ = ["EngineSettings", "ProxySettings"]
