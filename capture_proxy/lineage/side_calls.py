"""Calls beside the conversation that a harness works on: titles, summaries, probes, sub-agents. They are named, never left out here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from capture_proxy.lineage.index import Lineage
from capture_proxy.lineage.placing import Placed
from capture_proxy.reply import ChatRequest
from schemas.records import LineageStatus

AUX: Final = "aux"
SUB_AGENT: Final = "sub-agent"


def branch_hint(request: ChatRequest, placed: Placed, lineage: Lineage, client: Mapping[str, Any]) -> str:
    """`aux` for a side call, `sub-agent` where the client says so (`client_info.client_of`), '' where only the tokens can tell.

    A call without tools in a session that has some is a side call (a title, a summary, a topic check), and so is a probe for one token.
    What goes on from a call is what that one is.
    """
    if placed.status is LineageStatus.RESOLVED:
        assert placed.parent is not None
        return placed.parent.call.record.branch_hint
    if _is_probe(request) or (not request.tools and lineage.has_tools):
        return AUX
    return SUB_AGENT if _is_sub_agent(request, client) else ""


def _is_probe(request: ChatRequest) -> bool:
    return len(request.messages) == 1 and not request.tools and request.sampling.get("max_tokens") == 1


def _is_sub_agent(request: ChatRequest, client: Mapping[str, Any]) -> bool:
    """Claude Code names an agent on its sub-agents' calls alone; others name the parent, or the kind."""
    return bool(
        client.get("parent") or client.get("subagent") or (request.dialect == "anthropic" and client.get("agent"))
    )
