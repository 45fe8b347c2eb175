"""Requests and answers of the Responses dialect in tests, and what every stream must satisfy."""

from __future__ import annotations

import typing
from typing import Any

import orjson
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from capture_proxy.dialects.openai_responses import DIALECT
from capture_proxy.reply import ChatRequest, Finished, Reply, ReplyEvent, Started

COMPLETION = "0f0e0d0c-0b0a-4908-8706-050403020100"
HEX = COMPLETION.replace("-", "")
STARTED = Started(COMPLETION, "m", 1_700_000_000_123, 12)

_EVENTS = {
    typing.get_args(model.model_fields["type"].annotation)[0]: model
    for model in typing.get_args(typing.get_args(ResponseStreamEvent)[0])
}
_UNTYPED = {"status", "store", "bytes"}
"""What the vendor sends though its types leave it out: of custom tool calls, responses, a text's logprobs."""

_TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


def parse(**body: Any) -> ChatRequest:
    """The request that a body stands for."""
    return DIALECT.parse_request("/v1/responses", {}, orjson.dumps({"model": "m", **body}))


def reply(request: ChatRequest | None = None, **more: Any) -> Reply:
    """A finished reply with defaults."""
    return Reply(
        **{
            "completion_id": COMPLETION,
            "model": "m",
            "text": "",
            "finish_reason": "stop",
            "prompt_tokens": 12,
            "completion_tokens": 5,
            "created_at": STARTED.created_at,
            "echo": request.echo if request else {},
            **more,
        }
    )


def stream(request: ChatRequest, *events: ReplyEvent) -> list[dict[str, Any]]:
    """The stream's events, each checked against the vendor's own types; its order checked as a whole."""
    encoder = DIALECT.stream_encoder(request)
    frames = b"".join(map(encoder.encode, events)).split(b"\n\n")
    assert frames.pop() == b""
    values = []
    for frame in frames:
        name, data = frame.split(b"\n")
        value = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + value["type"].encode()
        check_exact(_EVENTS[value["type"]], value)
        values.append(value)
    check_order(values)
    return values


def whole(answer: Reply) -> dict[str, Any]:
    """The body of a non-streaming answer, checked against the vendor's own type."""
    value: dict[str, Any] = orjson.loads(DIALECT.encode_whole(answer))
    check_exact(Response, value)
    return value


def finish(request: ChatRequest, *events: ReplyEvent, **more: Any) -> list[dict[str, Any]]:
    """A stream from its start to a finished reply."""
    return stream(request, STARTED, *events, Finished(reply(request, **more)))


def of(values: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The events of one type."""
    return [value for value in values if value["type"] == kind]


def check_exact(model: type[BaseModel], value: Any) -> None:
    """The value is of the type, with no field that the type doesn't know."""
    _check_extra(model.model_validate(value, strict=True), model.__name__)


def _check_extra(value: Any, where: str) -> None:
    if isinstance(value, BaseModel):
        extra = set(value.model_extra or {}) - _UNTYPED
        assert not extra, f"{where}: {extra}"
        for name in type(value).model_fields:
            _check_extra(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list):
        for item in value:
            _check_extra(item, where)


def check_order(values: list[dict[str, Any]]) -> None:
    """Numbers run from 0 without a gap, one item is open at a time, one terminal event ends it, all speak of one response."""
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    assert [value["type"] in _TERMINAL for value in values] == [False] * (len(values) - 1) + [True]
    assert len({value["response"]["id"] for value in values if "response" in value}) == 1
    open_id, done = None, []
    for value in values:
        if value["type"] == "response.output_item.added":
            assert open_id is None
            open_id = value["item"]["id"]
            assert value["output_index"] == len(done)
            assert value["item"]["status"] == "in_progress"
        elif value["type"] == "response.output_item.done":
            assert (value["item"]["id"], value["output_index"]) == (open_id, len(done))
            done.append(value["item"])
            open_id = None
        elif "output_index" in value:
            assert (value["item_id"], value["output_index"]) == (open_id, len(done))
    if values[-1]["type"] != "response.failed":
        assert open_id is None
        assert values[-1]["response"]["output"] == done
        assert len({item["id"] for item in done}) == len(done)
