from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
LONG = {"max_new_tokens": 150, "ignore_eos": True, "sampling_seed": 1}


async def begin(client: Any, *, tokens: int = 3, **body: Any) -> asyncio.Task[Any]:
    """Start a long reply and wait until it has some tokens."""
    body.setdefault("sampling_params", LONG)
    before = set(map(id, client.running))
    task = asyncio.create_task(client.generate(text=PROMPT, return_logprob=True, **body))
    await client.until(lambda: any(id(s) not in before and len(s.output_ids) >= tokens for s in client.running))
    return task


def check(reply: Any) -> None:
    """As many log-probabilities as ids, and spans without gaps over them."""
    meta = reply["meta_info"]
    count = len(reply["output_ids"])
    assert [t[1] for t in meta["output_token_logprobs"]] == reply["output_ids"]
    assert meta["completion_tokens"] == count
    spans = meta["weight_versions"]
    assert spans[0]["start"] == 0
    assert spans[-1]["end"] == count
    assert [s["end"] for s in spans[:-1]] == [s["start"] for s in spans[1:]]
    assert meta["weight_version"] == spans[-1]["version"]


async def test_abort_by_id_returns_what_there_is(serve: Any) -> None:
    """An aborted request answers 200 with its partial ids and log-probabilities; others go on."""
    async with serve(token_delay_ms=10) as client:
        one, two = await begin(client, rid="one"), await begin(client, rid="two")
        assert await client.post("/abort_request", {"rid": "one"}) == (200, "")
        reply = await one
        assert [s.rid for s in client.running] == ["two"]
        await client.post("/abort_request", {"abort_all": True})
        await two
    assert reply["meta_info"]["finish_reason"] == {
        "type": "abort", "message": "Aborted", "status_code": None, "err_type": None
    }  # fmt: skip
    assert 3 <= len(reply["output_ids"]) < 150
    check(reply)


async def test_abort_matches_the_beginning_of_ids_and_ignores_empty_ones(serve: Any) -> None:
    """A session's calls share a prefix; an empty or unknown id ends nothing."""
    async with serve(token_delay_ms=10) as client:
        tasks = [await begin(client, rid=rid) for rid in ("s1-a", "s1-b", "s2-a")]
        await client.post("/abort_request", {"rid": ""})
        await client.post("/abort_request", {})
        await client.post("/abort_request", {"rid": "nobody"})
        await client.post("/abort_request", {"rid": "s1"})
        await asyncio.gather(*tasks[:2])
        assert [s.rid for s in client.running] == ["s2-a"]
        await client.post("/abort_request", {"abort_all": True})
        await tasks[2]


async def test_an_aborted_stream_ends_with_its_reason(serve: Any) -> None:
    """The last event of an aborted stream has the finish reason and the spans."""
    async with serve(token_delay_ms=10) as client:
        events = []
        async for event in client.events(text=PROMPT, rid="s", sampling_params=LONG):
            events.append(event)
            if len(events) == 3:
                await client.post("/abort_request", {"rid": "s"})
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert events[-1]["meta_info"]["weight_versions"][-1]["end"] == len(events[-1]["output_ids"])


async def test_pause_in_place_stops_and_continue_goes_on_as_if_nothing_was(serve: Any) -> None:
    """No token comes while paused, new requests wait, /ready says so, and the reply is the unpaused one."""
    async with serve(token_delay_ms=2) as client:
        plain = await client.generate(text=PROMPT, sampling_params=LONG)
        task = await begin(client)
        (sequence,) = client.running
        assert (await client.post("/pause_generation", {"mode": "in_place"}))[1]["status"] == "ok"
        count = len(sequence.output_ids)
        assert (await client.get("/ready"))[0] == 503
        assert (await client.get("/health"))[0] == 200
        late = asyncio.create_task(client.generate(text="late", sampling_params={"max_new_tokens": 1}))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.3)
        assert len(sequence.output_ids) == count
        assert not late.done()
        assert (await client.post("/continue_generation"))[1]["status"] == "ok"
        reply = await task
        await late
        assert (await client.get("/ready"))[0] == 200
    assert reply["output_ids"] == plain["output_ids"]
    assert reply["meta_info"]["num_retractions"] == 0
    check(reply)


