"""Of which distribution an engine's logprobs are: measured, since no engine's interface says it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from capture_proxy.engines.base import ChatPrompt, EngineChunk, GenerateRequest
from capture_proxy.engines.http import HttpStream
from capture_proxy.reply import ProxyError

RAW: Final = "raw"
"""Before the temperature. SGLang with SGLANG_RETURN_ORIGINAL_LOGPROB, vLLM by default."""
TEMPERATURE: Final = "temperature"
"""After the temperature, before top_p and top_k cut the tail. SGLang by default."""
PROCESSED: Final = "processed"
"""After temperature and cut. vLLM with --logprobs-mode processed_logprobs."""
NONE: Final = "none"

NO_IDS: Final = "no ids of what it samples"
NO_LOGPROBS: Final = "no logprobs"
NO_PROMPT_IDS: Final = "no ids of the prompt"
NO_VERSIONS: Final = "no weight versions"

PROBE_RID: Final = "probe-"
"""How the ids of a probe's requests begin."""

_TEMPERATURES: Final = (1.0, 2.0)
_ONE_TOKEN: Final = 1e-6  # a top_p that leaves only the likeliest token, without switching an engine to its greedy path
_TOLERANCE: Final = 1e-3
GENERATE_TIMEOUT_S: Final = 60.0
"""One token of an engine that has just started, or is busy."""


class Generates(Protocol):
    """An engine, as far as measuring needs it."""

    def generate(self, request: GenerateRequest) -> HttpStream:
        """Starts a generation."""
        ...


def probe_sampling(temperature: float) -> dict[str, Any]:
    """Sampling that always gives the likeliest token, at a temperature."""
    return {"temperature": temperature, "top_p": _ONE_TOKEN, "max_tokens": 1, "ignore_eos": True}


def mode_of(logprobs: Mapping[float, float]) -> str:
    """The mode, from the logprobs of the likeliest token at two temperatures: what the temperature doesn't move is raw.

    A cut to one token leaves probability 1, so a processed logprob is 0 at either.
    """
    cold, hot = (logprobs[t] for t in _TEMPERATURES)
    if abs(cold) < _TOLERANCE and abs(hot) < _TOLERANCE:
        return PROCESSED
    return RAW if abs(cold - hot) < _TOLERANCE else TEMPERATURE


async def measure_mode(engine: Generates, prompt_ids: Sequence[int]) -> tuple[str, tuple[str, ...]]:
    """The mode of an engine's logprobs, and what it failed to give, in words. Samples two tokens.

    Raises ProxyError where the engine can't answer now; one that refuses the requests has an unknown mode.
    """
    found: dict[float, float] = {}
    gaps: set[str] = set()
    for temperature in _TEMPERATURES:
        try:
            chunks = await _sample(engine, prompt_ids, temperature)
        except ProxyError as error:
            if error.kind in ("overloaded", "engine_unavailable"):
                raise
            return "", (f"it refuses to sample a token: {error.message}", NO_IDS)
        logprobs = [value for chunk in chunks for value in chunk.new_logprobs]
        if logprobs and isinstance(logprobs[0], int | float):
            found[temperature] = logprobs[0]
        gaps.update(gaps_of(chunks))
    mode = mode_of(found) if len(found) == len(_TEMPERATURES) else NONE if NO_LOGPROBS in gaps else ""
    return mode, tuple(sorted(gaps))


async def _sample(engine: Generates, prompt_ids: Sequence[int], temperature: float) -> list[EngineChunk]:
    request = GenerateRequest(
        rid=f"{PROBE_RID}{uuid.uuid4().hex}",
        session_id=PROBE_RID,
        input_ids=list(prompt_ids),
        sampling=probe_sampling(temperature),
        timeout_s=GENERATE_TIMEOUT_S,
        chat=ChatPrompt(messages=[{"role": "user", "content": "Say something."}], max_tokens=1),
    )
    async with engine.generate(request) as stream:
        return [chunk async for chunk in stream]


def gaps_of(chunks: Sequence[EngineChunk]) -> set[str]:
    """What a whole reply lacks of what a trainer needs, in words."""
    finish = chunks[-1].finish if chunks else None
    missing = {
        NO_IDS: not any(chunk.new_ids for chunk in chunks),
        NO_LOGPROBS: not any(chunk.new_logprobs for chunk in chunks),
        NO_PROMPT_IDS: finish is None or not finish.prompt_ids,
        NO_VERSIONS: finish is None or not finish.weight_spans,
    }
    return {words for words, is_missing in missing.items() if is_missing}


def check_mode(wanted: str | None, measured: str) -> str:
    """Why an engine may not be used: its logprobs aren't of the distribution that the settings pin. '' when it may."""
    if not wanted or wanted == measured:
        return ""
    return (
        f"its logprobs are {measured or 'of an unknown mode'}, the settings say {wanted}: start it with other options "
        "(SGLang: SGLANG_RETURN_ORIGINAL_LOGPROB, vLLM: --logprobs-mode), or correct the settings"
    )
