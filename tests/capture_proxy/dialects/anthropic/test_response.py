"""Messages answers as one body, and the small endpoints."""

from __future__ import annotations

import orjson

from capture_proxy.dialects import ModelEntry
from capture_proxy.dialects.anthropic import DIALECT
from capture_proxy.reply import Reply, ToolCall


def test_a_whole_reply() -> None:
    """Blocks in order; the tool's input is the sampled object, number forms and all."""
    body = DIALECT.encode_whole(
        Reply(
            completion_id="11112222-3333-4444-5555-666677778888",
            model="m",
            text="hi",
            reasoning="r",
            tool_calls=(ToolCall("c", "f", '{"n": 1.0,  "s": "é"}'),),
            finish_reason="tool_calls",
            prompt_tokens=3,
            completion_tokens=4,
        )
    )
    value = orjson.loads(body)
    assert [block["type"] for block in value["content"]] == ["thinking", "text", "tool_use"]
    assert value["content"][0]["signature"]
    assert value["content"][2]["input"] == {"n": 1.0, "s": "é"}
    assert b'{"n": 1.0,  "s": "\xc3\xa9"}' in body
    assert (value["type"], value["role"], value["model"], value["id"]) == (
        "message",
        "assistant",
        "m",
        "msg_11112222333344445555666677778888",
    )
    assert (value["usage"]["input_tokens"], value["usage"]["output_tokens"]) == (3, 4)


def test_an_empty_reply_has_an_empty_list() -> None:
    """Never null content."""
    reply = Reply(
        completion_id="11112222-3333-4444-5555-666677778888",
        model="m",
        text="",
        finish_reason="length",
        prompt_tokens=1,
        completion_tokens=1,
    )
    value = orjson.loads(DIALECT.encode_whole(reply))
    assert value["content"] == []
    assert value["stop_reason"] == "max_tokens"


def test_counting_and_listing() -> None:
    """Token counts and models in the vendor's shape."""
    assert orjson.loads(DIALECT.encode_count(42)) == {"input_tokens": 42}
    listed = orjson.loads(DIALECT.encode_models([ModelEntry("a", 100, 0), ModelEntry("b")]))
    assert [model["id"] for model in listed["data"]] == ["a", "b"]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("a", "b", False)
    assert orjson.loads(DIALECT.encode_model(ModelEntry("a")))["created_at"] == "1970-01-01T00:00:00Z"
