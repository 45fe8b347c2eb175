"""The whole proxy in one process: real mitmproxy, real tap, a fake engine, the memory bus. What calls get and leave behind."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import zstandard

from schemas import arrays, ids
from schemas.records import Boundary, CompletionState, Dialect, Heartbeat, LineageStatus, VersionSpan
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import END_ID, CharRenderer, tool_call
from tests.capture_proxy.wire import WIRES, Reader, Wire

MakeStack = Callable[..., Awaitable[Stack]]
both = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
streamed_or_not = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


async def ask(stack: Stack, wire: Wire, *, stream: bool, **changes: object) -> tuple[int, str]:
    """One call with the secret in the path."""
    body = wire.request(stream=stream, **changes)  # type: ignore[arg-type]
    path = wire.stream_path if stream else wire.path
    async with stack.http.post(stack.url(path), json=body) as response:
        return response.status, await response.text()


@both
@streamed_or_not
async def test_a_call_is_answered_and_recorded(stack: Stack, wire: Wire, stream: bool) -> None:
    """The client gets its dialect's answer; the record holds the engine's own ids and logprobs; the delivery is a fact."""
    stack.engine.script = lambda _prompt, _request: "Let me look. " + tool_call("bash", {"command": "ls"})
    status, body = await ask(stack, wire, stream=stream, tools=True)
    assert status == 200
    said = wire.read_stream(body) if stream else wire.read_whole(json.loads(body))
    assert said.text.strip() == "Let me look."
    assert said.tools == [("bash", {"command": "ls"})]
    assert said.is_over
    await stack.until(lambda: bool(stack.deliveries))
    [record] = stack.calls
    sampled = [*CharRenderer().encode("Let me look. " + tool_call("bash", {"command": "ls"})), END_ID]
    assert list(arrays.unpack_ids(record.output_ids)) == sampled
    assert arrays.unpack_logprobs(record.logprobs).tolist() == [-0.5] * len(sampled)
    assert list(arrays.unpack_ids(record.suffix_ids)) == stack.engine.requests[0]["input_ids"]
    assert record.prompt_len == len(stack.engine.requests[0]["input_ids"])
    assert (record.state, record.finish_reason, record.trainable) == (CompletionState.FINISHED, "tool_calls", True)
    assert record.untrainable_reason == ""
    assert (record.session_id, record.lease_id, record.writer, record.call_seq) == ("session-1", stack.lease_id, 1, 1)
    assert record.completion_id == ids.completion_id(stack.lease_id, 1, 1) == stack.engine.requests[0]["rid"]
    assert (record.task_id, record.group_id, record.policy_id, record.harness) == (
        "task-1",
        "group-1",
        "policy-1",
        "shell",
    )
    assert (record.dialect, record.model_requested, record.is_stream) == (Dialect(wire.name), "policy", stream)
    assert (record.lineage, record.lineage_reason, record.prefix_len) == (LineageStatus.ROOT, "session_start", 0)
    assert record.version_spans == [VersionSpan(version="v1", start=0, end=len(sampled))]
    assert record.prompt_echo == "exact"
    assert record.messages[-1] == {"role": "user", "content": "Hi"}
    assert [c["name"] for c in record.tool_calls] == ["bash"]
    assert record.text.strip() == "Let me look."
    assert record.tokenizer_digest == CharRenderer.tokenizer_digest
    assert 0 < record.first_token_ms <= record.total_ms
    [delivery] = stack.deliveries
    assert (delivery.completion_id, delivery.delivered) == (record.completion_id, True)


@both
async def test_the_secret_also_works_as_api_key(stack: Stack, wire: Wire) -> None:
    """Without a path segment, the vendor's own API-key header opens the lease."""
    async with stack.http.post(
        stack.proxy.data_address + wire.path, json=wire.request(), headers=wire.headers(stack.secret)
    ) as response:
        assert response.status == 200
        assert wire.read_whole(await response.json()).text == "Hello there."


