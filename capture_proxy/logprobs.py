"""Logprobs as an engine gave them: packed for the record, judged whether a trainer may use them, and shown to a client that asks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from capture_proxy.engines.base import Alternatives
from capture_proxy.rendering.base import ParsedReply, Renderer
from capture_proxy.reply import TokenLogprob
from schemas import arrays

# Rounding of float32 log-softmax can leave a logprob a hair above zero.
_LOGPROB_SLACK: Final = 1e-3

# Engines write -9999 for minus infinity; e^-1000 is a probability that nothing is ever sampled with.
_LOGPROB_FLOOR: Final = -1000.0

_FLOAT32_MAX: Final = 3.4028234663852886e38

_SHOWN_FLOOR: Final = -9999.0
"""What clients are shown for a logprob that isn't a number: the vendors' own stand-in, since JSON has no infinity."""


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """Logprobs as they travel. An engine may answer null: what can't be a float32 is kept as NaN, and the call is untrainable."""
    return arrays.pack_logprobs([value if _is_float32(value) else math.nan for value in logprobs])


def _is_float32(value: float | None) -> bool:
    return value is not None and abs(value) <= _FLOAT32_MAX


def why_untrainable(
    output_ids: Sequence[int],
    logprobs: Sequence[float],
    prompt_echo: str,
    *,
    vocab_size: int = 0,
    fault: str = "",
    has_prompt: bool = True,
    has_reply: bool = False,
) -> str:
    """The reason why a finished call's tokens can't be trained, or '' when they can.

    `vocab_size` 0: unknown, not checked. `fault` is what the engine's client found, `has_prompt` whether the prompt's ids are known,
    `has_reply` whether the client got anything: then an output without ids lacks them.
    """
    if prompt_echo == "mismatch":
        return "prompt_echo_mismatch"
    if not output_ids:
        return "ids_missing" if logprobs or has_reply else "empty"
    if not has_prompt:
        return "no_prompt_ids"
    if fault:
        return fault
    if vocab_size and max(output_ids) >= vocab_size:
        return "oov"
    if not logprobs:
        return "no_logprobs"
    if len(logprobs) != len(output_ids):
        return "logprob_length"
    if not all(_is_float32(value) and _LOGPROB_FLOOR < value <= _LOGPROB_SLACK for value in logprobs):
        return "logprob_invalid"
    return ""


def for_client(
    parsed: ParsedReply,
    output_ids: Sequence[int],
    logprobs: Sequence[float],
    top: Sequence[Alternatives],
    renderer: Renderer,
    *,
    top_count: int,
) -> tuple[TokenLogprob, ...]:
    """The tokens that the visible text came from, each with its logprob and its `top_count` most likely alternatives.

    Thinking, tool calls and hidden special tokens are left out, as in the vendors' answers, and so is what was trimmed at the ends:
    the tokens' bytes add up to the text wherever the text's borders are tokens' borders.
    """
    if len(logprobs) != len(output_ids):
        return ()
    inside = {at for call in parsed.tool_calls for at in range(*call.span)}
    kept = [at for at in range(parsed.reasoning_tokens, len(output_ids)) if at not in inside]
    pieces = {at: renderer.token_bytes(output_ids[at]) for at in kept}
    return tuple(
        _entry(renderer, output_ids[at], logprobs[at], top[at][:top_count] if at < len(top) else ())
        for at in _touched([at for at in kept if pieces[at]], pieces, parsed.text.encode())
    )


def _touched(kept: list[int], pieces: dict[int, bytes], text: bytes) -> list[int]:
    """The positions whose bytes overlap the text inside what they all add up to; all of them where it isn't found."""
    start = b"".join(pieces[at] for at in kept).find(text) if text else 0
    if start < 0:
        return kept
    end, reached = start + len(text), 0
    found: list[int] = []
    for at in kept:
        begin, reached = reached, reached + len(pieces[at])
        if begin < end and reached > start:
            found.append(at)
    return found


def _entry(renderer: Renderer, token_id: int, logprob: float, top: Alternatives) -> TokenLogprob:
    data = renderer.token_bytes(token_id) or renderer.decode([token_id]).encode()
    shown = logprob if _is_float32(logprob) else _SHOWN_FLOOR
    alternatives = tuple(_entry(renderer, other, value, ()) for value, other in top)
    return TokenLogprob(data.decode("utf-8", "replace"), list(data), shown, alternatives)
