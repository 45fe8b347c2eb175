"""What the vendors' own SDKs make of our answers: each parses them with its own code, whole and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from capture_proxy.turn_ids import completion_of_tool_call
from schemas.records import LineageStatus
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import tool_call
from tests.capture_proxy.sdk.driver import PNG, Colours, Driver

pytestmark = [
    pytest.mark.component,
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),  # an SDK's own
]

MakeStack = Callable[..., Awaitable[Stack]]
TWO_CALLS = "Both.\n" + tool_call("ls", {"path": "/ü"}) + tool_call("ls", {"path": '/b "q"'})


async def test_create(stack: Stack, sdk: Driver, stream: bool) -> None:
    """Text, finish and usage are the engine's; the record is of this dialect; one call makes one generation."""
    stack.engine.script = lambda _prompt, _request: "Grüße 漢🦊."
    async with sdk.client(stack) as client:
        answer = await sdk.ask(client, sdk.user("Hi"), stream=stream)
    assert (answer.text, answer.reasoning, answer.calls) == ("Grüße 漢🦊.", "", [])
    assert answer.finish == sdk.ends["stop"]
    await stack.until(lambda: bool(stack.deliveries))
    [record] = stack.calls
    assert (str(record.dialect), record.is_stream, record.text) == (sdk.dialect, stream, "Grüße 漢🦊.")
    assert answer.prompt_tokens == record.prompt_len == len(stack.engine.requests[0]["input_ids"])
    assert answer.output_tokens == len("Grüße 漢🦊.") + 1
    assert stack.deliveries[0].delivered


async def test_reasoning(stack: Stack, sdk: Driver, stream: bool) -> None:
    """Thinking comes in the SDK's own channel, never in the text."""
    stack.engine.script = lambda _prompt, _request: "<think>\nadd them\n</think>\n\n4"
    async with sdk.client(stack) as client:
        answer = await sdk.ask(client, sdk.user("2+2"), stream=stream)
    assert (answer.reasoning, answer.text) == ("add them", "4")


async def test_parallel_tools_and_the_way_back(stack: Stack, sdk: Driver, stream: bool) -> None:
    """Two calls with ids of their own; the SDK's own objects, sent back with results, are known as the turn that was sampled."""
    stack.engine.script = lambda _prompt, request: (
        "<think>\nlook\n</think>\n\n" + TWO_CALLS if len(stack.engine.requests) == 1 else "Done."
    )
    async with sdk.client(stack) as client:
        turns = sdk.user("Look")
        first = await sdk.ask(client, turns, stream=stream, tools=True)
        turns = [*turns, *sdk.said(first), *sdk.results(first, ["one", "two"])]
        second = await sdk.ask(client, turns, stream=stream, tools=True)
    assert [(c.name, c.arguments) for c in first.calls] == [("ls", {"path": "/ü"}), ("ls", {"path": '/b "q"'})]
    assert (first.text.strip(), first.reasoning, first.finish) == ("Both.", "look", sdk.ends["tools"])
    assert second.text == "Done."
    await stack.until(lambda: len(stack.calls) == 2)
    one, two = stack.calls
    ids = [call["id"] for call in one.tool_calls]
    assert [completion_of_tool_call(i) for i in ids] == [one.completion_id] * 2
    assert (two.lineage, two.parent_id, two.messages_prefix) == (LineageStatus.RESOLVED, one.completion_id, 2)
    assert [(m["role"], m["tool_call_id"], m["content"]) for m in two.messages] == [
        ("tool", ids[0], "one"),
        ("tool", ids[1], "two"),
    ]
    assert not [note for note in two.notes.get("request", ()) if note.startswith(("repaired", "dropped", "replaced"))]


async def test_a_call_without_arguments(stack: Stack, sdk: Driver, stream: bool) -> None:
    """The SDK parses an empty object."""
    stack.engine.script = lambda _prompt, _request: '<tool_call>\n{"name": "ls"}\n</tool_call>'
    async with sdk.client(stack) as client:
        answer = await sdk.ask(client, sdk.user("Look"), stream=stream, tools=True)
    assert [(c.name, c.arguments) for c in answer.calls] == [("ls", {})]


