"""From a call to its record: what is trainable, what the client is told, what never leaks."""

from __future__ import annotations

import math
from typing import Any

import pytest

from capture_proxy import outcome, records
from capture_proxy.call import Call, Prompt
from capture_proxy.engines.base import EngineFinish, WeightSpan
from capture_proxy.leases import Lease
from capture_proxy.logprobs import why_untrainable
from capture_proxy.reply import ChatRequest, ProxyError
from schemas import arrays, codec, ids
from schemas.records import Boundary, CompletionState, LineageStatus, SessionSpec
from tests.capture_proxy.fakes import END_ID, CharRenderer, tool_call


def make(text: str = "hi", *, request: dict[str, Any] | None = None, finish: dict[str, Any] | None = None) -> Call:
    """A call whose engine said `text`."""
    renderer = CharRenderer()
    lease = Lease(
        session_id="s",
        lease_id="l",
        attempt=2,
        writer=3,
        secret_hash="h",
        spec=SessionSpec(task_id="t", group_id="g", policy_id="p"),
    )
    asked = ChatRequest(
        dialect="openai_chat",
        model="m",
        messages=[{"role": "user", "content": "q"}],
        tools=[{"type": "function", "function": {"name": "bash"}}],
        **(request or {}),
    )
    prompt = Prompt(renderer=renderer, ids=renderer.encode("prompt"), sampling={"temperature": 1.0})
    stub = records.started(lease, 7, asked, prompt, proxy_id="x", body=b"body", at=1000)
    output = [*renderer.encode(text), END_ID]
    parser = renderer.parser(prompt.ids, is_parsing_tools=True)
    parser.feed(output)
    return Call(
        completion_id=stub.completion_id,
        call_seq=7,
        lease=lease,
        request=asked,
        prompt=prompt,
        stub=stub,
        arrived_s=10.0,
        output_ids=output,
        logprobs=[-1.0] * len(output),
        accepted_s=10.5,
        first_token_s=11.0,
        parsed=parser.finish(is_cut=(finish or {}).get("reason") == "length")[1],
        finish=EngineFinish(
            **{
                "reason": "stop",
                "matched": END_ID,
                "prompt_ids": prompt.ids,
                "weight_spans": (WeightSpan("v", 0, 3),),
                **(finish or {}),
            }
        ),
    )


@pytest.mark.parametrize(
    ("output", "logprobs", "echo", "reason"),
    [
        ([5, 6], [-1.0, 0.0], "exact", ""),
        ([5, 6], [-1.0, 0.0], "absent", ""),
        ([5, 6], [-1.0, 0.0], "mismatch", "prompt_echo_mismatch"),
        ([], [], "exact", "empty"),
        ([], [-1.0], "exact", "ids_missing"),
        ([5, 6], [], "exact", "no_logprobs"),
        ([5, 6], [-1.0], "exact", "logprob_length"),
        ([5, 6], [-1.0, math.nan], "exact", "logprob_invalid"),
        ([5, 6], [-1.0, -math.inf], "exact", "logprob_invalid"),
        ([5, 6], [-1.0, 0.5], "exact", "logprob_invalid"),
        ([5, 6], [-1.0, None], "exact", "logprob_invalid"),
        ([5, 9], [-1.0, -1.0], "exact", "oov"),
        ([5, 8], [-1.0, -1.0], "exact", ""),
    ],
)
def test_why_untrainable(output: list[int], logprobs: list[Any], echo: str, reason: str) -> None:
    """Missing or odd numbers are a reason, never a guess."""
    assert why_untrainable(output, logprobs, echo, vocab_size=9) == reason


def test_a_finished_call_is_recorded_whole() -> None:
    """Without a place in a lineage the suffix is the whole prompt and the messages stand in full; times are milliseconds since arrival."""
    call = make()
    record = records.finished(call, at=2000, now_s=12.0)
    assert list(arrays.unpack_ids(record.suffix_ids)) == call.prompt.ids
    assert (record.prompt_len, record.prefix_len, record.messages_prefix) == (6, 0, 0)
    assert (record.lineage, record.lineage_reason) == (LineageStatus.NONE, "not_placed")
    assert record.messages == [{"role": "user", "content": "q"}]
    assert record.tools_digest
    assert (record.queue_ms, record.first_token_ms, record.total_ms) == (500.0, 1000.0, 2000.0)
    assert (record.started_at, record.finished_at, record.request_bytes) == (1000, 2000, 4)
    assert record.request_digest == ids.digest(b"body")
    assert record.completion_id == ids.completion_id("l", 3, 7)
    assert codec.decode(codec.encode(record).value) == record


