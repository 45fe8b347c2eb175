"""Replies in several stretches, as values."""

from __future__ import annotations

import aiohttp
import pytest

from capture_proxy.engines.base import EngineFinish, GenerateRequest, WeightSpan
from capture_proxy.engines.spans import MIXED, tile
from capture_proxy.reply import ProxyError
from capture_proxy.stretches import Stretch, is_unreached, joined, resumed

PROMPT = [1, 2, 3]


def finish(reason: str = "abort", *spans: tuple[str, int, int], **more: object) -> EngineFinish:
    versions = tuple(WeightSpan(*span) for span in spans)
    return EngineFinish(reason=reason, weight_spans=versions, **more)  # type: ignore[arg-type]


def test_b103_one_stretch_is_left_as_it_is() -> None:
    """A reply that was never aborted keeps the engine's own finish."""
    whole = finish("stop", ("7", 0, 2), prompt_tokens=3)
    assert joined([Stretch(0, whole)], PROMPT, [5, 6]) is whole


def test_b103_spans_lie_on_one_axis() -> None:
    """Versions [3,3,4,4], whatever each stretch counted from; neighbours of one version are one span."""
    parts = [
        Stretch(0, finish("abort", ("3", 0, 2), prompt_tokens=3, cached_tokens=1, prompt_ids=PROMPT)),
        Stretch(2, finish("abort", ("4", 0, 1), prompt_tokens=5, prompt_ids=[*PROMPT, 5, 6])),
        Stretch(3, finish("stop", ("4", 0, 1), prompt_tokens=6, prompt_ids=[*PROMPT, 5, 6, 7])),
    ]
    whole = joined(parts, PROMPT, [5, 6, 7, 8])
    assert whole.weight_spans == (WeightSpan("3", 0, 2), WeightSpan("4", 2, 4))
    assert tile(whole.weight_spans, 4)
    assert (whole.reason, whole.prompt_tokens, whole.completion_tokens, whole.cached_tokens) == ("stop", 3, 4, 1)
    assert (whole.prompt_ids, whole.fault) == (PROMPT, "")


def test_b103_a_stretch_that_began_elsewhere_is_a_mismatch() -> None:
    """An engine that went on after other tokens than it was given is noticed; one that tells nothing, isn't judged."""
    first = Stretch(0, finish("abort", ("3", 0, 1), prompt_ids=PROMPT))
    astray = joined([first, Stretch(1, finish("stop", ("3", 0, 1), prompt_ids=[*PROMPT, 99]))], PROMPT, [5, 6])
    assert astray.prompt_ids not in (None, PROMPT)
    forgetful = joined([first, Stretch(1, finish("stop", ("3", 0, 1), prompt_ids=PROMPT))], PROMPT, [5, 6])
    assert forgetful.prompt_ids not in (None, PROMPT)
    silent = joined([Stretch(0, finish()), Stretch(1, finish("stop"))], PROMPT, [5, 6])
    assert silent.prompt_ids is None


@pytest.mark.parametrize("known", [(), (("3", 0, 1),)])
def test_b103_tokens_of_an_unknown_version_are_a_fault(known: tuple[tuple[str, int, int], ...]) -> None:
    """A stretch with tokens and without a version: nobody knows whose they are. One without tokens needs none."""
    parts = [Stretch(0, finish("abort", *known)), Stretch(1, finish("stop"))]
    assert joined(parts, PROMPT, [5, 6]).fault == MIXED
    empty_first = [Stretch(0, finish("abort")), Stretch(0, finish("stop", ("4", 0, 2)))]
    assert joined(empty_first, PROMPT, [5, 6]).fault == ""


def test_b103_the_limit_shrinks_by_what_was_sampled() -> None:
    """Prompt and tokens go in, under another request id; none where nothing more may be sampled."""
    request = GenerateRequest(rid="r", session_id="s", input_ids=PROMPT, sampling={"max_tokens": 10, "top_p": 0.5})
    following = resumed(request, [5, 6], 2)
    assert following is not None
    assert (following.rid, list(following.input_ids)) == ("r-2", [1, 2, 3, 5, 6])
    assert following.sampling == {"max_tokens": 8, "top_p": 0.5}
    assert request.sampling["max_tokens"] == 10
    assert resumed(request, list(range(10)), 3) is None


def test_b97_only_what_the_engine_never_answered_is_tried_again() -> None:
    """A cut connection, yes; a status, a deadline or nonsense, no."""

    def caused(error: Exception) -> ProxyError:
        made = ProxyError("engine_unavailable", "x")
        made.__cause__ = error
        return made

    assert is_unreached(caused(aiohttp.ServerDisconnectedError()))
    assert is_unreached(caused(ConnectionRefusedError()))
    assert not is_unreached(caused(TimeoutError()))
    assert not is_unreached(ProxyError("engine_unavailable", "the engine answered 503", retry_after_s=7))
    assert not is_unreached(ProxyError("overloaded", "the engine answered 429"))
