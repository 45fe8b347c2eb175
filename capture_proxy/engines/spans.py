"""The weight versions of a reply: spans of its tokens, as the engine names them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from capture_proxy.engines.base import WeightSpan

MIXED: Final = "mixed_version"
"""More than one version sampled a reply, and the engine doesn't say which tokens are whose."""


def weight_spans(meta: Mapping[str, Any], count: int) -> tuple[WeightSpan, ...]:
    """The weight versions of an output of `count` tokens; an engine without spans has one version for all.

    Versions are kept as text: a version 0 is "0", and not "none".
    """
    spans = meta.get("weight_versions")
    if spans:
        return tuple(WeightSpan(str(span["version"]), int(span["start"]), int(span["end"])) for span in spans)
    version = meta.get("weight_version")
    return (WeightSpan(str(version), 0, count),) if version is not None else ()


def tile(spans: Sequence[WeightSpan], count: int) -> bool:
    """Whether spans, if there are any, cover `count` tokens without a gap or an overlap."""
    at = 0
    for span in spans:
        if span.start != at or span.end < span.start:
            return False
        at = span.end
    return at == count or not spans
