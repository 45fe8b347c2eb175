"""What goes wrong at the engine: what the client hears, what the record says, and what is tried again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from schemas import arrays
from schemas.records import CompletionState, VersionSpan
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import END_ID, CharRenderer, tool_call
from tests.capture_proxy.test_service import ask, both, streamed_or_not
from tests.capture_proxy.wire import WIRES, Wire, events

MakeStack = Callable[..., Awaitable[Stack]]

TERMINALS = ("[DONE]", "message_stop", "response.completed", "response.incomplete")


def last_error(wire: Wire, body: str) -> tuple[str, str]:
    """(type, message) of the error event that a stream ends with."""
    last = events(body)[-1]
    if wire.name == "openai_responses":
        assert last["type"] == "response.failed"
        return last["response"]["error"]["code"], last["response"]["error"]["message"]
    return wire.error_of(last)


def abort(count: int, version: str) -> tuple[int, dict[str, Any], str]:
    """The engine stops a request by itself after `count` tokens."""
    return count, {"type": "abort", "message": "weights are updated"}, version


def ending(version: str) -> tuple[int, dict[str, Any], str]:
    """A request that ends as it should."""
    return 1 << 20, {"type": "stop", "matched": END_ID}, version


def in_stretches(stack: Stack, whole: str) -> None:
    """The engine samples `whole`, whatever part of it a request brings already; each stretch has its own logprob."""
    prompts: list[str] = []

    def script(prompt: str, _request: dict[str, Any]) -> str:
        prompts.append(prompt)
        stack.engine.logprob = -0.5 / len(prompts)
        return whole[len(prompt) - len(prompts[0]) :]

    stack.engine.script = script


@both
@pytest.mark.parametrize("how", ["error", "cut"])
async def test_b43_an_error_inside_a_stream_is_the_dialects_own(stack: Stack, wire: Wire, how: str) -> None:
    """After two deltas an error event of the engine, or a cut: an error event and nothing after it, never a clean end."""
    stack.engine.error = {"error": {"message": "worker died", "code": 502}}
    setattr(stack.engine, "error_at" if how == "error" else "drop_at", 3)
    status, body = await ask(stack, wire, stream=True)
    assert status == 200
    assert wire.read_stream(body).text == "He"
    kind, message = last_error(wire, body)
    assert kind
    assert message
    assert not any(word in body for word in TERMINALS)
    assert not wire.read_stream(body).finish
    await stack.until(lambda: bool(stack.deliveries))
    [record] = stack.calls
    assert (record.state, record.trainable, record.untrainable_reason) == (CompletionState.FAILED, False, "failed")
    assert list(arrays.unpack_ids(record.output_ids)) == CharRenderer().encode("He")


@both
async def test_b44_an_error_before_the_first_byte_is_a_status(stack: Stack, wire: Wire) -> None:
    """The engine refuses at once: plain HTTP 400 with JSON, though a stream was asked for."""
    stack.engine.status = 400
    stack.engine.error = {"error": {"message": "no such parameter"}}
    async with stack.http.post(stack.url(wire.stream_path), json=wire.request(stream=True)) as response:
        assert (response.status, response.content_type) == (400, "application/json")
        early = wire.error_of(await response.json())
    assert "no such parameter" in early[1]


@both
async def test_b44_after_the_headers_it_is_an_event_of_the_same_type(make_stack: MakeStack, wire: Wire) -> None:
    """A slow refusal comes when 200 is out: the dialect's error event, naming the same kind of error."""
    stack = await make_stack(engine_status_wait_s=1.0)
    await stack.open()
    stack.engine.status = 500
    early = wire.error_of(json.loads((await ask(stack, wire, stream=True))[1]))
    stack.engine.accept.clear()
    asking = asyncio.create_task(ask(stack, wire, stream=True))
    await stack.until(lambda: len(stack.engine.requests) == 2)
    await asyncio.sleep(1.2)  # the status wait passes
    stack.engine.accept.set()
    status, body = await asking
    assert status == 200
    if wire.name != "openai_responses":  # this vendor's stream has other words for the same
        assert last_error(wire, body)[0] == early[0]
    # These two have no field for the status inside a 200; it stands in the text, where harnesses look for it before they ask again.
    status_text = "500 " if wire.name in {"openai_chat", "anthropic"} else ""
    assert last_error(wire, body)[1] == status_text + early[1]


