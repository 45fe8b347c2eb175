"""Cases of answers: what a harness gets for what was sampled, whole and streamed alike."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from capture_proxy import outcome, records
from capture_proxy.call import Call, Prompt
from capture_proxy.dialects import DIALECTS
from capture_proxy.engines.base import EngineFinish
from capture_proxy.leases import Lease
from capture_proxy.reply import Finished, Started
from capture_proxy.turn_ids import completion_of_tool_call
from schemas.records import CompletionState, SessionSpec
from tests.capture_proxy.cases.asking import call, chat_request, messages_request, raw
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import CharRenderer, tool_call
from tests.capture_proxy.wire import WIRES, Wire, events

pytestmark = pytest.mark.component

MakeStack = Callable[..., Awaitable[Stack]]
ENDS = {
    "openai_chat": {"stop": "stop", "length": "length", "tools": "tool_calls"},
    "anthropic": {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use"},
    "openai_responses": {"stop": "completed", "length": "incomplete", "tools": "completed"},
    "google": {"stop": "STOP", "length": "MAX_TOKENS", "tools": "STOP"},
}
LIMITS = {"anthropic": "max_tokens", "openai_chat": "max_tokens", "openai_responses": "max_output_tokens"}

every_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
both_wires = pytest.mark.parametrize("wire", WIRES[:2], ids=lambda wire: wire.name)
streamed_or_not = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def limit(wire: Wire, tokens: int) -> dict[str, Any]:
    """The request's fields that limit the answer."""
    return {"generationConfig": {"maxOutputTokens": tokens}} if wire.name == "google" else {LIMITS[wire.name]: tokens}


def made(text: str, **finish: Any) -> Call:
    """A finished call without a proxy around it."""
    renderer = CharRenderer()
    spec = SessionSpec(task_id="t", group_id="g", policy_id="p")
    lease = Lease(session_id="s", lease_id="l", attempt=1, writer=1, secret_hash="h", spec=spec)
    tools = [{"name": "ls", "input_schema": {"type": "object"}}]
    request = messages_request(tools=tools)
    prompt = Prompt(renderer=renderer, ids=renderer.encode("prompt"), sampling={})
    stub = records.started(lease, 1, request, prompt, proxy_id="x", body=b"", at=1000)
    output = renderer.encode(text)
    parser = renderer.parser(prompt.ids, is_parsing_tools=True, tools=request.tools)
    parser.feed(output)
    return Call(
        completion_id=stub.completion_id,
        call_seq=1,
        lease=lease,
        request=request,
        prompt=prompt,
        stub=stub,
        output_ids=output,
        logprobs=[-1.0] * len(output),
        parsed=parser.finish()[1],
        finish=EngineFinish(**{"reason": "stop", **finish}),
    )


# --- B28, B29: limits


async def test_b28_a_limit_beyond_the_context_is_cut_to_the_room(make_stack: MakeStack) -> None:
    """The call goes on with what is left; requested and effective stand in the record; what it stopped is `max_tokens`."""
    stack = await _with_context(make_stack, 8192)
    wire = WIRES[1]
    stack.engine.script = lambda _prompt, _request: "y" * 9000
    status, said, body = await call(stack, wire, stream=False, text="x" * 6000, max_tokens=32_000)
    room = 8192 - len(stack.engine.requests[0]["input_ids"])
    assert (status, stack.engine.requests[0]["sampling_params"]["max_new_tokens"]) == (200, room)
    assert said is not None
    assert (said.finish, body["usage"]["output_tokens"]) == ("max_tokens", room)
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert (record.sampling_requested["max_tokens"], record.sampling_effective["max_tokens"]) == (32_000, room)


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (WIRES[0], "maximum context length is 8192 tokens. However, your messages resulted in {n} tokens"),
        (WIRES[1], "prompt is too long: {n} tokens > 8192 maximum"),
    ],
    ids=["openai_chat", "anthropic"],
)
async def test_b28_a_prompt_beyond_the_context_is_the_vendors_error(
    make_stack: MakeStack, wire: Wire, words: str
) -> None:
    """A 400 in the words by which clients compact, never a limit of zero."""
    stack = await _with_context(make_stack, 8192)
    status, _, body = await call(stack, wire, stream=True, text="x" * 8300)
    n = len(CharRenderer().render([{"role": "user", "content": "x" * 8300}], [], {}))
    assert status == 400
    assert words.format(n=n) in body["error"]["message"]
    assert body["error"]["type"] == "invalid_request_error"
    if wire.name == "openai_chat":
        assert body["error"]["code"] == "context_length_exceeded"
    assert not stack.engine.requests