@both
async def test_text_streams_while_it_is_sampled(stack: Stack, wire: Wire) -> None:
    """The first words are with the client while the engine still samples the rest."""
    stack.engine.pause_at = 8
    stack.engine.go.clear()
    async with stack.http.post(stack.url(wire.stream_path), json=wire.request(stream=True)) as response:
        reader = Reader(response)
        while "o t" not in wire.read_stream(reader.body).text and await reader.more(5.0):
            pass
        assert wire.read_stream(reader.body).text.startswith("Hello")
        assert not stack.calls
        stack.engine.go.set()
        while await reader.more(5.0):
            pass
    assert wire.read_stream(reader.body).text == "Hello there."


@both
async def test_silence_is_filled_with_keep_alives(make_stack: MakeStack, wire: Wire) -> None:
    """While the engine says nothing, the client sees signs of life, and the answer after them is whole."""
    stack = await make_stack(keepalive_s=0.05)
    await stack.open()
    stack.engine.pause_at = 3
    stack.engine.go.clear()
    async with stack.http.post(stack.url(wire.stream_path), json=wire.request(stream=True)) as response:
        reader = Reader(response)
        await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
        seen = 0
        while seen < 8:
            assert await reader.more(5.0)
            seen += 1
        stack.engine.go.set()
        while await reader.more(5.0):
            pass
    assert wire.read_stream(reader.body).text == "Hello there."


@both
async def test_a_slow_engine_gets_headers_before_its_status(make_stack: MakeStack, wire: Wire) -> None:
    """After the status wait the stream begins; a later refusal of the engine is an error event in it."""
    stack = await make_stack(engine_status_wait_s=0.05, keepalive_s=0.05)
    await stack.open()
    stack.engine.accept.clear()
    stack.engine.status = 500
    async with stack.http.post(stack.url(wire.stream_path), json=wire.request(stream=True)) as response:
        assert response.status == 200
        reader = Reader(response)
        assert await reader.more(5.0)
        stack.engine.accept.set()
        while await reader.more(5.0):
            pass
    assert "error" in reader.body
    await stack.until(lambda: bool(stack.calls))
    assert stack.calls[0].state is CompletionState.FAILED


@both
@streamed_or_not
@pytest.mark.parametrize(
    ("status", "expected", "kind"),
    [(429, 429, "busy"), (503, 503, "busy"), (500, 500, "engine_error")],
)
async def test_an_early_engine_error_is_a_status_code(  # noqa: PLR0917 - what is parametrised
    stack: Stack, wire: Wire, stream: bool, status: int, expected: int, kind: str
) -> None:
    """What the engine refuses at once reaches the client as its dialect's error, with Retry-After, and is recorded."""
    if wire.name == "anthropic" and status == 503:
        expected = 529  # this vendor's word for it
    stack.engine.status = status
    stack.engine.headers = {"retry-after": "7"}
    path = wire.stream_path if stream else wire.path
    async with stack.http.post(stack.url(path), json=wire.request(stream=stream)) as response:
        assert response.status == expected
        assert wire.error_of(await response.json())[1]
        if status == 429:
            assert response.headers["retry-after"] == "7"
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    reason = "busy" if kind == "busy" else "failed"
    assert (record.state, record.trainable, record.untrainable_reason) == (CompletionState.FAILED, False, reason)
    assert record.error is not None
    assert (record.error.kind, record.error.status, record.error.boundary) == (kind, expected, Boundary.PROVIDER)


async def test_an_engine_with_another_tokenizer_is_refused(make_stack: MakeStack) -> None:
    """Its ids would mean other text: calls fail as unavailable, and health says why."""
    made = await make_stack()
    made.engine.tokenizer = lambda text: [ord(c) for c in text]
    await made.proxy.engines.remove("*", made.engine.url)
    made.proxy.engines.add("*", made.engine.url, "sglang")
    await made.open()
    status, body = await ask(made, WIRES[0], stream=True)
    assert status == 503
    assert "tokenizer isn't the proxy's" in body
    assert not made.engine.requests
    _, health = await made.admin("GET", "/health")
    assert "tokenizer" in health["engines"][0]["refusal"]


