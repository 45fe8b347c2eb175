"""Builders: pure functions from the set of a lease's capture records to its traces, the state of every call, and sums.

In: records of one lease in any order, repeated or not, in one go (`build`) or as they come (`Lease.add`, then `settle`). Out:
`Built`, byte-equal for equal sets, either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from stream_processors.builders.base import Built, CompletionFact, Options, UnknownBuilderError
from stream_processors.builders.lease import Lease
from stream_processors.builders.per_request import build_per_request
from stream_processors.builders.prefix_merging import build_prefix_merging

__all__ = ["BUILDERS", "Built", "CompletionFact", "Lease", "Options", "UnknownBuilderError", "build", "settle"]

BUILDERS: Final[dict[str, Callable[[Lease, str, Options], Built]]] = {
    "per_request": build_per_request,
    "prefix_merging": build_prefix_merging,
}


def settle(name: str, options: Mapping[str, Any], lease: Lease, policy_id: str) -> Built:
    """Build a lease's traces with the builder `name`; `policy_id` is the session's ('' accepts every call's).

    Raises UnknownBuilderError for a name or an option that this version doesn't have.
    """
    builder = BUILDERS.get(name)
    if builder is None:
        raise UnknownBuilderError(f"no builder {name!r}: use one of {', '.join(sorted(BUILDERS))}")
    return builder(lease, policy_id, Options.parse(name, options))


def build(name: str, options: Mapping[str, Any], facts: Iterable[CompletionFact], policy_id: str) -> Built:
    """As `settle`, of the facts of one lease in one go."""
    return settle(name, options, Lease(facts), policy_id)
