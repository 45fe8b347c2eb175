"""The vLLM client against a server that speaks `/inference/v1/generate` as vLLM 0.32 does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture_proxy.engines import GenerateRequest, VllmEngine, WeightSpan
from capture_proxy.engines.vllm_wire import GENERATE_PATH, VllmReader
from capture_proxy.reply import ProxyError
from tests.capture_proxy.engines.servers import (
    Server,
    collect,
    ids_of,
    logprobs_of,
    refuse,
    sse,
    vllm_event,
    vllm_usage,
)

REQUEST = GenerateRequest(
    rid="r", session_id="session-1", input_ids=[1, 2, 3], sampling={"max_tokens": 4, "top_k": -1, "seed": 3}
)
SPANS = [{"version": "0", "start": 0, "end": 2}, {"version": "1", "start": 2, "end": 3}]
REPLY = sse(
    vllm_event([7], prompt_token_ids=[1, 2, 3]),
    vllm_event([8, 9], finish="stop", stop=9, spans=SPANS),
    vllm_usage(3, 3),
)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A running server."""
    async with Server().serving() as serving:
        serving.answers[GENERATE_PATH] = REPLY
        serving.answers["/v1/models"] = {"data": [{"id": "served", "max_model_len": 4096}]}
        serving.answers["/tokenize"] = {"tokens": [4, 5], "count": 2}
        yield serving


@pytest.fixture
async def engine(server: Server) -> AsyncIterator[VllmEngine]:
    """A client of it."""
    client = VllmEngine(server.url + "/", api_key="k")
    yield client
    await client.close()


async def test_a_generation(server: Server, engine: VllmEngine) -> None:
    """Token-in and token-out: ids, logprobs, spans of versions, the stop and the prompt's echo; the session rides in the header."""
    chunks = await collect(engine, REQUEST)
    assert ids_of(chunks) == [7, 8, 9]
    assert logprobs_of(chunks) == [-0.07, -0.08, -0.09]
    finish = chunks[-1].finish
    assert finish is not None
    assert finish.weight_spans == (WeightSpan("0", 0, 2), WeightSpan("1", 2, 3))
    assert (finish.reason, finish.matched, finish.prompt_ids, finish.prompt_tokens, finish.fault) == (
        "stop",
        9,
        [1, 2, 3],
        3,
        "",
    )
    [body] = server.bodies(GENERATE_PATH)
    assert body == {
        "request_id": "r",
        "token_ids": [1, 2, 3],
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "sampling_params": {"max_tokens": 4, "top_k": 0, "seed": 3, "logprobs": 0, "skip_special_tokens": False},
    }
    assert server.headers[0]["x-session-id"] == "session-1"
    assert server.headers[0]["authorization"] == "Bearer k"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 300))
def test_any_steps_cut_anywhere_give_every_token_once(steps: list[int], size: int) -> None:
    """However the engine groups tokens and the network cuts bytes: the same ids, and one finish at the end."""
    ids = list(range(100, 100 + sum(steps)))
    events: list[Any] = []
    at = 0
    for number, step in enumerate(steps, 1):
        events.append(vllm_event(ids[at : at + step], finish="length" if number == len(steps) else None))
        at += step
    data = sse(*events, vllm_usage(3, len(ids)))
    reader = VllmReader()
    chunks = [chunk for start in range(0, len(data), size) for chunk in reader.feed(data[start : start + size])]
    assert ids_of(chunks) == ids
    assert logprobs_of(chunks) == [-i / 100 for i in ids]
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert reader.is_done


async def test_schemas_travel_in_vllms_words(server: Server, engine: VllmEngine) -> None:
    """A JSON schema becomes `structured_outputs`; what vLLM has no word for is named, never dropped in silence."""
    sampling = {"json_schema": '{"type":"object"}', "min_new_tokens": 2, "custom_params": {"a": 1}}
    await collect(engine, GenerateRequest(rid="r", session_id="s", input_ids=[1], sampling=sampling))
    params = server.bodies(GENERATE_PATH)[0]["sampling_params"]
    assert params["structured_outputs"] == {"json": '{"type":"object"}'}
    assert params["min_tokens"] == 2
    assert engine.untold(sampling) == ["custom_params"]


async def test_an_abort_keeps_what_was_sampled(server: Server, engine: VllmEngine) -> None:
    """The engine's abort is a finish of its own kind, with no token lost."""
    server.answers[GENERATE_PATH] = sse(
        vllm_event([7], prompt_token_ids=[1]), vllm_event([], finish="abort"), vllm_usage(1, 1)
    )
    chunks = await collect(engine, REQUEST)
    assert ids_of(chunks) == [7]
    assert chunks[-1].finish is not None
    assert (chunks[-1].finish.reason, chunks[-1].finish.message) == ("abort", "abort")


async def test_leaving_early_aborts_by_the_engines_own_id(server: Server, engine: VllmEngine) -> None:
    """A vLLM prefixes request ids, and aborts only by the whole."""
    server.answers["/inference/v1/abort_requests"] = {}
    async with engine.generate(REQUEST) as stream:
        async for _ in stream:
            break
    await engine.close()
    assert server.bodies("/inference/v1/abort_requests") == [{"request_ids": ["generate-tokens-r"]}]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refuse(403, "scale-out is off"), "engine_error"),
        (
            refuse(400, "The decoder prompt (length 9) is longer than the maximum model length of 8."),
            "context_overflow",
        ),
        (refuse(400, "top_p must be in (0, 1]"), "bad_request"),
        (sse({"error": {"message": "EngineCore encountered an issue.", "code": 500}}), "engine_error"),
        (sse({"error": {"message": "longer than the maximum model length of 8", "code": 400}}), "context_overflow"),
        (sse(vllm_event([7])), "engine_error"),  # no finish
        (sse({"choices": [{"token_ids": [-1]}]}), "engine_error"),
        (
            sse({"choices": [{"token_ids": [1], "logprobs": {"content": [{"token_id": 2, "logprob": 0}]}}]}),
            "engine_error",
        ),
        (sse({"choices": [7]}), "engine_error"),
    ],
)
async def test_failures(server: Server, engine: VllmEngine, answer: Any, kind: str) -> None:
    """Refusals, errors inside the stream, streams that end early and events that don't add up each have their kind."""
    server.answers[GENERATE_PATH] = lambda _: answer
    with pytest.raises(ProxyError) as raised:
        await collect(engine, REQUEST)
    assert raised.value.kind == kind


async def test_probe(engine: VllmEngine) -> None:
    """Name, context, the measured mode and what is missing."""
    info = await engine.probe([1, 2, 3])
    assert (info.kind, info.model, info.context_length, info.gives_ids, info.gaps) == ("vllm", "served", 4096, True, ())
    assert info.logprobs_mode == "raw"  # the fake's logprobs don't follow the temperature
    assert await engine.tokenize("x") == [4, 5]
    assert await engine.render([{"role": "user", "content": "x"}]) == [4, 5]


async def test_counts_that_disagree_with_the_ids_are_a_fault(server: Server, engine: VllmEngine) -> None:
    """Five tokens counted, three given: the reply stands, and can't be trained."""
    server.answers[GENERATE_PATH] = sse(vllm_event([7, 8, 9], finish="stop", prompt_token_ids=[1]), vllm_usage(1, 5))
    chunks = await collect(engine, REQUEST)
    assert chunks[-1].finish is not None
    assert chunks[-1].finish.fault == "ids_incomplete"
