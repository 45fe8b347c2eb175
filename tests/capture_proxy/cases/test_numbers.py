"""Cases of numbers: ids, logprobs, versions and sampling as they stand in the record."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from capture_proxy.dialects import DIALECTS
from capture_proxy.engines.base import GenerateRequest
from capture_proxy.engines.sglang_wire import request_body, weight_spans
from capture_proxy.logprobs import why_untrainable
from capture_proxy.sampling import effective_sampling
from schemas import arrays
from tests.capture_proxy.cases.asking import call, chat_request, raw
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import CharRenderer
from tests.capture_proxy.wire import WIRES, Wire

MakeStack = Callable[..., Awaitable[Stack]]
VOCABULARY = 152_064


def test_t41_version_zero_is_a_version() -> None:
    """Not nothing, and not the current one."""
    [span] = weight_spans({"weight_version": 0}, 3)
    assert (span.version, span.start, span.end) == ("0", 0, 3)
    [span] = weight_spans({"weight_versions": [{"version": 0, "start": 0, "end": 3}], "weight_version": 8}, 3)
    assert span.version == "0"


def test_t46_missing_ids_are_a_reason() -> None:
    """A reply without ids, with or without logprobs, is never a chain."""
    assert why_untrainable([], [-0.1], "absent") == "ids_missing"
    assert why_untrainable([], [], "absent", has_reply=True) == "ids_missing"


@pytest.mark.parametrize(
    ("logprobs", "reason"), [([-0.1, -0.2, -0.3], ""), ([-0.1, -0.2], "logprob_length"), ([], "no_logprobs")]
)
def test_t47_a_short_list_of_logprobs(logprobs: list[float], reason: str) -> None:
    """One for each id, or none of them counts."""
    assert why_untrainable([51, 52, 99], logprobs, "exact") == reason


@pytest.mark.parametrize("value", [-9999.0, math.nan, 0.3, -math.inf, None])
def test_t49_values_that_are_no_logprobs(value: Any) -> None:
    """An engine's stand-in for minus infinity, no number, or a probability above one."""
    assert why_untrainable([51, 99], [-0.5, value], "exact") == "logprob_invalid"


@pytest.mark.parametrize("value", [0.0, -0.0, -17.5])
def test_t49_values_that_are(value: float) -> None:
    """Certainty is normal in half precision, and so are unlikely tokens."""
    assert why_untrainable([51, 99], [-0.5, value], "exact") == ""


def test_t50_an_id_outside_the_vocabulary() -> None:
    """The first id past the embedding table."""
    assert why_untrainable([51, VOCABULARY, 99], [-1.0] * 3, "exact", vocab_size=VOCABULARY) == "oov"
    assert why_untrainable([51, VOCABULARY - 1, 99], [-1.0] * 3, "exact", vocab_size=VOCABULARY) == ""


