"""The line protocol between the tap and the transcoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture_proxy.reply import (
    ChatRequest,
    Failed,
    Finished,
    KeepAlive,
    LineReader,
    ProxyError,
    ReasoningDelta,
    Reply,
    ReplyEvent,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCall,
    from_line,
    to_line,
    tool_call_id,
)

_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
_CALLS = st.builds(ToolCall, _TEXT, _TEXT, _TEXT, st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)))
_ALTERNATIVES = st.builds(TokenLogprob, _TEXT, st.lists(st.integers(0, 255)), st.floats(-99, 0))
_LOGPROBS = st.builds(
    TokenLogprob,
    _TEXT,
    st.lists(st.integers(0, 255)),
    st.floats(-99, 0),
    st.lists(_ALTERNATIVES, max_size=2).map(tuple),
)
_REPLIES = st.builds(
    Reply,
    completion_id=_TEXT,
    model=_TEXT,
    text=_TEXT,
    reasoning=_TEXT,
    tool_calls=st.lists(_CALLS, max_size=3).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "tool_calls"]),
    prompt_tokens=st.integers(0, 2**31),
    completion_tokens=st.integers(0, 2**31),
    stop_sequence=st.none() | _TEXT,
    logprobs=st.none() | st.lists(_LOGPROBS, max_size=3).map(tuple),
    echo=st.dictionaries(_TEXT, _TEXT | st.integers(0, 9), max_size=2),
)
_EVENTS = st.one_of(
    st.builds(TextDelta, _TEXT),
    st.builds(ReasoningDelta, _TEXT),
    st.just(KeepAlive()),
    st.builds(Started, _TEXT, _TEXT, st.integers(0, 2**41), st.integers(0, 2**31)),
    st.builds(Finished, _REPLIES),
    st.builds(
        Failed,
        st.builds(ProxyError, st.just("overloaded"), _TEXT, retry_after_s=st.floats(0, 99), code=st.none() | _TEXT),
    ),
    st.builds(Failed, st.builds(ProxyError, st.just("context_overflow"), _TEXT, context=st.just((9, 5)))),
)


@given(st.lists(_EVENTS, max_size=6), st.integers(1, 7))
def test_events_survive_any_cut_of_the_byte_stream(events: list[ReplyEvent], size: int) -> None:
    """However the lines are cut into pieces, the same events come out in order."""
    data = b"".join(map(to_line, events))
    reader = LineReader()
    read = [event for at in range(0, len(data), size) for event in reader.feed(data[at : at + size])]
    assert read == events


def test_a_comment_is_silence() -> None:
    """Any line that begins with a colon is a keep-alive."""
    assert from_line(b": waiting\n") == KeepAlive()


@pytest.mark.parametrize(
    "line", [b"{}", b"[1]", b'{"e":"text"}', b'{"e":"new","d":1}', b"x", b'{"e":"started","d":{"a":1}}']
)
def test_a_foreign_line_is_refused(line: bytes) -> None:
    """What the tap can't have written raises ValueError, never anything else."""
    with pytest.raises(ValueError, match=r"not a reply line|unknown reply event"):
        from_line(line)


def test_errors_carry_the_status_of_their_kind() -> None:
    """Kinds that invite a retry always say when: a 429 without Retry-After ends some harnesses at once."""
    assert ProxyError("overloaded", "x").status == 429
    assert ProxyError("overloaded", "x").retry_after_s is not None
    assert ProxyError("engine_unavailable", "x").retry_after_s is not None
    assert ProxyError("bad_request", "x").retry_after_s is None
    assert ProxyError("engine_error", "x", status=502).status == 502


def test_tool_call_ids_are_distinct_and_repeatable() -> None:
    """Ids differ between calls and positions and are equal when computed again."""
    first = tool_call_id("0190-a", 0)
    assert first == tool_call_id("0190-a", 0)
    assert len({first, tool_call_id("0190-a", 1), tool_call_id("0190-b", 0)}) == 3


def test_forbidden_tools_are_not_parsed() -> None:
    """With tool_choice none, or no tools at all, an output is never read as calls."""
    tools = [{"type": "function", "function": {"name": "t"}}]
    assert ChatRequest(dialect="d", model="m", messages=[], tools=tools).is_parsing_tools
    assert not ChatRequest(dialect="d", model="m", messages=[], tools=tools, tool_choice="none").is_parsing_tools
    assert not ChatRequest(dialect="d", model="m", messages=[]).is_parsing_tools
