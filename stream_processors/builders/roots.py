"""Why a call begins a new trace: what in the conversation's text tells about a prompt that extends no earlier call.

Text only *names* the break; it never joins anything. What the proxy found when it looked for the parent comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from schemas.lineage import (
    CONTEXT_REPLACED,
    NEW_CONVERSATION,
    RESAMPLED,
    RETOKENIZED,
    REWRITTEN,
    SAME_CONVERSATION,
    SESSION_START,
    THINKING_REMOVED,
    TOOLS_CHANGED,
)
from schemas.records import LineageStatus
from schemas.resolve import reply_message
from stream_processors.builders.base import Call
from stream_processors.builders.messages import Conversations
from stream_processors.builders.tree import NO_PARENT, CallTree
from stream_processors.builders.trie import ID_BYTES, Place

SYSTEM_CHANGED: Final = "system_changed"
"""An earlier conversation goes on under another system prompt (a date, a git status), so nothing of the prompt is the same."""

GOES_ON: Final = SAME_CONVERSATION | {SYSTEM_CHANGED}
"""Reasons after which the same conversation goes on in a new trace; the others begin something of their own."""


@dataclass(frozen=True, slots=True)
class Root:
    """Why a call has no parent in the tree, and the earlier call that it follows in the text (-1: none)."""

    reason: str
    follows: int = NO_PARENT


@dataclass(slots=True)
class _Seen:
    """What the earlier calls said, by running digests of their messages: linear in the text, not in pairs of calls."""

    ends: dict[bytes, int]
    heads: dict[bytes, int]
    bodies: dict[bytes, int]
    prompts: dict[Place, int]


def explain_roots(calls: list[Call], tree: CallTree, conversations: Conversations) -> dict[int, Root]:
    """The reason of every node without a parent, by position."""
    roots = [c.position for c in calls if tree.is_node[c.position] and tree.parent[c.position] == NO_PARENT]
    reasons: dict[int, Root] = {}
    if roots:
        reasons[roots[0]] = Root(SESSION_START)
    if len(roots) < 2:
        return reasons
    seen = _Seen({}, {}, {}, {})
    is_root = set(roots[1:])
    for call in calls:
        i = call.position
        place = tree.prompts[i]
        if not tree.is_node[i] or place is None:
            continue
        running = conversations.digests(i)
        if i in is_root:
            told = _explain(calls, tree, i, seen, conversations)
            record = call.record
            is_told = (
                record.lineage in (LineageStatus.ROOT, LineageStatus.AMBIGUOUS) and record.lineage_reason in GOES_ON
            )
            reasons[i] = Root(record.lineage_reason, told.follows) if is_told else told
        if running:
            seen.ends[running[-1]] = i
            seen.heads[running[0]] = i
            body = conversations.body_digests(i)
            if body:
                seen.bodies[body[-1]] = i
        seen.prompts[place] = i
    return reasons


def _explain(calls: list[Call], tree: CallTree, i: int, seen: _Seen, conversations: Conversations) -> Root:
    place = tree.prompts[i]
    if place in seen.prompts:
        return Root(RESAMPLED, seen.prompts[place])
    running = conversations.digests(i)
    if (found := _repeated(running, seen.ends)) is not None:
        length, earlier = found
        if calls[earlier].record.tools_digest != calls[i].record.tools_digest:
            return Root(TOOLS_CHANGED, earlier)
        reply = reply_message(calls[earlier].record)
        if not _says_the_same(conversations.messages(i)[length], reply):
            return Root(REWRITTEN, earlier)
        return Root(THINKING_REMOVED if _lost_its_thinking(calls, tree, i, earlier) else RETOKENIZED, earlier)
    body = conversations.body_digests(i)
    if len(body) < len(running) and (found := _repeated(body, seen.bodies)) is not None:
        return Root(SYSTEM_CHANGED, found[1])
    if running and running[0] in seen.heads:
        return Root(CONTEXT_REPLACED, seen.heads[running[0]])
    return Root(NEW_CONVERSATION)


def _repeated(running: list[bytes], ends: dict[bytes, int]) -> tuple[int, int] | None:
    """The longest earlier request that this one repeats: its length, and its call; behind it stands what became of its reply."""
    for length in range(len(running) - 1, 0, -1):
        earlier = ends.get(running[length - 1])
        if earlier is not None:
            return length, earlier
    return None


def _says_the_same(message: Any, reply: dict[str, Any]) -> bool:
    """Whether a message of the history is the reply in the same words; null, "" and no content are all empty."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return False
    same_text = (message.get("content") or "") == (reply.get("content") or "")
    return same_text and len(message.get("tool_calls") or []) == len(reply.get("tool_calls") or [])


def _lost_its_thinking(calls: list[Call], tree: CallTree, i: int, follows: int) -> bool:
    """Whether the prompt departs inside an earlier reply only in that its beginning, the thinking, is left out."""
    prompt, shared = tree.prompts[i], tree.shared[i]
    while follows != NO_PARENT:
        place = tree.prompts[follows]
        record = calls[follows].record
        if place is not None and place.depth <= shared < place.depth + len(record.output_ids):
            assert prompt is not None
            rest = prompt.since(shared)
            start = shared - place.depth + ID_BYTES
            tails = (record.output_ids[k:] for k in range(start, len(record.output_ids), ID_BYTES))
            return bool(record.reasoning) and any(rest.startswith(tail) for tail in tails)
        follows = tree.parent[follows]
    return False
