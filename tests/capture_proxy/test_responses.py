"""The Responses API through the whole proxy: what needs sockets, sessions or the log to be seen."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import pytest

from schemas import arrays
from schemas.records import CompletionRecord, LineageStatus
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import CharRenderer, tool_call
from tests.capture_proxy.wire import TOOL, Responses, events

WIRE = Responses()
UPGRADE = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "eA=="}


async def post(stack: Stack, body: dict[str, Any], path: str = "/v1/responses") -> tuple[int, Any]:
    """One call that isn't streamed."""
    async with stack.http.post(stack.url(path), json=body) as response:
        return response.status, await response.json()


async def test_b70_a_websocket_is_refused_at_once_and_the_post_works(stack: Stack) -> None:
    """426 with a JSON body, which makes clients go on over HTTP without another try."""
    async with stack.http.get(stack.url("/v1/responses"), headers=UPGRADE) as response:
        assert response.status == 426
        assert "websocket" in (await response.json())["error"]["message"]
    status, body = await post(stack, WIRE.request())
    assert (status, WIRE.read_whole(body).text) == (200, "Hello there.")


async def test_b67_compaction_by_the_server_is_a_404(stack: Stack) -> None:
    """In the dialect's shape, without a call; a compacted history of another server is accepted, and the record says what was skipped."""
    status, body = await post(stack, WIRE.request(), "/v1/responses/compact")
    assert (status, body["error"]["code"]) == (404, "not_found")
    assert not stack.engine.requests
    status, _ = await post(
        stack, WIRE.request(input=[{"type": "compaction", "encrypted_content": "x"}, {"role": "user", "content": "go"}])
    )
    assert status == 200
    await stack.until(lambda: bool(stack.deliveries))
    [call] = stack.calls
    assert call.messages == [{"role": "user", "content": "go"}]
    assert call.notes["request"] == ["dropped: compaction of another server"]


async def test_a_stored_response_is_not_found(stack: Stack) -> None:
    """Responses can't be fetched; the error says how to go on."""
    async with stack.http.get(stack.url("/v1/responses/resp_1")) as response:
        body = await response.json()
        assert (response.status, body["error"]["type"]) == (404, "invalid_request_error")
        assert "previous_response_id" in body["error"]["message"]


async def test_b71_a_wrong_base_url_is_told_the_right_path(stack: Stack) -> None:
    """A JSON 404 that names the path, and never the secret."""
    async with stack.http.post(stack.url("/v1//responses"), json=WIRE.request()) as response:
        body = await response.text()
        assert response.status == 404
        assert "POST to /v1/responses" in json.loads(body)["error"]["message"]
        assert stack.secret not in body


async def test_tokens_are_counted_without_a_call(stack: Stack) -> None:
    """The count's answer is the vendor's, and nothing is generated."""
    status, body = await post(stack, {"model": "m", "input": "Hi"}, "/v1/responses/input_tokens")
    assert status == 200
    assert (body["object"], body["input_tokens"] > 2) == ("response.input_tokens", True)
    assert not stack.engine.requests
    _, first = await post(stack, WIRE.request("Hi"))
    _, more = await post(
        stack, {"model": "m", "previous_response_id": first["id"], "input": "Hi"}, "/v1/responses/input_tokens"
    )
    assert more["input_tokens"] > body["input_tokens"] + len("Hello there.")


async def test_b56_a_freeform_call_through_the_proxy(stack: Stack) -> None:
    """The engine is asked with a function; the client of the stream gets the raw text; the record holds what was sampled."""
    patch = '*** Begin Patch\n+h\u00e9 "q" \\n\n'
    sampled = tool_call("apply_patch", {"input": patch})
    stack.engine.script = lambda _prompt, _request: sampled
    request = WIRE.request(stream=True) | {"tools": [{"type": "custom", "name": "apply_patch"}]}
    async with stack.http.post(stack.url(WIRE.path), json=request) as response:
        values = events(await response.text())
    [done] = [v for v in values if v["type"] == "response.custom_tool_call_input.done"]
    assert done["input"] == patch
    await stack.until(lambda: bool(stack.deliveries))
    [call] = stack.calls
    assert json.loads(call.tool_calls[0]["arguments"]) == {"input": patch}
    assert call.tools[0]["function"]["name"] == "apply_patch"


