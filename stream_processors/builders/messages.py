"""The messages and tools of a lease's calls, from the deltas that their records carry."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import orjson

from schemas.resolve import reply_message
from stream_processors.builders.base import Call

_NOT_IDENTITY = frozenset({"reasoning_content", "reasoning", "turn_id"})
"""What a harness may send back or leave out without saying anything else."""


class Conversations:
    """The conversation of each call (its request's messages, then its reply), by position; read only where it is asked for."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls
        self._by_id = {call.record.completion_id: call.position for call in calls}
        self._digests: dict[int, list[bytes]] = {}
        self._bodies: dict[int, list[bytes]] = {}

    def messages(self, i: int) -> list[Any]:
        """The full message list of a call's request: `messages_prefix` messages of its parent's conversation and its own."""
        parts: list[list[Any]] = []
        own, prefix, parent = self._own(i)
        parts.append(own)
        while prefix > 0:
            reply = reply_message(self._calls[parent].record)
            own, above, grandparent = self._own(parent)
            parts.append([*own, reply][: max(0, prefix - above)])
            prefix, parent = min(prefix, above), grandparent
        return [message for part in reversed(parts) for message in part]

    def _own(self, i: int) -> tuple[list[Any], int, int]:
        """A record's own messages, how many of its parent's conversation stand before them, and the parent."""
        record = self._calls[i].record
        own = record.messages if isinstance(record.messages, list) else []
        parent = self._by_id.get(record.parent_id, i)
        return own, record.messages_prefix if parent < i else 0, parent

    def digests(self, i: int) -> list[bytes]:
        """Of the first 1, 2, … messages of a call's request: what a harness may leave out of them doesn't count."""
        lines = [i]
        while (line := self._own(lines[-1]))[1] > 0 and line[2] not in self._digests:
            lines.append(line[2])
        for n in reversed(lines):
            if n not in self._digests:
                own, prefix, parent = self._own(n)
                before = self._digests[parent] if prefix > 0 else []
                if prefix > len(before):
                    before = _running(before, [reply_message(self._calls[parent].record)])
                self._digests[n] = _running(before[:prefix], own)
        return self._digests[i]

    def body_digests(self, i: int) -> list[bytes]:
        """As `digests`, of what stands behind the system messages at the beginning."""
        if i not in self._bodies:
            messages = self.messages(i)
            heads = 0
            while heads < len(messages) and _role(messages[heads]) in ("system", "developer"):
                heads += 1
            self._bodies[i] = _running([], messages[heads:]) if heads else self.digests(i)
        return self._bodies[i]


def _role(message: Any) -> str:
    return str(message.get("role", "")) if isinstance(message, dict) else ""


def _running(before: list[bytes], messages: list[Any]) -> list[bytes]:
    running = list(before)
    for message in messages:
        last = running[-1] if running else b""
        running.append(hashlib.blake2b(last + _spelt(_identity(message)), digest_size=16).digest())
    return running


def _spelt(value: Any) -> bytes:
    """The same bytes for the same value."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # lone surrogates and numbers beyond 64 bits, which harnesses do send
        return json.dumps(value, sort_keys=True).encode()


def _identity(message: Any) -> Any:
    """A message without what says nothing; null, "" and no content are all empty, and so are no tool calls."""
    if not isinstance(message, dict):
        return message
    kept = {k: v for k, v in message.items() if k not in _NOT_IDENTITY and v not in (None, "", [])}
    if calls := kept.get("tool_calls"):
        kept["tool_calls"] = [_call_identity(c) for c in calls] if isinstance(calls, list) else calls
    return kept


def _call_identity(call: Any) -> Any:
    """A tool call by its id, name and arguments, in the proxy's spelling as in the vendors'."""
    if not isinstance(call, dict):
        return call
    function = call.get("function")
    source = function if isinstance(function, dict) else call
    return [call.get("id"), source.get("name"), source.get("arguments")]


def resolve_tools(calls: list[Call]) -> list[Any]:
    """Each call's tools; a record that only repeats the digest of earlier ones gets those."""
    known: dict[str, Any] = {}
    resolved: list[Any] = []
    for call in calls:
        record = call.record
        if record.tools and record.tools_digest:
            known[record.tools_digest] = record.tools
        resolved.append(record.tools or known.get(record.tools_digest, []))
    return resolved
