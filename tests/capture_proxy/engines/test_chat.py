"""The chat clients against servers that answer as vLLM 0.32, SGLang 0.5.23 and a plain OpenAI server do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture_proxy.engines import GenerateRequest, OpenAiChatEngine, VllmChatEngine, WeightSpan
from capture_proxy.engines.base import ChatPrompt, EngineCall, EngineFinish
from capture_proxy.engines.chat_reader import ChatReader, WholeReader
from capture_proxy.engines.chat_wire import CHAT_PATH
from capture_proxy.reply import ProxyError
from tests.capture_proxy.engines.servers import (
    Server,
    chat_event,
    chat_usage,
    collect,
    entries,
    ids_of,
    logprobs_of,
    refuse,
    sse,
)

TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
CHAT = ChatPrompt(messages=[{"role": "user", "content": "Hi"}], tools=[TOOL], max_tokens=9)
REQUEST = GenerateRequest(
    rid="r",
    session_id="session-1",
    input_ids=[],
    chat=CHAT,
    sampling={"temperature": 0.5, "top_k": 40, "min_p": 0.0, "stop_token_ids": [9], "repetition_penalty": 1.0},
)
VLLM_STREAM = sse(
    chat_event({"role": "assistant", "content": ""}, prompt_token_ids=[1, 2, 3]),
    chat_event({"reasoning": "hm"}, token_ids=[7], logprobs=entries(-0.1)),
    chat_event({"content": "Let me"}, token_ids=[8, 9], logprobs=entries(-0.2, -0.3)),
    chat_event({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "ls", "arguments": ""}}]}, token_ids=[10], logprobs=entries(-0.4)),
    chat_event({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}, token_ids=[11], logprobs=entries(-0.5)),
    chat_event({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}, token_ids=[12], logprobs=entries(-0.6)),
    chat_event({}, finish_reason="tool_calls", stop_reason=None, token_ids=[13], logprobs=entries(-0.7)),
    chat_usage(3, 7),
)  # fmt: skip
PLAIN_STREAM = sse(
    chat_event({"role": "assistant", "content": ""}),
    chat_event({"content": "Hel"}),
    chat_event({"content": "lo"}),
    chat_event({}, finish_reason="stop"),
    chat_usage(5, 2),
)


def whole(
    message: dict[str, Any], *, finish: str = "stop", usage: tuple[int, int] = (3, 3), **choice: Any
) -> dict[str, Any]:
    """An answer that isn't streamed."""
    top = {name: choice.pop(name) for name in ("prompt_token_ids", "metadata", "sglext") if name in choice}
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    entry = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, **choice}
    return {"object": "chat.completion", "model": "m", "choices": [entry], "usage": counts, **top}


def read_whole(answer: dict[str, Any]) -> tuple[list[int], list[float], EngineFinish]:
    """Ids, logprobs and finish of a whole answer."""
    reader = WholeReader()
    chunks = [*reader.feed(orjson.dumps(answer)), *reader.end()]
    assert chunks[-1].finish is not None
    return ids_of(chunks), logprobs_of(chunks), chunks[-1].finish