async def _with_context(make_stack: MakeStack, length: int) -> Stack:
    stack = await make_stack()
    stack.engine.context_length = length
    await stack.proxy.engines.remove("*", stack.engine.url)
    stack.proxy.engines.add("*", stack.engine.url, "sglang")
    await stack.open()
    return stack


@streamed_or_not
async def test_b29_a_probe_for_one_token(stack: Stack, stream: bool) -> None:
    """It may return nothing visible: 200, the true usage, one generation, and the record says that it stands beside the conversation."""
    stack.engine.script = lambda _prompt, _request: "<think>long"
    status, said, body = await call(stack, WIRES[1], stream=stream, text="quota", max_tokens=1)
    assert status == 200
    assert said is not None
    assert said.finish == "max_tokens"
    usage = events(body)[-2]["usage"] if stream else body["usage"]
    assert usage["output_tokens"] == 1
    if not stream:
        assert isinstance(body["content"], list)
        assert len(body["content"]) <= 1
    await stack.until(lambda: bool(stack.calls))
    assert len(stack.engine.requests) == 1
    assert stack.calls[0].branch_hint == "aux"


# --- B34 to B47: the form of answers


async def test_b34_one_start_although_the_engine_broke(stack: Stack) -> None:
    """A reset after the first chunk isn't tried again behind the client's back: one start, one id, one error."""
    stack.engine.drop_at = 2
    status, _, body = await call(stack, WIRES[1], stream=True)
    assert status == 200
    kinds = [event["type"] for event in events(body)]
    assert kinds.count("message_start") == 1
    assert kinds[-1] == "error"
    assert "message_stop" not in kinds
    assert len(stack.engine.requests) == 1


def test_b34_a_second_start_says_nothing() -> None:
    """The encoder itself starts a message once."""
    started = Started("00000000-0000-4000-8000-000000000000", "m", 0, 3)
    encoder = DIALECTS["anthropic"].stream_encoder(messages_request())
    assert b"message_start" in encoder.encode(started)
    assert encoder.encode(started) == b""


@both_wires
@streamed_or_not
@pytest.mark.parametrize("has_name", [True, False])
async def test_b35_arguments_before_the_name(stack: Stack, wire: Wire, stream: bool, has_name: bool) -> None:
    """The call starts with its name whatever was sampled first; without a name there is no call: its text, and a flag."""
    sampled = '<tool_call>\n{"arguments": {"x":1}' + (', "name": "bash"' if has_name else "") + "}\n</tool_call>"
    stack.engine.script = lambda _prompt, _request: sampled
    _, said, body = await call(stack, wire, stream=stream, tools=True)
    assert said is not None
    if has_name:
        assert (said.tools, said.text) == ([("bash", {"x": 1})], "")
    else:
        assert (said.tools, said.text, said.finish) == ([], sampled, ENDS[wire.name]["stop"])
    if stream and has_name and wire.name == "anthropic":
        kinds = [(e["type"], e.get("content_block", {}).get("name")) for e in events(body)]
        assert kinds.index(("content_block_start", "bash")) < kinds.index(("content_block_delta", None))
    await stack.until(lambda: bool(stack.calls))
    assert stack.calls[0].parse_status == ("ok" if has_name else "tool_parse_error")