async def test_b49_a_retry_is_another_call(stack: Stack) -> None:
    """A stream that broke is a failed call; the client's retry is a call of its own, with its own response id."""
    stack.engine.drop_at = 3
    async with stack.http.post(stack.url(WIRE.path), json=WIRE.request(stream=True)) as response:
        broken = events(await response.text())
    assert broken[-1]["type"] == "response.failed"
    assert broken[-1]["response"]["error"].keys() == {"code", "message"}
    stack.engine.drop_at = None
    async with stack.http.post(stack.url(WIRE.path), json=WIRE.request(stream=True)) as response:
        whole = events(await response.text())
    assert whole[-1]["type"] == "response.completed"
    assert whole[-1]["response"]["id"] != broken[-1]["response"]["id"]
    await stack.until(lambda: len(stack.deliveries) == 2)
    assert [(call.call_seq, call.state.value) for call in stack.calls] == [(1, "failed"), (2, "finished")]


async def test_b65_a_cut_second_call_through_the_proxy(stack: Stack) -> None:
    """The limit cuts the second call: the first is a call, the cut one text, the response incomplete, and nothing is closed for it."""
    first, cut = tool_call("bash", {"command": "ls"}), '\n<tool_call>\n{"name": "bash", "arguments": {"command":"rm'
    stack.engine.script = lambda _prompt, _request: first + cut + ' -rf /"}}\n</tool_call>'
    request = WIRE.request(stream=True, tools=True, max_output_tokens=len(first + cut))
    async with stack.http.post(stack.url(WIRE.path), json=request) as response:
        values = events(await response.text())
    last = values[-1]
    assert (last["type"], last["response"]["incomplete_details"]) == (
        "response.incomplete",
        {"reason": "max_output_tokens"},
    )
    text, call = last["response"]["output"]
    assert (text["status"], text["content"][0]["text"].strip()) == ("incomplete", cut.strip())
    assert (call["status"], json.loads(call["arguments"])) == ("completed", {"command": "ls"})
    assert sum(v["type"] == "response.function_call_arguments.done" for v in values) == 1
    await stack.until(lambda: bool(stack.deliveries))
    assert (stack.calls[0].finish_reason, stack.calls[0].parse_status) == ("length", "tool_parse_error")


async def test_b44_an_early_error_is_a_status_code(stack: Stack) -> None:
    """What fails before the first byte is JSON with a status, also for a client that wants a stream."""
    stack.engine.status = 400
    async with stack.http.post(stack.url(WIRE.path), json=WIRE.request(stream=True)) as response:
        assert isinstance(response, aiohttp.ClientResponse)
        assert response.status >= 400
        assert response.content_type == "application/json"
        assert (await response.json())["error"]["message"]


def extend(
    self: CharRenderer,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    messages: Sequence[Mapping[str, Any]],
    *,
    new_from: int,
    **_: Any,
) -> list[int]:
    """The parent's tokens, then what is new."""
    new = [f"{message['role']}: {message['content']}" for message in messages[new_from:]]
    return [*prompt_ids, *output_ids, *self.encode("\n".join(["", *new, "assistant: "]))]


@pytest.fixture
def sampled_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renderer that can go on from an earlier call's tokens."""
    monkeypatch.setattr(CharRenderer, "extend", extend)


def prompts(stack: Stack) -> list[list[int]]:
    """What the engine was given, call by call."""
    return [request["input_ids"] for request in stack.engine.requests]


def ids_of(call: CompletionRecord) -> list[int]:
    """What was sampled in a call."""
    return [int(token) for token in arrays.unpack_ids(call.output_ids)]


TOOLS = {"tools": [{"type": "function", **TOOL}]}
BOTH = "<think>\nI look.\n</think>\n\nok " + "\n".join(tool_call("bash", {"command": c}) for c in ("ls", "pwd"))


