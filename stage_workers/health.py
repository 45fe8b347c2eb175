"""How a worker's readers do; its heartbeats carry it."""

from __future__ import annotations

from dataclasses import dataclass, field

COMPONENT = "worker"
"""Names the worker's dead-letter topics."""


@dataclass(slots=True)
class Health:
    """What keeps this worker from being healthy: reader name → why. Empty is good."""

    problems: dict[str, str] = field(default_factory=dict)