@both
@streamed_or_not
@pytest.mark.parametrize("status", [429, 503])
async def test_b97_retry_after_is_kept(stack: Stack, wire: Wire, stream: bool, status: int) -> None:
    """Seconds as they came, a date as the seconds until then, and a value of ours where there was none; asked once."""
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    expected = 529 if (wire.name, status) == ("anthropic", 503) else status
    for told, seconds in (("7", {7}), (date, set(range(25, 32))), (None, {1, 2, 3})):
        stack.engine.status = status
        stack.engine.headers = {"retry-after": told} if told else {}
        path = wire.stream_path if stream else wire.path
        async with stack.http.post(stack.url(path), json=wire.request(stream=stream)) as response:
            assert response.status == expected
            assert int(response.headers["retry-after"]) in seconds
            kind = wire.error_of(await response.json())[0]
    assert kind in {"rate_limit_error", "overloaded_error", "server_error", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}
    assert len(stack.engine.requests) == 3  # the client has its own patience: no second try here
    stack.engine.status = 200
    assert (await ask(stack, wire, stream=stream))[0] == 200
    await stack.until(lambda: len(stack.calls) == 4)
    assert [c.trainable for c in stack.calls] == [False, False, False, True]


@streamed_or_not
async def test_b97_a_cut_before_any_status_is_tried_again(stack: Stack, stream: bool) -> None:
    """A connection that the engine drops unanswered: the same call goes to it again, under another request id; one record."""
    stack.engine.failures = [0]
    status, _ = await ask(stack, WIRES[0], stream=stream)
    assert status == 200
    first, second = stack.engine.requests
    assert first["input_ids"] == second["input_ids"]
    assert first["rid"] != second["rid"]
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert (record.state, record.trainable, record.notes["engine_tries"]) == (CompletionState.FINISHED, True, 2)


async def test_b97_the_tries_are_bounded(stack: Stack) -> None:
    """Three, then the client is told, in one record; and none at all once a token was sampled."""
    stack.engine.failures = [0] * 9
    assert (await ask(stack, WIRES[0], stream=True))[0] == 503
    assert len(stack.engine.requests) == 3
    stack.engine.failures, stack.engine.drop_at = [], 2
    await ask(stack, WIRES[0], stream=True)
    assert len(stack.engine.requests) == 4
    await stack.until(lambda: len(stack.calls) == 2)
    assert {c.state for c in stack.calls} == {CompletionState.FAILED}


async def test_b97_no_tries_for_a_client_that_left(stack: Stack) -> None:
    """The pause between two tries ends with the client."""
    stack.engine.failures = [0, 0]
    asking = asyncio.create_task(ask(stack, WIRES[0], stream=False))
    await stack.until(lambda: len(stack.engine.requests) == 2)
    asking.cancel()
    await stack.until(lambda: bool(stack.calls))
    assert stack.calls[0].state is CompletionState.ABORTED
    await asyncio.sleep(0.7)  # longer than the pause that was begun
    assert len(stack.engine.requests) == 2


@both
@streamed_or_not
async def test_b103_an_abort_for_new_weights_is_invisible(stack: Stack, wire: Wire, stream: bool) -> None:
    """One reply for the client; each token under the version and with the logprob that sampled it."""
    in_stretches(stack, "Hello there.")
    stack.engine.stops = [abort(5, "3"), ending("4")]
    status, body = await ask(stack, wire, stream=stream)
    said = wire.read_stream(body) if stream else wire.read_whole(json.loads(body))
    assert (status, said.text, said.is_over) == (200, "Hello there.", True)
    first, second = stack.engine.requests
    sampled = [*CharRenderer().encode("Hello there."), END_ID]
    assert second["input_ids"] == first["input_ids"] + sampled[:5]
    await stack.until(lambda: bool(stack.deliveries))
    [record] = stack.calls
    assert list(arrays.unpack_ids(record.output_ids)) == sampled
    assert arrays.unpack_logprobs(record.logprobs).tolist() == [-0.5] * 5 + [-0.25] * 8
    assert record.version_spans == [
        VersionSpan(version="3", start=0, end=5),
        VersionSpan(version="4", start=5, end=13),
    ]
    assert (record.state, record.trainable, record.finish_reason, record.prompt_echo) == (
        CompletionState.FINISHED,
        True,
        "stop",
        "exact",
    )
    assert record.notes["resumed"] == 1


async def test_b103_inside_a_tool_call_and_more_than_once(stack: Stack) -> None:
    """Three stretches, one of them without a token, cut in the middle of arguments: the call is whole, and shown once."""
    whole = "Look: " + tool_call("bash", {"command": "ls -l"})
    in_stretches(stack, whole)
    stack.engine.stops = [abort(30, "3"), abort(0, "4"), ending("4")]
    _, body = await ask(stack, WIRES[1], stream=True, tools=True, max_tokens=100)
    assert WIRES[1].read_stream(body).tools == [("bash", {"command": "ls -l"})]
    assert [r["sampling_params"]["max_new_tokens"] for r in stack.engine.requests] == [100, 70, 70]
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert [(s.version, s.start, s.end) for s in record.version_spans] == [("3", 0, 30), ("4", 30, len(whole) + 1)]


