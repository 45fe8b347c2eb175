"""The whole proxy over several turns: what the engine gets, what stands on the log, and what a take-over keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bus import read_session
from schemas import arrays, ids
from schemas.records import CompletionRecord, LineageStatus
from schemas.resolve import resolve
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import END_ID, CharRenderer, tool_call
from tests.capture_proxy.wire import TOOL

MakeStack = Callable[..., Awaitable[Stack]]

CHAT_TOOLS = [{"type": "function", "function": TOOL}]


async def chat(stack: Stack, messages: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """One Chat call; the assistant message of its answer."""
    body = {"model": "policy", "messages": messages, **changes}
    async with stack.http.post(stack.url("/v1/chat/completions"), json=body) as response:
        assert response.status == 200, await response.text()
        return dict((await response.json())["choices"][0]["message"])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def until_calls(stack: Stack, count: int) -> list[CompletionRecord]:
    """The records, once so many calls and their delivery facts are on the log."""
    await stack.until(lambda: len(stack.calls) >= count and len(stack.deliveries) >= count)
    return stack.calls


async def test_the_engine_goes_on_from_its_own_tokens(stack: Stack) -> None:
    """Turn two's prompt is turn one's ids as sampled and the tail; the record holds the tail and says whose child it is."""
    stack.engine.script = lambda _prompt, _request: "Look. " + tool_call("bash", {"command": "ls"})
    first = await chat(stack, [user("Hi")], tools=CHAT_TOOLS)
    call = first["tool_calls"][0]
    call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=2)
    history = [user("Hi"), first, {"role": "tool", "tool_call_id": call["id"], "content": "a.txt"}]
    stack.engine.script = lambda _prompt, _request: "Done."
    await chat(stack, history, tools=CHAT_TOOLS)
    one, two = await until_calls(stack, 2)
    sent = [request["input_ids"] for request in stack.engine.requests]
    sampled = [*CharRenderer().encode("Look. " + tool_call("bash", {"command": "ls"})), END_ID]
    assert sent[1][: len(sent[0]) + len(sampled)] == [*sent[0], *sampled]
    assert (two.lineage, two.lineage_reason, two.parent_id) == (LineageStatus.RESOLVED, "", one.completion_id)
    assert two.prefix_len == len(sent[0]) + len(sampled)
    assert two.prompt_len == len(sent[1])
    assert two.messages == [history[-1]]
    assert (one.tools, two.tools, two.tools_digest) == (CHAT_TOOLS, [], one.tools_digest)
    assert two.prompt_echo == "exact"
    resolved = resolve(stack.calls)
    assert arrays.unpack_ids(resolved.calls[two.completion_id].prompt()).tolist() == sent[1]
    assert resolved.tools(two) == CHAT_TOOLS


async def test_t59_b61_a_request_may_name_its_predecessor(stack: Stack) -> None:
    """previous_response_id: the prompt goes on from that call's tokens; two requests that name one are two branches."""
    stack.engine.script = lambda _prompt, _request: tool_call("bash", {"command": "ls"})
    tools = [{"type": "function", **TOOL}]
    first = await respond(stack, {"input": "go", "tools": tools})
    call_id = next(item["call_id"] for item in first["output"] if item["type"] == "function_call")
    more = {"type": "function_call_output", "call_id": call_id, "output": "ok"}
    for _ in range(2):
        await respond(stack, {"previous_response_id": first["id"], "input": [more], "tools": tools})
    one, *others = await until_calls(stack, 3)
    sent = [request["input_ids"] for request in stack.engine.requests]
    reach = [*sent[0], *arrays.unpack_ids(one.output_ids)]
    for call, prompt in zip(others, sent[1:], strict=True):
        assert prompt[: len(reach)] == reach
        assert "ok" in CharRenderer().decode(prompt[len(reach) :])
        assert (call.parent_id, call.lineage) == (one.completion_id, LineageStatus.RESOLVED)
        assert [m["role"] for m in call.messages] == ["tool"]


