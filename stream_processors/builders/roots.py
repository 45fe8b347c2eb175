"""Why a call begins a new trace: what in the conversation's text tells about a prompt that extends no earlier call.

Text only *names* the break; it never joins anything.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import orjson

from stream_processors.builders.base import Call
from stream_processors.builders.prompts import reply_message, resolve_messages
from stream_processors.builders.tree import NO_PARENT, CallTree

SESSION_START: Final = "session_start"
RESAMPLED: Final = "resampled"
TOOLS_CHANGED: Final = "tools_changed"
RETOKENIZED: Final = "retokenized"
REWRITTEN: Final = "assistant_rewritten"
CONTEXT_REPLACED: Final = "context_replaced"
NEW_CONVERSATION: Final = "new_conversation"

SAME_CONVERSATION: Final = frozenset({TOOLS_CHANGED, RETOKENIZED, REWRITTEN, CONTEXT_REPLACED})
"""Reasons after which the same conversation goes on in a new trace; the others begin something of their own."""


@dataclass(frozen=True, slots=True)
class Root:
    """Why a call has no parent in the tree, and the earlier call that it follows in the text (-1: none)."""

    reason: str
    follows: int = NO_PARENT


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


def explain_roots(calls: list[Call], tree: CallTree) -> dict[int, Root]:
    """The reason of every node without a parent, by position.

    Conversations are found by running digests of their messages: linear in the text, not in pairs of calls.
    """
    roots = [c.position for c in calls if tree.is_node[c.position] and tree.parent[c.position] == NO_PARENT]
    reasons: dict[int, Root] = {}
    if roots:
        reasons[roots[0]] = Root(SESSION_START)
    if len(roots) < 2:
        return reasons
    messages = resolve_messages(calls)
    ends: dict[bytes, int] = {}
    heads: dict[bytes, int] = {}
    prompts: dict[bytes, int] = {}
    is_root = set(roots[1:])
    for call in calls:
        i = call.position
        if not tree.is_node[i]:
            continue
        running = _running_digests(messages[i])
        if i in is_root:
            same = prompts.get(tree.digests[i])
            told = Root(RESAMPLED, same) if same is not None else _tell(calls, i, messages[i], running, ends)
            reasons[i] = told or (
                Root(CONTEXT_REPLACED, heads[running[0]]) if running and running[0] in heads else Root(NEW_CONVERSATION)
            )
        if running:
            ends[running[-1]] = i
            heads[running[0]] = i
        prompts[tree.digests[i]] = i
    return reasons


def _running_digests(messages: list[Any]) -> list[bytes]:
    """The digest of the first 1, 2, … messages."""
    hasher = hashlib.blake2b(digest_size=16)
    running: list[bytes] = []
    for message in messages:
        hasher.update(orjson.dumps(message, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS))
        running.append(hasher.copy().digest())
    return running


def _tell(calls: list[Call], i: int, messages: list[Any], running: list[bytes], ends: dict[bytes, int]) -> Root | None:
    """Find the longest earlier request that this one repeats; right behind it stands what became of that one's reply."""
    for length in range(len(running) - 1, 0, -1):
        earlier = ends.get(running[length - 1])
        if earlier is None:
            continue
        if calls[earlier].record.tools_digest != calls[i].record.tools_digest:
            return Root(TOOLS_CHANGED, earlier)
        is_same_text = _says_the_same(messages[length], reply_message(calls[earlier]))
        return Root(RETOKENIZED if is_same_text else REWRITTEN, earlier)
    return None


def _says_the_same(message: Any, reply: dict[str, Any]) -> bool:
    """Whether a message of the history is the reply in the same words; null, "" and no content are all empty."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return False
    same_text = (message.get("content") or "") == (reply.get("content") or "")
    return same_text and len(message.get("tool_calls") or []) == len(reply.get("tool_calls") or [])
