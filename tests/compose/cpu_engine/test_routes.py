from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from compose.cpu_engine.routes import _by_version
from compose.cpu_engine.sampling import SamplingRule
from compose.cpu_engine.sequence import Limits, Sequence

GREEDY = {"temperature": 0.0, "max_new_tokens": 12, "ignore_eos": True}
PROMPT = "<|im_start|>user\nSay something long.<|im_end|>\n<|im_start|>assistant\n"


def logprobs(reply: Any) -> list[float]:
    """Log-probabilities of a reply, after a look at the ids beside them."""
    triples = reply["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in triples][-len(reply["output_ids"]) :] == reply["output_ids"]
    assert all(logprob < 0 for logprob, _, _ in triples)
    return [logprob for logprob, _, _ in triples]


async def test_a_reply_carries_ids_logprobs_and_facts(serve: Any, tokenizer: Any) -> None:
    """The whole shape of a plain reply, as SGLang 0.5.23 has it."""
    async with serve(weight_version="step-3") as client:
        reply = await client.generate(
            text=PROMPT, rid="call-1", return_logprob=True, return_prompt_token_ids=True, sampling_params=GREEDY
        )
    ids = tokenizer.encode(PROMPT)
    assert set(reply) == {"text", "output_ids", "prompt_token_ids", "meta_info"}
    assert reply["prompt_token_ids"] == ids
    assert reply["text"] == tokenizer.decode(reply["output_ids"], skip_special_tokens=True)
    meta = reply["meta_info"]
    latency_s = meta.pop("e2e_latency")
    assert 0 < latency_s < 60
    assert [token for _, token, _ in meta.pop("output_token_logprobs")] == reply["output_ids"]
    assert meta == {
        "id": "call-1",
        "finish_reason": {"type": "length", "length": 12},
        "prompt_tokens": len(ids),
        "completion_tokens": 12,
        "reasoning_tokens": 0,
        "cached_tokens": 0,
        "num_retractions": 0,
        "weight_version": "step-3",
        "weight_versions": [{"version": "step-3", "start": 0, "end": 12}],
        "input_token_logprobs": [],
        "output_token_logprobs_length": 12,
        "dp_rank": None,
    }


async def test_cumulative_streams_grow_to_the_plain_reply(serve: Any) -> None:
    """Every event holds everything so far, spans come with the last one only, and the end equals the plain reply."""
    body = {"text": PROMPT, "rid": "x", "return_logprob": True, "sampling_params": GREEDY}
    async with serve() as client:
        plain = await client.generate(**body)
        events = [event async for event in client.events(**body)]
    assert len(events) == 12
    for count, event in enumerate(events, 1):
        assert event["output_ids"] == plain["output_ids"][:count]
        assert event["meta_info"]["completion_tokens"] == count
        assert len(event["meta_info"]["output_token_logprobs"]) == count
    assert all(event["meta_info"]["finish_reason"] is None for event in events[:-1])
    assert all("weight_versions" not in event["meta_info"] for event in events[:-1])
    last = events[-1]
    assert logprobs(last) == pytest.approx(logprobs(plain), abs=1e-4)
    for reply in (plain, last):
        for changing in ("e2e_latency", "cached_tokens", "output_token_logprobs"):
            reply["meta_info"].pop(changing)
    assert last == plain


async def test_incremental_streams_add_up_to_the_plain_reply(serve: Any) -> None:
    """With the server's flag each event holds what is new: text, ids and log-probabilities join to the plain reply."""
    body = {"text": PROMPT, "return_logprob": True, "sampling_params": GREEDY}
    async with serve(incremental_streaming_output=True) as client:
        plain = await client.generate(**body)
        events = [event async for event in client.events(**body)]
    assert len(events) == 12
    assert "".join(event["text"] for event in events) == plain["text"]
    assert [token for event in events for token in event["output_ids"]] == plain["output_ids"]
    assert [value for event in events for value in logprobs(event)] == pytest.approx(logprobs(plain), abs=1e-4)
    assert [event["meta_info"]["completion_tokens"] for event in events] == list(range(1, 13))


@pytest.mark.parametrize("incremental", [True, False])
async def test_what_comes_faster_than_the_interval_shares_an_event(serve: Any, incremental: bool) -> None:
    """The first token comes at once, the end isn't waited for, and nothing between them is lost."""
    body = {"text": PROMPT, "return_logprob": True, "sampling_params": GREEDY}
    async with serve(incremental_streaming_output=incremental, stream_interval_ms=60_000) as client:
        plain = await client.generate(**body)
        async with asyncio.timeout(50):
            first, last = [event async for event in client.events(**body)]
    assert first["output_ids"] == plain["output_ids"][: len(first["output_ids"])] != []
    assert last["output_ids"] == plain["output_ids"][len(first["output_ids"]) if incremental else 0 :]
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 12}
    assert last["meta_info"]["completion_tokens"] == 12
    assert (first["text"] + last["text"] if incremental else last["text"]) == plain["text"]


