"""Items of a conversation gathered into messages: everything that was sampled in one call is one assistant message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from capture_proxy.dialects.body import Notes
from capture_proxy.dialects.content import SEPARATOR, merge_content
from capture_proxy.reply import Json
from capture_proxy.turn_ids import TURN_KEY

RECALL_KEY: Final = "recalled"
"""Marks a message of which the client sends only the id of an item."""

Message = dict[str, Json]
Content = str | list[dict[str, Json]]


@dataclass(eq=False, slots=True)
class Turn:
    """One assistant message in the making."""

    completion_id: str = ""
    said: list[Content] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    recalled: str = ""
    """The id by which the client names an item of this turn instead of sending it."""

    @property
    def has_answer(self) -> bool:
        """Whether anything but thinking was said."""
        return bool(any(self.said) or self.calls or self.recalled)

    def message(self) -> Message:
        """The turn as it stands in the conversation."""
        message: Message = {"role": "assistant", "content": merge_content(*self.said)}
        if any(self.thinking):
            message["reasoning_content"] = SEPARATOR.join(filter(None, self.thinking))
        if self.calls:
            message["tool_calls"] = self.calls
        if self.completion_id:
            message[TURN_KEY] = self.completion_id
        if self.recalled:
            message[RECALL_KEY] = self.recalled
        return message


class Conversation:
    """Takes items in their order.

    Neighbouring items of the assistant belong to one turn, unless their ids tell of two calls; an item of the last turn also joins
    it behind results of that turn, since some clients put each result directly behind its call.
    """

    def __init__(self) -> None:
        self._entries: list[Turn | Message] = []
        self._turn: Turn | None = None
        self._is_behind_results = False

    def add(self, message: Message) -> None:
        """A message of anybody but the assistant."""
        self._entries.append(message)
        if message["role"] == "tool":
            self._is_behind_results = True
        else:
            self._turn = None

    def turn(self, completion_id: str | None) -> Turn:
        """The turn that an item belongs to; `completion_id` is the call that it was sampled in, where its ids say so."""
        turn = self._turn
        if turn is not None:
            is_same = bool(completion_id) and turn.completion_id == completion_id
            is_open = not self._is_behind_results and not (completion_id and turn.completion_id)
            if is_same or is_open:
                turn.completion_id = turn.completion_id or completion_id or ""
                return turn
        turn = Turn(completion_id or "")
        self._entries.append(turn)
        self._turn, self._is_behind_results = turn, False
        return turn

    def say(self, completion_id: str | None, content: Content) -> None:
        """Text of the assistant."""
        self.turn(completion_id).said.append(content)

    def messages(self, notes: Notes) -> list[Message]:
        """The conversation so far.

        A turn that holds nothing leaves no message. Nor does thinking that no answer followed: a stream broke off behind it, the
        client kept it, and asked again.
        """
        messages: list[Message] = []
        for position, entry in enumerate(self._entries):
            if isinstance(entry, dict):
                messages.append(entry)
                continue
            following = self._entries[position + 1] if position + 1 < len(self._entries) else None
            if entry.has_answer or (isinstance(following, dict) and (any(entry.thinking) or entry.completion_id)):
                messages.append(entry.message())
            else:
                notes.add("dropped: assistant turn without an answer")
        return messages


def take_recalls(messages: list[Message]) -> tuple[str, ...]:
    """Removes the marks of recalled turns: one item id per message, "" where there is none."""
    return tuple(str(message.pop(RECALL_KEY, "")) for message in messages)