async def test_an_engine_that_cant_be_compared_is_a_gap(make_stack: MakeStack) -> None:
    """Without an answer about its tokenizer the engine is used, and health names the gap."""
    made = await make_stack()
    made.engine.tokenizer = None
    await made.proxy.engines.remove("*", made.engine.url)
    made.proxy.engines.add("*", made.engine.url, "sglang")
    await made.open()
    assert (await ask(made, WIRES[0], stream=True))[0] == 200
    _, health = await made.admin("GET", "/health")
    assert any("tokenizer wasn't compared" in gap for gap in health["engines"][0]["gaps"])


async def test_an_engine_that_is_still_starting_is_waited_for(make_stack: MakeStack) -> None:
    """A call that comes before the engine's probe was answered waits for it, within the status wait."""
    made = await make_stack()
    await made.open()
    probed = made.proxy.engines._engines["*", made.engine.url].probed
    await asyncio.wait_for(probed.wait(), 5.0)
    probed.clear()
    asking = asyncio.create_task(ask(made, WIRES[0], stream=False))
    done, _ = await asyncio.wait({asking}, timeout=0.2)
    assert not done
    assert not made.engine.requests
    probed.set()
    assert (await asking)[0] == 200


async def test_an_unreachable_engine_is_a_503(make_stack: MakeStack) -> None:
    """With no engine listening the call fails as unavailable, and is recorded."""
    stack = await make_stack(engine_status_wait_s=0.3)
    await stack.open()
    await stack.proxy.engines.remove("*", stack.engine.url)
    stack.proxy.engines.add("*", "http://127.0.0.1:9", "sglang")
    status, _ = await ask(stack, WIRES[0], stream=False)
    assert status == 503
    await stack.until(lambda: bool(stack.calls))
    assert stack.calls[0].state is CompletionState.FAILED


async def test_a_policy_without_an_engine_is_a_503(stack: Stack) -> None:
    """No engine for the policy: the call is refused as unavailable, and recorded."""
    await stack.proxy.engines.remove("*", stack.engine.url)
    stack.proxy.engines.add("another-policy", stack.engine.url, "sglang")
    status, body = await ask(stack, WIRES[0], stream=True)
    assert status == 503
    assert "no engine serves policy" in body
    await stack.until(lambda: bool(stack.calls))
    assert stack.calls[0].error is not None


@both
async def test_an_engine_that_breaks_off_ends_the_stream_with_an_error(stack: Stack, wire: Wire) -> None:
    """A stream cut by the engine becomes the dialect's error; what was sampled until then is recorded as failed."""
    stack.engine.drop_at = 6
    _, body = await ask(stack, wire, stream=True)
    assert "error" in body
    assert not wire.read_stream(body).finish
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert record.state is CompletionState.FAILED
    assert list(arrays.unpack_ids(record.output_ids)) == CharRenderer().encode("Hello")


@both
@streamed_or_not
async def test_a_client_that_leaves_ends_the_call(stack: Stack, wire: Wire, stream: bool) -> None:
    """The engine's request is aborted; the record holds what was sampled until then; it was not delivered."""
    stack.engine.pause_at = 6
    stack.engine.go.clear()
    request = asyncio.create_task(ask(stack, wire, stream=stream))
    await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await stack.until(lambda: bool(stack.deliveries and stack.calls and stack.engine.aborts))
    [record] = stack.calls
    assert (record.state, record.untrainable_reason) == (CompletionState.ABORTED, "aborted")
    assert list(arrays.unpack_ids(record.output_ids)) == CharRenderer().encode("Hello")
    assert len(arrays.unpack_logprobs(record.logprobs)) == 5
    assert stack.engine.aborts == [record.completion_id]
    [delivery] = stack.deliveries
    assert (delivery.delivered, delivery.reason) == (False, "client_left")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"with_logprobs": False}, "no_logprobs"),
        ({"logprob": 0.7}, "logprob_invalid"),
        ({"echo": [1, 2, 3]}, "prompt_echo_mismatch"),
    ],
)
async def test_what_cant_be_trained_says_why(stack: Stack, change: dict[str, object], reason: str) -> None:
    """The call is answered all the same; its record is untrainable, with a reason."""
    for name, value in change.items():
        setattr(stack.engine, name, value)
    status, _ = await ask(stack, WIRES[0], stream=True)
    assert status == 200
    await stack.until(lambda: bool(stack.calls))
    assert (stack.calls[0].trainable, stack.calls[0].untrainable_reason) == (False, reason)


