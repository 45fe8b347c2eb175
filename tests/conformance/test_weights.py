"""What any engine behind the proxy must do when a trainer steers it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.conftest import TOLERANCE, Forward

LONG = {"temperature": 1.0, "max_new_tokens": 600, "ignore_eos": True}
IDS = [1000, 2000, 300, 40, 5]


async def started(engine: Any, **body: Any) -> tuple[asyncio.Task[list[Any]], asyncio.Event, list[Any]]:
    """A streaming request, after its first events."""
    events: list[Any] = []
    begun = asyncio.Event()

    async def read() -> list[Any]:
        async for event in engine.events(input_ids=IDS, return_logprob=True, sampling_params=LONG, **body):
            events.append(event)
            if len(events) == 3:
                begun.set()
        return events

    task = asyncio.create_task(read())
    async with asyncio.timeout(60):
        await begun.wait()
    return task, begun, events


async def test_an_update_in_flight_gives_two_spans(engine: Any) -> None:
    """Pause in place, new weights, continue: one reply, two spans that meet, log-probabilities for every id."""
    await engine.update(0, "first")
    task, _, _ = await started(engine)
    assert (await engine.post("/pause_generation", mode="in_place"))[0] == 200
    await engine.update(1, "second", flush_cache=False)
    assert (await engine.post("/continue_generation"))[0] == 200
    last = (await task)[-1]
    meta = last["meta_info"]
    first, second = meta["weight_versions"]
    assert (first["version"], first["start"]) == ("first", 0)
    assert (second["version"], second["end"]) == ("second", 600)
    assert 0 < first["end"] == second["start"] < 600
    assert meta["weight_version"] == "second"
    assert meta["output_token_logprobs_length"] == 600


async def test_an_idle_update_changes_replies_and_version(engine: Any) -> None:
    """New weights answer differently, the version moves in replies and in /model_info, and the old weights can come back."""
    body = {"input_ids": IDS, "return_logprob": True, "sampling_params": {"temperature": 0.0, "max_new_tokens": 4}}
    found = []
    for index, version in ((0, "a"), (1, "b"), (0, "c")):
        await engine.update(index, version)
        reply = await engine.generate(**body)
        assert reply["meta_info"]["weight_version"] == version
        assert (await engine.get("/model_info"))[1]["weight_version"] == version
        found.append([triple[:2] for triple in reply["meta_info"]["output_token_logprobs"]])
    assert found[0] == found[2]
    assert found[0] != found[1]


async def test_new_weights_give_their_own_logprobs(engine: Any, client: Any) -> None:
    """After an idle update the logprobs are those of a forward pass over the new checkpoint: nothing old is left, nor in the cache."""
    prompt = list(range(2000, 2100))
    await engine.generate(input_ids=prompt, sampling_params={"max_new_tokens": 1})
    await engine.update(1, "new")
    body = {"return_logprob": True, "sampling_params": {"temperature": 1.0, "max_new_tokens": 32, "ignore_eos": True}}
    reply = await engine.generate(input_ids=prompt, **body)
    triples = reply["meta_info"]["output_token_logprobs"]
    expected = Forward(engine.weights[1]).logprobs(prompt, reply["output_ids"])
    assert [triple[0] for triple in triples] == pytest.approx(expected, abs=TOLERANCE)
    assert (await client.probe(prompt)).weight_version == "new"


async def test_a_version_zero_is_one(engine: Any) -> None:
    """The first version of a trainer's may be called 0."""
    await engine.update(0, "0")
    reply = await engine.generate(input_ids=IDS, sampling_params={"max_new_tokens": 2, "ignore_eos": True})
    assert reply["meta_info"]["weight_versions"] == [{"version": "0", "start": 0, "end": 2}]


async def test_a_paused_engine_is_not_ready_and_makes_no_tokens(engine: Any) -> None:
    """While paused in place nothing arrives, and after continue the reply is whole."""
    task, _, events = await started(engine)
    await engine.post("/pause_generation", mode="in_place")
    assert (await engine.get("/ready"))[0] == 503
    await asyncio.wait({task}, timeout=0.5)  # what was on its way arrives
    count = len(events)
    await asyncio.wait({task}, timeout=0.5)
    assert len(events) == count
    assert not task.done()
    await engine.post("/continue_generation")
    assert (await task)[-1]["meta_info"]["completion_tokens"] == 600
    assert (await engine.get("/ready"))[0] == 200


async def test_retract_finishes_after_continue(engine: Any) -> None:
    """A retracted request starts over inside the engine and still returns every token with its log-probability."""
    task, _, _ = await started(engine)
    await engine.post("/pause_generation", mode="retract")
    await engine.post("/continue_generation")
    meta = (await task)[-1]["meta_info"]
    assert meta["completion_tokens"] == meta["output_token_logprobs_length"] == 600


async def test_pause_abort_ends_the_running(engine: Any) -> None:
    """The default mode ends every request with what it has."""
    task, _, _ = await started(engine)
    await engine.post("/pause_generation", mode="abort")
    assert (await task)[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    await engine.post("/continue_generation")
    await engine.generate(input_ids=IDS, sampling_params={"max_new_tokens": 1})


async def test_an_update_from_nowhere_is_400(engine: Any) -> None:
    """A directory that isn't there fails, says so, and leaves the version."""
    await engine.update(0, "kept")
    status, body = await engine.post(
        "/update_weights_from_disk", model_path="/no/such/checkpoint", weight_version="bad"
    )
    assert status == 400
    assert body["success"] is False
    assert (await engine.get("/model_info"))[1]["weight_version"] == "kept"


async def test_the_version_can_change_alone(engine: Any) -> None:
    """/update_weight_version names the weights anew."""
    status, body = await engine.post("/update_weight_version", new_version="renamed", abort_all_requests=False)
    assert (status, body["success"]) == (200, True)
    reply = await engine.generate(input_ids=IDS, sampling_params={"max_new_tokens": 1})
    assert reply["meta_info"]["weight_version"] == "renamed"
