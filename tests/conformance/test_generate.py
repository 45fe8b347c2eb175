"""What any engine behind the proxy must do on `/generate`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.conftest import TOLERANCE

LONG = {"temperature": 1.0, "max_new_tokens": 3000, "ignore_eos": True}
GREEDY = {"temperature": 0.0, "max_new_tokens": 10, "ignore_eos": True}
IDS = [1000, 2000, 300, 40, 5]


def logprobs(reply: Any) -> list[float]:
    """Log-probabilities of a reply; their ids must be the output ids, one for one."""
    triples = reply["meta_info"]["output_token_logprobs"]
    assert [triple[1] for triple in triples] == reply["output_ids"]
    assert all(triple[2] is None for triple in triples)
    return [triple[0] for triple in triples]


async def test_the_reply_has_ids_logprobs_and_facts(engine: Any) -> None:
    """As many triples as ids, counts that agree, the request's id, and one span over everything."""
    reply = await engine.generate(
        input_ids=IDS, rid="conform-1", return_logprob=True, return_prompt_token_ids=True, sampling_params=GREEDY
    )
    meta = reply["meta_info"]
    assert reply["prompt_token_ids"] == IDS
    assert len(reply["output_ids"]) == len(logprobs(reply)) == meta["completion_tokens"] == 10
    assert meta["output_token_logprobs_length"] == 10
    assert meta["input_token_logprobs"] == []
    assert meta["id"] == "conform-1"
    assert meta["prompt_tokens"] == len(IDS)
    assert meta["finish_reason"] == {"type": "length", "length": 10}
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 10}]
    assert meta["e2e_latency"] > 0
    assert 0 <= meta["cached_tokens"] < len(IDS)


async def test_prompt_ids_come_only_on_request_and_ids_are_made_up(engine: Any) -> None:
    """Without the flags there are neither prompt ids nor log-probabilities; a request without an id gets one."""
    replies = [await engine.generate(input_ids=IDS, sampling_params=GREEDY) for _ in range(2)]
    for reply in replies:
        assert "prompt_token_ids" not in reply
        assert "output_token_logprobs" not in reply["meta_info"]
    first, second = (reply["meta_info"]["id"] for reply in replies)
    assert first
    assert first != second


async def test_a_stream_joins_to_the_plain_reply(engine: Any) -> None:
    """Streamed or not: the same text, ids, log-probabilities and finish reason, and spans at the end."""
    body = {"input_ids": IDS, "return_logprob": True, "sampling_params": GREEDY}
    plain, streamed = await engine.generate(**body), await engine.streamed(**body)
    assert streamed["text"] == plain["text"]
    assert streamed["output_ids"] == plain["output_ids"]
    assert logprobs(streamed) == pytest.approx(logprobs(plain), abs=TOLERANCE)
    for key in ("finish_reason", "prompt_tokens", "completion_tokens", "weight_version", "weight_versions"):
        assert streamed["meta_info"][key] == plain["meta_info"][key]


async def test_a_stream_is_cut_by_tokens_and_spans_come_last(engine: Any) -> None:
    """Several events, none but the last with a finish reason or spans, completion tokens growing."""
    events = [event async for event in engine.events(input_ids=IDS, sampling_params=GREEDY)]
    assert len(events) > 1
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 10
    for event in events[:-1]:
        assert event["meta_info"]["finish_reason"] is None
        assert "weight_versions" not in event["meta_info"]
    assert events[-1]["meta_info"]["weight_versions"][-1]["end"] == 10