@streamed_or_not
async def test_b37_no_argument_tool_call(stack: Stack, stream: bool) -> None:
    """Fragments add up to valid JSON, never null: `{}` for both dialects."""
    stack.engine.script = lambda _prompt, _request: '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>'
    _, _, chat = await call(stack, WIRES[0], stream=stream, tools=True)
    _, _, messages = await call(stack, WIRES[1], stream=stream, tools=True)
    if not stream:
        assert chat["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
        assert messages["content"][-1]["input"] == {}
        return
    fragments = [
        part["function"]["arguments"]
        for event in events(chat)
        for choice in event["choices"]
        for part in choice["delta"].get("tool_calls", [])
    ]
    assert "".join(fragments) == "{}"
    blocks = [e for e in events(messages) if e["type"] == "content_block_start"]
    assert blocks[-1]["content_block"]["input"] == {}
    partial = [e["delta"]["partial_json"] for e in events(messages) if "partial_json" in e.get("delta", {})]
    assert "".join(partial) in {"", "{}"}


def test_b38_usage_without_the_engines_help() -> None:
    """Integers at the start and at the end, from the token ids, although the engine counted nothing."""
    reply = outcome.reply(made("hello", prompt_tokens=0, completion_tokens=0))
    assert (reply.prompt_tokens, reply.completion_tokens) == (6, 5)
    encoder = DIALECTS["anthropic"].stream_encoder(messages_request())
    out = encoder.encode(Started(reply.completion_id, "m", 0, 6)) + encoder.encode(Finished(reply))
    by_type = {event["type"]: event for event in events(out.decode())}
    zero = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    assert by_type["message_start"]["message"]["usage"] == {"input_tokens": 6, "output_tokens": 0, **zero}
    assert by_type["message_delta"]["usage"] == {"input_tokens": 6, "output_tokens": 5, **zero}
    chat = json.loads(DIALECTS["openai_chat"].encode_whole(reply))["usage"]
    assert (chat["prompt_tokens"], chat["completion_tokens"], chat["total_tokens"]) == (6, 5, 11)


def test_cached_tokens_are_told_as_each_vendor_tells_them() -> None:
    """Anthropic takes them out of `input_tokens`, OpenAI names them beside all of the prompt; the sum is the prompt either way."""
    reply = outcome.reply(made("hello", prompt_tokens=6, completion_tokens=5, cached_tokens=4))
    messages = json.loads(DIALECTS["anthropic"].encode_whole(reply))["usage"]
    assert (messages["input_tokens"], messages["cache_read_input_tokens"]) == (2, 4)
    chat = json.loads(DIALECTS["openai_chat"].encode_whole(reply))["usage"]
    assert (chat["prompt_tokens"], chat["prompt_tokens_details"]["cached_tokens"]) == (6, 4)


@streamed_or_not
async def test_b40_an_empty_completion(stack: Stack, stream: bool) -> None:
    """Handed over as sampled, with real id, model and usage, and never sampled again."""
    stack.engine.script = lambda _prompt, _request: ""
    _, said, body = await call(stack, WIRES[1], stream=stream)
    assert said is not None
    assert (said.text, said.tools, said.finish) == ("", [], "end_turn")
    if stream:
        assert [event["type"] for event in events(body)] == ["message_start", "message_delta", "message_stop"]
    else:
        assert body["content"] == []
        assert body["id"].startswith("msg_")
        assert (body["model"], body["usage"]["output_tokens"]) == ("policy", 1)
    _, said, body = await call(stack, WIRES[0], stream=stream)
    assert said is not None
    assert (said.text, said.finish) == ("", "stop")
    if not stream:
        assert body["choices"][0]["message"]["content"] == ""
    assert len(stack.engine.requests) == 2
    await stack.until(lambda: len(stack.calls) == 2)
    assert [record.text for record in stack.calls] == ["", ""]


@every_wire
@streamed_or_not
async def test_b41_the_engines_stop_is_a_tool_call_to_the_client(stack: Stack, wire: Wire, stream: bool) -> None:
    """The harness hears its word for calls; the record keeps the engine's own reason."""
    stack.engine.script = lambda _prompt, _request: tool_call("bash", {"command": "ls"})
    _, said, _ = await call(stack, wire, stream=stream, tools=True)
    assert said is not None
    assert (said.tools, said.finish) == ([("bash", {"command": "ls"})], ENDS[wire.name]["tools"])
    await stack.until(lambda: bool(stack.calls))
    assert stack.calls[0].finish_reason == "tool_calls"
    assert stack.calls[0].engine_finish["reason"] == "stop"


@every_wire
@pytest.mark.parametrize("end", ["stop", "length", "stop string"])
async def test_b47_text_that_a_tool_parser_held(stack: Stack, wire: Wire, end: str) -> None:
    """What looked like a call to come reaches the client, streamed and whole, however the output ended."""
    sampled = "see <tool_"
    stack.engine.script = lambda _prompt, _request: (
        sampled + {"stop": "", "length": "call>", "stop string": "#END"}[end]
    )
    changes: dict[str, Any] = limit(wire, len(sampled)) if end == "length" else {}
    if end == "stop string":
        if wire.name == "openai_responses":
            pytest.skip("the API has no stop strings")
        stack.engine.finish = {"type": "stop", "matched": "#END"}
        changes = {
            "openai_chat": {"stop": ["#END"]},
            "anthropic": {"stop_sequences": ["#END"]},
            "google": {"generationConfig": {"stopSequences": ["#END"]}},
        }[wire.name]
    texts = []
    for stream in (True, False):
        _, said, _ = await call(stack, wire, stream=stream, tools=True, **changes)
        assert said is not None
        texts.append(said.text)
    assert texts == [sampled, sampled]


# --- T53, T55, T61, T62, B109: calls that are one, and calls that aren't


@every_wire
@streamed_or_not
async def test_t53_a_tool_call_in_token_mode(stack: Stack, wire: Wire, stream: bool) -> None:
    """Ids whose text is a call come as a call, without text beside it."""
    stack.engine.script = lambda _p, _r: '<tool_call>{"name":"bash","arguments":{}}</tool_call>'
    _, said, _ = await call(stack, wire, stream=stream, tools=True)
    assert said is not None
    assert (said.text, said.tools, said.finish) == ("", [("bash", {})], ENDS[wire.name]["tools"])


_OWN = {
    "completion_id", "call_seq", "is_stream", "started_at", "finished_at", "request_digest", "request_bytes", "queue_ms",
    "first_token_ms", "total_ms", "tool_calls", "lineage", "lineage_reason",
    # of the second call only what the first doesn't hold stands in its record
    "tools", "messages", "messages_prefix", "parent_id", "prefix_len", "prefix_digest", "suffix_ids",
}  # fmt: skip


@every_wire
async def test_t55_stream_equals_non_stream(stack: Stack, wire: Wire) -> None:
    """The same ids give the same record and the same answer."""
    stack.engine.script = lambda _p, _r: "<think>\nhm\n</think>\n\nOk. " + tool_call("bash", {"command": "é"})
    _, streamed, body = await call(stack, wire, stream=True, tools=True)
    _, whole, _ = await call(stack, wire, stream=False, tools=True)
    assert streamed == whole
    await stack.until(lambda: len(stack.calls) == 2)
    first, second = ({k: v for k, v in dataclasses.asdict(r).items() if k not in _OWN} for r in stack.calls)
    assert first == second
    calls = [[{k: v for k, v in c.items() if k != "id"} for c in r.tool_calls] for r in stack.calls]
    assert calls[0] == calls[1]
    if wire.name == "openai_chat":
        deltas = [choice["delta"] for event in events(body) for choice in event["choices"]]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert body.endswith("data: [DONE]\n\n")
        assert not [
            event for event in events(body) if not event["choices"]
        ]  # usage has a chunk of its own only when asked for
    if wire.name == "anthropic":
        kinds = [event["type"] for event in events(body)]
        assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])


