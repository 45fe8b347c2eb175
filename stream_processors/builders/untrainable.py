"""What stands for a lease of which nothing may be trained: no traces, and every call under the same reason."""

from __future__ import annotations

from collections.abc import Iterable

from stream_processors.builders.analysis import Analysis
from stream_processors.builders.base import Built, CompletionFact, canonical_calls
from stream_processors.builders.prompts import resolve_prompts
from stream_processors.builders.tree import CallTree


def build_untrainable(facts: Iterable[CompletionFact], reason: str) -> Built:
    """Count the calls of a lease as untrainable for one reason."""
    calls = canonical_calls(facts)
    tree = CallTree([], [], [], [], [])
    return Analysis(calls, resolve_prompts(calls), tree, [reason] * len(calls)).finish([], {})
