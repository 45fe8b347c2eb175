"""Logprobs as an engine gave them: packed for the record, and judged whether a trainer may use them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from schemas import arrays

# Rounding of float32 log-softmax can leave a logprob a hair above zero.
_LOGPROB_SLACK: Final = 1e-3

_FLOAT32_MAX: Final = 3.4028234663852886e38


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """Logprobs as they travel. An engine may answer null: what can't be a float32 is kept as NaN, and the call is untrainable."""
    return arrays.pack_logprobs([value if _is_float32(value) else math.nan for value in logprobs])


def _is_float32(value: float | None) -> bool:
    return value is not None and abs(value) <= _FLOAT32_MAX


def why_untrainable(output_ids: Sequence[int], logprobs: Sequence[float], prompt_echo: str) -> str:
    """The reason why a finished call's tokens can't be trained, or '' when they can."""
    if prompt_echo == "mismatch":
        return "prompt_echo_mismatch"
    if not output_ids:
        return "ids_missing" if logprobs else "empty"
    if not logprobs:
        return "logprobs_missing"
    if len(logprobs) != len(output_ids):
        return "logprob_length"
    if not all(_is_float32(value) and value <= _LOGPROB_SLACK for value in logprobs):
        return "logprob_invalid"
    return ""
