"""Builders: pure functions from the set of a lease's capture records to its traces, the state of every call, and sums.

In: records of one lease in any order, repeated or not. Out: `Built`, byte-equal for equal sets. `build` chooses by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from stream_processors.builders.base import Built, CompletionFact, UnknownBuilderError
from stream_processors.builders.per_request import build_per_request
from stream_processors.builders.prefix_merging import build_prefix_merging

__all__ = ["BUILDERS", "Built", "CompletionFact", "UnknownBuilderError", "build"]

BUILDERS: Final[dict[str, Callable[[Iterable[CompletionFact], str], Built]]] = {
    "per_request": build_per_request,
    "prefix_merging": build_prefix_merging,
}


def build(name: str, options: Mapping[str, Any], facts: Iterable[CompletionFact], policy_id: str) -> Built:
    """Build one lease's traces with the builder `name`; `policy_id` is the session's ('' accepts every call's).

    Raises UnknownBuilderError for a name or an option that this version doesn't have.
    """
    builder = BUILDERS.get(name)
    if builder is None:
        raise UnknownBuilderError(f"no builder {name!r}: use one of {', '.join(sorted(BUILDERS))}")
    # The only rule today; an option that is silently ignored would build something else than was asked for.
    unknown = {k: v for k, v in options.items() if (k, v) != ("drift", "split")}
    if unknown:
        raise UnknownBuilderError(f"builder {name} has no option {unknown!r}: only drift='split' is understood")
    return builder(facts, policy_id)
