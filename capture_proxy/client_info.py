"""What a harness says of itself beside its call: which of its sessions, which agent, whose child, the how-manieth try. Pure.

The lease's secret alone says which rollout a call belongs to; these only refine it. They differ by harness and release, so each fact
has a list of names with a fixed precedence, and whatever doesn't look like an id is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

_SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "session": (
        "x-claude-code-session-id",
        "session-id",
        "session_id",
        "x-session-id",
        "thread-id",
        "x-session-affinity",
    ),
    "agent": ("x-claude-code-agent-id", "x-codex-window-id"),
    "parent": ("x-claude-code-parent-agent-id", "x-codex-parent-thread-id", "x-parent-session-id"),
    "subagent": ("x-openai-subagent",),
}
"""Fact → the headers that may tell it, the most trusted first."""

_CACHE_KEY: Final = re.compile(rb'"prompt_cache_key"\s*:\s*"([^"\\]{1,200})"')
_EDGE_BYTES: Final = 4096  # a body's own fields stand before or behind its messages
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,127}")


def client_of(
    headers: Mapping[str, str], body: bytes, is_secret: Callable[[str], bool] = lambda _value: False
) -> dict[str, Any]:
    """The facts that a request tells, by name: `session`, `agent`, `parent`, `subagent` (ids), `retry` (a count above 0).

    A cache key stands for the session where no header names one. Of values that disagree the first in order counts.
    """
    told = {name.lower(): value.strip() for name, value in headers.items()}
    facts: dict[str, Any] = {}
    for fact, names in _SOURCES.items():
        value = next(_ids((told.get(name, "") for name in names), is_secret), None)
        if value is not None:
            facts[fact] = value
    if "session" not in facts:
        found = _CACHE_KEY.search(body[:_EDGE_BYTES]) or _CACHE_KEY.search(body[-_EDGE_BYTES:])
        key = next(_ids(iter([found[1].decode("utf-8", "replace")] if found else []), is_secret), None)
        if key is not None:
            facts["session"] = key
    count = told.get("x-stainless-retry-count", "")
    if count.isascii() and count.isdigit() and int(count[:6]) > 0:
        facts["retry"] = int(count[:6])
    return facts


def _ids(values: Iterator[str], is_secret: Callable[[str], bool]) -> Iterator[str]:
    for value in values:
        if _ID.fullmatch(value) and not is_secret(value):
            yield value
