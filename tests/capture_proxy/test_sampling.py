"""Which sampling a call gets."""

from __future__ import annotations

from typing import Any

import pytest

from capture_proxy.reply import ProxyError
from capture_proxy.sampling import effective_sampling


def effective(requested: dict[str, Any], **changes: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    options: dict[str, Any] = {
        "overrides": {},
        "defaults": {},
        "prompt_tokens": 100,
        "context_length": 1000,
        "default_max_tokens": 500,
        "stop_token_ids": (7,),
        **changes,
    }
    return effective_sampling(requested, options.pop("overrides"), options.pop("defaults"), **options)


def test_the_task_over_the_request_over_the_defaults() -> None:
    """Each level fills what the one above leaves open; an override that changes something is noted."""
    sampling, notes = effective(
        {"temperature": 0.5, "top_p": 0.9}, overrides={"temperature": 1.0}, defaults={"top_p": 0.1, "top_k": 20}
    )
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (1.0, 0.9, 20)
    assert notes == ("temperature: task overrides request",)


def test_the_answer_fits_the_context() -> None:
    """A harness that asks for more than there is room gets the room, and a note."""
    sampling, notes = effective({"max_tokens": 32_000})
    assert sampling["max_tokens"] == 900
    assert "900" in notes[0]
    assert effective({})[0]["max_tokens"] == 500
    assert effective({"max_tokens": 32_000}, context_length=None)[0]["max_tokens"] == 32_000


@pytest.mark.parametrize("prompt_tokens", [1000, 5000])
def test_no_room_at_all_is_an_overflow(prompt_tokens: int) -> None:
    """The error says the limit and the length, in the words that harnesses look for."""
    with pytest.raises(ProxyError, match="maximum context length is 1000 tokens") as caught:
        effective({}, prompt_tokens=prompt_tokens)
    assert caught.value.kind == "context_overflow"


def test_the_models_stop_tokens_are_always_there() -> None:
    """The request's own stop ids are kept beside them; nothing that is None reaches the engine."""
    sampling, _ = effective({"stop_token_ids": [3], "seed": None})
    assert sampling["stop_token_ids"] == [3, 7]
    assert "seed" not in sampling