async def test_a_stop_string_is_in_the_ids_and_not_in_the_text(engine: Any) -> None:
    """The text ends before the string, the ids with the token that completed it; no_stop_trim keeps it."""
    free = await engine.generate(input_ids=IDS, sampling_params=GREEDY)
    tail = free["text"][len(free["text"]) // 2 :].replace("\ufffd", " ").split()
    stop = max(tail, key=len)[:6]
    params = {**GREEDY, "stop": [stop]}
    body = {"input_ids": IDS, "return_logprob": True, "sampling_params": params}
    plain, streamed = await engine.generate(**body), await engine.streamed(**body)
    kept = await engine.generate(input_ids=IDS, sampling_params={**params, "no_stop_trim": True})
    for reply in (plain, streamed):
        assert reply["text"] == free["text"].partition(stop)[0]
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        assert len(logprobs(reply)) == len(reply["output_ids"])
        assert reply["output_ids"] == free["output_ids"][: len(reply["output_ids"])]
    assert kept["text"] == plain["text"] + stop


async def test_a_stop_id_is_in_the_ids_and_not_in_the_text(engine: Any) -> None:
    """The matched id is the last of output_ids, with its log-probability."""
    params = {"temperature": 0.0, "max_new_tokens": 10}
    free = (await engine.generate(input_ids=IDS, sampling_params={**params, "ignore_eos": True}))["output_ids"]
    stop = free[4]
    reply = await engine.generate(
        input_ids=IDS, return_logprob=True, sampling_params={**params, "stop_token_ids": [stop]}
    )
    assert reply["output_ids"] == free[: free.index(stop) + 1]
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert len(logprobs(reply)) == len(reply["output_ids"])


async def test_logprobs_do_not_depend_on_filters(engine: Any) -> None:
    """top_k changes what is drawn, not the log-probability of what was drawn (post-temperature, pre-filter)."""
    plain = await engine.generate(input_ids=IDS, return_logprob=True, sampling_params={**GREEDY, "max_new_tokens": 1})
    filtered = await engine.generate(
        input_ids=IDS, return_logprob=True, sampling_params={"temperature": 1.0, "top_k": 1, "max_new_tokens": 1}
    )
    assert filtered["output_ids"] == plain["output_ids"]
    assert logprobs(filtered) == pytest.approx(logprobs(plain), abs=TOLERANCE)


async def test_the_likeliest_tokens_come_on_request(engine: Any) -> None:
    """Per output token as many as were asked for, the likeliest first; greedy, the first of them is the output."""
    body = {"input_ids": IDS, "return_logprob": True, "top_logprobs_num": 3, "sampling_params": GREEDY}
    plain, streamed = await engine.generate(**body), await engine.streamed(**body)
    meta = plain["meta_info"]
    assert [len(top) for top in meta["output_top_logprobs"]] == [3] * 10
    assert [top[0][1] for top in meta["output_top_logprobs"]] == plain["output_ids"]
    for top, (logprob, _, _) in zip(meta["output_top_logprobs"], meta["output_token_logprobs"], strict=True):
        assert [value for value, _, _ in top] == sorted((value for value, _, _ in top), reverse=True)
        assert top[0][0] == pytest.approx(logprob, abs=TOLERANCE)
    assert [[i for _, i, _ in top] for top in streamed["meta_info"]["output_top_logprobs"]] == [
        [i for _, i, _ in top] for top in meta["output_top_logprobs"]
    ]


async def test_a_cached_prefix_gives_the_same_logprobs(engine: Any) -> None:
    """A second turn has tokens from the cache, and the same log-probabilities as after a flush."""
    prompt = list(range(1000, 1400))
    first = await engine.generate(input_ids=prompt, sampling_params=GREEDY)
    body = {
        "input_ids": [*prompt, *first["output_ids"], 5, 6, 7], "return_logprob": True, "sampling_params": GREEDY
    }  # fmt: skip
    cached = await engine.generate(**body)
    assert (await engine.post("/flush_cache"))[0] == 200
    fresh = await engine.generate(**body)
    assert cached["meta_info"]["cached_tokens"] >= 300
    assert fresh["meta_info"]["cached_tokens"] == 0
    assert cached["output_ids"] == fresh["output_ids"]
    assert logprobs(cached) == pytest.approx(logprobs(fresh), abs=TOLERANCE)


async def test_requests_at_once_get_their_own_replies(engine: Any) -> None:
    """Eight greedy requests at once equal the same eight one after another."""
    bodies = [{"input_ids": [i * 100 + 7, 9, 11], "sampling_params": GREEDY} for i in range(8)]
    together = await asyncio.gather(*(engine.generate(**body) for body in bodies))
    alone = [await engine.generate(**body) for body in bodies]
    same = (
        10 if TOLERANCE < 1e-3 else 1
    )  # half precision rounds otherwise in a batch, and one token changes all that follow
    assert [reply["output_ids"][:same] for reply in together] == [reply["output_ids"][:same] for reply in alone]


@pytest.mark.parametrize(
    "body",
    [
        {"text": 5},
        {"input_ids": "abc"},
        {"input_ids": [1], "sampling_params": {"temperature": -1.0}},
        {"input_ids": [1], "sampling_params": {"top_p": 0.0}},
    ],
)
async def test_bad_requests_are_400_with_an_error(engine: Any, body: dict[str, Any]) -> None:
    """Wrong types and values outside their range never reach the model."""
    status, reply = await engine.post("/generate", **body)
    assert status == 400
    assert reply.get("error") or reply.get("message")


async def test_a_prompt_beyond_the_context_is_400(engine: Any) -> None:
    """The message names the context length; in a stream the error is an event."""
    _, models = await engine.get("/v1/models")
    context = models["data"][0]["max_model_len"]
    body = {"input_ids": [5] * context}
    status, reply = await engine.post("/generate", **body)
    assert status == 400
    assert str(context) in reply["error"]["message"]
    events = [event async for event in engine.events(**body)]
    assert events[-1]["error"]["code"] == 400
    assert str(context) in events[-1]["error"]["message"]


async def test_tokenize_gives_the_ids_that_generate_uses(engine: Any) -> None:
    """The ids of a text are the prompt ids that the same text has in /generate, special tokens included."""
    text = "<|im_start|>user\nnaïve 漢字 🙂<|im_end|>\n<|im_start|>assistant\n"
    _, tokens = await engine.post("/v1/tokenize", model="any", prompt=text)
    reply = await engine.generate(text=text, return_prompt_token_ids=True, sampling_params=GREEDY)
    assert tokens["count"] == len(tokens["tokens"])
    assert reply["prompt_token_ids"] == tokens["tokens"]


async def test_tokenize_renders_messages(engine: Any) -> None:
    """Messages give the ids of their rendered text, with the generation prompt at the end."""
    messages = [{"role": "user", "content": "hi"}]
    _, chat = await engine.post("/v1/tokenize", model="any", messages=messages)
    _, text = await engine.post("/detokenize", model="any", tokens=chat["tokens"], skip_special_tokens=False)
    rendered = text["text"] if isinstance(text["text"], str) else text["text"][0]
    _, again = await engine.post("/v1/tokenize", model="any", prompt=rendered, add_special_tokens=False)
    assert "hi" in rendered
    assert again["tokens"] == chat["tokens"]


async def test_abort_returns_the_partial_reply(engine: Any) -> None:
    """The stream of an aborted request ends with the reason, and with as many log-probabilities as ids."""
    events, joined = [], []
    async for event in engine.events(input_ids=IDS, rid="conform-abort", return_logprob=True, sampling_params=LONG):
        events.append(event)
        joined = joined + event["output_ids"] if engine.is_incremental else event["output_ids"]
        if len(events) == 2:
            await engine.post("/abort_request", rid="conform-abort")
    last = events[-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < last["meta_info"]["completion_tokens"] < 3000
    assert len(joined) == last["meta_info"]["completion_tokens"]
    if not engine.is_incremental:
        assert len(logprobs(last)) == len(joined)