async def test_an_abort_during_a_pause_waits_for_continue(serve: Any) -> None:
    """As in SGLang, aborts take effect between steps, and there are none while paused."""
    async with serve(token_delay_ms=5) as client:
        task = await begin(client, rid="x")
        await client.post("/pause_generation", {"mode": "in_place"})
        await client.post("/abort_request", {"rid": "x"})
        assert len(client.running) == 1
        await client.post("/continue_generation")
        assert (await task)["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("scripted", [False, True])
async def test_retract_computes_again_and_loses_nothing(serve: Any, scripted: bool) -> None:
    """After a retraction, even with the cache flushed, the reply and its log-probabilities are the same."""
    policy = (lambda prompt, request: "word " * 150) if scripted else None
    async with serve(policy=policy, token_delay_ms=2) as client:
        params = {**LONG, "max_new_tokens": 150}
        plain = await client.generate(text=PROMPT, return_logprob=True, sampling_params=params)
        task = await begin(client, sampling_params=params)
        await client.post("/pause_generation", {"mode": "retract"})
        assert (await client.post("/flush_cache"))[0] == 200
        await client.post("/continue_generation")
        reply = await task
    assert reply["output_ids"] == plain["output_ids"]
    assert reply["meta_info"]["num_retractions"] == 1
    found, expected = ([t[0] for t in r["meta_info"]["output_token_logprobs"]] for r in (reply, plain))
    assert found == pytest.approx(expected, abs=1e-4)
    check(reply)


async def test_pause_abort_ends_everything_at_once(serve: Any) -> None:
    """The default mode answers running requests with what they have before it returns."""
    async with serve(token_delay_ms=10) as client:
        tasks = [await begin(client, rid=str(i)) for i in range(3)]
        await client.post("/pause_generation")
        assert client.running == []
        for reply in await asyncio.gather(*tasks):
            assert reply["meta_info"]["finish_reason"]["type"] == "abort"
            check(reply)
        assert (await client.get("/ready"))[0] == 503
        await client.post("/continue_generation")
        await client.generate(text="a", sampling_params={"max_new_tokens": 1})


async def test_a_request_that_waits_during_a_pause_can_leave(serve: Any) -> None:
    """A client that gives up while paused leaves nothing behind."""
    async with serve() as client:
        await client.post("/pause_generation", {"mode": "in_place"})
        task = asyncio.create_task(client.generate(text="a"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 0.2)
        await client.post("/continue_generation")
        await client.generate(text="b", sampling_params={"max_new_tokens": 1})
        assert client.running == []


async def test_a_wrong_pause_mode_is_refused(serve: Any) -> None:
    """An unknown mode is a 400 that lists the known ones, and nothing is paused."""
    async with serve() as client:
        status, body = await client.post("/pause_generation", {"mode": "later"})
        assert (await client.get("/ready"))[0] == 200
    assert status == 400
    assert "in_place" in body["message"]


@pytest.mark.parametrize("scripted", [False, True])
async def test_new_weights_in_flight_make_a_second_span(
    serve: Any, other_checkpoint: Path, tokenizer: Any, scripted: bool
) -> None:
    """Pause, update, continue: the reply's spans meet where the weights changed, and later tokens are the new weights'."""
    policy = (lambda prompt, request: "word " * 100) if scripted else None
    params = {**LONG, "max_new_tokens": 100}
    async with serve(policy=policy, weight_version="v1", token_delay_ms=2) as client:
        task = await begin(client, sampling_params=params)
        await client.post("/pause_generation", {"mode": "in_place"})
        status, body = await client.post(
            "/update_weights_from_disk",
            {"model_path": str(other_checkpoint), "weight_version": "v2", "flush_cache": False},
        )
        assert (status, body["success"], body["num_paused_requests"]) == (200, True, 1)
        assert "v2" in body["message"]
        _, info = await client.get("/model_info")
        assert (info["weight_version"], info["model_path"]) == ("v2", str(other_checkpoint))
        assert info["tokenizer_path"] == str(client.engine.settings.model)
        await client.post("/continue_generation")
        reply = await task
        check(reply)
        first, second = reply["meta_info"]["weight_versions"]
        assert (first["version"], second["version"], second["end"]) == ("v1", "v2", 100)
        # The new weights were really used: a new request with all but the last tokens as prompt (a fresh cache) gives
        # other log-probabilities than the old weights would. Keys of earlier tokens are old, so equality isn't exact.
        late = reply["meta_info"]["output_token_logprobs"][-1]
        await client.post("/flush_cache")
        before = await client.generate(text=PROMPT, return_logprob=True, sampling_params=params)
    assert before["meta_info"]["weight_versions"] == [{"version": "v2", "start": 0, "end": 100}]
    if scripted:
        # In one layer only the values of old tokens are stale: the last token's log-probability is near the new one's.
        fresh = [t[0] for t in before["meta_info"]["output_token_logprobs"]]
        old = [t[0] for t in reply["meta_info"]["output_token_logprobs"]][: first["end"]]
        assert max(abs(a - b) for a, b in zip(old, fresh, strict=False)) > 0.1
        assert late[1] == before["output_ids"][-1]


async def test_a_retracted_script_continues_exactly_with_the_new_weights(serve: Any, other_checkpoint: Path) -> None:
    """With retract and a flush nothing old remains: later log-probabilities equal a fresh run's under the new weights."""
    async with serve(policy=lambda prompt, request: "word " * 60, token_delay_ms=2) as client:
        task = await begin(client)
        await client.post("/pause_generation", {"mode": "retract"})
        status, _ = await client.post(
            "/update_weights_from_disk", {"model_path": str(other_checkpoint), "weight_version": "v2"}
        )
        assert status == 200
        await client.post("/continue_generation")
        mixed = await task
        fresh = await client.generate(text=PROMPT, return_logprob=True)
    start = mixed["meta_info"]["weight_versions"][1]["start"]
    found, expected = ([t[0] for t in r["meta_info"]["output_token_logprobs"]] for r in (mixed, fresh))
    assert found[start:] == pytest.approx(expected[start:], abs=1e-4)
    assert found[:start] != pytest.approx(expected[:start], abs=1e-2)


async def test_flushing_while_paused_in_place_is_a_400_after_the_fact(serve: Any, other_checkpoint: Path) -> None:
    """SGLang's trap is ours, too: the answer is 400 although weights and version did change."""
    async with serve(token_delay_ms=5) as client:
        task = await begin(client)
        await client.post("/pause_generation", {"mode": "in_place"})
        status, body = await client.post(
            "/update_weights_from_disk", {"model_path": str(other_checkpoint), "weight_version": "v2"}
        )
        assert (status, body["success"]) == (400, False)
        assert "flush_cache=false" in body["message"]
        assert (await client.get("/model_info"))[1]["weight_version"] == "v2"
        await client.post("/continue_generation")
        check(await task)


async def test_an_update_without_a_pause_waits_for_the_running(serve: Any, other_checkpoint: Path) -> None:
    """The running reply ends under the old weights, then the update, then the requests that came meanwhile."""
    async with serve(weight_version="v1", token_delay_ms=3) as client:
        running = await begin(client, sampling_params={**LONG, "max_new_tokens": 60})
        update = asyncio.create_task(
            client.post("/update_weights_from_disk", {"model_path": str(other_checkpoint), "weight_version": "v2"})
        )
        await client.until(lambda: not client.engine.scheduler._admitting.is_set())
        late = asyncio.create_task(client.generate(text=PROMPT, sampling_params={"max_new_tokens": 2}))
        assert (await update)[0] == 200
        assert running.done()
        assert (await running)["meta_info"]["weight_versions"] == [{"version": "v1", "start": 0, "end": 60}]
        assert (await late)["meta_info"]["weight_version"] == "v2"


async def test_an_update_may_abort_what_runs(serve: Any, other_checkpoint: Path) -> None:
    """With abort_all_requests the update doesn't wait for long replies."""
    async with serve(token_delay_ms=10) as client:
        task = await begin(client)
        status, _ = await client.post(
            "/update_weights_from_disk", {"model_path": str(other_checkpoint), "abort_all_requests": True}
        )
        assert status == 200
        assert (await task)["meta_info"]["finish_reason"]["type"] == "abort"


async def test_weights_that_do_not_fit_leave_the_old_ones(serve: Any, tmp_path: Path) -> None:
    """A missing directory, a broken one and another architecture are 400; replies and version stay as they were."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "other")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    params = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    async with serve() as client:
        before = await client.generate(text=PROMPT, sampling_params=params)
        for name, part in (("missing", "no such"), ("broken", "can't be loaded"), ("other", "another architecture")):
            path = str(tmp_path / name)
            status, body = await client.post("/update_weights_from_disk", {"model_path": path, "weight_version": "v9"})
            assert (status, body["success"]) == (400, False)
            assert part in body["message"]
            assert path in body["message"]
        assert (await client.post("/update_weights_from_disk", {}))[0] == 400
        after = await client.generate(text=PROMPT, sampling_params=params)
    assert after["output_ids"] == before["output_ids"]
    assert after["meta_info"]["weight_version"] == "default"


async def test_the_version_alone_can_change(serve: Any) -> None:
    """It aborts everything unless told not to, as in SGLang; told not to, the running reply gets a second span."""
    async with serve(token_delay_ms=5) as client:
        kept = await begin(client, sampling_params={**LONG, "max_new_tokens": 60})
        _, body = await client.post("/update_weight_version", {"new_version": "b", "abort_all_requests": False})
        assert body["new_version"] == "b"
        reply = await kept
        assert [s["version"] for s in reply["meta_info"]["weight_versions"]] == ["default", "b"]
        check(reply)
        ended = await begin(client)
        await client.post("/update_weight_version", {"new_version": "c"})
        assert (await ended)["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await client.get("/model_info"))[1]["weight_version"] == "c"


async def test_flush_empties_the_cache_unless_something_runs(serve: Any) -> None:
    """A flushed prompt is computed again; while a request runs the flush is refused."""
    body = {"input_ids": list(range(500)), "sampling_params": {"max_new_tokens": 1}}
    async with serve(token_delay_ms=5) as client:
        await client.generate(**body)
        assert (await client.generate(**body))["meta_info"]["cached_tokens"] == 499
        assert (await client.get("/flush_cache"))[0] == 200
        assert (await client.generate(**body))["meta_info"]["cached_tokens"] == 0
        task = await begin(client)
        assert (await client.post("/flush_cache"))[0] == 400
        await client.post("/abort_request", {"abort_all": True})
        await task


async def test_the_engine_describes_itself(serve: Any) -> None:
    """Model list, server and model facts, and both health routes."""
    async with serve(served_model_name="tiny", context_length=2048) as client:
        _, models = await client.get("/v1/models")
        _, server = await client.get("/server_info")
        _, model = await client.get("/model_info")
        assert (await client.get("/health"))[0] == 200
        assert (await client.get("/health_generate"))[0] == 200
        assert (await client.get("/get_weight_version"))[0] == 404
    assert [(card["id"], card["max_model_len"]) for card in models["data"]] == [("tiny", 2048)]
    assert server["version"] == "0.5.23"
    assert server["context_length"] == 2048
    assert server["internal_states"][0]["running_requests"] == 0
    assert model["model_type"] == "qwen3"
    assert model["is_generation"] is True


async def test_the_engine_counts_the_seconds_in_which_it_computes(serve: Any) -> None:
    """`busy_s` grows with what is generated and stays while nothing is; `up_s` goes on."""
    async with serve() as client:

        async def state() -> dict[str, float]:
            _, server = await client.get("/server_info")
            found: dict[str, float] = server["internal_states"][0]
            return found

        before = await state()
        await client.generate(input_ids=list(range(200)), sampling_params={"max_new_tokens": 8})
        after = await state()
        later = await state()
    assert 0 <= before["busy_s"] < after["busy_s"] == later["busy_s"] <= after["up_s"] < later["up_s"]


async def test_health_does_not_ask_the_policy(serve: Any) -> None:
    """A health check is not a model call that a script should see."""
    calls: list[str] = []
    async with serve(policy=lambda prompt, request: calls.append(prompt) or "x") as client:
        assert (await client.get("/health_generate"))[0] == 200
    assert calls == []
