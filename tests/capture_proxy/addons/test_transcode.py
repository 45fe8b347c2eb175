"""The stream callable: what it gives mitmproxy for every way in which the tap's bytes may come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.connection import ConnectionState

from capture_proxy.addons.transcode import StreamTranscoder
from capture_proxy.dialects import DIALECTS
from capture_proxy.reply import ChatRequest, Finished, ReasoningDelta, Reply, Started, TextDelta, to_line

ID = "11112222-3333-4444-5555-666677778888"
REPLY = Reply(
    completion_id=ID,
    model="m",
    text="a" * 100_000,
    finish_reason="stop",
    prompt_tokens=1,
    completion_tokens=1,
)


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_no_chunk_is_ever_empty(name: str) -> None:
    """An empty chunk would end the body: not for events that add nothing, not for pieces of a line, not after the end."""
    flow: Any = SimpleNamespace(error=None, client_conn=SimpleNamespace(state=ConnectionState.OPEN))
    call: Any = SimpleNamespace(completion_id=ID, is_terminal_sent=False, is_withheld=False)
    request = ChatRequest(dialect=name, model="m", messages=[], stream=True)
    transcoder = StreamTranscoder(flow, call, DIALECTS[name].stream_encoder(request))
    events = (Started(ID, "m", 0, 1), ReasoningDelta("hm"), TextDelta(""), TextDelta(REPLY.text), Finished(REPLY))
    tap = b"".join(map(to_line, events))
    chunks = [chunk for at in range(0, len(tap), 1000) for chunk in transcoder(tap[at : at + 1000])]
    assert all(chunks)
    assert REPLY.text.encode() in b"".join(chunks)
    assert call.is_terminal_sent
    assert transcoder(b"") == []