def read_stream(data: bytes, size: int = 1 << 20) -> tuple[list[int], list[float], EngineFinish]:
    """The same of a stream that arrives in pieces of `size` bytes."""
    reader = ChatReader()
    chunks = [chunk for at in range(0, len(data), size) for chunk in reader.feed(data[at : at + size])]
    assert chunks[-1].finish is not None
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].finish.reply.text  # type: ignore[union-attr]
    return ids_of(chunks), logprobs_of(chunks), chunks[-1].finish


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A running server."""
    async with Server().serving() as serving:
        serving.answers[CHAT_PATH] = VLLM_STREAM
        serving.answers["/v1/models"] = {"data": [{"id": "served", "max_model_len": 4096}]}
        yield serving


@pytest.fixture
async def vllm(server: Server) -> AsyncIterator[VllmChatEngine]:
    """The client of vLLM."""
    client = VllmChatEngine(server.url)
    yield client
    await client.close()


@pytest.fixture
async def openai(server: Server) -> AsyncIterator[OpenAiChatEngine]:
    """The client for any server; its address may end in /v1, as people write it."""
    client = OpenAiChatEngine(server.url + "/v1")
    yield client
    await client.close()


# --- vLLM


async def test_vllm_streams_ids_with_its_own_words(server: Server, vllm: VllmChatEngine) -> None:
    """Text, thinking and calls as the engine parsed them; ids and the prompt's ids from it; nothing re-encoded."""
    chunks = await collect(vllm, REQUEST)
    assert ids_of(chunks) == [7, 8, 9, 10, 11, 12, 13]
    assert logprobs_of(chunks) == [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6, -0.7]
    assert chunks[0].prompt_ids == [1, 2, 3]
    finish = chunks[-1].finish
    assert finish is not None
    assert finish.reply is not None
    assert (finish.reply.text, finish.reply.reasoning) == ("Let me", "hm")
    assert finish.reply.tool_calls == (EngineCall("ls", '{"a":1}'),)
    assert (finish.reason, finish.prompt_ids, finish.completion_tokens, finish.fault) == ("stop", [1, 2, 3], 7, "")
    [body] = server.bodies(CHAT_PATH)
    assert (body["messages"], body["tools"], body["stream"], body["return_token_ids"]) == (
        CHAT.messages,
        [TOOL],
        True,
        True,
    )
    assert (body["temperature"], body["top_k"], body["max_tokens"], body["logprobs"]) == (0.5, 40, 9, True)
    assert "stop_token_ids" not in body
    assert vllm.untold(REQUEST.sampling) == []


@given(st.integers(1, 400))
def test_b88_any_cut_of_the_bytes_gives_the_same_calls(size: int) -> None:
    """One byte per read or all at once: ids, logprobs and calls don't depend on it."""
    assert read_stream(VLLM_STREAM, size) == read_stream(VLLM_STREAM)


@given(st.lists(st.integers(1, 6), max_size=6))
def test_b88_any_split_of_calls_over_events_gives_the_same_calls(cuts: list[int]) -> None:
    """The end of one call and the start of the next in one event, or a character each: the final calls are identical."""
    pieces: list[tuple[int, str, str]] = [(0, "write", ""), (0, "", '{"content":"hi"}'), (1, "ls", ""), (1, "", "{}")]
    finer: list[dict[str, Any]] = []
    for index, name, arguments in pieces:
        if name:
            finer.append({"index": index, "id": f"c{index}", "function": {"name": name, "arguments": ""}})
        finer += [{"index": index, "function": {"arguments": letter}} for letter in arguments]
    events: list[Any] = []
    token = 100
    while finer:
        step = cuts.pop() if cuts else len(finer)
        events.append(chat_event({"tool_calls": finer[:step]}, token_ids=list(range(token, token + step))))
        token, finer = token + step, finer[step:]
    ids, _, finish = read_stream(sse(*events, chat_event({}, finish_reason="tool_calls"), chat_usage(1, token - 100)))
    assert ids == list(range(100, token))
    assert finish.reply is not None
    assert finish.reply.tool_calls == (EngineCall("write", '{"content":"hi"}'), EngineCall("ls", "{}"))


def test_b115_ids_that_a_parser_swallowed_are_a_fault() -> None:
    """Ids [1], [2], none, [5], and five tokens counted: the reply stands, the record can't be trained, and says why."""
    ids, _, finish = read_stream(
        sse(
            chat_event({"content": "a"}, token_ids=[1], prompt_token_ids=[9]),
            chat_event({"content": "b"}, token_ids=[2]),
            chat_event({"tool_calls": [{"index": 0, "function": {"name": "ls", "arguments": "{}"}}]}),
            chat_event({}, finish_reason="tool_calls", token_ids=[5]),
            chat_usage(1, 5),
        )
    )
    assert ids == [1, 2, 5]
    assert finish.fault == "ids_incomplete"
    assert finish.reply is not None
    assert finish.reply.tool_calls == (EngineCall("ls", "{}"),)