async def test_an_abort_by_the_engine_is_an_error_the_client_can_retry(make_stack: MakeStack) -> None:
    """An engine that aborts by itself, and whose calls aren't gone on with, doesn't end the reply as if it were whole."""
    stack = await make_stack(max_resumes=0)
    await stack.open()
    stack.engine.finish = {"type": "abort", "message": "weights are updated"}
    status, _ = await ask(stack, WIRES[0], stream=False)
    assert status == 503
    await stack.until(lambda: bool(stack.calls))
    assert stack.calls[0].state is CompletionState.ABORTED
    assert stack.calls[0].output_ids


async def test_a_reply_cut_by_length_says_so(stack: Stack) -> None:
    """`max_tokens` reaches the engine, and its cut the client."""
    status, body = await ask(stack, WIRES[0], stream=False, max_tokens=4)
    assert status == 200
    assert WIRES[0].read_whole(json.loads(body)).finish == "length"
    assert stack.engine.requests[0]["sampling_params"]["max_new_tokens"] == 4
    assert stack.engine.requests[0]["sampling_params"]["stop_token_ids"] == [END_ID]


async def test_the_tasks_sampling_wins_over_the_requests(make_stack: MakeStack) -> None:
    """A task that fixes the temperature gets it, and the record says what was asked and what was used."""
    stack = await make_stack()
    spec = {**stack.open_body()["spec"], "sampling": {"temperature": 1.0}}
    await stack.open(spec=spec)
    await ask(stack, WIRES[0], stream=False, temperature=0.2)
    assert stack.engine.requests[0]["sampling_params"]["temperature"] == 1.0
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert record.sampling_requested["temperature"] == 0.2
    assert record.sampling_effective["temperature"] == 1.0
    assert record.notes["sampling"]


@both
async def test_a_prompt_longer_than_the_context_is_refused_before_the_engine(make_stack: MakeStack, wire: Wire) -> None:
    """The overflow is the dialect's 400; it never became a call, and is a rejection of the session."""
    stack = await make_stack(context_length=50)
    await stack.open()
    status, _ = await ask(stack, wire, stream=True, text="x" * 200)
    assert status == 400
    await stack.until(lambda: bool(stack.rejections))
    assert not stack.engine.requests
    assert (stack.rejections[0].reason, stack.rejections[0].session_id) == ("context_overflow", "session-1")