def test_an_event_has_tokens_of_one_version_only() -> None:
    """Weights that changed between two events part them: each token comes with the version that made it."""
    sequence = Sequence(rid="r", prompt_ids=[1], rule=SamplingRule(), limits=Limits(9, (), frozenset()), streams=True)
    for version in ("1", "1", "1", "2", "2"):
        sequence.take(7, -1.0, version, [])
    assert _by_version(sequence, 1, 5, "3") == [(3, "1"), (5, "2")]
    assert _by_version(sequence, 3, 4, "3") == [(4, "2")]
    assert _by_version(sequence, 5, 5, "3") == [(5, "3")]


async def test_slow_tokens_come_one_by_one(serve: Any) -> None:
    """Where tokens are further apart than the interval, each has its own event."""
    body = {"text": PROMPT, "sampling_params": GREEDY}
    async with serve(incremental_streaming_output=True, stream_interval_ms=1, token_delay_ms=30) as client:
        events = [event async for event in client.events(**body)]
    assert [len(event["output_ids"]) for event in events] == [1] * 12


async def test_a_seed_fixes_the_reply_whoever_runs_beside_it(serve: Any) -> None:
    """Sampling with a seed gives the same ids alone and among others; another seed gives others."""

    def body(seed: int) -> dict[str, Any]:
        return {"text": PROMPT, "sampling_params": {"max_new_tokens": 16, "sampling_seed": seed, "ignore_eos": True}}

    async with serve() as client:
        alone = (await client.generate(**body(1)))["output_ids"]
        crowd = await asyncio.gather(*(client.generate(**body(seed)) for seed in (5, 1, 6, 1, 7)))
    ids = [reply["output_ids"] for reply in crowd]
    assert ids[1] == ids[3] == alone
    assert len({tuple(i) for i in ids}) == 4


async def test_turns_from_the_cache_have_the_same_logprobs(serve: Any) -> None:
    """A conversation of five turns: with and without the prefix cache ids are equal and log-probabilities within 1e-4."""
    found: dict[int | None, list[Any]] = {}
    for cache_tokens in (None, 0):
        async with serve(cache_tokens=cache_tokens) as client:
            prompt = list(range(100, 500))
            found[cache_tokens] = []
            for turn in range(5):
                reply = await client.generate(
                    input_ids=prompt, return_logprob=True,
                    sampling_params={"max_new_tokens": 40, "sampling_seed": turn, "ignore_eos": True},
                )  # fmt: skip
                found[cache_tokens].append(reply)
                prompt = [*prompt, *reply["output_ids"], *range(1000 * turn, 1000 * turn + 70)]
    for turn, (cached, plain) in enumerate(zip(found[None], found[0], strict=True)):
        assert cached["output_ids"] == plain["output_ids"]
        assert logprobs(cached) == pytest.approx(logprobs(plain), abs=1e-4)
        assert plain["meta_info"]["cached_tokens"] == 0
        # The last sampled token was never an input, so it isn't in the cache.
        assert cached["meta_info"]["cached_tokens"] == (0 if turn == 0 else cached["meta_info"]["prompt_tokens"] - 71)