@pytest.mark.parametrize("prompt", [{}, {"prompt_token_ids": []}, {"prompt_token_ids": None}])
def test_b116_no_prompt_ids_are_none_and_never_an_empty_prompt(prompt: dict[str, Any]) -> None:
    """Completion ids alone, or with an empty list for the prompt: the prompt is unknown."""
    ids, logprobs, finish = read_whole(whole({"content": "x"}, token_ids=[7, 8], logprobs=None, usage=(3, 2), **prompt))
    assert (ids, logprobs, finish.prompt_ids) == ([7, 8], [], None)


def test_t47_the_list_with_as_many_entries_as_ids_wins() -> None:
    """Three triples beside two entries: the triples. Only two entries beside three ids: two logprobs, for the record to refuse."""
    triples = [[-0.1, 51, None], [-0.2, 52, None], [-0.3, 99, None]]
    short = entries(-0.1, -0.2)
    meta = {"output_token_logprobs": triples}
    assert read_whole(whole({"content": "x"}, meta_info=meta, logprobs=short))[:2] == ([51, 52, 99], [-0.1, -0.2, -0.3])
    assert read_whole(whole({"content": "x"}, token_ids=[51, 52, 99], logprobs=short))[:2] == (
        [51, 52, 99],
        [-0.1, -0.2],
    )


# --- where else ids are found


def test_sglang_tells_ids_in_whole_answers() -> None:
    """`response_token_ids` beside the message, spans of versions in the metadata."""
    spans = [{"version": "0", "start": 0, "end": 3}]
    answer = whole(
        {"content": "x", "reasoning_content": "y"},
        prompt_token_ids=[1, 2],
        response_token_ids=[51, 52, 99],
        matched_stop=99,
        meta_info={
            "output_token_logprobs": [[-0.1, 51, None], [-0.2, 52, None], [-0.3, 99, None]],
            "weight_versions": spans,
        },
    )
    ids, logprobs, finish = read_whole(answer)
    assert (ids, logprobs, finish.prompt_ids, finish.matched) == ([51, 52, 99], [-0.1, -0.2, -0.3], [1, 2], 99)
    assert finish.weight_spans == (WeightSpan("0", 0, 3),)
    assert finish.reply is not None
    assert finish.reply.reasoning == "y"


def test_ids_in_an_extension_after_the_finish_and_inside_logprobs() -> None:
    """SGLang's `sglext` comes behind the finish; vLLM can write ids into the logprobs' tokens."""
    late = sse(
        chat_event({"content": "x"}, logprobs=entries(-0.1, -0.2)),
        chat_event({}, finish_reason="length"),
        {"choices": [], "sglext": {"input_ids": [1, 2], "output_ids": [[7, 8]]}},
        chat_usage(2, 2),
    )
    ids, logprobs, finish = read_stream(late)
    assert (ids, logprobs, finish.prompt_ids, finish.reason) == ([7, 8], [-0.1, -0.2], [1, 2], "length")
    named = {"content": [{"token": "token_id:7", "logprob": -0.1}, {"token": "token_id:8", "logprob": -0.2}]}
    assert read_whole(whole({"content": "x"}, logprobs=named, usage=(2, 2)))[0] == [7, 8]


# --- a plain server