@every_wire
@streamed_or_not
async def test_t61_a_tool_that_nobody_offered(stack: Stack, wire: Wire, stream: bool) -> None:
    """Well-formed: the harness gets the call and answers it; the record is flagged and trainable."""
    stack.engine.script = lambda _p, _r: tool_call("foo", {"a": 1})
    status, said, _ = await call(stack, wire, stream=stream, tools=True)
    assert status == 200
    assert said is not None
    assert said.tools == [("foo", {"a": 1})]
    await stack.until(lambda: bool(stack.calls))
    assert (stack.calls[0].parse_status, stack.calls[0].trainable) == ("tool_call_invalid", True)


@every_wire
@streamed_or_not
async def test_t61_broken_arguments_are_text(stack: Stack, wire: Wire, stream: bool) -> None:
    """Exactly what was sampled, flagged, trainable."""
    sampled = '<tool_call>\n{"name": "bash", "arguments": {"a":\n</tool_call>'
    stack.engine.script = lambda _p, _r: sampled
    _, said, _ = await call(stack, wire, stream=stream, tools=True)
    assert said is not None
    assert (said.text, said.tools, said.finish) == (sampled, [], ENDS[wire.name]["stop"])
    await stack.until(lambda: bool(stack.calls))
    assert (stack.calls[0].parse_status, stack.calls[0].trainable) == ("tool_parse_error", True)


