"""The vendor's own SDK against a running proxy: sync and async, whole and streamed, tools, thoughts, counting, models, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from capture_proxy.turn_ids import completion_of
from schemas.resolve import resolve
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import tool_call

pytestmark = [
    pytest.mark.component,
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),  # the SDK's own
]

MakeStack = Callable[..., Awaitable[Stack]]
MODEL = "my-local/model:7b"
PNG = bytes.fromhex("89504e470d0a1a0afb")  # its base64 differs between the two alphabets
TOOLS = [
    types.Tool(
        function_declarations=[
            types.FunctionDeclaration(
                name="bash",
                parameters=types.Schema(
                    type=types.Type.OBJECT, properties={"command": types.Schema(type=types.Type.STRING)}
                ),
            )
        ]
    )
]


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[genai.Client]:
    """A client whose base URL holds the session's secret."""
    made = client_of(stack)
    yield made
    await made.aio.aclose()
    made.close()


def client_of(stack: Stack, *, key: str = "unused", url: str = "", **options: Any) -> genai.Client:
    """A client of the proxy."""
    base = url or f"{stack.proxy.data_address}/s/{stack.secret}"
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=base, timeout=20_000, **options))


def parts_of(response: types.GenerateContentResponse) -> list[types.Part]:
    """The parts of the only candidate."""
    assert response.candidates is not None
    content = response.candidates[0].content
    assert content is not None
    return content.parts or []


def messages_of(stack: Stack) -> list[list[dict[str, Any]]]:
    """The whole conversation of each call so far."""
    resolved = resolve(stack.calls).calls
    return [resolved[record.completion_id].messages() for record in stack.calls]


async def test_a_whole_answer(stack: Stack, client: genai.Client) -> None:
    """The sync client in a thread and the async one get the same answer; the record names dialect and model."""
    for response in (
        await asyncio.to_thread(client.models.generate_content, model=MODEL, contents="Hi"),
        await client.aio.models.generate_content(model=MODEL, contents="Hi"),
    ):
        assert response.text == "Hello there."
        assert response.model_version == MODEL
        assert response.candidates is not None
        assert response.candidates[0].finish_reason is types.FinishReason.STOP
        usage = response.usage_metadata
        assert usage is not None
        assert usage.total_token_count == (usage.prompt_token_count or 0) + (usage.candidates_token_count or 0)
    await stack.until(lambda: len(stack.calls) == 2)
    assert [(call.dialect.value, call.model_requested, call.is_stream) for call in stack.calls] == [
        ("google", MODEL, False)
    ] * 2


async def test_a_streamed_answer(stack: Stack, client: genai.Client) -> None:
    """Chunks come one by one; only the last says why it ended, with the usage."""

    def read() -> list[types.GenerateContentResponse]:
        return list(client.models.generate_content_stream(model=MODEL, contents="Hi"))

    answers = [await asyncio.to_thread(read)]
    answers.append(
        [chunk async for chunk in await client.aio.models.generate_content_stream(model=MODEL, contents="Hi")]
    )
    for chunks in answers:
        assert len(chunks) > 5
        assert "".join(chunk.text or "" for chunk in chunks) == "Hello there."
        reasons = [chunk.candidates[0].finish_reason for chunk in chunks if chunk.candidates]
        assert set(reasons[:-1]) == {None}
        assert reasons[-1] is types.FinishReason.STOP
        assert chunks[-1].usage_metadata is not None
        assert chunks[-1].usage_metadata.total_token_count


async def test_t55_a_stream_leaves_the_record_that_a_whole_answer_leaves(stack: Stack, client: genai.Client) -> None:
    """The same ids, streamed and not: the records differ in nothing but their own numbers and times."""
    stack.engine.script = lambda _prompt, _request: "<think>Hm.</think>I look." + tool_call("bash", {"command": "ls"})
    config = types.GenerateContentConfig(tools=TOOLS)
    await client.aio.models.generate_content(model=MODEL, contents="Hi", config=config)
    async for _ in await client.aio.models.generate_content_stream(model=MODEL, contents="Hi", config=config):
        pass
    await stack.until(lambda: len(stack.calls) == 2)
    whole, streamed = stack.calls
    assert (whole.is_stream, streamed.is_stream) == (False, True)
    for name in ("output_ids", "logprobs", "prompt_len", "text", "reasoning", "finish_reason", "engine_finish", "trainable",
                 "tools_digest", "sampling_requested", "request_digest", "parse_status", "version_spans"):  # fmt: skip
        assert getattr(whole, name) == getattr(streamed, name), name
    assert messages_of(stack)[0] == messages_of(stack)[1]
    calls = [[(call["name"], call["arguments"]) for call in record.tool_calls or []] for record in (whole, streamed)]
    assert calls[0] == calls[1] == [("bash", '{"command": "ls"}')]


