"""SGLang's wire as values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture_proxy.engines.base import GenerateRequest, WeightSpan
from capture_proxy.engines.errors import EngineBusyError, error_of, retry_after_s
from capture_proxy.engines.sglang_wire import ECHO_IDS, StreamReader, request_body
from capture_proxy.engines.spans import weight_spans
from capture_proxy.reply import ProxyError

STOP = {"type": "stop", "matched": 9}


def event(ids: list[int], total: int, *, finish: Any = None, **meta: Any) -> bytes:
    """One event; each id's logprob is its negative."""
    triples = [[-float(i), i, None] for i in ids]
    meta = {
        "completion_tokens": total,
        "prompt_tokens": 3,
        "output_token_logprobs": triples,
        "finish_reason": finish,
        **meta,
    }
    return b"data: " + orjson.dumps({"output_ids": ids, "prompt_token_ids": [1, 2, 3], "meta_info": meta}) + b"\n\n"


def stream(ids: list[int], steps: list[int], *, is_cumulative: bool) -> bytes:
    """A whole stream that grows by the given steps, then finishes."""
    data, at = b"", 0
    for number, step in enumerate(steps, 1):
        end = at + step
        shown = ids[:end] if is_cumulative else ids[at:end]
        data += event(shown, end, finish=STOP if number == len(steps) else None)
        at = end
    return data + b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.booleans(), st.integers(1, 200))
def test_both_kinds_of_stream_give_every_token_once(steps: list[int], is_cumulative: bool, size: int) -> None:
    """Cumulative or incremental, in any steps, cut anywhere: the same ids and logprobs, and one finish at the end."""
    ids = list(range(100, 100 + sum(steps)))
    data = stream(ids, steps, is_cumulative=is_cumulative)
    reader = StreamReader()
    chunks = [chunk for at in range(0, len(data), size) for chunk in reader.feed(data[at : at + size])]
    assert [i for chunk in chunks for i in chunk.new_ids] == ids
    assert [p for chunk in chunks for p in chunk.new_logprobs] == [-float(i) for i in ids]
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    finish = chunks[-1].finish
    assert finish is not None
    assert (finish.reason, finish.matched, finish.completion_tokens, finish.prompt_ids) == (
        "stop",
        9,
        len(ids),
        [1, 2, 3],
    )
    assert reader.is_done


def read_all(reader: StreamReader, data: bytes, seen: list[int]) -> None:
    """Collects ids for as long as it goes well."""
    for chunk in reader.feed(data):
        seen += chunk.new_ids


def test_an_error_behind_cumulative_events_loses_no_token() -> None:
    """What was sampled before the error is still handed over."""
    reader = StreamReader()
    read_all(reader, event([5], 1) + event([5, 6], 2), seen := [])
    error = b'data: {"error":{"message":"worker died","code":502}}\n\n'
    with pytest.raises(ProxyError, match="worker died") as raised:
        read_all(reader, event([5, 6, 7], 3) + event([5, 6, 7, 8], 4) + error, seen)
    assert raised.value.kind == "engine_unavailable"
    assert seen == [5, 6, 7, 8]


@pytest.mark.parametrize(
    "data",
    [
        b"data: nope\n\n",
        event([1, 2], 7),
        b'data: {"output_ids":[1],"meta_info":{"completion_tokens":1,"output_token_logprobs":[[-1.0,2,null]]}}\n\n',
        b'data: {"output_ids":[1],"meta_info":{"completion_tokens":1,"output_token_logprobs":[[-1.0,1,null],[-1.0,1,null]]}}\n\n',
    ],
)
def test_events_that_do_not_add_up_are_errors(data: bytes) -> None:
    """Counts, ids and logprobs must agree: nothing is guessed."""
    with pytest.raises(ProxyError) as raised:
        list(StreamReader().feed(data))
    assert raised.value.kind == "engine_error"


def test_missing_logprobs_stay_missing() -> None:
    """An engine without logprobs gives ids alone; the record will say so."""
    data = b'data: {"output_ids":[1,2],"meta_info":{"completion_tokens":2,"finish_reason":{"type":"length","length":2}}}\n\n'
    (chunk,) = StreamReader().feed(data)
    assert (chunk.new_ids, chunk.new_logprobs) == ([1, 2], [])
    assert chunk.finish is not None
    assert (chunk.finish.reason, chunk.finish.prompt_ids) == ("length", None)