@pytest.mark.usefixtures("sampled_stays")
async def test_b61_a_previous_response_is_gone_on_from(stack: Stack) -> None:
    """The next prompt begins with the first one and its answer, calls and all; two that name it are two branches."""
    stack.engine.script = lambda _prompt, _request: tool_call("bash", {"command": "ls"})
    _, first = await post(stack, WIRE.request("go") | TOOLS)
    [item] = first["output"]
    new = {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
    for _ in range(2):
        status, _ = await post(stack, WIRE.request(previous_response_id=first["id"], input=[new]) | TOOLS)
        assert status == 200
    await stack.until(lambda: len(stack.calls) == 3)
    start, *branches = prompts(stack)
    told = [*start, *ids_of(stack.calls[0]), *CharRenderer().encode("\ntool: ok\nassistant: ")]
    assert branches == [told, told]
    assert [call.parent_id for call in stack.calls[1:]] == [stack.calls[0].completion_id] * 2
    assert all("repaired" not in str(call.notes) for call in stack.calls)


async def test_b61_an_unknown_response_is_an_error(make_stack: Callable[..., Awaitable[Stack]]) -> None:
    """An id that this session never gave is 400 with the vendor's code, another session's id too; never an empty history."""
    stack = await make_stack()
    await stack.open()
    _, mine = await post(stack, WIRE.request())
    stack.session_id, stack.secret = "session-2", "an0ther-secret"
    await stack.open()
    for unknown in (mine["id"], "resp_" + "0" * 32, "resp_1"):
        status, body = await post(stack, WIRE.request(previous_response_id=unknown))
        assert (status, body["error"]["code"]) == (400, "previous_response_not_found")
        assert body["error"]["param"] == "previous_response_id"
    assert len(stack.engine.requests) == 1


@pytest.mark.usefixtures("sampled_stays")
async def test_t59_stateful_and_stateless_prompts_are_equal(make_stack: Callable[..., Awaitable[Stack]]) -> None:
    """Whether a client names the response or sends all items again, sealed reasoning included: the engine gets the same tokens."""
    stack = await make_stack()
    stack.engine.script = lambda _prompt, _request: BOTH
    answers = []
    for session in ("stateful", "stateless"):
        stack.session_id, stack.secret = session, f"secret-{session}"
        await stack.open()
        include = {"store": False, "include": ["reasoning.encrypted_content"]} if session == "stateless" else {}
        _, first = await post(stack, WIRE.request("U", instructions="S", **include) | TOOLS)
        calls = [item for item in first["output"] if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": c["call_id"], "output": "R"} for c in calls]
        if session == "stateful":
            more: dict[str, Any] = {"previous_response_id": first["id"], "input": results}
        else:
            more = {**include, "input": [{"role": "user", "content": "U"}, *first["output"], *results]}
        answers.append(await post(stack, WIRE.request(instructions="S", **more) | TOOLS))
    assert [status for status, _ in answers] == [200, 200]
    stateful, stateless = prompts(stack)[1::2]
    assert stateful == stateless
    assert stateful[: len(prompts(stack)[0])] == prompts(stack)[0]


@pytest.mark.usefixtures("sampled_stays")
async def test_b55_items_that_are_only_named(stack: Stack) -> None:
    """A client that believes in stored items names them: within the session they are the sampled answer, elsewhere an error."""
    stack.engine.script = lambda _prompt, _request: BOTH
    _, first = await post(stack, WIRE.request("go") | TOOLS)
    user = {"role": "user", "content": "go"}
    named = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    calls = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": call_id, "output": "r"} for call_id in calls]
    status, _ = await post(stack, WIRE.request(input=[user, *named, *results]) | TOOLS)
    assert status == 200
    whole, _ = await post(stack, WIRE.request(input=[user, *first["output"], *results]) | TOOLS)
    assert whole == 200
    _, by_name, by_item = prompts(stack)
    assert by_name == by_item
    assert by_name[: len(prompts(stack)[0])] == prompts(stack)[0]
    unknown = {"type": "item_reference", "id": f"msg_{'0' * 32}_0"}
    status, body = await post(stack, WIRE.request(input=[user, unknown]))
    assert (status, body["error"]["code"]) == (400, "item_not_found")
    assert unknown["id"] in body["error"]["message"]


@pytest.mark.usefixtures("sampled_stays")
@pytest.mark.parametrize("sealed_only", [False, True], ids=["whole items", "b62 blob only"])
async def test_b53_items_of_one_turn_are_the_sampled_tokens(stack: Stack, *, sealed_only: bool) -> None:
    """Reasoning, text and two calls come back as items, or the reasoning as nothing but its blob: the sampled tokens stand for them."""
    stack.engine.script = lambda _prompt, _request: BOTH
    request = WIRE.request("go", store=False, include=["reasoning.encrypted_content"]) | TOOLS
    _, first = await post(stack, request)
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, *rest = first["output"]
    if sealed_only:
        reasoning = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "r"} for item in reversed(rest[1:])
    ]
    status, _ = await post(stack, request | {"input": [{"role": "user", "content": "go"}, reasoning, *rest, *results]})
    assert status == 200
    await stack.until(lambda: len(stack.calls) == 2)
    start, after = prompts(stack)
    sampled = [*start, *ids_of(stack.calls[0])]
    assert after[: len(sampled)] == sampled
    assert stack.calls[1].lineage is LineageStatus.RESOLVED