async def test_t50_other_calls_are_not_affected(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of two is untrainable."""
    monkeypatch.setattr(CharRenderer, "vocab_size", ord("z") + 10 + 1)
    for text in ("plain", "ü"):
        stack.engine.script = lambda _p, _r, text=text: text  # type: ignore[misc]
        assert (await call(stack, WIRES[0], stream=False))[0] == 200
    await stack.until(lambda: len(stack.calls) == 2)
    assert [(r.trainable, r.untrainable_reason) for r in stack.calls] == [(True, ""), (False, "oov")]


def test_t52_engine_extensions_arrive() -> None:
    """What an engine takes beyond the vendor's fields goes from the request to the engine's body, and from the task too."""
    request = chat_request(required_prefix_token_ids=[5, 6], min_tokens=3, ignore_eos=True, regex="a+")
    assert not request.notes
    sampling, _ = effective_sampling(
        request.sampling,
        {"custom_params": {"x": 1}},
        {},
        prompt_tokens=1,
        context_length=None,
        default_max_tokens=9,
        stop_token_ids=(),
    )
    body = json.loads(request_body(GenerateRequest(rid="r", session_id="s", input_ids=[1], sampling=sampling)))
    sent = body["sampling_params"]
    assert {
        name: sent[name]
        for name in ("required_prefix_token_ids", "min_new_tokens", "ignore_eos", "regex", "custom_params")
    } == {
        "required_prefix_token_ids": [5, 6],
        "min_new_tokens": 3,
        "ignore_eos": True,
        "regex": "a+",
        "custom_params": {"x": 1},
    }


async def test_t52_two_answers_are_refused(stack: Stack) -> None:
    """Never only the first of them."""
    status, body = await raw(stack, "/v1/chat/completions", {"n": 2, "messages": [{"role": "user", "content": "x"}]})
    assert (status, body["error"]["param"]) == (400, "n")


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("anthropic", "/v1/messages", {"max_tokens": 5}),
        ("openai_chat", "/v1/chat/completions", {"max_tokens": 5}),
        ("openai_chat", "/v1/chat/completions", {"max_completion_tokens": 5}),
        ("openai_chat", "/v1/chat/completions", {"max_completion_tokens": 5, "max_tokens": 9}),
        ("openai_responses", "/v1/responses", {"max_output_tokens": 5}),
        ("google", "/v1beta/models/m:generateContent", {"generationConfig": {"maxOutputTokens": 5}}),
    ],
)
def test_t68_every_name_of_the_limit(dialect: str, path: str, body: dict[str, Any]) -> None:
    """Five tokens, whatever the vendor calls it."""
    said: dict[str, Any] = {
        "openai_responses": {"input": "x"},
        "google": {"contents": [{"role": "user", "parts": [{"text": "x"}]}]},
    }.get(dialect, {"messages": [{"role": "user", "content": "x"}]})
    request = DIALECTS[dialect].parse_request(path, {}, json.dumps({"model": "m", **said, **body}).encode())
    assert request.sampling == {"max_tokens": 5}


async def test_t68_without_a_limit_the_configured_one(stack: Stack) -> None:
    """And it stands in the record."""
    await call(stack, WIRES[0], stream=False)
    await stack.until(lambda: bool(stack.calls))
    limit = stack.engine.requests[0]["sampling_params"]["max_new_tokens"]
    assert "max_tokens" not in stack.calls[0].sampling_requested
    assert stack.calls[0].sampling_effective["max_tokens"] == limit > 0


@pytest.mark.parametrize("wire", WIRES[:2], ids=lambda wire: wire.name)
async def test_t70_requested_forced_and_effective_sampling(make_stack: MakeStack, wire: Wire) -> None:
    """All three stand in the record, with what nobody set; the engine gets the effective one, and nothing is left to its own defaults."""
    stack = await make_stack()
    await stack.open(spec={**stack.open_body()["spec"], "sampling": {"temperature": 1.0}})
    await call(stack, wire, stream=False)
    await call(stack, wire, stream=False, temperature=0, top_p=0.5)
    await stack.until(lambda: len(stack.calls) == 2)
    first, second = stack.calls
    assert "temperature" not in first.sampling_requested
    assert (second.sampling_requested["temperature"], second.sampling_requested["top_p"]) == (0, 0.5)
    for record, request, top_p in zip(stack.calls, stack.engine.requests, (1.0, 0.5), strict=True):
        assert record.notes["sampling_forced"] == {"temperature": 1.0}
        effective = record.sampling_effective
        assert (effective["temperature"], effective["top_p"], effective["top_k"], effective["min_p"]) == (
            1.0,
            top_p,
            -1,
            0.0,
        )
        assert effective["repetition_penalty"] == 1.0
        sent = request["sampling_params"]
        assert (sent["temperature"], sent["top_p"], sent["top_k"]) == (1.0, top_p, -1)
    assert second.notes["sampling"] == ["temperature: task overrides request"]
    assert len(arrays.unpack_ids(first.output_ids)) > 0
