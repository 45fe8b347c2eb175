"""Cases of Chat Completions: histories, chunks, usage, logprobs, arguments."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture_proxy.logprobs import for_client
from capture_proxy.rendering import Renderer
from capture_proxy.rendering.base import ParsedReply
from capture_proxy.rendering.calls import CallFormat, read_json_calls, read_xml_calls
from capture_proxy.rendering.parser import MarkParser
from capture_proxy.rendering.template import TemplateRenderer
from capture_proxy.reply import ReasoningDelta, TextDelta
from schemas import arrays
from tests.capture_proxy.cases.asking import call, chat_request, raw
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import CharDetokenizer, CharRenderer
from tests.capture_proxy.wire import WIRES, events

USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize("content", [None, "", [], "absent"])
def test_b86_empty_content_beside_tool_calls(renderer: Renderer, content: Any) -> None:
    """null, "", [] and no content give one prompt, and it goes on from exactly the tokens that were sampled."""
    answer: dict[str, Any] = {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
    }
    if content != "absent":
        answer["content"] = content
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}]
    result = {"role": "tool", "tool_call_id": "c1", "content": "a"}
    request = chat_request(messages=[USER, answer, result], tools=tools)
    prompt = renderer.render(chat_request(messages=[USER], tools=tools).messages, tools, {})
    sampled = renderer.encode('<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call><|im_end|>')
    whole = renderer.render(request.messages, tools, {})
    text = renderer.decode(whole)
    assert text.startswith(renderer.decode([*prompt, *sampled]))
    assert whole[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    assert request.messages[1]["content"] == ""


# --- B88: however the same ids are cut

JSON_OUTPUTS = [
    '<think>\nhm <tool_call> no\n</think>\n\nOk.\n<tool_call>\n{"name": "f", "arguments": {"x": "</think> é"}}\n</tool_call>',
    'a <tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "ls"}</tool_call> b  ',
    'a <tool_call>{"name": "f", "arg',
    'see <tool_\n\n <think>x</think> <tool_call>\n{"name": "f"}\n</tool_call>\n<tool_call>oops',
    "漢🦊ö \n\n END tail <tool_call>",
]
XML_OUTPUTS = [
    "<tool_call><function=w><parameter=content>hi</parameter></function></tool_call><tool_call><function=ls></function></tool_call>",
    "x\n<tool_call>\n<function=w>\n<parameter=content>\n<tool_call> é\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "w", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    }
]


def read_in_pieces(
    ids: list[int], cuts: list[int], form: CallFormat | None, stop: tuple[str, ...], *, is_cut: bool
) -> tuple[str, str, ParsedReply]:
    """(streamed text, streamed reasoning, the whole) with the ids fed in pieces that end at the cuts."""
    parser = MarkParser(CharDetokenizer(), call_format=form, tools=TOOLS, stop=stop)
    deltas = []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        deltas += parser.feed(ids[start:end])
    last, whole = parser.finish(is_cut=is_cut)
    deltas += last
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    return text, "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)), whole


@settings(deadline=None, max_examples=200)
@given(
    sampled=st.one_of(
        st.tuples(st.sampled_from(JSON_OUTPUTS), st.just(read_json_calls)),
        st.tuples(st.sampled_from(XML_OUTPUTS), st.just(read_xml_calls)),
        st.tuples(st.sampled_from(JSON_OUTPUTS), st.none()),
        st.tuples(
            st.lists(
                st.sampled_from(
                    [
                        "<think>",
                        "</think>",
                        "<tool_call>",
                        "</tool_call>",
                        '{"name": "f", "arguments": {}}',
                        "\n",
                        " ",
                        "a<",
                        "é",
                    ]
                ),
                max_size=12,
            ).map("".join),
            st.just(read_json_calls),
        ),
    ),
    cuts=st.lists(st.integers(0, 160), max_size=8),
    stop=st.sampled_from([(), ("END",), ("b", " \n")]),
    is_cut=st.booleans(),
)
def test_b88_any_split_of_the_same_ids_gives_equal_results(
    sampled: tuple[str, CallFormat | None], cuts: list[int], stop: tuple[str, ...], is_cut: bool
) -> None:
    """All at once, one by one, or any pieces between: same text, reasoning, calls, status and spans; the stream is the whole."""
    text, form = sampled
    ids = CharRenderer().encode(text)
    at_once = read_in_pieces(ids, [], form, stop, is_cut=is_cut)
    assert read_in_pieces(ids, sorted(min(cut, len(ids)) for cut in cuts), form, stop, is_cut=is_cut) == at_once
    assert read_in_pieces(ids, list(range(len(ids))), form, stop, is_cut=is_cut) == at_once
    shown, thought, whole = at_once
    assert (shown, thought) == (whole.text, whole.reasoning)


def test_b88_the_end_of_a_call_and_the_next_one_in_one_piece() -> None:
    """Pending parameters are kept when the close mark comes with them."""
    _, _, whole = read_in_pieces(CharRenderer().encode(XML_OUTPUTS[0]), [], read_xml_calls, (), is_cut=False)
    assert [(c.name, c.arguments) for c in whole.tool_calls] == [("w", '{"content":"hi"}'), ("ls", "{}")]


# --- B89, B92, B94


@pytest.mark.component
@pytest.mark.parametrize("options", [None, {"include_usage": True}])
async def test_b89_a_usage_chunk_only_when_asked_for(stack: Stack, options: Any) -> None:
    """Without the option no chunk lacks a choice; with it exactly one does, the last, and the others have no usage."""
    changes = {} if options is None else {"stream_options": options}
    _, _, body = await call(stack, WIRES[0], stream=True, **changes)
    chunks = events(body)
    bare = [chunk for chunk in chunks if not chunk["choices"]]
    if options is None:
        assert not bare
    else:
        assert bare == chunks[-1:]
        assert bare[0]["usage"]["total_tokens"] > 0
        assert all(chunk.get("usage") is None for chunk in chunks[:-1])


@pytest.mark.component
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("asked", "top"),
    [
        ({}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 5),
        ({"logprobs": False}, None),
    ],
)
async def test_b92_clients_logprobs_and_ours(
    stack: Stack, stream: bool, asked: dict[str, Any], top: int | None
) -> None:
    """The record has them always; the client sees them only if it asked, its own number of alternatives, strings and bytes right."""
    said = "ü漢🦊."
    stack.engine.script = lambda _p, _r: "<think>\nhm\n</think>\n\n" + said
    async with openai.AsyncOpenAI(
        base_url=f"{stack.proxy.data_address}/v1", api_key=stack.secret, max_retries=0
    ) as client:
        done: Any
        request: Any = {"model": "m", "messages": [USER], **{k: v for k, v in asked.items() if v is not None}}
        if stream:
            async with client.chat.completions.stream(**request) as reader:
                await reader.until_done()
                done = await reader.get_final_completion()
        else:
            done = await client.chat.completions.create(**request)
    shown = done.choices[0].logprobs
    if top is None:
        assert shown is None
    else:
        assert [token.token for token in shown.content] == list(said)
        assert bytes(byte for token in shown.content for byte in token.bytes).decode() == said
        assert all(token.logprob == -0.5 for token in shown.content)
        assert [len(token.top_logprobs) for token in shown.content] == [top] * len(said)
        if top:
            assert [(t.token, t.logprob) for t in shown.content[0].top_logprobs[:2]] == [("ü", -0.5), ("ý", -1.5)]
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert len(arrays.unpack_logprobs(record.logprobs)) == len(arrays.unpack_ids(record.output_ids)) > 0
    assert stack.engine.requests[0]["return_logprob"] is True
    assert stack.engine.requests[0].get("top_logprobs_num", 0) == (top or 0)


async def test_b92_null_as_json_null(stack: Stack) -> None:
    """`top_logprobs: null` on the wire is no number."""
    body = {"model": "m", "messages": [USER], "logprobs": True, "top_logprobs": None}
    status, answer = await raw(stack, "/v1/chat/completions", body)
    assert status == 200
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_b92_tokens_that_are_parts_of_characters(template: TemplateRenderer) -> None:
    """Bytes add up to the text, although no single token of a rare character is one; the end token isn't shown."""
    text = "🦊 𓀀 fox"
    ids = template.encode(text)
    output = [*template.encode("<think>\nhm\n</think>\n\n"), *ids, template.stop_token_ids[0]]
    parser = template.parser([], is_parsing_tools=False)
    parser.feed(output)
    _, parsed = parser.finish()
    shown = for_client(parsed, output, [-1.0] * len(output), [[(-1.0, i)] for i in output], template, top_count=1)
    assert b"".join(bytes(token.data) for token in shown).decode() == parsed.text == text
    assert len(shown) == len(ids)
    assert any("\ufffd" in token.token for token in shown)
    assert [token.top[0].data for token in shown] == [token.data for token in shown]


@pytest.mark.component
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_b94_arguments_pass_as_they_were_sampled(stack: Stack, stream: bool) -> None:
    """Spacing, order, numbers and characters of the sampled text in Chat; the same values in Messages."""
    arguments = '{"path": "ü/日本",  "n":1.0, "a": 9007199254740993}'
    stack.engine.script = lambda _p, _r: f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'
    _, chat, body = await call(stack, WIRES[0], stream=stream, tools=True)
    _, messages, other = await call(stack, WIRES[1], stream=stream, tools=True)
    assert chat is not None
    assert messages is not None
    assert chat.tools == messages.tools == [("bash", json.loads(arguments))]
    if stream:
        [sent] = [
            part["function"]["arguments"]
            for event in events(body)
            for choice in event["choices"]
            for part in choice["delta"].get("tool_calls", [])
        ]
        [block] = [e["delta"]["partial_json"] for e in events(other) if "partial_json" in e.get("delta", {})]
        assert sent == block == arguments
    else:
        assert body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments
    await stack.until(lambda: len(stack.calls) == 2)
    assert {record.tool_calls[0]["arguments"] for record in stack.calls} == {arguments}