async def test_counting_tokens_generates_nothing(stack: Stack) -> None:
    """`count_tokens` answers with the prompt's length and leaves no record."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
    async with stack.http.post(stack.url("/v1/messages/count_tokens"), json=body) as response:
        assert response.status == 200
        count = (await response.json())["input_tokens"]
    await ask(stack, WIRES[1], stream=False)
    assert count == len(stack.engine.requests[0]["input_ids"])
    await stack.until(lambda: bool(stack.deliveries))
    assert len(stack.calls) == 1


async def test_models_are_listed_without_generating(stack: Stack) -> None:
    """The list has the configured names; a model asked for by name is shown; HEAD probes are answered empty."""
    async with stack.http.get(stack.url("/v1/models")) as response:
        assert [m["id"] for m in (await response.json())["data"]] == ["policy"]
    async with stack.http.get(stack.url("/v1/models/anything")) as response:
        assert (await response.json())["id"] == "anything"
    for path in ("/", "/api/hello", "/v1/models"):
        async with stack.http.head(stack.url(path)) as response:
            assert (response.status, await response.read()) == (200, b"")
    assert not stack.engine.requests


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_compressed_requests_are_read(stack: Stack, encoding: str) -> None:
    """A body in gzip or zstd is decoded; its digest is that of the plain body."""
    plain = json.dumps(WIRES[0].request("packed")).encode()
    packed = gzip.compress(plain) if encoding == "gzip" else zstandard.compress(plain)
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    async with stack.http.post(stack.url("/v1/chat/completions"), data=packed, headers=headers) as response:
        assert response.status == 200
    await stack.until(lambda: bool(stack.calls))
    assert stack.calls[0].request_digest == ids.digest(plain)
    assert stack.calls[0].messages[-1]["content"] == "packed"


async def test_parallel_calls_get_contiguous_numbers(stack: Stack) -> None:
    """Twenty calls at once: each has its own number, and the seal counts them all."""
    answers = await asyncio.gather(*(ask(stack, WIRES[0], stream=i % 2 == 0) for i in range(20)))
    assert [status for status, _ in answers] == [200] * 20
    _, sealed = await stack.seal()
    assert sealed["last_seq"] == 20
    await stack.until(lambda: bool(stack.seals))
    assert [r.call_seq for r in stack.calls] == list(range(1, 21))
    assert {d.call_seq for d in stack.deliveries if d.delivered} == set(range(1, 21))


async def test_a_connection_serves_several_calls(stack: Stack) -> None:
    """Keep-alive: three calls on one client connection, each with its own record and delivery fact."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
        for _ in range(3):
            async with http.post(stack.url("/v1/chat/completions"), json=WIRES[0].request(stream=True)) as response:
                assert "[DONE]" in await response.text()
    await stack.until(lambda: len(stack.deliveries) == 3)
    assert all(d.delivered for d in stack.deliveries)


async def test_heartbeats_announce_the_addresses(stack: Stack) -> None:
    """`rollout.nodes` says where the proxy is and which leases it holds."""
    beats = lambda: stack.records(Heartbeat, "rollout.nodes")  # noqa: E731
    stack.proxy._pulse.beat_now()
    await stack.until(lambda: any(b.holds for b in beats()))
    beat = beats()[-1]
    assert (beat.role, beat.node_id) == ("proxy", "proxy-a")
    assert beat.data_address == stack.proxy.data_address
    assert beat.admin_address == stack.proxy.admin_address
    assert [h.session_id for h in beat.holds] == ["session-1"]


async def test_the_ports_file_says_where_it_listens(make_stack: MakeStack, tmp_path: Path) -> None:
    """Whoever started the proxy with free ports learns them from the file."""
    stack = await make_stack(ports_file=tmp_path / "run" / "proxy.json")
    ports = json.loads((tmp_path / "run" / "proxy.json").read_text())
    assert ports["port"] == stack.proxy.listener.port
    assert ports["admin_address"] == stack.proxy.admin_address


async def test_a_taken_port_is_an_error_and_leaves_nothing_running(make_stack: MakeStack) -> None:
    """A second proxy on the same port fails with OSError, naming it."""
    first = await make_stack()
    with pytest.raises(OSError, match=str(first.proxy.listener.port)):
        await make_stack(port=first.proxy.listener.port)


async def test_logprobs_that_are_not_numbers_are_kept_as_nan(stack: Stack) -> None:
    """A logprob that the engine can't give makes the call untrainable; the ids are kept."""
    stack.engine.logprob = None
    status, _ = await ask(stack, WIRES[0], stream=False)
    assert status == 200
    await stack.until(lambda: bool(stack.calls))
    assert stack.calls[0].untrainable_reason == "logprob_invalid"
    assert all(math.isnan(value) for value in arrays.unpack_logprobs(stack.calls[0].logprobs))
    assert len(arrays.unpack_ids(stack.calls[0].output_ids)) == len("Hello there.") + 1