def test_aborts() -> None:
    """An abort on request is a finish with what was sampled; an abort with a status is an error."""
    (chunk,) = StreamReader().feed(event([1], 1, finish={"type": "abort", "message": "Aborted"}))
    assert chunk.finish is not None
    assert (chunk.finish.reason, chunk.finish.message, chunk.new_ids) == ("abort", "Aborted", [1])
    full = event([], 0, finish={"type": "abort", "message": "The request queue is full.", "status_code": 503})
    with pytest.raises(ProxyError) as raised:
        list(StreamReader().feed(full))
    assert isinstance(raised.value, EngineBusyError)


def test_weight_spans() -> None:
    """Spans as the engine gives them, or one version for all; an engine that says nothing has none."""
    spans = [{"version": "a", "start": 0, "end": 2}, {"version": "b", "start": 2, "end": 5}]
    assert weight_spans({"weight_versions": spans, "weight_version": "b"}, 5) == (
        WeightSpan("a", 0, 2),
        WeightSpan("b", 2, 5),
    )
    assert weight_spans({"weight_version": "x"}, 5) == (WeightSpan("x", 0, 5),)
    assert weight_spans({}, 5) == ()


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (
            {"error": {"message": "The input (300 tokens) is longer than the model's context length (200 tokens)."}},
            400,
            "context_overflow",
        ),
        ({"object": "error", "message": "Input length exceeds the maximum allowed length"}, 400, "context_overflow"),
        ({"error": "top_k must be -1"}, 400, "bad_request"),
        ("plain", 429, "overloaded"),
        ({"error": {"message": "x"}}, 503, "engine_unavailable"),
        ({"error": {"message": "The request queue is full."}}, 503, "engine_unavailable"),
        (
            {"error": {"message": "The decoder prompt (length 9) is longer than the maximum model length of 8."}},
            400,
            "context_overflow",
        ),
        ({"error": {"message": "x"}}, 500, "engine_error"),
        ({"error": {"message": "x"}}, 404, "engine_error"),
        ({"error": {"message": "context length", "code": 400}}, None, "context_overflow"),
    ],
)
def test_errors(body: Any, status: int | None, kind: str) -> None:
    """Every shape of error becomes a kind that the dialects know."""
    error = error_of(body, status)
    assert error.kind == kind
    assert "engine" in error.message


def test_retry_after() -> None:
    """Seconds or a date; nonsense is nothing, and an error without the header keeps its kind's default."""
    now = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
    assert retry_after_s("7") == 7.0
    assert retry_after_s("Sun, 29 Nov 2026 12:00:30 GMT", now=now) == 30.0
    assert retry_after_s("Sun, 29 Nov 2026 11:00:00 GMT", now=now) == 0.0
    assert retry_after_s("soon") is None
    assert error_of("x", 429, "7").retry_after_s == 7.0


def test_a_busy_engine_is_told_from_a_broken_one() -> None:
    """429, 503 with a time to come back, and a full queue pass by themselves; a bare 503 may be anything."""
    busy = [
        error_of("x", 429),
        error_of("x", 503, "2"),
        error_of({"error": {"message": "The request queue is full."}}, 503),
    ]
    assert all(isinstance(error, EngineBusyError) for error in busy)
    assert busy[1].retry_after_s == 2.0
    assert not isinstance(error_of("x", 503), EngineBusyError)
    assert error_of("x", 503).retry_after_s is not None


def test_the_request() -> None:
    """Token-in, streamed, with logprobs and echo; names are the engine's, unset values are left out."""
    sampling = {
        "max_tokens": 5,
        "seed": 3,
        "top_k": 0,
        "temperature": None,
        "stop": ["S"],
        "stop_token_ids": [9],
        "unknown": 1,
    }
    body = orjson.loads(request_body(GenerateRequest(rid="r", session_id="s", input_ids=[1, 2], sampling=sampling)))
    assert body["sampling_params"] == {
        "skip_special_tokens": False, "max_new_tokens": 5, "sampling_seed": 3, "top_k": -1, "stop": ["S"], "stop_token_ids": [9],
    }  # fmt: skip
    assert (
        body["input_ids"],
        body["rid"],
        body["stream"],
        body["return_logprob"],
        body["return_prompt_token_ids"],
    ) == ([1, 2], "r", True, True, True)
    assert "logprob_start_len" not in body
    long = GenerateRequest(rid="r", session_id="s", input_ids=[1] * (ECHO_IDS + 1))
    assert orjson.loads(request_body(long))["return_prompt_token_ids"] is False
