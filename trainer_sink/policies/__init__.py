"""One writer of a policy's weights: claims and epochs on `policy.timeline`, versions that are never reused, pushes to the engines.

In: `policy.timeline`. Out: `policy.timeline` (claimed, paused, published, resumed), and new weights in every engine of the policy
through the engine's own control endpoints. Pushing needs httpx (extra `trainer`); reading the timeline needs nothing.
"""

from __future__ import annotations

from trainer_sink.policies.errors import EnginesUnfitError, PolicyError, PushFailedError, SupersededError
from trainer_sink.policies.fleet import ask_engines
from trainer_sink.policies.modes import Deadlines, EngineReport, PauseMode
from trainer_sink.policies.reading import TimelineReader, Timelines, read_timelines
from trainer_sink.policies.timeline import Claim, PolicyTimeline, PublishedVersion, RegisteredEngine
from trainer_sink.policies.writer import PolicyWriter

__all__ = [
    "Claim",
    "Deadlines",
    "EngineReport",
    "EnginesUnfitError",
    "PauseMode",
    "PolicyError",
    "PolicyTimeline",
    "PolicyWriter",
    "PublishedVersion",
    "PushFailedError",
    "RegisteredEngine",
    "SupersededError",
    "TimelineReader",
    "Timelines",
    "ask_engines",
    "read_timelines",
]