async def test_t68_the_limit_reaches_the_engine(stack: Stack, client: genai.Client) -> None:
    """`maxOutputTokens` is the engine's limit; without it, the configured default."""
    config = types.GenerateContentConfig(max_output_tokens=5)
    await client.aio.models.generate_content(model=MODEL, contents="Hi", config=config)
    await client.aio.models.generate_content(model=MODEL, contents="Hi")
    limits = [request["sampling_params"]["max_new_tokens"] for request in stack.engine.requests]
    assert limits == [5, stack.proxy.settings.default_max_tokens]
    await stack.until(lambda: len(stack.calls) == 2)
    assert [(call.sampling_effective or {})["max_tokens"] for call in stack.calls] == limits


async def test_odd_characters_arrive_in_a_stream(stack: Stack, client: genai.Client) -> None:
    """What ends a line in Unicode ends none for this client; what isn't text for JSON is escaped."""
    said = "a\u2028b\u2029c\u0085d\x1ce\x0bf\r\ng é 🎈"
    stack.engine.script = lambda _prompt, _request: said
    chunks = [chunk async for chunk in await client.aio.models.generate_content_stream(model=MODEL, contents="Hi")]
    assert "".join(chunk.text or "" for chunk in chunks) == said


async def test_thoughts_and_parallel_calls_come_back(stack: Stack, client: genai.Client) -> None:
    """A tool loop by hand: thoughts where asked for, two calls with ids, both results, and the turn's id in the echo."""
    said = "<think>Hm.</think>I look." + tool_call("bash", {"command": "ls"}) + tool_call("bash", {"command": "é"})
    stack.engine.script = lambda prompt, _request: "Two files." if "tool: " in prompt else said
    config = types.GenerateContentConfig(
        tools=TOOLS,
        system_instruction="Be brief.",
        thinking_config=types.ThinkingConfig(include_thoughts=True),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    contents = [types.Content(role="user", parts=[types.Part(text="What is here?")])]
    answer = await client.aio.models.generate_content(model=MODEL, contents=contents, config=config)
    parts = parts_of(answer)
    assert [part.text for part in parts if part.thought] == ["Hm."]
    assert answer.text == "I look."
    calls = answer.function_calls
    assert calls is not None
    assert [call.args for call in calls] == [{"command": "ls"}, {"command": "é"}]
    assert len({call.id for call in calls}) == 2
    assert answer.candidates is not None
    assert answer.candidates[0].finish_reason is types.FinishReason.STOP
    results = [
        types.Part(
            function_response=types.FunctionResponse(id=call.id, name=call.name, response={"output": str(number)})
        )
        for number, call in enumerate(calls)
    ]
    image = types.Part.from_bytes(data=PNG, mime_type="image/png")
    content = answer.candidates[0].content
    assert content is not None
    contents += [content, types.Content(role="user", parts=[*results, image])]
    final = await client.aio.models.generate_content(model=MODEL, contents=contents, config=config)
    assert final.text == "Two files."
    await stack.until(lambda: len(stack.calls) == 2)
    first = stack.calls[0]
    assert all(
        completion_of(json.loads(part.model_dump_json())["thought_signature"].replace("-", "+").replace("_", "/"))
        == first.completion_id
        for part in parts
    )
    messages = messages_of(stack)[1]
    assert [message["role"] for message in messages][:5] == ["system", "user", "assistant", "tool", "tool"]
    assert [message["content"] for message in messages[3:5]] == ["0", "1"]
    assert messages[2]["reasoning_content"] == "Hm."
    assert messages[5]["content"][0]["image_url"]["url"].endswith("iVBORw0KGgr7")


async def test_an_automatic_tool_loop(stack: Stack, client: genai.Client) -> None:
    """The SDK calls a Python function by itself and asks again."""

    def bash(command: str) -> str:
        """Runs a command."""
        return f"ran {command}"

    stack.engine.script = lambda prompt, _request: (
        "Done." if "ran ls" in prompt else tool_call("bash", {"command": "ls"})
    )
    config = types.GenerateContentConfig(tools=[bash])
    answer = await client.aio.models.generate_content(model=MODEL, contents="go", config=config)
    assert answer.text == "Done."
    await stack.until(lambda: len(stack.calls) == 2)
    assert messages_of(stack)[1][-1]["content"] == '{"result":"ran ls"}'


async def test_a_streamed_chat_keeps_its_turns_through_silence(make_stack: MakeStack) -> None:
    """The chat counts a turn only when every chunk had a part, keep-alives included; the next request holds it whole."""
    stack = await make_stack(keepalive_s=0.02)
    await stack.open()
    client = client_of(stack)
    stack.engine.pause_at = 3
    stack.engine.go.clear()
    chat = client.aio.chats.create(model=MODEL)
    told = ""
    seen = 0
    async for chunk in await chat.send_message_stream("Hi"):
        told += chunk.text or ""
        seen += 1
        if seen == 10:
            stack.engine.go.set()
    assert told == "Hello there."
    answer = await chat.send_message("And?")
    assert answer.text == "Hello there."
    await stack.until(lambda: len(stack.calls) == 2)
    assert [(m["role"], m["content"]) for m in messages_of(stack)[1]] == [
        ("user", "Hi"),
        ("assistant", "Hello there."),
        ("user", "And?"),
    ]
    await client.aio.aclose()
    client.close()


async def test_structured_output_and_limits_reach_the_call(stack: Stack, client: genai.Client) -> None:
    """A schema in the vendor's types, a limit, and stops."""
    config = types.GenerateContentConfig(
        response_mime_type="application/json",
        response_schema={"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": True}}},
        max_output_tokens=5,
        stop_sequences=["END"],
        top_k=40,
        safety_settings=[
            types.SafetySetting(
                category=types.HarmCategory.HARM_CATEGORY_HARASSMENT, threshold=types.HarmBlockThreshold.BLOCK_NONE
            )
        ],
    )
    answer = await client.aio.models.generate_content(model=MODEL, contents="Hi", config=config)
    assert answer.candidates is not None
    assert answer.candidates[0].finish_reason is types.FinishReason.MAX_TOKENS
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert (record.sampling_requested or {})["top_k"] == 40
    assert stack.engine.requests[0]["sampling_params"]["max_new_tokens"] == 5
    assert record.notes is not None
    schema = record.notes["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {"a": {"type": ["string", "null"]}}
    assert "ignored field: safetySettings" in record.notes["request"]


async def test_b85_counting_and_models(stack: Stack, client: genai.Client) -> None:
    """Neither generates; the count is the prompt's length."""
    counted = await client.aio.models.count_tokens(model=MODEL, contents="Hi")
    await client.aio.models.generate_content(model=MODEL, contents="Hi")
    await stack.until(lambda: bool(stack.calls))
    assert counted.total_tokens == stack.calls[0].prompt_len
    listed = [model async for model in await client.aio.models.list()]
    assert [(model.name or "").startswith("models/") for model in listed] == [True] * len(listed)
    assert listed
    one = await client.aio.models.get(model=MODEL)
    assert (one.name, one.input_token_limit) == (f"models/{MODEL}", stack.engine.context_length)
    assert len(stack.engine.requests) == len(stack.calls) == 1


async def test_b85_unknown_methods_are_refused_in_the_vendors_shape(stack: Stack, client: genai.Client) -> None:
    """Embeddings aren't offered: a 404 that the client understands, counted as an unknown endpoint."""
    with pytest.raises(errors.ClientError) as caught:
        await client.aio.models.embed_content(model=MODEL, contents="Hi")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
    assert [rejection.reason for rejection in stack.rejections] == ["unknown_endpoint"]


@pytest.mark.parametrize("place", ["header", "query"])
async def test_b85_a_key_opens_the_session_and_is_never_recorded(stack: Stack, place: str) -> None:
    """As the API key or in the query; neither records nor refusals hold it."""
    url = f"{stack.proxy.data_address}/v1beta/models/org%2Fm:generateContent"
    body = {"contents": [{"parts": [{"text": "Hi"}]}]}
    for secret, expected in ((stack.secret, 200), ("wrong-key", 401)):
        options: dict[str, Any] = (
            {"headers": {"x-goog-api-key": secret}} if place == "header" else {"params": {"key": secret}}
        )
        async with stack.http.post(url, json=body, **options) as response:
            assert response.status == expected
            assert secret not in await response.text()
    await stack.until(lambda: bool(stack.calls) and bool(stack.rejections))
    assert stack.calls[0].model_requested == "org/m"
    logged = repr([delivery.decode() for topic in ("capture.completions", "capture.rejections")
                   for delivery in stack.bus.records(topic)])  # fmt: skip
    assert stack.secret not in logged
    assert "wrong-key" not in logged


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("status", "kind", "name"),
    [
        (429, errors.ClientError, "RESOURCE_EXHAUSTED"),
        (503, errors.ServerError, "UNAVAILABLE"),
        (500, errors.ServerError, "INTERNAL"),
    ],
)
async def test_errors_before_the_first_byte(  # noqa: PLR0917 - what is parametrised
    stack: Stack, client: genai.Client, stream: bool, status: int, kind: type[errors.APIError], name: str
) -> None:
    """A status code, the vendor's class and words, and how long to wait."""
    stack.engine.status = status
    stack.engine.headers = {"retry-after": "7"}

    async def read_stream() -> None:
        async for _ in await client.aio.models.generate_content_stream(model=MODEL, contents="Hi"):
            pass

    asked = read_stream() if stream else client.aio.models.generate_content(model=MODEL, contents="Hi")
    with pytest.raises(kind) as caught:
        await asked
    assert (caught.value.code, caught.value.status) == (status, name)
    if status == 429:
        assert caught.value.details["error"]["details"][0]["retryDelay"] == "7s"