@pytest.mark.usefixtures("sampled_stays")
@pytest.mark.parametrize("thinking", ["I look.", "I look. Or not."])
async def test_thinking_that_comes_back_as_text(stack: Stack, thinking: str) -> None:
    """A client without a blob sends the thinking back as a message of its own: the same, it is the sampled turn; another, it isn't."""
    stack.engine.script = lambda _prompt, _request: BOTH
    _, first = await post(stack, WIRE.request("go", store=False) | TOOLS)
    calls = [{**item, "id": None} for item in first["output"] if item["type"] == "function_call"]
    said = [{"type": "message", "role": "assistant", "content": text} for text in (thinking, "ok")]
    results = [{"type": "function_call_output", "call_id": item["call_id"], "output": "r"} for item in calls]
    items = [{"role": "user", "content": "go"}, *said, *calls, *results]
    status, _ = await post(stack, WIRE.request(input=items, store=False) | TOOLS)
    assert status == 200
    await stack.until(lambda: len(stack.calls) == 2)
    start, after = prompts(stack)
    sampled = [*start, *ids_of(stack.calls[0])]
    assert (after[: len(sampled)] == sampled) is (thinking == "I look.")


async def test_t55_stream_and_whole_leave_equal_records(stack: Stack) -> None:
    """The same sampling, streamed or not: the records differ in nothing but their identity and times."""
    stack.engine.script = lambda _prompt, _request: BOTH
    streamed = WIRE.request(stream=True) | TOOLS
    async with stack.http.post(stack.url(WIRE.path), json=streamed) as response:
        values = events(await response.text())
    _, whole = await post(stack, WIRE.request() | TOOLS)
    await stack.until(lambda: len(stack.calls) == 2)

    def told(record: CompletionRecord) -> Any:
        calls = [(call["name"], call["arguments"], call["span"]) for call in record.tool_calls]
        return (
            ids_of(record),
            record.logprobs,
            record.text,
            record.reasoning,
            calls,
            record.finish_reason,
            record.state,
        )

    assert told(stack.calls[0]) == told(stack.calls[1])
    kinds = [item["type"] for item in whole["output"]]
    assert [item["type"] for item in values[-1]["response"]["output"]] == kinds
    assert (values[0]["type"], values[-1]["type"]) == ("response.created", "response.completed")
    assert values[-1]["response"]["usage"].keys() == whole["usage"].keys()


async def test_b64_a_schema_binds_the_sampling_and_the_record_says_so(stack: Stack) -> None:
    """The engine gets the schema under its own name; the logprobs are recorded as those of a masked distribution."""
    schema = {"type": "object", "properties": {"names": {"type": "array"}}, "required": ["names"]}
    wanted = {"type": "json_schema", "name": "Colours", "strict": True, "schema": schema}
    status, _ = await post(stack, WIRE.request(text="x") | {"text": {"verbosity": "low", "format": wanted}})
    assert status == 200
    assert json.loads(stack.engine.requests[0]["sampling_params"]["json_schema"]) == schema
    await stack.until(lambda: bool(stack.calls))
    assert any("masked" in note for note in stack.calls[0].notes["sampling"])
