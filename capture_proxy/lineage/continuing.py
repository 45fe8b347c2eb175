"""Requests that name earlier calls and send only what is new: made whole from the lease's own calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from capture_proxy.dialects.body import Notes
from capture_proxy.dialects.pairing import pair_tools
from capture_proxy.lineage.identity import names
from capture_proxy.lineage.index import Lineage
from capture_proxy.reply import ChatRequest, ProxyError
from capture_proxy.turn_ids import TURN_KEY, take_turn_ids
from schemas.resolve import reply_message

NOT_FOUND: Final = "previous_response_not_found"
ITEM_NOT_FOUND: Final = "item_not_found"


def made_whole(request: ChatRequest, lineage: Lineage) -> ChatRequest:
    """The request with the conversation that it continues in front and the answers that it names in place, results paired with calls.

    Instructions aren't inherited: the request's own take the place of the earlier ones. Raises ProxyError(bad_request) for a call
    that this lease doesn't know; another lease's is one of those.
    """
    if not request.continues and not request.recalls:
        return request
    new = _recalled(request, lineage)
    own = [new.pop(0)] if request.has_instructions else []
    before, answer = _before(request, lineage)
    notes = Notes()
    messages = [*own, *before, *pair_tools([*answer, *new], notes)]
    return replace(
        request,
        messages=messages,
        turn_ids=take_turn_ids(messages),
        continues="",
        recalls=(),
        notes=tuple(sorted({*request.notes, *notes.sorted()})),
    )


def with_thinking_apart(request: ChatRequest, lineage: Lineage) -> ChatRequest:
    """The request with thinking that a client sends back as text, in front of its answer, as thinking again.

    Only where the very call that the answer names thought and said exactly that.
    """
    marks = request.turn_ids or ("",) * len(request.messages)
    messages = [_thinking_apart(*pair, lineage) for pair in zip(request.messages, marks, strict=True)]
    return request if messages == request.messages else replace(request, messages=messages)


def _thinking_apart(message: dict[str, Any], mark: str, lineage: Lineage) -> dict[str, Any]:
    content = message.get("content")
    if message["role"] != "assistant" or not isinstance(content, str) or message.get("reasoning_content"):
        return message
    for name in names(message, mark):
        if (node := lineage.nodes.get(name)) is None:
            continue
        record = node.call.record
        thinking = record.reasoning.strip()
        if thinking and content.strip().startswith(thinking):
            text = content.strip().removeprefix(thinking).strip()
            if text == record.text.strip():
                return {**message, "content": text, "reasoning_content": thinking}
    return message


def _before(request: ChatRequest, lineage: Lineage) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The conversation that the request continues, and the answer at its end."""
    if not request.continues:
        return [], []
    node = lineage.nodes.get(request.continues)
    if node is None:
        raise ProxyError(
            "bad_request",
            f"previous response {request.continues} isn't known in this session: send the whole input instead",
            param="previous_response_id",
            code=NOT_FOUND,
        )
    before = node.call.messages()[1 if node.has_instructions else 0 :]
    return [dict(message) for message in before], [{**reply_message(node.call.record), TURN_KEY: node.completion_id}]


def _recalled(request: ChatRequest, lineage: Lineage) -> list[dict[str, Any]]:
    """The request's messages, marked, with each answer that it only names in its place."""
    marks = request.turn_ids or ("",) * len(request.messages)
    named = request.recalls or ("",) * len(request.messages)
    messages: list[dict[str, Any]] = []
    for message, mark, name in zip(request.messages, marks, named, strict=True):
        said: dict[str, Any] = dict(message)
        if name:
            node = lineage.nodes.get(mark)
            if node is None:
                raise ProxyError(
                    "bad_request",
                    f"item {name!r} isn't known in this session: send the item itself instead",
                    param="input",
                    code=ITEM_NOT_FOUND,
                )
            said = reply_message(node.call.record)
        messages.append({**said, TURN_KEY: mark})
    return messages
