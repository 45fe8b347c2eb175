from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from compose.cpu_engine.scripted import Policy, PolicyError, Scripted

CALL = 'Looking.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls é 漢字"}}\n</tool_call>'
PROMPT = "<|im_start|>user\nlist<|im_end|>\n<|im_start|>assistant\n"
END = 151645


def always(text: str) -> Any:
    return lambda prompt, request: text


async def test_the_policy_sees_the_prompt_and_chooses_the_text(serve: Any, tokenizer: Any) -> None:
    """The prompt has its special tokens, the request is the body; ids are the real tokenizer's, closed by the end of turn."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def reply(prompt: str, request: dict[str, Any]) -> str:
        seen.append((prompt, request))
        return CALL

    body = {"input_ids": tokenizer.encode(PROMPT), "rid": "r1", "return_logprob": True, "session_id": "s"}
    async with serve(policy=reply) as client:
        answer = await client.generate(**body)
    assert seen == [(PROMPT, body)]
    assert answer["text"] == CALL
    assert answer["output_ids"] == [*tokenizer.encode(CALL), END]
    assert 151657 in answer["output_ids"]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": END}


async def test_logprobs_of_a_script_are_the_models(serve: Any, tokenizer: Any, checkpoint: Path) -> None:
    """Each log-probability is transformers' own for that id at that place, at the request's temperature."""
    from transformers import AutoModelForCausalLM

    async with serve(policy=always(CALL)) as client:
        answer = await client.generate(text=PROMPT, return_logprob=True, sampling_params={"temperature": 0.6})
    prompt, output = tokenizer.encode(PROMPT), answer["output_ids"]
    module = AutoModelForCausalLM.from_pretrained(checkpoint)
    with torch.inference_mode():
        logprobs = (module(torch.tensor([prompt + output])).logits[0] / 0.6).log_softmax(-1)
    expected = [float(logprobs[len(prompt) + i - 1, token]) for i, token in enumerate(output)]
    assert [t[0] for t in answer["meta_info"]["output_token_logprobs"]] == pytest.approx(expected, abs=1e-4)


async def test_a_repeated_script_from_the_cache_has_the_same_logprobs(serve: Any) -> None:
    """When the whole reply is in the cache already, its log-probabilities are still computed, all of them."""
    body = {"text": PROMPT * 20, "return_logprob": True}
    async with serve(policy=always(CALL * 20)) as client:
        first, second = await client.generate(**body), await client.generate(**body)
    assert second["meta_info"]["cached_tokens"] == second["meta_info"]["prompt_tokens"] - 1
    pairs = [[t[0] for t in reply["meta_info"]["output_token_logprobs"]] for reply in (first, second)]
    assert len(pairs[1]) == len(second["output_ids"])
    assert pairs[1] == pytest.approx(pairs[0], abs=1e-4)


async def test_a_stream_has_one_event_per_token(serve: Any) -> None:
    """Nothing but the numbers tells a scripted stream from a sampled one: one event for each token, text growing."""
    async with serve(policy=always(CALL)) as client:
        plain = await client.generate(text=PROMPT, return_logprob=True)
        events = [event async for event in client.events(text=PROMPT, return_logprob=True)]
    assert len(events) == len(plain["output_ids"])
    assert events[-1]["text"] == CALL
    assert all(CALL.startswith(event["text"]) for event in events)
    assert events[-1]["output_ids"] == plain["output_ids"]


async def test_max_new_tokens_cuts_the_script(serve: Any) -> None:
    """A reply that is too long ends by length, without the end of turn."""
    async with serve(policy=always(CALL)) as client:
        answer = await client.generate(text=PROMPT, sampling_params={"max_new_tokens": 5})
    assert len(answer["output_ids"]) == 5
    assert END not in answer["output_ids"]
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 5}


async def test_an_end_of_turn_in_the_script_ends_it(serve: Any) -> None:
    """A script's own end-of-turn token is taken as such and not doubled; what follows is never said."""
    async with serve(policy=always("one<|im_end|>two")) as client:
        answer = await client.generate(text=PROMPT)
    assert answer["text"] == "one"
    assert answer["output_ids"][-1] == END
    async with serve(policy=always("one<|im_end|>")) as client:
        assert (await client.generate(text=PROMPT))["output_ids"] == answer["output_ids"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_script(serve: Any, stream: bool) -> None:
    """The text stops before the stop string, the ids include the token that completed it, and no event shows a part of it."""
    body = {"text": PROMPT, "sampling_params": {"stop": ["</tool_call>", "\n{"]}, "return_logprob": True}
    async with serve(policy=always(CALL)) as client:
        events = [e async for e in client.events(**body)] if stream else [await client.generate(**body)]
    assert events[-1]["text"] == "Looking.\n<tool_call>"
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "\n{"}
    assert len(events[-1]["meta_info"]["output_token_logprobs"]) == len(events[-1]["output_ids"])
    assert all("Looking.\n<tool_call>".startswith(event["text"]) for event in events)


