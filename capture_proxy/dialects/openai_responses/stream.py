"""Responses answers as a stream of named, numbered events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import orjson

from capture_proxy.dialects.encoder import ReplyEncoder
from capture_proxy.dialects.openai_responses import response
from capture_proxy.dialects.openai_responses.errors import failure
from capture_proxy.dialects.openai_responses.form import AnswerForm
from capture_proxy.dialects.openai_responses.ids import item_id
from capture_proxy.dialects.sse import named_event
from capture_proxy.reply import ChatRequest, Json, ProxyError, Reply, Started, ToolCall

_Kind: TypeAlias = Literal["reasoning", "message"]

_UNKNOWN: str = "00000000000000000000000000000000"
"""Stands for the completion in a stream that breaks before its start."""


@dataclass(slots=True)
class _OpenItem:
    """The item that text goes to: `head` is its delta event up to the sequence number."""

    kind: _Kind
    id: str
    head: bytes
    texts: list[str] = field(default_factory=list)


class ResponsesStreamEncoder(ReplyEncoder):
    """One streamed answer: items one after the other, each added, filled and done; every event has the next number.

    A keep-alive is `response.in_progress` once more: comments don't count for some clients.
    """

    __slots__ = ("_created_at", "_form", "_id", "_item", "_model", "_number", "_output", "_status")

    def __init__(self, request: ChatRequest) -> None:
        super().__init__()
        self._form = AnswerForm.from_json(request.echo)
        self._model = request.model
        self._id = _UNKNOWN
        self._created_at = 0
        self._number = -1
        self._item: _OpenItem | None = None
        self._output: list[Json] = []
        self._status = b""

    def _text(self, text: str) -> bytes:
        return self._delta("message", text)

    def _reasoning(self, text: str) -> bytes:
        return self._delta("reasoning", text)

    def _keep_alive(self) -> bytes:
        return self._event("response.in_progress", response=orjson.Fragment(self._status)) if self._is_started else b""

    def _event(self, kind: str, /, **fields: Json) -> bytes:
        self._number += 1
        return named_event(kind.encode(), {"type": kind, "sequence_number": self._number, **fields})

    def _start(self, reply: Started | Reply) -> bytes:
        self._id, self._created_at = reply.completion_id, reply.created_at
        self._status = orjson.dumps(
            response.response_value(self._form, self._id, self._model, self._created_at, status="in_progress")
        )
        value = orjson.Fragment(self._status)
        return self._event("response.created", response=value) + self._event("response.in_progress", response=value)

    # --- text and thinking, as they come

    def _delta(self, kind: _Kind, text: str) -> bytes:
        """One more piece of the open item; the fast path, once per token."""
        opening = b""
        item = self._item
        if item is None or item.kind != kind:
            opening = self._close("completed") + self._open(kind)
            item = self._item
            assert item is not None
        self._number += 1
        item.texts.append(text)
        return b'%s%s%d,"delta":%s}\n\n' % (opening, item.head, self._number, orjson.dumps(text))

    def _open(self, kind: _Kind) -> bytes:
        index = len(self._output)
        if kind == "message":
            new_id, name = item_id("msg", self._id, index), "response.output_text.delta"
            value, part = response.message_item(self._id, index, [], "in_progress"), response.text_part("")
            extra: dict[str, Json] = {"content_index": 0, "logprobs": []}
        else:
            new_id = item_id("rs", self._id, index)
            is_summary = self._form.is_summary
            name = "response.reasoning_summary_text.delta" if is_summary else "response.reasoning_text.delta"
            value = response.reasoning_item(self._form, self._id, index, [], "in_progress")
            part = response.reasoning_part(self._form, "")
            extra = {"summary_index": 0} if is_summary else {"content_index": 0}
        start = orjson.dumps({"type": name, "item_id": new_id, "output_index": index, **extra})[:-1]
        self._item = _OpenItem(kind, new_id, b"event: %s\ndata: %s," % (name.encode(), start) + b'"sequence_number":')
        return self._event("response.output_item.added", output_index=index, item=value) + self._part("added", part)

    def _close(self, status: response.ItemStatus, logprobs: list[Json] | None = None) -> bytes:
        """Ends the open item. Logprobs come all at once: before the end it isn't known which tokens are visible text."""
        item = self._item
        if item is None:
            return b""
        text = "".join(item.texts)
        index = len(self._output)
        if item.kind == "message":
            part = response.text_part(text, logprobs)
            out = self._place("response.output_text.done", text=text, logprobs=part["logprobs"])
            value = response.message_item(self._id, index, [part], status)
        else:
            part = response.reasoning_part(self._form, text)
            name = "reasoning_summary_text" if self._form.is_summary else "reasoning_text"
            out = self._place(f"response.{name}.done", text=text)
            value = response.reasoning_item(self._form, self._id, index, [part], status)
        out += self._part("done", part)
        self._item = None
        self._output.append(value)
        return out + self._event("response.output_item.done", output_index=index, item=value)

    def _part(self, what: Literal["added", "done"], part: dict[str, Json]) -> bytes:
        kind = "reasoning_summary_part" if part["type"] == "summary_text" else "content_part"
        return self._place(f"response.{kind}.{what}", part=part)

    def _place(self, kind: str, /, **fields: Json) -> bytes:
        """An event inside the open item."""
        assert self._item is not None
        is_summary = self._item.kind == "reasoning" and self._form.is_summary
        index = {"summary_index" if is_summary else "content_index": 0}
        return self._event(kind, item_id=self._item.id, output_index=len(self._output), **index, **fields)

    # --- what leaves only with the end

    def _finish(self, reply: Reply) -> bytes:
        out: list[bytes] = []
        if self._item is not None and self._item.kind == "reasoning":
            out.append(self._close(response.reasoning_status(reply)))
        else:
            out.append(self._close(response.status(reply), response.logprobs_value(reply)))
        out += [self._call(call) for call in reply.tool_calls]
        value = response.finished_value(self._form, reply, self._output)
        out.append(self._event(f"response.{value['status']}", response=value))
        return b"".join(out)

    def _call(self, call: ToolCall) -> bytes:
        index = len(self._output)
        value = response.call_item(self._form, self._id, index, call)
        begun = response.call_item(self._form, self._id, index, call, "in_progress")
        given = response.call_input(self._form, call)
        where: dict[str, Json] = {"item_id": value["id"], "output_index": index}
        out = self._event("response.output_item.added", output_index=index, item=begun)
        if value["type"] == "custom_tool_call":
            out += self._event("response.custom_tool_call_input.delta", **where, delta=given) if given else b""
            out += self._event("response.custom_tool_call_input.done", **where, input=given)
        else:
            out += self._event("response.function_call_arguments.delta", **where, delta=given)
            out += self._event("response.function_call_arguments.done", **where, name=value["name"], arguments=given)
        self._output.append(value)
        return out + self._event("response.output_item.done", output_index=index, item=value)

    def _fail(self, error: ProxyError) -> bytes:
        value = response.response_value(self._form, self._id, self._model, self._created_at, status="failed")
        return self._event("response.failed", response={**value, "error": failure(error)})
