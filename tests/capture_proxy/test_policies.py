"""Several policies behind one proxy: who answers which call, and what its record says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from capture_proxy.settings import EngineSettings
from schemas import ids
from schemas.records import CompletionState, LineageStatus
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import CharRenderer, FakeEngine
from tests.capture_proxy.test_lineage import chat, until_calls, user

MakeStack = Callable[..., Awaitable[Stack]]


def says(text: str) -> Callable[[object, object], str]:
    """A script that always says this."""
    return lambda _prompt, _request: text


async def test_another_policy_answers_as_itself(make_stack: MakeStack, engine: FakeEngine) -> None:
    """A judge that a harness asks by name: its own engine answers, and its record says so and stands alone.

    The session's next call goes on from the session's own last one.
    """
    engine.script = says("Mine.")
    async with FakeEngine().serving() as judge:
        judge.script = says("Good.")
        stack = await make_stack(
            engines=(
                EngineSettings(url=engine.url, policy_id="policy-1"),
                EngineSettings(url=judge.url, policy_id="judge"),
            )
        )
        assert (await stack.open())[0] == 200
        first = await chat(stack, [user("Hi")], model="policy-1")
        verdict = await chat(stack, [user("Hi"), first, user("Was that good?")], model="judge")
        await chat(stack, [user("Hi"), first, user("More.")], model="claude-whatever")
        await chat(stack, [user("Hi"), first, user("Was that good?"), verdict, user("And?")], model="judge")
        calls = await until_calls(stack, 4)
        assert verdict["content"] == "Good."
        assert (len(engine.requests), len(judge.requests)) == (2, 2)
    assert [c.policy_id for c in calls] == ["policy-1", "judge", "policy-1", "judge"]
    assert [(c.lineage is LineageStatus.RESOLVED, c.parent_id) for c in calls] == [
        (False, ""),
        (False, ""),
        (True, calls[0].completion_id),
        (False, ""),
    ]
    assert all(c.state is CompletionState.FINISHED and c.model_requested for c in calls)
    assert CharRenderer().decode(judge.requests[0]["input_ids"]).count("Mine.") == 1


async def test_a_judges_failure_is_not_the_sessions(make_stack: MakeStack, engine: FakeEngine) -> None:
    """It is recorded as the judge's; what the session's own last call was stays as it was."""
    async with FakeEngine().serving() as judge:
        judge.status = 400
        stack = await make_stack(
            engines=(
                EngineSettings(url=engine.url, policy_id="policy-1"),
                EngineSettings(url=judge.url, policy_id="judge"),
            )
        )
        assert (await stack.open())[0] == 200
        await chat(stack, [user("Hi")])
        body = {"model": "judge", "messages": [user("Well?")]}
        async with stack.http.post(stack.url("/v1/chat/completions"), json=body) as response:
            assert response.status >= 400
        calls = await until_calls(stack, 2)
        lease = stack.proxy.recorder.book.authorise(ids.secret_hash(stack.secret))
    assert [(c.policy_id, c.state) for c in calls] == [
        ("policy-1", CompletionState.FINISHED),
        ("judge", CompletionState.FAILED),
    ]
    assert lease.last_end is not None  # type: ignore[union-attr]
    assert lease.last_end.call_seq == calls[0].call_seq  # type: ignore[union-attr]


async def test_a_policy_without_an_engine_is_never_served_by_anothers(
    make_stack: MakeStack, engine: FakeEngine
) -> None:
    """The call fails and says what to do; the other policy's engine hears nothing of it."""
    stack = await make_stack(engines=(EngineSettings(url=engine.url, policy_id="policy-2"),))
    assert (await stack.open())[0] == 200
    body = {"model": "policy", "messages": [user("Hi")]}
    async with stack.http.post(stack.url("/v1/chat/completions"), json=body) as response:
        assert response.status == 503
        assert "no engine serves policy 'policy-1'" in await response.text()
    (call,) = await until_calls(stack, 1)
    assert (call.policy_id, call.state) == ("policy-1", CompletionState.FAILED)
    assert engine.requests == []
