"""What any engine must do behind the proxy's client for it, whatever it speaks."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from capture_proxy.engines import GenerateRequest
from capture_proxy.engines.base import ChatPrompt, EngineChunk, EngineFinish
from capture_proxy.engines.canary import examine
from capture_proxy.reply import ProxyError
from tests.conformance.conftest import TOLERANCE

DEADLINE_S = 90.0
IDS = [1000, 2000, 300, 40, 5]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "naïve 漢字 🙂?"}]
NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
pytestmark = pytest.mark.timeout(300)


def ask(
    rid: str, *, ids: list[int] | None = None, messages: Any = None, max_tokens: int = 10, **sampling: Any
) -> GenerateRequest:
    """A generation that can't stop early, as ids and as messages: a client takes what is its own."""
    return GenerateRequest(
        rid=rid,
        session_id="conformance",
        input_ids=ids or IDS,
        sampling={**NEUTRAL, "temperature": 1.0, "max_tokens": max_tokens, "ignore_eos": True, **sampling},
        timeout_s=DEADLINE_S,
        chat=ChatPrompt(messages=messages or MESSAGES, max_tokens=max_tokens),
    )


async def run(client: Any, request: GenerateRequest) -> tuple[list[int], list[float], EngineFinish]:
    """Ids, logprobs and the finish."""
    async with asyncio.timeout(DEADLINE_S), client.generate(request) as stream:
        chunks: list[EngineChunk] = [chunk async for chunk in stream]
    finish = chunks[-1].finish
    assert finish is not None
    assert all(chunk.finish is None for chunk in chunks[:-1])
    return [i for c in chunks for i in c.new_ids], [p for c in chunks for p in c.new_logprobs], finish


async def prompt_of(client: Any, request: GenerateRequest, finish: EngineFinish) -> list[int]:
    """The prompt's ids: what was sent, or what a text-in engine says it rendered, which must be what it tells when it is asked."""
    if not client.is_text_in:
        return request.input_ids
    assert finish.prompt_ids
    assert request.chat is not None
    told = await client.render(request.chat.messages)
    assert told in (None, finish.prompt_ids)
    return finish.prompt_ids


def needs_ids(client: Any) -> None:
    """Skips what a server without ids can't do."""
    if not client.info.gives_ids:
        pytest.skip("this engine gives no ids: its calls are recorded as untrainable")


def needs_token_in(client: Any) -> None:
    """Skips what concerns engines that take ids."""
    if client.is_text_in:
        pytest.skip("this engine renders by itself")


async def test_the_probe_knows_what_it_talks_to(client: Any) -> None:
    """A model's name; a known mode of the logprobs; a token-in engine lacks nothing."""
    assert client.info.model
    if client.info.gives_ids:
        assert client.info.logprobs_mode in ("raw", "temperature", "processed")
    if not client.is_text_in:
        assert client.info.gaps == ()
        assert (client.info.context_length or 0) > 1000


async def test_tokenizer_and_template_are_the_proxys(client: Any, renderer: Any) -> None:
    """The canaries agree: nothing is refused."""
    found = await examine(client, renderer)
    assert found.refusal == ""


async def test_ids_logprobs_counts_and_versions_agree(client: Any) -> None:
    """As many logprobs as ids, the prompt as it was meant, spans without a gap, no fault."""
    needs_ids(client)
    request = ask("conform-shape")
    ids, logprobs, finish = await run(client, request)
    prompt = await prompt_of(client, request, finish)
    assert len(ids) == len(logprobs) == finish.completion_tokens == 10
    assert all(isinstance(value, float) and value <= 1e-3 for value in logprobs)
    assert (finish.reason, finish.fault, finish.prompt_ids, finish.prompt_tokens) == ("length", "", prompt, len(prompt))
    if not client.is_text_in:
        assert [(finish.weight_spans[0].start, finish.weight_spans[-1].end)] == [(0, 10)]
    if client.is_text_in:
        assert finish.reply is not None


async def test_greedy_is_greedy(client: Any) -> None:
    """Twice the same ids, and logprobs within rounding."""
    needs_ids(client)
    first, second = [await run(client, ask(f"conform-greedy-{n}", temperature=0.0)) for n in range(2)]
    assert first[0] == second[0]
    assert first[1] == pytest.approx(second[1], abs=TOLERANCE)


async def test_a_stop_id_is_in_the_ids_with_its_logprob(client: Any) -> None:
    """The token that ended the reply was sampled, so it counts."""
    needs_token_in(client)
    free, _, _ = await run(client, ask("conform-free", temperature=0.0))
    stop = free[4]
    request = ask("conform-stop-id", temperature=0.0, stop_token_ids=[stop], ignore_eos=False)
    ids, logprobs, finish = await run(client, request)
    assert ids == free[: free.index(stop) + 1]
    assert len(logprobs) == len(ids)
    assert finish.reason == "stop"
    assert finish.matched in (stop, None)


