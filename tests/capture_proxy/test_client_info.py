"""What harnesses say of themselves: it refines a call's place inside its session, and can't move it into another."""

from __future__ import annotations

import pytest

from capture_proxy.client_info import client_of
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.wire import WIRES, Wire


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"X-Claude-Code-Session-Id": "c1"}, {"session": "c1"}),
        ({"session-id": "s1"}, {"session": "s1"}),
        ({"session_id": "s2"}, {"session": "s2"}),
        ({"x-session-id": "s3"}, {"session": "s3"}),
        ({"thread-id": "t1"}, {"session": "t1"}),
        ({"x-session-affinity": "ses_1"}, {"session": "ses_1"}),
        ({"x-claude-code-agent-id": "a7", "x-claude-code-parent-agent-id": "root"}, {"agent": "a7", "parent": "root"}),
        ({"x-codex-window-id": "w:0", "x-codex-parent-thread-id": "t0"}, {"agent": "w:0", "parent": "t0"}),
        ({"x-openai-subagent": "review"}, {"subagent": "review"}),
        ({"x-parent-session-id": "ses_0"}, {"parent": "ses_0"}),
        ({"x-stainless-retry-count": "2"}, {"retry": 2}),
        ({"x-stainless-retry-count": "0"}, {}),
        ({"x-session-id": "late", "x-claude-code-session-id": "first"}, {"session": "first"}),
        ({"session-id": "a b\u00e9", "x-session-id": "sound"}, {"session": "sound"}),
        ({"x-session-id": "x" * 129}, {}),
        ({"x-session-id": "", "thread-id": "../../etc"}, {}),
        ({"x-stainless-retry-count": "-1"}, {}),
        ({"x-stainless-retry-count": "many"}, {}),
    ],
)
def test_b133_which_header_is_the_session(headers: dict[str, str], expected: dict[str, object]) -> None:
    """Each alone, two that disagree, malformed and over-long ones: one fixed precedence, nonsense ignored."""
    assert client_of(headers, b"{}") == expected


def test_b133_a_cache_key_stands_for_the_session_where_no_header_does() -> None:
    """It is a field of the body, before or behind a long conversation; one inside a message isn't it."""
    filler = b'"messages":[{"content":"\\"prompt_cache_key\\":\\"inside\\" ' + b"x" * 100_000 + b'"}]'
    assert client_of({}, b'{"prompt_cache_key": "k1",' + filler + b"}") == {"session": "k1"}
    assert client_of({}, b"{" + filler + b',"prompt_cache_key":"k2"}') == {"session": "k2"}
    assert client_of({}, b"{" + filler + b"}") == {}
    assert client_of({"x-session-id": "h"}, b'{"prompt_cache_key": "k1"}') == {"session": "h"}


def test_a_secret_is_never_kept() -> None:
    """A harness that puts its key into a session header doesn't get it onto the log."""
    assert client_of({"x-session-id": "the-secret", "thread-id": "t"}, b"{}", lambda v: v == "the-secret") == {
        "session": "t"
    }


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_b133_no_header_moves_a_call_into_another_session(stack: Stack, wire: Wire) -> None:
    """The secret of the path decides; the headers are notes of the record, whatever they name."""
    headers = {"x-session-id": "session-2", "x-claude-code-session-id": "session-3", "authorization": "Bearer other"}
    async with stack.http.post(stack.url(wire.path), json=wire.request(), headers=headers) as response:
        assert response.status == 200
    await stack.until(lambda: bool(stack.calls))
    [call] = stack.calls
    assert (call.session_id, call.lease_id) == ("session-1", stack.lease_id)
    assert call.notes["client"] == {"session": "session-3"}


async def test_b134_sub_agents_share_the_parents_session(stack: Stack) -> None:
    """A child's short first prompt under its parent's session header: the same rollout, its own tag; without tags, its own root."""
    wire = WIRES[1]
    session = {"x-claude-code-session-id": "c1"}
    child = {**session, "x-claude-code-agent-id": "a7", "x-claude-code-parent-agent-id": "root"}
    history = [{"role": ("user", "assistant")[i % 2], "content": f"m{i}"} for i in range(39)]
    for body, headers in (
        (wire.request(messages=history), session),
        (wire.request("a task of its own"), child),
        (wire.request("another task"), session),
    ):
        async with stack.http.post(stack.url(wire.path), json=body, headers=headers) as response:
            assert response.status == 200
    await stack.until(lambda: len(stack.calls) == 3)
    parent, tagged, bare = stack.calls
    assert {c.session_id for c in stack.calls} == {"session-1"}
    assert parent.notes["client"] == bare.notes["client"] == {"session": "c1"}
    assert tagged.notes["client"] == {"session": "c1", "agent": "a7", "parent": "root"}
    assert [c.parent_id for c in (tagged, bare)] == ["", ""]
    assert not any("compact" in c.lineage_reason for c in (tagged, bare))
