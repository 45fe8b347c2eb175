"""Calls of the whole proxy at each kind of engine: what the client gets, and what the record can and can't hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from capture_proxy.engines.chat_wire import CHAT_PATH
from capture_proxy.engines.vllm_wire import GENERATE_PATH
from capture_proxy.settings import EngineSettings
from schemas import arrays
from schemas.records import Boundary, CompletionState, LineageStatus
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.engines.servers import (
    Server,
    chat_event,
    chat_usage,
    entries,
    refuse,
    sse,
    vllm_event,
    vllm_usage,
)
from tests.capture_proxy.fakes import END_ID, CharRenderer
from tests.capture_proxy.wire import WIRES, Wire

MakeStack = Callable[..., Awaitable[Stack]]
anthropic_and_chat = pytest.mark.parametrize("wire", WIRES[:2], ids=lambda wire: wire.name)
ENCODE = CharRenderer().encode


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """An engine whose answers a test scripts. Probes are answered as the first call is."""
    async with Server().serving() as serving:
        serving.answers["/v1/models"] = {"data": [{"id": "served", "max_model_len": 4096}]}
        serving.answers["/tokenize"] = _tokenize
        serving.answers["/inference/v1/abort_requests"] = {}
        yield serving


def _tokenize(body: dict[str, Any]) -> dict[str, Any]:
    renderer = CharRenderer()
    ids = ENCODE(body["prompt"]) if "prompt" in body else renderer.render(body["messages"], [], {})
    return {"tokens": ids}


async def started(make_stack: MakeStack, server: Server, kind: str, **options: Any) -> Stack:
    """A proxy in front of this engine, with an open lease."""
    made = await make_stack(engines=(EngineSettings(url=server.url, kind=kind),), **options)
    status, _ = await made.open()
    assert status == 200
    return made


async def asked(stack: Stack, wire: Wire, **changes: Any) -> Any:
    """One whole call, and its record."""
    async with stack.http.post(stack.url(wire.path), json=wire.request(**changes)) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()
    await stack.until(lambda: bool(stack.calls))
    return answer


def said(text: str, **more: Any) -> bytes:
    """A chat stream of vLLM's that says a text, a token per character, and ends with the end of the turn."""
    ids = [*ENCODE(text), END_ID]
    prompt = {"prompt_token_ids": ENCODE("the engine's own rendering"), **more}
    return sse(
        chat_event({"role": "assistant", "content": ""}, **prompt),
        *(
            chat_event({"content": letter}, token_ids=[i], logprobs=entries(-0.5))
            for letter, i in zip(text, ids, strict=False)
        ),
        chat_event({}, token_ids=[END_ID], logprobs=entries(-0.25), finish_reason="stop"),
        chat_usage(26, len(ids)),
    )


# --- token-in


@anthropic_and_chat
async def test_vllm_is_token_in(make_stack: MakeStack, server: Server, wire: Wire) -> None:
    """The engine gets the prompt's ids, the client text that was decoded here, the record ids, logprobs and versions."""
    ids = [*ENCODE("Hi!"), END_ID]
    spans = [{"version": "0", "start": 0, "end": len(ids)}]

    def generate(body: dict[str, Any]) -> bytes:
        echo = {"prompt_token_ids": body["token_ids"]}
        return sse(
            vllm_event(ids, finish="stop", stop=END_ID, spans=spans, **echo),
            vllm_usage(len(body["token_ids"]), len(ids)),
        )

    server.answers[GENERATE_PATH] = generate
    stack = await started(make_stack, server, "vllm")
    assert wire.read_whole(await asked(stack, wire)).text == "Hi!"
    [record] = stack.calls
    assert (record.engine, record.prompt_echo, record.trainable) == ("vllm", "exact", True)
    assert list(arrays.unpack_ids(record.output_ids)) == ids
    assert [span.version for span in record.version_spans] == ["0"]
    assert list(arrays.unpack_ids(record.suffix_ids)) == server.bodies(GENERATE_PATH)[-1]["token_ids"]


async def test_vllm_without_its_token_interface_is_refused(make_stack: MakeStack, server: Server) -> None:
    """The proxy says which option is missing, and makes no calls."""
    server.answers[GENERATE_PATH] = lambda _: refuse(403, "disabled")
    stack = await started(make_stack, server, "vllm")
    async with stack.http.post(stack.url(WIRES[0].path), json=WIRES[0].request()) as response:
        assert response.status in (503, 529)
        assert "--enable-scale-out" in await response.text()