async def respond(stack: Stack, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    """One Responses call."""
    async with stack.http.post(stack.url("/v1/responses"), json={"model": "policy", **body}) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == status, answer
        return answer


async def test_b61_an_unknown_predecessor_is_an_error_never_an_empty_history(stack: Stack) -> None:
    """400 with the vendor's code; a call of another session is as unknown as one that never was."""
    first = await respond(stack, {"input": "go"})
    stranger = Stack(stack.root, stack.bus, stack.engine, stack.http, secret="another", session_id="session-2")
    stranger.proxy = stack.proxy
    assert (await stranger.open())[0] == 200
    for asked in (first["id"], "resp_" + "0" * 32):
        answer = await respond(stranger, {"previous_response_id": asked, "input": "more"}, status=400)
        assert answer["error"]["code"] == "previous_response_not_found"
        assert answer["error"]["param"] == "previous_response_id"
    assert len(stack.engine.requests) == 1


async def test_instructions_are_not_inherited(stack: Stack) -> None:
    """A request that continues another brings its own instructions, or has none."""
    first = await respond(stack, {"input": "go", "instructions": "Be brief."})
    await respond(stack, {"previous_response_id": first["id"], "input": "more"})
    again = await respond(stack, {"previous_response_id": first["id"], "input": "more", "instructions": "Be brief."})
    prompts = [CharRenderer().decode(r["input_ids"]) for r in stack.engine.requests]
    assert "Be brief." not in prompts[1]
    assert prompts[2].startswith(prompts[0])
    calls = await until_calls(stack, 3)
    assert [c.lineage for c in calls] == ["root", "root", "resolved"]
    assert again["id"]


async def test_t65_a_call_that_failed_is_no_parent_and_its_retry_goes_on(stack: Stack) -> None:
    """The engine breaks off in the second turn; the retry hangs on the first turn, and the third on the retry."""
    first = await chat(stack, [user("Hi")])
    stack.engine.drop_at = 3
    body = {"model": "policy", "messages": [user("Hi"), first, user("on")], "stream": True}
    async with stack.http.post(stack.url("/v1/chat/completions"), json=body) as response:
        text = await response.text()
    assert "[DONE]" not in text
    stack.engine.drop_at = None
    again = await chat(stack, [user("Hi"), first, user("on")])
    await chat(stack, [user("Hi"), first, user("on"), again, user("and")])
    calls = await until_calls(stack, 4)
    one, failed, retry, last = calls
    assert [c.parent_id for c in calls] == ["", one.completion_id, one.completion_id, retry.completion_id]
    assert failed.state == "failed"
    assert last.lineage == "resolved"


async def test_t16_b29_side_calls_are_labelled(stack: Stack) -> None:
    """A title (no tools while the session has some) and a probe for one token are `aux`; the main line isn't."""
    answer = await chat(stack, [user("Hi")], tools=CHAT_TOOLS)
    await chat(stack, [{"role": "system", "content": "Name this."}, user("Hi")])
    await chat(stack, [user("quota")], max_tokens=1)
    await chat(stack, [user("Hi"), answer, user("on")], tools=CHAT_TOOLS)
    calls = await until_calls(stack, 4)
    assert [c.branch_hint for c in calls] == ["", "aux", "aux", ""]
    assert [c.lineage for c in calls] == ["root", "root", "root", "resolved"]


async def test_b29_a_probe_before_anything_else_is_labelled(stack: Stack) -> None:
    """One user message, no tools, one token: a probe, also as the first call."""
    await chat(stack, [user("quota")], max_tokens=1)
    first = await chat(stack, [user("Hi")])
    await chat(stack, [user("Hi"), first, user("on")])
    calls = await until_calls(stack, 3)
    assert [c.branch_hint for c in calls] == ["aux", "", ""]
    assert calls[2].parent_id == calls[1].completion_id


@pytest.mark.parametrize(
    "headers",
    [
        {"x-parent-session-id": "ses-1"},
        {"x-openai-subagent": "collab_spawn", "x-codex-parent-thread-id": "thread-1"},
    ],
)
async def test_a_sub_agent_is_one_where_its_client_says_so(stack: Stack, headers: dict[str, str]) -> None:
    """Its first call, by a header; its further turns, by their parent. The main line next to it is unmarked."""
    answer = await chat(stack, [user("Hi")], tools=CHAT_TOOLS)
    child = [{"role": "system", "content": "You explore."}, user("Look")]
    body = {"model": "policy", "messages": child, "tools": CHAT_TOOLS}
    async with stack.http.post(stack.url("/v1/chat/completions"), json=body, headers=headers) as response:
        said = (await response.json())["choices"][0]["message"]
    await chat(stack, [*child, said, user("more")], tools=CHAT_TOOLS)
    await chat(stack, [user("Hi"), answer, user("on")], tools=CHAT_TOOLS)
    calls = await until_calls(stack, 4)
    assert [c.branch_hint for c in calls] == ["", "sub-agent", "sub-agent", ""]


async def test_a_long_prompts_echo_is_counted(stack: Stack) -> None:
    """The engine repeats a long prompt's ids in every event, so only their number is compared; another number is a mismatch."""
    await chat(stack, [user("x" * 5000)])
    [record] = await until_calls(stack, 1)
    assert stack.engine.requests[0]["return_prompt_token_ids"] is False
    assert (record.prompt_echo, record.trainable) == ("counted", True)


async def test_history_from_the_template(make_stack: MakeStack) -> None:
    """With `history = template` the prompt is the rendered text, and a rendering that departs is a root with the reason."""
    stack = await make_stack()
    spec = {**stack.open_body()["spec"], "history": "template"}
    assert (await stack.open(spec=spec))[0] == 200
    first = await chat(stack, [user("Hi")])
    await chat(stack, [user("Hi"), first, user("on")])
    one, two = await until_calls(stack, 2)
    messages = [user("Hi"), {"role": "assistant", "content": "Hello there."}, user("on")]
    assert stack.engine.requests[1]["input_ids"] == CharRenderer().render(messages, [], {})
    assert (two.lineage, two.lineage_reason, two.parent_id) == ("root", "retokenized", "")
    assert (one.notes["history"], two.notes["history"]) == ("template", "template")


# --- take-over


async def two_turns(stack: Stack) -> list[dict[str, Any]]:
    """A conversation of one turn, ready for the second."""
    return [user("Hi"), await chat(stack, [user("Hi")]), user("on")]


async def test_a_second_writer_goes_on_from_the_firsts_calls(make_stack: MakeStack) -> None:
    """The first proxy sealed; the second one reads its calls back and the next turn has its parent there, and so on."""
    first = await make_stack()
    await first.open()
    messages = await two_turns(first)
    assert (await first.seal())[0] == 200
    second = await make_stack()
    assert (await second.open(writer=2, takes_over=1))[0] == 200
    answer = await chat(second, messages)
    await chat(second, [*messages, answer, user("and")])
    await second.until(lambda: len(second.calls) == 3)
    by_writer = {(c.writer, c.call_seq): c for c in second.calls}
    assert by_writer[2, 1].parent_id == by_writer[1, 1].completion_id
    assert by_writer[2, 2].parent_id == by_writer[2, 1].completion_id
    assert (await second.admin("GET", "/health"))[1]["lineage"]["with_gap"] == 0
    calls = [c async for c in read_session(second.bus, "session-1")]
    assert [c.call.problem for c in calls] == ["", "", ""]


async def test_an_unsealed_predecessor_leaves_a_gap_until_it_seals(make_stack: MakeStack) -> None:
    """The call waits, alive, for so long as it may; then it has no parent and says why. After the seal the next one has."""
    first = await make_stack()
    await first.open()
    messages = await two_turns(first)
    first.bus.acks.clear()
    lost = await chat(first, messages)  # released by fsync; Kafka has nothing of it
    second = await make_stack(takeover_wait_s=1.0, keepalive_s=0.2, engine_status_wait_s=0.2)
    opening = asyncio.create_task(second.open(writer=2, takes_over=1))
    assert (await opening)[0] == 200
    further = [*messages, lost, user("and")]
    body = {"model": "policy", "messages": further, "stream": True}
    async with second.http.post(second.url("/v1/chat/completions"), json=body) as response:
        assert response.status == 200
        text = await response.text()
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    silent = [c for c in chunks if c["choices"] and not c["choices"][0]["delta"].get("content")]
    assert len(silent) >= 3  # keep-alives while it waited
    answer = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert (await second.admin("GET", "/health"))[1]["lineage"]["with_gap"] == 1
    first.bus.acks.set()
    assert (await first.seal())[0] == 200
    async with asyncio.timeout(10):
        while (await second.admin("GET", "/health"))[1]["lineage"]["with_gap"]:
            await asyncio.sleep(0.02)
    await chat(second, [*further, {"role": "assistant", "content": answer}, user("end")])
    await second.until(lambda: len([c for c in second.calls if c.writer == 2]) == 2)
    gap, after = sorted((c for c in second.calls if c.writer == 2), key=lambda c: c.call_seq)
    assert (gap.lineage, gap.lineage_reason, gap.parent_id) == (LineageStatus.AMBIGUOUS, "lineage_gap", "")
    assert after.parent_id == gap.completion_id


async def test_leases_opened_together_are_read_back_in_one_scan(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that takes five leases over at once reads the log once; each gets its own calls."""
    first = await make_stack()
    sessions = [
        Stack(first.root, first.bus, first.engine, first.http, secret=f"secret-{n}", session_id=f"session-{n}")
        for n in range(5)
    ]
    histories = []
    for session in sessions:
        session.proxy = first.proxy
        await session.open()
        histories.append(await two_turns(session))
        await session.seal()
    scans: list[Any] = []
    tail = first.bus.tail

    def counted(topics: Any, **options: Any) -> Any:
        if list(topics) == ["capture.completions"]:
            scans.append(options)
        return tail(topics, **options)

    monkeypatch.setattr(first.bus, "tail", counted)
    second = await make_stack()
    for session in sessions:
        session.proxy = second.proxy
    assert {status for status, _ in await asyncio.gather(*(s.open(writer=2, takes_over=1) for s in sessions))} == {200}
    await asyncio.gather(*(chat(s, h) for s, h in zip(sessions, histories, strict=True)))
    await second.until(lambda: len(second.calls) == 10)
    taken = [c for c in second.calls if c.writer == 2]
    assert {c.parent_id for c in taken} == {ids.completion_id(s.lease_id, 1, 1) for s in sessions}
    assert len(scans) == 1


async def test_idle_lineages_are_let_go_and_read_back(make_stack: MakeStack) -> None:
    """Above the bound the session that was idle for longest is let go; when it goes on, its parent is found again."""
    stack = await make_stack(lineage_max_bytes=10_000)
    other = Stack(stack.root, stack.bus, stack.engine, stack.http, secret="another", session_id="session-2")
    other.proxy = stack.proxy
    await stack.open()
    await other.open()
    one = await two_turns(stack)
    await until_calls(stack, 1)
    await stack.until(lambda: stack.proxy.spool.relay.is_relayed("session-1"))
    two = await two_turns(other)
    assert stack.proxy.recorder.lineages.evicted == 1
    await until_calls(stack, 2)
    await stack.until(lambda: stack.proxy.spool.relay.is_relayed("session-2"))
    await chat(stack, one)
    await chat(other, two)
    calls = await until_calls(stack, 4)
    by_session = {s: [c for c in calls if c.session_id == s] for s in ("session-1", "session-2")}
    for first, second in by_session.values():
        assert second.parent_id == first.completion_id
        assert second.lineage == LineageStatus.RESOLVED
    assert stack.proxy.recorder.lineages.size_bytes <= 2 * 10_000


async def test_a_sealed_lease_leaves_no_lineage_behind(stack: Stack) -> None:
    """What a session took in memory is free again after its seal."""
    await two_turns(stack)
    assert stack.proxy.recorder.lineages.size_bytes > 0
    await stack.seal()
    assert stack.proxy.recorder.lineages.describe() == {
        "leases": 0,
        "bytes": 0,
        "evicted": 0,
        "rebuilding": 0,
        "with_gap": 0,
    }
