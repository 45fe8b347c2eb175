"""Tool calls and their results, paired: every call is followed by exactly one result, whatever the client sent.

Interrupts leave calls without results, compaction leaves results without calls, and converters duplicate them. The repairs are
fixed texts, so that a repaired history keeps its tokens from turn to turn; each is noted.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from capture_proxy.dialects.body import Notes
from capture_proxy.dialects.content import merge_content, prepend_text
from capture_proxy.reply import Json

NO_RESULT = "[no result]"
ORPHAN = "[result of an unknown tool call]"

Message = dict[str, Json]

_Key = TypeVar("_Key")


def pair_tools(messages: list[Message], notes: Notes) -> list[Message]:
    """The conversation with each assistant turn's results directly behind it, in arrival order, then what else was said."""
    paired: list[Message] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message["role"] == "tool":
            paired.append(_orphan(message, notes))
            continue
        paired.append(message)
        if not message.get("tool_calls"):
            continue
        end = at
        while end < len(messages) and messages[end]["role"] != "assistant":
            end += 1
        paired += _window(message["tool_calls"], messages[at:end], notes)
        at = end
    return paired


@dataclass(slots=True)
class Candidates(Generic[_Key]):
    """Calls that a result may belong to, in order; the taken ones at the front are passed once, however many results come."""

    calls: list[_Key] = field(default_factory=list)
    _at: int = 0

    def next_free(self, taken: Container[_Key]) -> _Key | None:
        """The first call that has no result yet."""
        while self._at < len(self.calls):
            if self.calls[self._at] not in taken:
                return self.calls[self._at]
            self._at += 1
        return None


def _window(calls: list[dict[str, Any]], following: list[Message], notes: Notes) -> list[Message]:
    """Results first (arrival order, then the missing ones in call order), then the other messages up to the next answer."""
    _make_ids_distinct(calls, notes)
    open_ids = [call["id"] for call in calls]
    by_sent = {"": Candidates(open_ids)}
    for call in calls:
        sent = call.pop("_sent_id", call["id"])
        by_sent.setdefault(sent, Candidates()).calls.append(call["id"])
    results: dict[str, Message] = {}
    others: list[Message] = []
    for message in following:
        if message["role"] != "tool":
            others.append(message)
            continue
        sent = message.get("tool_call_id") or ""
        candidates = by_sent.get(sent)
        free = candidates.next_free(results) if candidates is not None else None
        if free is not None:
            results[free] = {**message, "tool_call_id": free}
        elif candidates is not None:
            _add_duplicate(results[candidates.calls[-1]], message, notes)
        else:
            others.append(_orphan(message, notes))
    for call_id in open_ids:
        if call_id not in results:
            notes.add("repaired: tool call without a result")
            results[call_id] = {"role": "tool", "tool_call_id": call_id, "content": NO_RESULT}
    return [*results.values(), *others]


def _make_ids_distinct(calls: list[dict[str, Any]], notes: Notes) -> None:
    seen: dict[str, int] = {}
    for position, call in enumerate(calls):
        sent = call.get("id") or f"call_{position}"
        seen[sent] = seen.get(sent, 0) + 1
        call["_sent_id"] = call["id"] = sent
        if seen[sent] > 1:
            notes.add("repaired: tool calls with one id")
            while call["id"] in seen:  # another call may be named just so
                call["id"] = f"{sent}_{seen[sent]}"
                seen[sent] += call["id"] in seen
            seen[call["id"]] = 1


def _add_duplicate(kept: Message, again: Message, notes: Notes) -> None:
    notes.add("repaired: several results for one tool call")
    if kept["content"] != again["content"]:
        kept["content"] = merge_content(kept["content"], again["content"])


def _orphan(message: Message, notes: Notes) -> Message:
    notes.add("repaired: tool result without a call")
    return {"role": "user", "content": prepend_text(ORPHAN, message["content"])}