# --- text-in


@anthropic_and_chat
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_vllm_chat_renders_and_its_ids_are_recorded(
    make_stack: MakeStack, server: Server, wire: Wire, stream: bool
) -> None:
    """The conversation goes out as messages; prompt and output ids in the record are the engine's, and so is the word for it."""
    server.answers[CHAT_PATH] = said("Hi!")
    stack = await started(make_stack, server, "vllm_chat")
    async with stack.http.post(stack.url(wire.path), json=wire.request(stream=stream)) as response:
        body = await response.text()
    heard = wire.read_stream(body) if stream else wire.read_whole(json.loads(body))
    assert (heard.text, heard.is_over) == ("Hi!", True)
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert list(arrays.unpack_ids(record.output_ids)) == [*ENCODE("Hi!"), END_ID]
    assert arrays.unpack_logprobs(record.logprobs).tolist() == [-0.5, -0.5, -0.5, -0.25]
    assert list(arrays.unpack_ids(record.suffix_ids)) == ENCODE("the engine's own rendering")
    assert (record.prompt_len, record.prefix_len, record.parent_id) == (26, 0, "")
    assert (record.prompt_echo, record.notes["rendered_by"]) == ("engine", "engine")
    assert (record.lineage, record.lineage_reason) == (LineageStatus.NONE, "text_in")
    assert (record.trainable, record.untrainable_reason, record.version_spans) == (True, "", [])
    assert server.bodies(CHAT_PATH)[-1]["messages"] == record.messages