async def test_no_stop_trim_keeps_the_stop_string(serve: Any) -> None:
    """With no_stop_trim the matched string stays in the text."""
    async with serve(policy=always("abc STOP def")) as client:
        answer = await client.generate(text=PROMPT, sampling_params={"stop": "STOP", "no_stop_trim": True})
    assert answer["text"] == "abc STOP"


async def test_async_policies_run_side_by_side(serve: Any) -> None:
    """Two calls of an async policy that wait for each other both finish."""
    barrier = asyncio.Barrier(2)

    async def reply(prompt: str, request: dict[str, Any]) -> str:
        await barrier.wait()
        return "met"

    async with serve(policy=reply) as client:
        answers = await asyncio.gather(*(client.generate(text=PROMPT) for _ in range(2)))
    assert [answer["text"] for answer in answers] == ["met", "met"]


async def test_blocking_policies_block_neither_the_server_nor_each_other(serve: Any) -> None:
    """Plain functions run in threads: two that wait for each other finish, and health answers meanwhile."""
    barrier = threading.Barrier(3, timeout=20)

    def reply(prompt: str, request: dict[str, Any]) -> str:
        barrier.wait()
        return "met"

    async with serve(policy=reply) as client:
        calls = [asyncio.create_task(client.generate(text=PROMPT)) for _ in range(2)]
        await client.until(lambda: barrier.n_waiting == 2)
        assert (await client.get("/health"))[0] == 200
        barrier.wait()
        assert [answer["text"] for answer in await asyncio.gather(*calls)] == ["met", "met"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("answer", "part"), [(KeyError("lost"), "raised KeyError: 'lost'"), (7, "returned int")])
async def test_a_broken_policy_is_a_500_that_says_why(serve: Any, answer: Any, part: str, stream: bool) -> None:
    """An exception or a wrong return value names the policy; the next request is served."""
    answers = [answer, "fine"]

    def reply(prompt: str, request: dict[str, Any]) -> Any:
        value = answers.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    async with serve(policy=reply) as client:
        status, body = await client.post("/generate", {"text": PROMPT, "stream": stream})
        assert (await client.generate(text=PROMPT))["text"] == "fine"
    assert status == 500
    assert part in body["error"]["message"]
    assert "reply" in body["error"]["message"]


async def test_delays_space_the_tokens(serve: Any) -> None:
    """The server's delay holds for each token, and a script's own replaces it."""
    texts: list[Any] = ["one two three four five", Scripted("one two three four five", token_delay_ms=0)]
    async with serve(policy=lambda prompt, request: texts.pop(0), token_delay_ms=40) as client:
        begun = time.monotonic()
        slow = [event async for event in client.events(text=PROMPT)]
        slow_s = time.monotonic() - begun
        begun = time.monotonic()
        fast = [event async for event in client.events(text=PROMPT)]
        fast_s = time.monotonic() - begun
    assert len(slow) == len(fast) == 6
    assert slow_s >= 5 * 0.04
    assert fast_s < slow_s


async def test_many_slow_replies_run_at_once(serve: Any) -> None:
    """A hundred replies of 0.5 s each take about that long together, not fifty seconds."""
    async with serve(policy=always("a b c d e"), token_delay_ms=100) as client:
        begun = time.monotonic()
        answers = await asyncio.gather(*(client.generate(text=PROMPT) for _ in range(100)))
        took_s = time.monotonic() - begun
    assert all(answer["text"] == "a b c d e" for answer in answers)
    assert 0.5 <= took_s < 15


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("scripted:no_such_module:f", "no_such_module"),
        ("scripted:json:nothing", "nothing"),
        ("scripted:json:__doc__", "not a function"),
    ],
)
def test_a_policy_that_is_not_there_is_named(spec: str, part: str) -> None:
    """A typo in the module or function is an error that repeats it."""
    with pytest.raises(PolicyError, match=part):
        Policy.load(spec)


def test_a_policy_module_that_breaks_on_import_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception while the user's module is imported is a PolicyError, not a traceback."""
    (tmp_path / "broken_policy_module.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PolicyError, match="at import"):
        Policy.load("scripted:broken_policy_module:reply")
    sys.modules.pop("broken_policy_module", None)
