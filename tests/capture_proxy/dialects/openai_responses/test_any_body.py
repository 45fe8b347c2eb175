"""Whatever a client sends: a request or an error that names the field, never a crash; and every request can be answered."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest

from capture_proxy.dialects.openai_responses import DIALECT
from capture_proxy.reply import ChatRequest, Finished, ProxyError, TextDelta, ToolCall
from tests.capture_proxy.dialects.openai_responses.said import COMPLETION, HEX, STARTED, reply

BODIES_PER_SEED = 150

_TYPES = [
    "message", "reasoning", "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output",
    "local_shell_call", "local_shell_call_output", "shell_call", "computer_call", "computer_call_output",
    "tool_search_call", "tool_search_output", "web_search_call", "item_reference", "compaction", "additional_tools", "memo",
    "input_text", "output_text", "input_image", "input_file", "input_audio", "refusal", "function", "custom", "namespace",
    "allowed_tools", "json_schema", "json_object", "grammar",
]  # fmt: skip
_FIELDS = [
    "role", "content", "summary", "encrypted_content", "id", "call_id", "name", "namespace", "arguments", "input",
    "output", "tools", "action", "text", "image_url", "file_data", "input_audio", "format", "description", "parameters",
    "schema", "status", "mode", "definition", "effort",
]  # fmt: skip
_BODY_FIELDS = [
    "model", "instructions", "stream", "reasoning", "previous_response_id", "max_output_tokens", "metadata", "include",
    "temperature", "store", "truncation", "service_tier", "background", "top_logprobs", "parallel_tool_calls", "seed",
    "chat_template_kwargs", "conversation", "user", "brand_new", "text", "tool_choice", "max_tool_calls",
]  # fmt: skip
_LEAVES: list[Any] = [
    None, True, False, 0, 1, -1, 2.5, 2**70, "", "a", "user", "assistant", "developer", "auto", "required",
    "reasoning.encrypted_content", "\ud800", f"resp_{HEX}", f"msg_{HEX}_0", f"call_{HEX}_0", COMPLETION,
]  # fmt: skip


class Bodies:
    """Makes bodies that are nearly right."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 3) -> Any:
        kind = self.random.random()
        if depth == 0 or kind < 0.45:
            return self.random.choice(_LEAVES)
        if kind < 0.65:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        return self.item(depth - 1)

    def item(self, depth: int = 3) -> dict[str, Any]:
        fields = self.random.sample(_FIELDS, self.random.randrange(7))
        kind = self.random.choice(_TYPES) if self.random.random() < 0.9 else self.value(1)
        return {"type": kind, **{name: self.value(depth) for name in fields}}

    def body(self) -> dict[str, Any]:
        fields = self.random.sample(_BODY_FIELDS, self.random.randrange(5))
        items = [self.item() for _ in range(self.random.randrange(5))]
        body = {"input": items if self.random.random() < 0.9 else self.value()}
        if self.random.random() < 0.5:
            body["tools"] = [self.item() for _ in range(self.random.randrange(4))]
        return {**body, **{name: self.value() for name in fields}}


@pytest.mark.parametrize("seed", range(20))
def test_any_body_is_read_or_refused(seed: int) -> None:
    """Read, or refused with a 400; what was read can be answered, streamed and whole."""
    bodies = Bodies(seed)
    read = 0
    for _ in range(BODIES_PER_SEED):
        body = json.dumps(bodies.body()).encode()
        try:
            request = DIALECT.parse_request("/v1/responses", {}, body)
        except ProxyError as error:
            if error.status != 400:
                raise
        else:
            _check(request)
            read += 1
    assert read > BODIES_PER_SEED // 20  # else nothing is tested but refusals


def _check(request: ChatRequest) -> None:
    assert not request.turn_ids or len(request.turn_ids) == len(request.messages)
    assert not request.recalls or len(request.recalls) == len(request.messages)
    for message in request.messages:
        assert message.keys() <= {"role", "content", "reasoning_content", "tool_calls", "tool_call_id"}
        assert isinstance(message["content"], str | list)
    for tool in request.tools:
        assert isinstance(tool["function"]["name"], str)
        assert isinstance(tool["function"].get("description", ""), str)
    orjson.dumps(request.echo)
    calls = tuple(ToolCall(f"c{i}", tool["function"]["name"], "{}") for i, tool in enumerate(request.tools))
    answer = reply(request, text="a", tool_calls=calls)
    assert orjson.loads(DIALECT.encode_whole(answer))["output"]
    encoder = DIALECT.stream_encoder(request)
    data = b"".join(map(encoder.encode, [STARTED, TextDelta("a"), Finished(answer)]))
    assert data.count(b"event: response.output_item.done") == 1 + len(calls)
