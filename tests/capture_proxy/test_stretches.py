"""A reply in several stretches: what the seam must not change. Pure, but for the generation's own tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from capture_proxy.call import Call
from capture_proxy.engines.base import EngineChunk, EngineFinish, GenerateRequest, WeightSpan
from capture_proxy.generation import Generation
from capture_proxy.outcome import reply
from capture_proxy.reply import Failed, Finished, TextDelta
from capture_proxy.stretches import is_resumable, resumed
from tests.capture_proxy.fakes import CharRenderer
from tests.capture_proxy.test_records import make

DEADLINE_S = 5.0


def asked(**sampling: Any) -> GenerateRequest:
    return GenerateRequest(rid="r", session_id="s", input_ids=[1, 2], sampling=sampling)


def test_what_was_sampled_counts_towards_both_limits() -> None:
    """The next stretch may sample what is left, and must sample only what is still missing."""
    request = asked(max_tokens=10, min_new_tokens=4)
    first = resumed(request, [7, 8, 9], 2)
    assert first is not None
    assert first.sampling == {"max_tokens": 7, "min_new_tokens": 1}
    assert list(first.input_ids) == [1, 2, 7, 8, 9]
    second = resumed(request, [7] * 6, 3)
    assert second is not None
    assert second.sampling == {"max_tokens": 4, "min_new_tokens": 0}
    assert resumed(request, [7] * 10, 4) is None


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_a_constrained_reply_isnt_gone_on_with(name: str) -> None:
    """A grammar begins anew with each request: behind half an object another one would begin."""
    assert not is_resumable(asked(**{name: "x"}), [7])
    assert is_resumable(asked(**{name: "x"}), [])
    assert is_resumable(asked(**{name: None}, temperature=1.0), [7])


class ScriptedEngine:
    """Answers each request with the next script: a list of texts (one chunk each) and how it ends."""

    kind, url, is_text_in = "sglang", "http://engine", False

    def __init__(self, *scripts: tuple[list[str], str]) -> None:
        self._scripts = list(scripts)
        self.requests: list[GenerateRequest] = []

    def untold(self, sampling: Any) -> list[str]:
        del sampling
        return []

    @asynccontextmanager
    async def generate(self, request: GenerateRequest) -> AsyncIterator[AsyncIterator[EngineChunk]]:
        self.requests.append(request)
        yield self._chunks(*self._scripts.pop(0))

    async def _chunks(self, texts: Sequence[str], end: str) -> AsyncIterator[EngineChunk]:
        count = 0
        for text in texts:
            ids = CharRenderer().encode(text)
            count += len(ids)
            yield EngineChunk(ids, [-0.5] * len(ids))
        spans = (WeightSpan("v1", 0, count),)
        yield EngineChunk([], [], EngineFinish(reason=end, weight_spans=spans, completion_tokens=count))  # type: ignore[arg-type]


class Recorded:
    """The recorder's part that a generation needs."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    async def finish(self, call: Call) -> None:
        del call

    async def fail(self, call: Call, error: Any) -> None:
        del call
        self.errors.append(error.kind)

    def abort(self, call: Call, reason: str) -> None:
        del call
        self.errors.append(reason)


async def run(engine: ScriptedEngine, **sampling: Any) -> tuple[Call, list[Any]]:
    """A call's whole life on that engine: the call, and what its client would see."""
    call = make()
    call.output_ids, call.logprobs, call.finish, call.parsed = [], [], None, None
    call.prompt.sampling.update(sampling)

    async def choose(*_: Any) -> Any:
        return SimpleNamespace(engine=engine, logprobs_mode="raw", info=None)

    generation = Generation(call, Recorded(), timeout_s=5.0, max_resumes=3)  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S):
        await generation.start(SimpleNamespace(choose=choose))  # type: ignore[arg-type]
    events = []
    while not generation.events.empty():
        events.append(generation.events.get_nowait())
    return call, events


async def test_a_stop_string_across_the_seam_ends_the_reply() -> None:
    """The engine can't know that the string began before it was interrupted; its reply ends there all the same."""
    engine = ScriptedEngine((["one ", "EN"], "abort"), (["D", " more", " and more"], "stop"))
    call, events = await run(engine, stop=["END"], max_tokens=50)
    assert len(engine.requests) == 2
    assert isinstance(events[-1], Finished)
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "one "
    assert (reply(call).text, reply(call).stop_sequence, reply(call).finish_reason) == ("one ", "END", "stop")
    assert CharRenderer().decode(call.output_ids) == "one END"
    assert len(call.logprobs) == len(call.output_ids)
    assert call.finish is not None
    assert call.finish.completion_tokens == 7


async def test_a_reply_that_the_engine_ends_itself_keeps_its_own_finish() -> None:
    """The string lies in one stretch: the engine found it, and its finish with all versions counts."""
    engine = ScriptedEngine((["one "], "abort"), (["E", "ND"], "stop"))
    call, events = await run(engine, stop=["END"], max_tokens=50)
    assert isinstance(events[-1], Finished)
    assert call.finish is not None
    assert call.finish.weight_spans == (WeightSpan("v1", 0, 7),)
    assert call.finish.fault == ""


async def test_an_aborted_constrained_reply_is_an_error_to_try_again() -> None:
    """It isn't gone on with, and the client is told that it may ask again."""
    engine = ScriptedEngine((['{"a": 1, '], "abort"), (['{"a": 1}'], "stop"))
    _, events = await run(engine, json_schema="{}", max_tokens=50)
    assert len(engine.requests) == 1
    assert isinstance(events[-1], Failed)
    assert events[-1].error.kind == "engine_unavailable"
    before = ScriptedEngine(([], "abort"), (['{"a": 1}'], "stop"))
    _, events = await run(before, json_schema="{}", max_tokens=50)
    assert isinstance(events[-1], Finished)
    assert events[-1].reply.text == '{"a": 1}'