async def test_an_error_in_mid_stream(stack: Stack, client: genai.Client) -> None:
    """What was said arrives, then the vendor's error with its code, for both clients."""
    stack.engine.drop_at = 6

    def read(told: list[str]) -> None:
        told += (chunk.text or "" for chunk in client.models.generate_content_stream(model=MODEL, contents="Hi"))

    async def read_async(told: list[str]) -> None:
        async for chunk in await client.aio.models.generate_content_stream(model=MODEL, contents="Hi"):
            told.append(chunk.text or "")

    for reading in (lambda told: asyncio.to_thread(read, told), read_async):
        told: list[str] = []
        with pytest.raises(errors.ServerError) as caught:
            await reading(told)
        assert "".join(told) == "Hello"
        assert (caught.value.code, caught.value.status) == (500, "INTERNAL")


async def test_a_full_context(stack: Stack, client: genai.Client) -> None:
    """The sentence by which clients know that they must compact."""
    stack.engine.context_length = 20
    await stack.proxy.engines.remove("*", stack.engine.url)
    stack.proxy.engines.add("*", stack.engine.url, "sglang")
    with pytest.raises(errors.ClientError) as caught:
        await client.aio.models.generate_content(model=MODEL, contents="x" * 100)
    assert caught.value.code == 400
    assert "exceeds the maximum number of tokens allowed (20)" in str(caught.value.message)