def test_a_started_call_is_small() -> None:
    """CallStarted holds no messages and no token arrays: it is written for every call, before the engine has it."""
    stub = make(request={"sampling": {"temperature": 0.3}}).stub
    assert len(codec.encode(stub).value) < 1000
    assert (stub.state, stub.prompt_len, stub.suffix_ids) == (CompletionState.UNKNOWN, 6, b"")


def test_tool_calls_are_the_same_in_reply_and_record() -> None:
    """Ids, names and spans that the client sees are those on the log."""
    call = make("ok " + tool_call("bash", {"command": "ls"}))
    record, reply = records.finished(call, at=1, now_s=11.0), outcome.reply(call)
    assert reply.finish_reason == record.finish_reason == "tool_calls"
    assert [(c["id"], c["name"], c["arguments"], tuple(c["span"])) for c in record.tool_calls] == [
        (c.id, c.name, c.arguments, c.span) for c in reply.tool_calls
    ]
    start, end = record.tool_calls[0]["span"]
    assert CharRenderer().decode(call.output_ids[start:end]).strip().startswith("<tool_call>")


@pytest.mark.parametrize(
    ("finish", "text", "expected"),
    [
        ({"reason": "length"}, "hi", "length"),
        ({"reason": "stop"}, "hi", "stop"),
        ({"reason": "length"}, tool_call("bash", {}), "tool_calls"),
        ({"reason": "length"}, tool_call("bash", {}) + "<tool_call>{", "length"),
        ({"reason": "stop"}, tool_call("bash", {}) + "<tool_call>{", "stop"),
    ],
)
def test_finish_reasons(finish: dict[str, Any], text: str, expected: str) -> None:
    """A whole tool call is one, also when the length ended the reply behind it; what is cut inside a call is cut."""
    assert outcome.finish_reason(make(text, finish=finish)) == expected


def test_a_matched_stop_string_is_told_and_a_token_isnt() -> None:
    """Only strings that the client sent come back as the stop sequence."""
    assert outcome.reply(make(finish={"matched": "END"})).stop_sequence == "END"
    assert outcome.reply(make(finish={"matched": 7})).stop_sequence is None


def test_failures_and_aborts_keep_what_was_sampled() -> None:
    """The ids are on the log, untrainable with the reason, and the error with the status that the client saw."""
    call = make()
    failed = records.failed(call, ProxyError("engine_unavailable", "gone"), at=1, now_s=11.0)
    assert (failed.state, failed.untrainable_reason, failed.trainable) == (CompletionState.FAILED, "failed", False)
    assert failed.error is not None
    assert (failed.error.kind, failed.error.status, failed.error.boundary) == (
        "engine_unavailable",
        503,
        Boundary.PROVIDER,
    )
    call.is_stream_begun = True
    again = records.failed(call, ProxyError("engine_error", "cut"), at=1, now_s=11.0)
    assert again.error is not None
    assert again.error.status == 200
    aborted = records.aborted(call, "client_left", at=1, now_s=11.0)
    assert (aborted.state, aborted.untrainable_reason) == (CompletionState.ABORTED, "aborted")
    for record in (failed, aborted):
        assert list(arrays.unpack_ids(record.output_ids)) == call.output_ids


def test_what_was_ignored_is_noted() -> None:
    """Notes of the dialect, of the sampling, and what the engine can't do are on the record."""
    wishes = {"tool_choice": "required", "parallel_tool_calls": False, "response_format": {"type": "json_object"}}
    call = make(request={"notes": ("store",), **wishes})
    assert records.finished(call, at=1, now_s=11.0).notes == {
        "request": ["store"],
        **wishes,
    }


def test_a_rejection_holds_the_hash_only() -> None:
    """Whatever came as a secret, its text isn't on the log."""
    facts = {
        "reason": "unknown_secret",
        "status": 401,
        "dialect": "",
        "session_id": "",
        "method": "POST",
        "path": "/v1",
        "host": "h",
    }
    made = records.rejection(**facts, secret="hush", proxy_id="p", incarnation="i", number=1, at=5)  # type: ignore[arg-type]
    assert made.secret_hash == ids.secret_hash("hush")
    assert b"hush" not in codec.encode(made).value
    other = records.rejection(**facts, secret="hush", proxy_id="p", incarnation="j", number=1, at=5)  # type: ignore[arg-type]
    assert made.rejection_id != other.rejection_id
