"""The SGLang client against the real CPU engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from capture_proxy.engines import EngineChunk, GenerateRequest, SglangEngine
from capture_proxy.reply import ProxyError

DEADLINE_S = 60.0


@pytest.fixture(params=[False, True], ids=["cumulative", "incremental"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[SglangEngine]:
    """A client of a running CPU engine with the tiny model."""
    from compose.cpu_engine.server import serving
    from compose.cpu_engine.service import Engine
    from compose.cpu_engine.settings import EngineSettings
    from compose.cpu_engine.tiny_model import ensure_tiny_model

    settings = EngineSettings(
        model=ensure_tiny_model(), incremental_streaming_output=request.param, served_model_name="tiny"
    )
    served = await asyncio.to_thread(Engine.load, settings)
    async with serving(served) as url:
        client = SglangEngine(url)
        yield client
        await client.close()


def ask(rid: str, **sampling: object) -> GenerateRequest:
    """A short generation that can't stop early."""
    return GenerateRequest(
        rid=rid, session_id="s", input_ids=[9707, 1879], sampling={"ignore_eos": True, "seed": 1, **sampling}
    )


async def read_all(engine: SglangEngine, request: GenerateRequest) -> list[EngineChunk]:
    """All chunks of a generation."""
    async with engine.generate(request) as stream:
        return [chunk async for chunk in stream]


@pytest.mark.deep
@pytest.mark.timeout(400)  # torch is imported and a model loaded
async def test_the_engine_we_ship(engine: SglangEngine) -> None:
    """Generation, echo, versions, probe, tokenizer, refusal and abort against the real thing."""
    async with asyncio.timeout(DEADLINE_S):
        chunks = await read_all(engine, ask("a", max_tokens=12))
        ids = [i for chunk in chunks for i in chunk.new_ids]
        finish = chunks[-1].finish
        assert finish is not None
        assert (len(ids), sum(len(chunk.new_logprobs) for chunk in chunks)) == (12, 12)
        assert (finish.reason, finish.prompt_ids, finish.completion_tokens) == ("length", [9707, 1879], 12)
        assert [(span.start, span.end) for span in finish.weight_spans] == [(0, 12)]

        info = await engine.probe([9707, 1879], DEADLINE_S)
        assert info.model == "tiny"
        assert (info.context_length or 0) > 1000
        assert await engine.tokenize("Hello world") == [9707, 1879]

        with pytest.raises(ProxyError) as raised:
            await read_all(engine, ask("b", top_p=7.0))
        assert raised.value.kind == "bad_request"

        async with engine.generate(ask("c", max_tokens=100_000)) as stream:
            async for _ in stream:
                await engine.abort("c")
                break
            rest = [chunk async for chunk in stream]
        assert rest[-1].finish is not None
        assert rest[-1].finish.reason == "abort"