async def test_retries_are_the_clients_and_each_is_a_call(stack: Stack) -> None:
    """With retries on, the client comes again after a 503, and gets its answer."""
    stack.engine.status = 503
    options = types.HttpRetryOptions(attempts=3, initial_delay=0.01, max_delay=0.02, http_status_codes=[503])
    client = client_of(stack, retry_options=options)
    asked = asyncio.create_task(client.aio.models.generate_content(model=MODEL, contents="Hi"))
    await stack.until(lambda: len(stack.engine.requests) == 1)
    stack.engine.status = 200
    assert (await asyncio.wait_for(asked, 20.0)).text == "Hello there."
    await client.aio.aclose()
    client.close()


def elements(body: str) -> Iterator[dict[str, Any]]:
    """The elements of the part of a JSON array that has arrived, read one by one."""
    decoder = json.JSONDecoder()
    at = 1
    while at < len(body):
        if body[at] in ", \r\n]":
            at += 1
            continue
        value, at = decoder.raw_decode(body, at)
        yield value


async def test_without_alt_the_stream_is_one_array(make_stack: MakeStack) -> None:
    """Elements come as they are sampled, keep-alives too; the whole is one JSON document."""
    stack = await make_stack(keepalive_s=0.02)
    await stack.open()
    stack.engine.pause_at = 6
    stack.engine.go.clear()
    path = "/v1beta/models/m:streamGenerateContent"
    async with stack.http.post(stack.url(path), json={"contents": "Hi"}) as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        body = ""
        while len(list(elements(body))) < 8:
            body += (await asyncio.wait_for(response.content.readany(), 5.0)).decode()
        assert not stack.calls
        stack.engine.go.set()
        body += (await response.read()).decode()
    read = json.loads(body)
    said = [part["text"] for value in read for part in value["candidates"][0]["content"]["parts"]]
    assert "".join(said) == "Hello there."
    assert said.count("") > 2
    assert read[-1]["candidates"][0]["finishReason"] == "STOP"