async def test_images(stack: Stack, sdk: Driver, stream: bool) -> None:
    """A picture arrives with its bytes, in order, in the record."""
    async with sdk.client(stack) as client:
        answer = await sdk.ask(client, sdk.user("What is it?", image=PNG), stream=stream)
    assert answer.text == "Hello there."
    await stack.until(lambda: bool(stack.calls))
    content = stack.calls[0].messages[-1]["content"]
    assert content == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "text", "text": "What is it?"},
    ]


async def test_structured_output(stack: Stack, sdk: Driver, stream: bool) -> None:
    """The schema that the SDK makes of a model binds the engine, the SDK reads the answer, and the record says so."""
    stack.engine.script = lambda _prompt, _request: '{"names": ["red", "grün"]}'
    async with sdk.client(stack) as client:
        answer = await sdk.ask(client, sdk.user("Colours?"), stream=stream, schema=Colours)
    assert answer.parsed == Colours(names=["red", "grün"])
    sampling = stack.engine.requests[0]["sampling_params"]
    assert '"names"' in sampling["json_schema"]
    await stack.until(lambda: bool(stack.calls))
    [record] = stack.calls
    assert record.sampling_effective["json_schema"] == sampling["json_schema"]
    assert any(note.startswith("constrained") for note in record.notes["sampling"])


async def test_a_cut_answer(stack: Stack, sdk: Driver, stream: bool) -> None:
    """The limit reaches the engine under its name, and the SDK is told that it ended the answer."""
    async with sdk.client(stack) as client:
        answer = await sdk.ask(client, sdk.user("Hi"), stream=stream, limit=5)
    assert stack.engine.requests[0]["sampling_params"]["max_new_tokens"] == 5
    assert (answer.text, answer.finish, answer.output_tokens) == ("Hello", sdk.ends["length"], 5)


async def test_a_call_that_is_cut_is_text(stack: Stack, sdk: Driver, stream: bool) -> None:
    """No call, no added brace: what was sampled, and the reason that it was cut."""
    cut = tool_call("ls", {"path": "/a"})[:30]
    stack.engine.script = lambda _prompt, _request: cut + "x" * 100
    async with sdk.client(stack) as client:
        answer = await sdk.ask(client, sdk.user("Hi"), stream=stream, tools=True, limit=30)
    assert (answer.text, answer.calls, answer.finish) == (cut, [], sdk.ends["length"])


async def test_nothing_sampled_but_the_end(stack: Stack, sdk: Driver, stream: bool) -> None:
    """An empty answer is handed over as it is, once."""
    stack.engine.script = lambda _prompt, _request: ""
    async with sdk.client(stack) as client:
        answer = await sdk.ask(client, sdk.user("Hi"), stream=stream)
    assert (answer.text, answer.calls, answer.finish, answer.output_tokens) == ("", [], sdk.ends["stop"], 1)
    assert len(stack.engine.requests) == 1


async def test_keep_alives_dont_disturb(make_stack: MakeStack, sdk: Driver) -> None:
    """Signs of life in mid-stream leave the SDK's accumulated answer whole."""
    stack = await make_stack(keepalive_s=0.05)
    await stack.open()
    stack.engine.script = lambda _prompt, _request: "Slow. " + tool_call("ls", {"path": "/"})
    stack.engine.pause_at = 5
    stack.engine.go.clear()

    async def go_on() -> None:
        await asyncio.wait_for(stack.engine.reached.wait(), 10.0)
        await asyncio.sleep(0.3)  # some keep-alives
        stack.engine.go.set()

    async with sdk.client(stack) as client, asyncio.TaskGroup() as group:
        group.create_task(go_on())
        answer = await sdk.ask(client, sdk.user("Hi"), stream=True, tools=True)
    assert (answer.text.strip(), [c.name for c in answer.calls]) == ("Slow.", ["ls"])


async def test_token_counting(stack: Stack, sdk: Driver) -> None:
    """The count is the prompt's length of the same call, and nothing is generated for it."""
    async with sdk.client(stack) as client:
        turns = sdk.user("How long is this?")
        count = await sdk.count(client, turns)
        assert not stack.engine.requests
        answer = await sdk.ask(client, turns, stream=False)
    if sdk.dialect == "openai_chat":
        assert count is None  # the API has no such endpoint
    else:
        assert count == answer.prompt_tokens


async def test_model_listing(stack: Stack, sdk: Driver) -> None:
    """The SDK reads the list; nothing is generated."""
    async with sdk.client(stack) as client:
        assert await sdk.models(client)
    assert not stack.engine.requests