async def test_a_stop_string_ends_the_reply(client: Any, renderer: Any) -> None:
    """The ids end with the token that completed it; the finish names it."""
    needs_ids(client)
    free, _, _ = await run(client, ask("conform-free", temperature=0.0, max_tokens=16))
    words = renderer.decode(free).replace("\ufffd", " ").split()
    stop = max(words[len(words) // 3 :] or words, key=len)[:6]
    ids, logprobs, finish = await run(client, ask("conform-stop", temperature=0.0, max_tokens=16, stop=[stop]))
    assert (finish.reason, finish.matched) == ("stop", stop)
    assert ids == free[: len(ids)]
    assert len(logprobs) == len(ids)
    assert stop in renderer.decode(ids)


async def test_a_seed_is_taken(client: Any) -> None:
    """Accepted by all; an engine that draws by it gives the same reply again (SGLang only in its deterministic mode)."""
    replies = [(await run(client, ask(f"conform-seed-{n}", seed=7)))[0] for n in range(2)]
    if await honours_seeds(client):
        assert replies[0] == replies[1]


async def honours_seeds(client: Any) -> bool:
    """Whether the engine says that seeds decide."""
    if client.kind != "sglang":
        return bool(client.kind in ("vllm", "vllm_chat"))
    info = await client.get("/server_info", DEADLINE_S)
    return info.get("engine") == "polynya-cpu" or bool(info.get("enable_deterministic_inference"))


async def test_an_abort_gives_what_was_sampled(client: Any) -> None:
    """By its id, in the middle: the finish says abort, ids and logprobs are as many."""
    needs_token_in(client)
    ids: list[int] = []
    logprobs: list[float] = []
    finish = None
    async with asyncio.timeout(DEADLINE_S), client.generate(ask("conform-abort", max_tokens=4000)) as stream:
        async for chunk in stream:
            if not ids:
                await client.abort("conform-abort")
            ids += chunk.new_ids
            logprobs += chunk.new_logprobs
            finish = chunk.finish
    assert finish is not None
    assert finish.reason == "abort"
    assert 0 < len(ids) == len(logprobs) < 4000


async def test_a_client_that_leaves_frees_the_engine(client: Any) -> None:
    """The request ends with the connection: right after it the engine answers another."""
    is_whole = hasattr(client, "asking") and not client.asking.is_streamed  # then nothing comes before the end
    for n in range(3):
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(1.0 if is_whole else DEADLINE_S),
                client.generate(ask(f"conform-leave-{n}", max_tokens=6000)) as stream,
            ):
                async for _ in stream:
                    break
    async with asyncio.timeout(DEADLINE_S):
        _, _, finish = await run(client, ask("conform-after", max_tokens=1))
    assert finish.reason in {"stop", "length"}


async def test_eight_at_once_get_their_own_replies(client: Any, forward: Any) -> None:
    """Each reply's logprobs are those of a forward pass over its own prompt (ids alone may differ: batches round otherwise)."""
    needs_ids(client)
    asked = [
        ask(f"conform-many-{n}", ids=[n * 100 + 7, 9, 11], messages=[{"role": "user", "content": f"{n}?"}])
        for n in range(8)
    ]
    for request, (ids, logprobs, finish) in zip(
        asked, await asyncio.gather(*(run(client, r) for r in asked)), strict=True
    ):
        prompt = await prompt_of(client, request, finish)
        assert logprobs == pytest.approx(forward.logprobs(prompt, ids), abs=TOLERANCE)


async def test_a_prompt_that_is_too_long_says_so(client: Any) -> None:
    """The one error that a harness can do something about: it compacts."""
    length = client.info.context_length
    if not length or length > 200_000:
        pytest.skip("the context is unknown, or too long to fill here")
    long = [{"role": "user", "content": "Hi " * length}]
    with pytest.raises(ProxyError) as raised:
        await run(client, ask("conform-long", ids=[5] * (length + 10), messages=long))
    assert raised.value.kind == "context_overflow"


async def test_what_it_cant_do_is_a_bad_request(client: Any) -> None:
    """A value outside its range is refused, and never replaced."""
    with pytest.raises(ProxyError) as raised:
        await run(client, ask("conform-bad", top_p=7.0))
    assert raised.value.kind == "bad_request"


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (0.7, 0.5)])
async def test_logprobs_are_those_of_a_forward_pass(
    client: Any, forward: Any, temperature: float, top_p: float
) -> None:
    """Of the measured mode: before or after the temperature. What a cut leaves isn't recomputed here."""
    needs_ids(client)
    mode = client.info.logprobs_mode
    if mode == "processed" and top_p < 1.0:
        pytest.skip("its logprobs are of the cut distribution")
    request = ask("conform-forward", max_tokens=64, temperature=temperature, top_p=top_p)
    ids, logprobs, finish = await run(client, request)
    prompt = await prompt_of(client, request, finish)
    expected = forward.logprobs(prompt, ids, temperature=1.0 if mode == "raw" else temperature)
    assert logprobs == pytest.approx(expected, abs=TOLERANCE)
