"""Calls beside the conversation that a harness works on: titles, summaries, probes. They are named, never left out here."""

from __future__ import annotations

from typing import Final

from capture_proxy.lineage.index import Lineage
from capture_proxy.lineage.placing import Placed
from capture_proxy.reply import ChatRequest
from schemas.records import LineageStatus

AUX: Final = "aux"


def branch_hint(request: ChatRequest, placed: Placed, lineage: Lineage) -> str:
    """`aux` for a side call, '' for what may be the main line or a sub-agent.

    A call without tools in a session that has some is one (a title, a summary, a topic check), and so is a probe for one token.
    What goes on from a side call is one too.
    """
    if placed.status is LineageStatus.RESOLVED:
        assert placed.parent is not None
        return placed.parent.call.record.branch_hint
    if _is_probe(request):
        return AUX
    return AUX if not request.tools and lineage.has_tools else ""


def _is_probe(request: ChatRequest) -> bool:
    return len(request.messages) == 1 and not request.tools and request.sampling.get("max_tokens") == 1
