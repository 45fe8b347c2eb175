"""A trainer's push, as the library does it, on any engine that speaks SGLang's protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from tests.conformance.conftest import TOLERANCE, Forward, Target
from trainer_sink.policies import PolicyWriter, PushFailedError

COUNT = 400
PROMPT = list(range(2000, 2200))
SAMPLING = {"temperature": 1.0, "max_new_tokens": COUNT, "ignore_eos": True}


async def streamed(engine: Any, begun: asyncio.Event) -> Any:
    """A streamed reply's last event, which holds everything; `begun` is set with its third token."""
    last: list[Any] = []
    async for event in engine.events(input_ids=PROMPT, return_logprob=True, sampling_params=SAMPLING):
        last = [event]
        if len(event["output_ids"]) >= 3:
            begun.set()
    return last[0]


async def test_every_token_has_the_logprob_of_its_own_version(engine: Any, target: Target) -> None:
    """Weights change in the middle of a reply: two spans that meet, each with the logprobs of a forward pass with its own checkpoint.

    A request that comes afterwards has nothing of the old weights either, though it shares its prompt with one that ran.
    """
    if engine.is_incremental:
        pytest.skip("the last event of this engine's streams doesn't hold everything")
    async with MemoryBus(partitions=1) as bus, PolicyWriter(bus, "p", "t", engines=[target.url]) as writer:
        old = await writer.push(Path(engine.weights[0]), weights_digest="0")
        begun = asyncio.Event()
        running = asyncio.create_task(streamed(engine, begun))
        async with asyncio.timeout(60):
            await begun.wait()
        new = await writer.push(Path(engine.weights[1]), weights_digest="1")
        reply = await running
        after = await engine.generate(
            input_ids=PROMPT, return_logprob=True, sampling_params={**SAMPLING, "max_new_tokens": 8}
        )
    ids, spans = reply["output_ids"], reply["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == [old, new]
    border = spans[0]["end"]
    assert (spans[0]["start"], spans[1]["start"], spans[1]["end"]) == (0, border, COUNT)
    assert 0 < border < COUNT
    found = [triple[0] for triple in reply["meta_info"]["output_token_logprobs"]]
    first = Forward(engine.weights[0]).logprobs(PROMPT, ids[:border])
    second = Forward(engine.weights[1]).logprobs([*PROMPT, *ids[:border]], ids[border:])
    assert found == pytest.approx([*first, *second], abs=TOLERANCE)
    assert [span["version"] for span in after["meta_info"]["weight_versions"]] == [new]
    expected = Forward(engine.weights[1]).logprobs(PROMPT, after["output_ids"])
    assert [triple[0] for triple in after["meta_info"]["output_token_logprobs"]] == pytest.approx(
        expected, abs=TOLERANCE
    )


async def test_a_checkpoint_that_cant_be_loaded(engine: Any, target: Target, tmp_path: Path) -> None:
    """The push fails with the engine's own words, the old version stays in force, and the engine goes on."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    async with MemoryBus(partitions=1) as bus, PolicyWriter(bus, "p", "t", engines=[target.url]) as writer:
        kept = await writer.push(Path(engine.weights[0]), weights_digest="0")
        with pytest.raises(PushFailedError, match=target.url):
            await writer.push(broken)
        assert [one.version for one in await writer.engines()] == [kept]
    assert (await engine.get("/ready"))[0] == 200