async def test_equal_prompts_that_arrive_together_are_computed_once(serve: Any) -> None:
    """Of four samples of one long prompt three find it in the cache, although all were asked at once."""
    body = {"input_ids": list(range(3000)), "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    async with serve() as client:
        replies = await asyncio.gather(*(client.generate(**body) for _ in range(4)))
    assert sorted(reply["meta_info"]["cached_tokens"] for reply in replies) == [0, 2999, 2999, 2999]


@pytest.mark.parametrize("chunk_tokens", [16, 100, 8192])
async def test_the_size_of_chunks_changes_nothing(serve: Any, chunk_tokens: int) -> None:
    """Prompts computed in many pieces give the same greedy ids."""
    body = {"input_ids": list(range(5, 305)), "sampling_params": GREEDY}
    async with serve(chunk_tokens=chunk_tokens) as client, serve() as reference:
        replies = await asyncio.gather(*(client.generate(**body) for _ in range(3)))
        expected = await reference.generate(**body)
    assert all(reply["output_ids"] == expected["output_ids"] for reply in replies)


async def test_more_requests_than_may_run_all_finish(serve: Any) -> None:
    """Beyond max_running_requests the others wait their turn."""
    async with serve(max_running_requests=2) as client:
        bodies = [{"input_ids": [i, i + 1], "sampling_params": GREEDY} for i in range(9)]
        replies = await asyncio.gather(*(client.generate(**body) for body in bodies))
    assert [len(reply["output_ids"]) for reply in replies] == [12] * 9


async def test_a_stop_token_ends_the_reply_and_stays_in_the_ids(serve: Any) -> None:
    """The matched id is in output_ids and in the log-probabilities, and only its text is trimmed."""
    async with serve() as client:
        free = await client.generate(text=PROMPT, sampling_params={**GREEDY, "temperature": 1.0, "sampling_seed": 3})
        stop = free["output_ids"][5]
        assert stop not in free["output_ids"][:5]
        params = {"max_new_tokens": 12, "sampling_seed": 3, "stop_token_ids": [stop]}
        trimmed = await client.generate(text=PROMPT, sampling_params=params, return_logprob=True)
        kept = await client.generate(text=PROMPT, sampling_params={**params, "no_stop_trim": True})
    assert trimmed["output_ids"] == kept["output_ids"] == free["output_ids"][:6]
    assert trimmed["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert len(logprobs(trimmed)) == 6
    assert kept["text"].startswith(trimmed["text"])
    assert len(kept["text"]) > len(trimmed["text"])


async def test_max_new_tokens_zero_is_an_empty_reply(serve: Any) -> None:
    """Nothing is sampled and the reply ends by length."""
    async with serve() as client:
        reply = await client.generate(text="a", sampling_params={"max_new_tokens": 0})
        events = [event async for event in client.events(text="a", sampling_params={"max_new_tokens": 0})]
    assert reply["output_ids"] == []
    assert reply["text"] == ""
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert [event["output_ids"] for event in events] == [[]]


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"text": 5}, "text"),
        ({"input_ids": "abc"}, "input_ids"),
        ({"input_ids": [1, "2"]}, "input_ids"),
        ({"text": "a", "stream": "yes"}, "stream"),
        ({"text": "a", "sampling_params": {"temperature": "hot"}}, "temperature"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 1.5}}, "max_new_tokens"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": {"top_p": 0}}, "top_p"),
        ({"text": "a", "sampling_params": {"top_k": 0}}, "top_k"),
        ({"text": "a", "sampling_params": {"min_p": 1.5}}, "min_p"),
        ({"text": "a", "sampling_params": {"frequency_penalty": 0.5}}, "frequency_penalty"),
        ({"text": "a", "logprob_start_len": 0}, "logprob_start_len"),
        ({"text": "a", "top_logprobs_num": -1}, "top_logprobs_num"),
        ({}, "text or input_ids"),
    ],
)
async def test_bad_bodies_are_refused_by_name(serve: Any, body: dict[str, Any], part: str) -> None:
    """A wrong type or an option that can't be honoured is a 400 whose `error` names it, also when streaming."""
    async with serve() as client:
        status, reply = await client.post("/generate", body)
        assert status == 400
        assert part in reply["error"]