@every_wire
@streamed_or_not
async def test_t62_arguments_cut_by_length(stack: Stack, wire: Wire, stream: bool) -> None:
    """Text as sampled with no brace added, and the reason is the length."""
    sampled = '<tool_call>\n{"name": "bash", "arguments": {"path":"/a'
    stack.engine.script = lambda _p, _r: sampled + 'bc"}}\n</tool_call>'
    _, said, _ = await call(stack, wire, stream=stream, tools=True, **limit(wire, len(sampled)))
    assert said is not None
    assert (said.text, said.tools, said.finish) == (sampled, [], ENDS[wire.name]["length"])
    await stack.until(lambda: bool(stack.calls))
    assert (stack.calls[0].finish_reason, stack.calls[0].parse_status) == ("length", "tool_parse_error")


@every_wire
@streamed_or_not
async def test_t62_a_whole_call_before_the_cut_one_stays_a_call(stack: Stack, wire: Wire, stream: bool) -> None:
    """The action that was finished isn't lost with the one that wasn't; the end is still the length."""
    whole, cut = tool_call("bash", {"command": "ls"}), '<tool_call>\n{"name": "bash", "argu'
    stack.engine.script = lambda _p, _r: whole + cut + "ments"
    _, said, _ = await call(stack, wire, stream=stream, tools=True, **limit(wire, len(whole + cut)))
    assert said is not None
    assert (said.text, said.tools, said.finish) == (cut, [("bash", {"command": "ls"})], ENDS[wire.name]["length"])


@every_wire
@pytest.mark.parametrize(
    "body",
    [
        '{"name": "bash", "arguments": {"cmd": "ls"',
        '{"name": "bash", "arguments": {\'cmd\':\'ls\'}}',
        '{"name": "bash", "arguments": {"cmd":"a\nb"}}',
        '{"name": "bash", "arguments": ["ls"]}',
        '{"name": "bash", "arguments": "ls"}',
        '{"arguments": {"cmd": "ls"}}',
        '{"name": "bash", "arguments": {}} {"name": "bash", "arguments": {}}',
        '{"name": null, "arguments": {}}',
        "",
    ],
    ids=["cut", "quotes", "newline", "list", "string", "nameless", "two", "null", "empty"],
)
async def test_b109_malformed_tool_calls(stack: Stack, wire: Wire, body: str) -> None:
    """Never replaced by `{}`: the raw markup as text, streamed and whole alike, flagged, trained as sampled."""
    sampled = f"Now. <tool_call>\n{body}\n</tool_call>"
    stack.engine.script = lambda _p, _r: sampled
    for stream in (True, False):
        status, said, _ = await call(stack, wire, stream=stream, tools=True)
        assert status == 200
        assert said is not None
        assert (said.text, said.tools, said.finish) == (sampled, [], ENDS[wire.name]["stop"])
    await stack.until(lambda: len(stack.calls) == 2)
    assert [(r.parse_status, r.trainable, r.state) for r in stack.calls] == [
        ("tool_parse_error", True, CompletionState.FINISHED)
    ] * 2


# --- B91, B95


@streamed_or_not
async def test_b91_more_than_one_answer_is_refused(stack: Stack, stream: bool) -> None:
    """A 400 that names the field, before anything is generated or numbered."""
    body = {"model": "m", "n": 3, "stream": stream, "messages": [{"role": "user", "content": "x"}]}
    status, answer = await raw(stack, "/v1/chat/completions", body)
    assert (status, answer["error"]["param"], answer["error"]["type"]) == (400, "n", "invalid_request_error")
    assert not stack.engine.requests
    assert not stack.calls
    assert chat_request(n=1).top_logprobs is None


async def test_b95_tool_call_ids_are_unique_across_restarts(make_stack: MakeStack) -> None:
    """A proxy that starts again and counts from one again never repeats an id of the same session."""
    seen: list[str] = []
    for writer in (1, 2):
        stack = await make_stack()
        stack.engine.script = lambda _p, _r: tool_call("bash", {}) + tool_call("bash", {})
        await stack.open(writer=writer, takes_over=writer - 1)
        _, _, body = await call(stack, WIRES[0], stream=False, tools=True)
        seen += [c["id"] for c in body["choices"][0]["message"]["tool_calls"]]
        await stack.proxy.stop()
    assert len(set(seen)) == 4
    assert len({completion_of_tool_call(i) for i in seen}) == 2
