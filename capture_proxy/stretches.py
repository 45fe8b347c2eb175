"""One reply in several stretches: tried again while nothing was sampled yet, and gone on with after the engine stopped it. Pure.

An engine that takes new weights aborts what runs. Its tokens are good: the request goes to it again with prompt and tokens so far, and
the harness never hears of it. Each token keeps the version that sampled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from capture_proxy.engines.base import EngineFinish, GenerateRequest, WeightSpan
from capture_proxy.engines.spans import MIXED
from capture_proxy.reply import ProxyError

RETRY_PAUSES_S = (0.1, 0.5)
"""Before another try where the engine couldn't be reached: a connection that it had closed, a server that comes back. The client is
told of the rest, and has its own patience."""


_GRAMMARS: Final = ("json_schema", "regex", "ebnf", "structural_tag", "required_prefix_token_ids")
"""Sampling parameters that an engine holds an output to from its first token on."""


def is_resumable(request: GenerateRequest, output_ids: Sequence[int]) -> bool:
    """Whether another stretch can go on behind these tokens: a grammar would begin anew there, in the middle of what it allows."""
    return not output_ids or all(request.sampling.get(name) is None for name in _GRAMMARS)


def is_unreached(error: ProxyError) -> bool:
    """Whether the engine never had the request: no status came, and not because of a deadline."""
    cause = error.__cause__
    return error.kind == "engine_unavailable" and isinstance(cause, Exception) and not isinstance(cause, TimeoutError)


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stretch: where in the output it began, and how it ended."""

    start: int
    finish: EngineFinish


def resumed(request: GenerateRequest, output_ids: Sequence[int], number: int) -> GenerateRequest | None:
    """The request that goes on after `output_ids`, as the `number`-th stretch; None when no more tokens may be sampled."""
    sampling = dict(request.sampling)
    if (limit := sampling.get("max_tokens")) is not None:
        sampling["max_tokens"] = limit - len(output_ids)
        if sampling["max_tokens"] < 1:
            return None
    if (least := sampling.get("min_new_tokens")) is not None:
        sampling["min_new_tokens"] = max(0, least - len(output_ids))
    return replace(
        request, rid=f"{request.rid}-{number}", input_ids=[*request.input_ids, *output_ids], sampling=sampling
    )


def joined(stretches: Sequence[Stretch], prompt_ids: Sequence[int], output_ids: Sequence[int]) -> EngineFinish:
    """The finish of the whole reply, as if it had been one."""
    first, last = stretches[0].finish, stretches[-1].finish
    if len(stretches) == 1:
        return last
    spans = _spans(stretches, len(output_ids))
    faults = [stretch.finish.fault for stretch in stretches if stretch.finish.fault]
    if spans is None:
        faults.append(MIXED)
    return replace(
        last,
        prompt_tokens=first.prompt_tokens or len(prompt_ids),
        completion_tokens=len(output_ids),
        cached_tokens=first.cached_tokens,
        weight_spans=tuple(spans or ()),
        prompt_ids=_echo(stretches, list(prompt_ids), output_ids),
        fault=faults[0] if faults else "",
    )


def _spans(stretches: Sequence[Stretch], count: int) -> list[WeightSpan] | None:
    """The version spans on one axis, neighbours of one version joined; None when some tokens' version isn't known."""
    ends = [stretch.start for stretch in stretches[1:]] + [count]
    spans: list[WeightSpan] = []
    for stretch, end in zip(stretches, ends, strict=True):
        if not stretch.finish.weight_spans and end > stretch.start:
            return None
        for span in stretch.finish.weight_spans:
            start, stop = span.start + stretch.start, span.end + stretch.start
            if stop == start:
                continue
            if spans and spans[-1].version == span.version and spans[-1].end == start:
                spans[-1] = WeightSpan(span.version, spans[-1].start, stop)
            else:
                spans.append(WeightSpan(span.version, start, stop))
    return spans


def _echo(stretches: Sequence[Stretch], prompt_ids: list[int], output_ids: Sequence[int]) -> list[int] | None:
    """The engine's own prompt ids of the whole: the prompt, when each stretch began with what it should; None when it told none."""
    told = None
    for stretch in stretches:
        ids = stretch.finish.prompt_ids
        if ids is None:
            continue
        if ids != [*prompt_ids, *output_ids[: stretch.start]]:
            return ids if ids != prompt_ids else []
        told = prompt_ids
    return told
