"""The published rule for a reply that came back in other tokens, for comparison: keep what was sampled, and go on behind it.

A call whose prompt holds its predecessor's reply in the same words but other tokens is hung on that predecessor. Of the server's own
tokens after the predecessor's prompt, those up to the first end-of-turn token are dropped in favour of the sampled ones. What
was sampled afterwards then stands in a context that it wasn't sampled in: every such turn says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from schemas.lineage import RETOKENIZED
from stream_processors.builders.analysis import Analysis
from stream_processors.builders.roots import Root
from stream_processors.builders.tree import NO_PARENT
from stream_processors.builders.trie import ID_BYTES

NATURAL_ENDS = ("stop", "tool_calls", "stop_sequence")
"""Finish reasons of replies whose last token is an end-of-turn token."""


def splices(analysis: Analysis, roots: Mapping[int, Root], end_of_turn_id: int | None) -> dict[int, bytes]:
    """What stands between a spliced call's reply and its predecessor's (packed ids), by position; its predecessor is `follows`.

    A call isn't spliced when its prompt doesn't begin with the predecessor's prompt, or when no end of the turn is found: then
    it begins a trace as it does without splicing, and nothing is dropped.
    """
    end = _end_of_turn(analysis) if end_of_turn_id is None else end_of_turn_id.to_bytes(ID_BYTES, "little", signed=True)
    if end is None:
        return {}
    found: dict[int, bytes] = {}
    for i, root in roots.items():
        if root.reason != RETOKENIZED or root.follows == NO_PARENT or not analysis.tree.is_node[root.follows]:
            continue
        before = analysis.place(root.follows)
        if not analysis.place(i).has_above(before):
            continue
        tail = analysis.place(i).since(before.depth)
        if (at := _find(tail, end)) is not None:
            closes_itself = analysis.calls[root.follows].record.output_ids.endswith(end)
            found[i] = tail[at + ID_BYTES if closes_itself else at :]
    return found


def _end_of_turn(analysis: Analysis) -> bytes | None:
    """The last token of the first reply that ended by itself."""
    records = (call.record for call in analysis.calls if analysis.tree.is_node[call.position])
    return next((r.output_ids[-ID_BYTES:] for r in records if r.finish_reason in NATURAL_ENDS), None)


def _find(tail: bytes, token: bytes) -> int | None:
    """Where a token first stands, as an offset in bytes."""
    at = tail.find(token)
    while at >= 0 and at % ID_BYTES:
        at = tail.find(token, at + 1)
    return at if at >= 0 else None
