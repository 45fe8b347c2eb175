"""What stands for a lease of which nothing may be trained: no traces, and every call under the same reason."""

from __future__ import annotations

from stream_processors.builders.analysis import Analysis
from stream_processors.builders.base import Built
from stream_processors.builders.lease import Lease
from stream_processors.builders.tree import CallTree


def build_untrainable(lease: Lease, reason: str) -> Built:
    """Count the calls of a lease as untrainable for one reason."""
    calls = lease.calls()
    prompts = [prompt for prompt, _ in lease.places()]
    tree = CallTree([], [], [], [], [], [])
    return Analysis(calls, prompts, tree, [reason] * len(calls)).finish([], {})