async def test_b103_no_room_for_more_is_a_cut_by_length(stack: Stack) -> None:
    """The abort took the last token that the limit allows: nothing is left to go on with."""
    in_stretches(stack, "Hello there.")
    stack.engine.stops = [abort(4, "3")]
    _, body = await ask(stack, WIRES[0], stream=False, max_tokens=4)
    said = WIRES[0].read_whole(json.loads(body))
    assert (said.text, said.finish) == ("Hell", "length")
    assert len(stack.engine.requests) == 1


async def test_b103_an_engine_that_is_busy_with_its_weights_is_waited_for(stack: Stack) -> None:
    """In the middle of a reply the client can't be sent away: 503s are outlasted."""
    in_stretches(stack, "Hello there.")
    stack.engine.stops = [abort(5, "3"), ending("4")]
    stack.engine.failures = [200, 503, 503]
    stack.engine.headers = {"retry-after": "0.05"}
    _, body = await ask(stack, WIRES[0], stream=True)
    assert WIRES[0].read_stream(body).text == "Hello there."
    assert len(stack.engine.requests) == 4


@both
async def test_b103_without_going_on_the_client_is_asked_to(make_stack: MakeStack, wire: Wire) -> None:
    """A retryable 503 with Retry-After, no partial answer; the tokens are on the record, untrainable."""
    stack = await make_stack(max_resumes=0)
    await stack.open()
    stack.engine.stops = [abort(5, "3")]
    async with stack.http.post(stack.url(wire.path), json=wire.request()) as response:
        assert response.status == (529 if wire.name == "anthropic" else 503)
        assert response.headers["retry-after"]
        assert "Hello" not in await response.text()
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert (record.trainable, record.untrainable_reason) == (False, "aborted")
    assert len(arrays.unpack_ids(record.output_ids)) == 5


async def test_b103_versions_that_arent_told_train_nothing(stack: Stack) -> None:
    """Aborted for weights by an engine without versions: nobody can say which policy sampled which token."""
    in_stretches(stack, "Hello there.")
    stack.engine.stops = [abort(5, "3"), ending("4")]
    stack.engine.last_meta = {"weight_versions": None, "weight_version": None}
    assert (await ask(stack, WIRES[0], stream=False))[0] == 200
    await stack.until(lambda: bool(stack.calls))
    assert (stack.calls[0].trainable, stack.calls[0].untrainable_reason) == (False, "mixed_version")


@both
async def test_t65_an_engine_that_dies_in_mid_stream(stack: Stack, wire: Wire) -> None:
    """An error event, no terminal; the harness' retry is a call of its own, and no child of the failed one."""
    stack.engine.drop_at = 3
    _, body = await ask(stack, wire, stream=True)
    assert not any(word in body for word in TERMINALS)
    stack.engine.drop_at = None
    assert (await ask(stack, wire, stream=True))[0] == 200
    await stack.until(lambda: len(stack.calls) == 2)
    failed, again = stack.calls
    assert (failed.state, again.state) == (CompletionState.FAILED, CompletionState.FINISHED)
    assert again.parent_id == ""


@both
@pytest.mark.parametrize("where", ["first", "middle", "end"])
async def test_a_reply_that_cant_be_shown_ends_with_an_error(
    stack: Stack, wire: Wire, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever breaks between the tap and the client: the dialect's error event, an end, and no delivery that didn't happen."""
    from dataclasses import replace

    from capture_proxy.dialects import DIALECTS
    from capture_proxy.reply import Finished, TextDelta

    dialect, seen = DIALECTS[wire.name], []

    class Broken:
        def __init__(self, request: Any) -> None:
            self._encoder = dialect.stream_encoder(request)

        def encode(self, event: Any) -> bytes:
            seen.append(event)
            texts = sum(isinstance(e, TextDelta) for e in seen)
            if isinstance(event, {"first": TextDelta, "middle": TextDelta, "end": Finished}[where]) and (
                where != "middle" or texts == 4
            ):
                raise RuntimeError("a bug in an encoder")
            return self._encoder.encode(event)

    monkeypatch.setitem(DIALECTS, wire.name, replace(dialect, stream_encoder=Broken))
    stack.engine.script = lambda *_: "x" * 500
    _, body = await asyncio.wait_for(ask(stack, wire, stream=True), 10.0)  # reads to the end of the body
    assert last_error(wire, body)[1]
    assert not any(word in body for word in TERMINALS)
    await stack.until(lambda: bool(stack.deliveries and stack.calls))
    assert not stack.deliveries[0].delivered
    if where == "end":
        assert stack.calls[0].state is CompletionState.FINISHED
    assert stack.proxy.tap.in_flight == 0
