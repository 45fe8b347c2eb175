"""One writer of a policy's weights: claims and epochs on `policy.timeline`, versions that are never reused, pushes to the engines.

In: `policy.timeline`. Out: `policy.timeline` (claimed, paused, published, resumed), and new weights in every engine of the policy
through the engine's own control endpoints. Pushing needs httpx (extra `trainer`); reading the timeline needs nothing.
"""

from __future__ import annotations

from trainer_sink.policies.errors import (
    NoEnginesError,
    PolicyError,
    PushFailedError,
    SupersededError,
)
from trainer_sink.policies.timeline import Claim, PolicyEngine, PolicyTimeline, PublishedVersion
from trainer_sink.policies.writer import PolicyWriter

__all__ = [
    "Claim",
    "NoEnginesError",
    "PolicyEngine",
    "PolicyError",
    "PolicyTimeline",
    "PolicyWriter",
    "PublishedVersion",
    "PushFailedError",
    "SupersededError",
]