async def test_grammars_are_the_policys_to_follow(serve: Any) -> None:
    """A policy sees the schema and answers by it; without one a grammar is refused, since the model would ignore it."""
    schema = '{"type":"object"}'

    def reply(prompt: str, request: dict[str, Any]) -> str:
        return "{}" if request["sampling_params"].get("json_schema") == schema else "no schema"

    body = {"text": "a", "sampling_params": {"json_schema": schema}}
    async with serve(policy=reply) as client:
        assert (await client.generate(**body))["text"] == "{}"
        status, answer = await client.post("/generate", {**body, "rid": "probe-1"})
        assert (status, "json_schema" in answer["error"]["message"]) == (400, True)
    async with serve() as client:
        status, answer = await client.post("/generate", body)
        assert (status, "json_schema" in answer["error"]["message"]) == (400, True)


async def test_a_probe_is_not_shown_to_the_policy(serve: Any) -> None:
    """A request that only tries out the engine is answered by the model: a policy may count its calls, or wait for them."""
    asked: list[str] = []

    def reply(prompt: str, request: dict[str, Any]) -> str:
        asked.append(prompt)
        return "scripted"

    params = {"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True}
    async with serve(policy=reply) as client:
        answer = await client.generate(text="a", rid="probe-1", sampling_params=params)
        assert len(answer["output_ids"]) == 1
        assert asked == []


async def test_bodies_that_are_not_objects_are_refused(serve: Any) -> None:
    """Broken JSON and JSON that is no object are 400 in the flat shape."""
    async with serve() as client:
        for data in (b"{", b"[1]"):
            async with client.session.post(client.url + "/generate", data=data) as reply:
                body = await reply.json()
                assert reply.status == 400
            assert body["object"] == "error"
            assert body["code"] == 400


async def test_null_options_and_unknown_fields_are_accepted(serve: Any) -> None:
    """SGLang takes null for unset, and ignores what it doesn't know; ids win over text."""
    async with serve() as client:
        reply = await client.generate(
            text="ignored", input_ids=[1, 2, 3], sampling_params=None, stream=None, return_logprob=None, rid=None,
            return_prompt_token_ids=True, logprob_start_len=-1, session_id="s", priority=3,
        )  # fmt: skip
    assert reply["prompt_token_ids"] == [1, 2, 3]
    assert len(reply["meta_info"]["id"]) == 32
    assert "output_token_logprobs" not in reply["meta_info"]


async def test_what_does_not_fit_the_context_is_refused(serve: Any) -> None:
    """A prompt of the context's length, or one with its reply, is 400; in a stream the error is an event."""
    async with serve(context_length=64) as client:
        long = {"input_ids": [7] * 64}
        status, reply = await client.post("/generate", long)
        assert status == 400
        assert "longer than the model's context length (64 tokens)" in reply["error"]["message"]
        status, reply = await client.post(
            "/generate", {"input_ids": [7] * 60, "sampling_params": {"max_new_tokens": 5}}
        )
        assert status == 400
        assert "You requested a total of 65 tokens" in reply["error"]["message"]
        events = [event async for event in client.events(**long)]
        fits = await client.generate(input_ids=[7] * 60, sampling_params={"max_new_tokens": None, "ignore_eos": True})
    assert [event["error"]["code"] for event in events] == [400]
    assert events[0]["error"]["type"] == "invalid_request_error"
    assert len(fits["output_ids"]) == 4


@pytest.mark.parametrize("ids", [[], [-1], [151_936]])
async def test_ids_outside_of_the_vocabulary_are_refused(serve: Any, ids: list[int]) -> None:
    """An empty prompt and impossible ids are 400 and don't reach the model."""
    async with serve() as client:
        status, reply = await client.post("/generate", {"input_ids": ids})
    assert status == 400
    assert "message" in reply["error"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_request(serve: Any, stream: bool) -> None:
    """After a disconnect nothing is computed for the request, streaming or not."""
    async with serve(token_delay_ms=20) as client:
        body = {"text": PROMPT, "stream": stream, "sampling_params": {"max_new_tokens": 5000, "ignore_eos": True}}
        task = asyncio.create_task(client.post("/generate", body))
        await client.until(lambda: bool(client.running) and len(client.running[0].output_ids) >= 2)
        (sequence,) = client.running
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.until(lambda: not client.running)
        assert sequence.finish.type == "abort"


async def test_a_failing_step_ends_its_requests_only(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the model is a 500 for that request, and the next one is served."""
    async with serve() as client:
        healthy = client.engine.model.step

        def broken(rows: Any) -> Any:
            raise RuntimeError("out of memory")

        monkeypatch.setattr(client.engine.model, "step", broken)
        status, reply = await client.post("/generate", {"text": "a"})
        events = [event async for event in client.events(text="a")]
        monkeypatch.setattr(client.engine.model, "step", healthy)
        assert len((await client.generate(text="a", sampling_params=GREEDY))["output_ids"]) == 12
    assert status == 500
    assert "out of memory" in reply["error"]["message"]
    assert events[0]["error"]["code"] == 500


async def test_tokenize_renders_and_detokenize_reads_back(serve: Any, tokenizer: Any) -> None:
    """Prompts, lists of prompts and messages; the template's options pass through."""
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    async with serve() as client:
        for path in ("/v1/tokenize", "/tokenize"):
            status, one = await client.post(path, {"prompt": "Hello <tool_call>"})
            assert (status, one) == (200, {"tokens": [9707, 220, 151657], "count": 3, "max_model_len": 131072})
        _, many = await client.post("/v1/tokenize", {"prompt": ["Hello", "hello hello"]})
        _, chat = await client.post(
            "/v1/tokenize",
            {"messages": messages, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}},
        )
        _, bare = await client.post("/v1/tokenize", {"messages": messages, "add_generation_prompt": False})
        _, text = await client.post("/detokenize", {"tokens": chat["tokens"], "skip_special_tokens": False})
        _, texts = await client.post("/v1/detokenize", {"tokens": [[9707], [14990]]})
        assert (await client.post("/v1/tokenize", {}))[0] == 400
        assert (await client.post("/v1/tokenize", {"prompt": "a", "messages": messages}))[0] == 400
        assert (await client.post("/v1/tokenize", {"messages": [{"role": "assistant", "tool_calls": 5}]}))[0] == 400
        assert (await client.post("/detokenize", {"tokens": [-5]}))[0] == 400
    assert many["count"] == [1, 2]
    options = {"add_generation_prompt": True, "enable_thinking": False}
    assert text["text"] == tokenizer.render(messages, tools, options)
    assert text["text"].endswith("<think>\n\n</think>\n\n")
    assert tokenizer.decode(bare["tokens"], skip_special_tokens=False).endswith("hi<|im_end|>\n")
    assert texts["text"] == ["Hello", "hello"]


async def test_texts_of_tokens_come_on_request(serve: Any, tokenizer: Any) -> None:
    """return_text_in_logprobs fills the third place of the triples."""
    async with serve() as client:
        reply = await client.generate(
            text="a", return_logprob=True, return_text_in_logprobs=True, sampling_params=GREEDY
        )
    for _, token, text in reply["meta_info"]["output_token_logprobs"]:
        assert text == tokenizer.decode([token], skip_special_tokens=False)


async def test_put_works_and_other_verbs_do_not(serve: Any) -> None:
    """SGLang takes POST and PUT on /generate."""
    async with serve() as client:
        async with client.session.put(client.url + "/generate", data=json.dumps({"text": "a"})) as reply:
            assert reply.status == 200
        async with client.session.get(client.url + "/generate") as reply:
            assert reply.status == 405