async def test_tool_calls_are_the_engines_and_stand_where_the_ids_say(make_stack: MakeStack, server: Server) -> None:
    """The client gets the call that the engine parsed; its span is found in the ids where our parser reads them alike."""
    sampled = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    ids = [*ENCODE(sampled), END_ID]
    call = {"index": 0, "id": "x", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    server.answers[CHAT_PATH] = sse(
        chat_event({"tool_calls": [call]}, token_ids=ids, logprobs=entries(*[-0.5] * len(ids)), prompt_token_ids=[9]),
        chat_event({}, finish_reason="tool_calls"),
        chat_usage(1, len(ids)),
    )
    stack = await started(make_stack, server, "vllm_chat")
    heard = WIRES[0].read_whole(await asked(stack, WIRES[0], tools=True))
    assert heard.tools == [("bash", {"command": "ls"})]
    [record] = stack.calls
    assert record.finish_reason == "tool_calls"
    start, end = record.tool_calls[0]["span"]
    assert CharRenderer().decode(ids[start:end]).strip().startswith("<tool_call>")
    assert record.tool_calls[0]["name"] == "bash"


async def test_a_broken_call_is_text(make_stack: MakeStack, server: Server) -> None:
    """Arguments that are no JSON object never become a call: the client sees them as text."""
    call = {"index": 0, "id": "x", "function": {"name": "bash", "arguments": '{"command": '}}
    server.answers[CHAT_PATH] = sse(
        chat_event({"tool_calls": [call]}, token_ids=[50], logprobs=entries(-0.5), prompt_token_ids=[9]),
        chat_event({}, finish_reason="tool_calls"),
        chat_usage(1, 1),
    )
    stack = await started(make_stack, server, "vllm_chat")
    heard = WIRES[0].read_whole(await asked(stack, WIRES[0], tools=True))
    assert (heard.tools, heard.text) == ([], 'bash{"command": ')
    [record] = stack.calls
    assert (record.parse_status, record.finish_reason) == ("tool_parse_error", "stop")


async def test_t46_three_replies_without_ids(make_stack: MakeStack, server: Server) -> None:
    """Each is delivered and recorded as untrainable, `ids_missing`; they are counted; no tokenizer steps in."""
    server.answers[CHAT_PATH] = lambda _: {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    stack = await started(make_stack, server, "openai")
    for _ in range(3):
        assert WIRES[0].read_whole(await asked(stack, WIRES[0])).text == "x"
    await stack.until(lambda: len(stack.calls) == 3)
    for record in stack.calls:
        assert (record.state, record.trainable, record.untrainable_reason) == (
            CompletionState.FINISHED,
            False,
            "ids_missing",
        )
        assert (record.output_ids, record.suffix_ids, record.prompt_echo) == (b"", b"", "absent")
    _, health = await stack.admin("GET", "/health")
    assert health["counts"]["untrainable:ids_missing"] == 3
    assert any("can be trained" in gap for gap in health["engines"][0]["gaps"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt_token_ids": None}, "no_prompt_ids"),
        ({"prompt_token_ids": []}, "no_prompt_ids"),
    ],
)
async def test_b116_without_prompt_ids_nothing_can_be_trained(
    make_stack: MakeStack, server: Server, change: dict[str, Any], reason: str
) -> None:
    """Ids of the answer alone: the record has no prompt, and says so; an empty list is no prompt either."""
    server.answers[CHAT_PATH] = said("ok", **change)
    stack = await started(make_stack, server, "vllm_chat")
    assert WIRES[0].read_whole(await asked(stack, WIRES[0])).text == "ok"
    [record] = stack.calls
    assert (record.trainable, record.untrainable_reason, record.prompt_len, record.suffix_ids) == (
        False,
        reason,
        0,
        b"",
    )


async def test_b116_without_logprobs_nothing_can_be_trained(make_stack: MakeStack, server: Server) -> None:
    """Ids and prompt, but no logprobs."""
    ids = [*ENCODE("ok"), END_ID]
    stream = sse(
        chat_event({"content": "ok"}, token_ids=ids, prompt_token_ids=[9]),
        chat_event({}, finish_reason="stop"),
        chat_usage(1, 3),
    )
    server.answers[CHAT_PATH] = stream
    stack = await started(make_stack, server, "vllm_chat")
    await asked(stack, WIRES[0])
    assert stack.calls[0].untrainable_reason == "no_logprobs"


async def test_b115_swallowed_ids_are_delivered_and_untrainable(make_stack: MakeStack, server: Server) -> None:
    """The client gets the whole text; the record says that ids are missing, and health counts it."""
    good = said("abc")
    server.answers[CHAT_PATH] = good
    stack = await started(make_stack, server, "vllm_chat")
    await stack.until(lambda: bool(stack.proxy.engines.describe()[0]["is_probed"]))
    server.answers[CHAT_PATH] = sse(
        chat_event({"content": "a"}, token_ids=ENCODE("a"), logprobs=entries(-0.5), prompt_token_ids=[9]),
        chat_event({"content": "bc"}),
        chat_event({}, finish_reason="stop", token_ids=[END_ID], logprobs=entries(-0.5)),
        chat_usage(1, 4),
    )
    assert WIRES[0].read_whole(await asked(stack, WIRES[0])).text == "abc"
    assert (stack.calls[0].trainable, stack.calls[0].untrainable_reason) == (False, "ids_incomplete")
    _, health = await stack.admin("GET", "/health")
    assert health["counts"]["untrainable:ids_incomplete"] == 1


async def test_t47_a_short_list_of_logprobs_beside_the_ids(make_stack: MakeStack, server: Server) -> None:
    """Three ids, two logprobs: untrainable."""
    server.answers[CHAT_PATH] = said("abc")
    stack = await started(make_stack, server, "vllm_chat")
    await stack.until(lambda: bool(stack.proxy.engines.describe()[0]["is_probed"]))
    server.answers[CHAT_PATH] = sse(
        chat_event({"content": "ab"}, token_ids=[51, 52], logprobs=entries(-0.1, -0.2), prompt_token_ids=[9]),
        chat_event({}, finish_reason="stop", token_ids=[END_ID]),
        chat_usage(1, 3),
    )
    await asked(stack, WIRES[0])
    assert stack.calls[0].untrainable_reason == "logprob_length"


async def test_parameters_that_cant_be_told_are_not_on_the_record(make_stack: MakeStack, server: Server) -> None:
    """What is recorded as effective is what the engine was told."""
    server.answers[CHAT_PATH] = lambda _: {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    stack = await started(make_stack, server, "openai", sampling_defaults={"min_p": 0.3})
    await asked(stack, WIRES[0])
    [record] = stack.calls
    assert "min_p" not in record.sampling_effective
    assert "min_p: this engine can't be told" in record.notes["sampling"]


# --- weight versions, and engines that are busy with them


async def test_t40_spans_are_kept_and_mixed_versions_are_untrainable(stack: Stack) -> None:
    """(a) spans say whose each token is; (b) versions that differ at start and end, without spans, train nothing; (c) an abort either."""
    spans = [{"version": "7", "start": 0, "end": 2}, {"version": "8", "start": 2, "end": 4}]
    stack.engine.script = lambda *_: "abc"
    stack.engine.last_meta = {"weight_versions": spans, "weight_version": "8"}
    await _chat(stack)
    stack.engine.last_meta = {"weight_versions": None, "weight_version": "8"}
    await _chat(stack)
    stack.engine.last_meta = {}
    stack.engine.finish = {"type": "abort", "message": "weights"}
    stack.proxy.tap._max_resumes = 0
    assert await _chat(stack) == 503
    await stack.until(lambda: len(stack.calls) == 3)
    kept, mixed, aborted = stack.calls
    assert [(s.version, s.start, s.end) for s in kept.version_spans] == [("7", 0, 2), ("8", 2, 4)]
    assert (kept.trainable, kept.untrainable_reason) == (True, "")
    assert (mixed.trainable, mixed.untrainable_reason, mixed.version_spans) == (False, "mixed_version", [])
    assert (aborted.state, aborted.untrainable_reason) == (CompletionState.ABORTED, "aborted")
    assert len(arrays.unpack_ids(aborted.output_ids)) == 4  # what was sampled is kept
    assert aborted.error.boundary is Boundary.PROVIDER


@pytest.mark.parametrize("version", [0, "0"])
async def test_t41_version_zero_is_a_version(stack: Stack, version: Any) -> None:
    """A number or a text: "0" on the record, never nothing and never the current version."""
    stack.engine.script = lambda *_: "a"
    stack.engine.last_meta = {"weight_versions": [{"version": version, "start": 0, "end": 2}]}
    await _chat(stack)
    await stack.until(lambda: bool(stack.calls))
    assert [(s.version, s.start, s.end) for s in stack.calls[0].version_spans] == [("0", 0, 2)]
    assert stack.calls[0].trainable


@anthropic_and_chat
@pytest.mark.parametrize("status", [429, 503])
async def test_t67_busy_while_weights_change(stack: Stack, wire: Wire, status: int) -> None:
    """A refused call is recorded as failed(busy) and the client told when to come back; its retry is one trained call."""
    stack.engine.status = status
    stack.engine.headers = {"retry-after": "2"}
    async with stack.http.post(stack.url(wire.path), json=wire.request()) as response:
        assert response.status in (status, 529)
        assert response.headers["retry-after"] == "2"
    stack.engine.status = 200
    async with stack.http.post(stack.url(wire.path), json=wire.request()) as response:
        assert response.status == 200
    await stack.until(lambda: len(stack.calls) == 2)
    refused, retried = stack.calls
    assert (refused.state, refused.error.kind, refused.untrainable_reason) == (CompletionState.FAILED, "busy", "busy")
    assert (retried.state, retried.trainable) == (CompletionState.FINISHED, True)


async def _chat(stack: Stack) -> int:
    async with asyncio.timeout(10), stack.http.post(stack.url(WIRES[0].path), json=WIRES[0].request()) as response:
        await response.read()
        return response.status


async def test_t49_the_share_of_exact_zeros_is_a_metric(stack: Stack) -> None:
    """Some per cent are normal in half precision; a share that grows says that an engine's logprobs are cut or made up."""
    stack.engine.script = lambda *_: "abc"
    await _chat(stack)
    stack.engine.logprob = -0.0
    await _chat(stack)
    await stack.until(lambda: len(stack.calls) == 2)
    _, health = await stack.admin("GET", "/health")
    assert (health["counts"]["tokens:trainable"], health["counts"]["tokens:logprob_zero"]) == (8, 4)


# --- the logprobs' mode


async def test_b119_the_mode_is_measured_recorded_and_pinned(make_stack: MakeStack) -> None:
    """The record states of which distribution the logprobs are, with the sampling; an engine of another mode than the pinned is refused."""
    stack = await make_stack()
    assert (await stack.open())[0] == 200
    assert await _chat(stack) == 200
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert record.logprobs_mode == "temperature"
    assert {"temperature", "top_p", "top_k", "min_p"} <= set(record.sampling_effective)
    await stack.proxy.stop()
    pinned = await make_stack(logprobs_mode="raw", proxy_id="proxy-b")
    assert (await pinned.open(session_id="session-2", lease_id="8c0a3f1e-5a43-4c7e-9d8b-0123456789ab"))[0] == 200
    assert await _chat(pinned) in (503, 529)
    assert "temperature" in str(pinned.proxy.engines.describe()[0]["refusal"])
