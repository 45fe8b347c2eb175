"""What dialects share about tool choice."""

from __future__ import annotations

from collections.abc import Sequence

from capture_proxy.dialects.body import Notes
from capture_proxy.reply import Json


def settle_choice(choice: Json, tools: Sequence[dict[str, Json]], notes: Notes) -> Json:
    """The choice that still makes sense for the tools that are left: None without tools, `auto` for a forced tool that is gone."""
    if choice is None:
        return None
    if not tools:
        if choice not in {"auto", "none"} if isinstance(choice, str) else True:
            notes.add("dropped: tool_choice without tools")
        return None
    if isinstance(choice, dict):
        names = {tool["function"]["name"] for tool in tools}
        if choice["function"]["name"] not in names:
            notes.add("dropped: tool_choice of a removed tool")
            return "auto"
        return choice
    return choice if choice in {"auto", "none", "required"} else "auto"