async def test_t46_a_plain_server_gives_text_and_no_ids(server: Server, openai: OpenAiChatEngine) -> None:
    """No ids anywhere: none are made up, and the reply is whole."""
    server.answers[CHAT_PATH] = lambda _: {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    openai.asking = openai.askings[1]
    chunks = await collect(openai, REQUEST)
    finish = chunks[-1].finish
    assert (ids_of(chunks), logprobs_of(chunks)) == ([], [])
    assert finish is not None
    assert finish.reply is not None
    assert (finish.reply.text, finish.prompt_ids, finish.weight_spans) == ("x", None, ())


async def test_a_plain_server_is_sent_standard_words_only(server: Server, openai: OpenAiChatEngine) -> None:
    """Unknown parameters would be refused; those that would matter are named."""
    server.answers[CHAT_PATH] = PLAIN_STREAM
    openai.asking = openai.askings[-1]
    await collect(openai, REQUEST)
    [body] = server.bodies(CHAT_PATH)
    assert set(body) == {"model", "messages", "tools", "temperature", "max_tokens", "stream", "stream_options"}
    assert openai.untold(REQUEST.sampling) == ["top_k"]


async def test_the_probe_asks_for_less_until_it_is_answered(server: Server, openai: OpenAiChatEngine) -> None:
    """A server that refuses ids and logprobs still serves; the probe says what is missing."""

    def strict(body: dict[str, Any]) -> Any:
        known = {"model", "messages", "tools", "temperature", "top_p", "max_tokens", "stream", "stream_options"}
        return PLAIN_STREAM if set(body) <= known else refuse(400, f"unknown: {set(body) - known}")

    server.answers[CHAT_PATH] = strict
    info = await openai.probe([1, 2])
    assert openai.asking == openai.askings[-1]
    assert (info.gives_ids, info.logprobs_mode, info.model, info.context_length) == (False, "none", "served", 4096)
    assert {"no ids of what it samples", "no logprobs", "no ids of the prompt"} <= set(info.gaps)


async def test_the_probe_finds_a_server_that_tells_ids_in_whole_answers_only(
    server: Server, openai: OpenAiChatEngine
) -> None:
    """As SGLang: ids with a stream are a 400, without one they come. Calls are then asked for whole."""

    def sglang(body: dict[str, Any]) -> Any:
        if body.get("stream"):
            return (
                refuse(400, "return_token_ids is not supported with streaming.")
                if "return_token_ids" in body
                else PLAIN_STREAM
            )
        value = -2.0 * body["temperature"]
        meta = {"output_token_logprobs": [[value, 51, None]], "weight_version": "5"}
        return whole({"content": "x"}, prompt_token_ids=[1], response_token_ids=[51], meta_info=meta, usage=(1, 1))

    server.answers[CHAT_PATH] = sglang
    info = await openai.probe([1, 2])
    assert not openai.asking.is_streamed
    assert (info.gives_ids, info.logprobs_mode) == (True, "temperature")
    assert info.gaps == ("it gives ids in whole answers only, so clients see the text at its end",)
    chunks = await collect(openai, REQUEST)
    assert chunks[-1].finish is not None
    assert chunks[-1].finish.weight_spans == (WeightSpan("5", 0, 1),)


async def test_the_probe_says_that_tools_are_refused(server: Server, vllm: VllmChatEngine) -> None:
    """A vLLM takes tools only when it was started with a parser for them."""
    words = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    server.answers[CHAT_PATH] = lambda body: refuse(400, words) if "tools" in body else VLLM_STREAM
    info = await vllm.probe([1])
    assert info.gives_ids
    assert any("--tool-call-parser" in gap for gap in info.gaps)
    assert "no weight versions" in info.gaps


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (sse({"error": {"message": "worker died", "code": 503}}), "engine_unavailable"),
        (sse(chat_event({"content": "x"})), "engine_error"),  # no finish reason
        (sse({"choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": ["a"]}]}), "engine_error"),
        (b"data: nope\n\n", "engine_error"),
        (refuse(400, "This model's maximum context length is 8192 tokens."), "context_overflow"),
        (refuse(429, "slow down", **{"retry-after": "2"}), "overloaded"),
    ],
)
async def test_failures(server: Server, vllm: VllmChatEngine, answer: Any, kind: str) -> None:
    """Errors before, in and instead of the stream have their kind; an end without a reason is one."""
    server.answers[CHAT_PATH] = lambda _: answer
    with pytest.raises(ProxyError) as raised:
        await collect(vllm, REQUEST)
    assert raised.value.kind == kind


def test_a_stream_without_its_last_mark_is_whole_once_the_finish_came() -> None:
    """Some servers end without `[DONE]`, and with line breaks of two characters."""
    data = sse(chat_event({"content": "x"}), chat_event({}, finish_reason="stop")).replace(b"data: [DONE]\n\n", b"")
    reader = ChatReader()
    chunks = [*reader.feed(b": hello\r\n\r\n" + data.replace(b"\n", b"\r\n")), *reader.end()]
    assert chunks[-1].finish is not None
    assert [chunk.text for chunk in chunks] == ["x", ""]
    assert not reader.is_done
