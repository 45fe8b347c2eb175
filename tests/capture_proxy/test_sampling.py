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


def test_nothing_is_left_to_the_engines_defaults() -> None:
    """What nobody sets is neutral, and stands in the record; null is not set."""
    sampling, _ = effective({"temperature": None}, defaults={"top_k": 20, "min_p": None})
    assert (sampling["temperature"], sampling["top_k"], sampling["min_p"]) == (1.0, 20, 0.0)
    assert (sampling["repetition_penalty"], sampling["frequency_penalty"]) == (1.0, 0.0)


def test_an_output_format_binds_the_engine() -> None:
    """The schema as text in the client's order, and a note that the logprobs are of a masked distribution."""
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    sampling, notes = effective({}, response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    assert sampling["json_schema"] == '{"type":"object","properties":{"b":{},"a":{}}}'
    assert notes == ("constrained: the logprobs are of a distribution masked by json_schema",)
    assert effective({}, response_format={"type": "json_object"})[0]["json_schema"] == '{"type":"object"}'
    assert "json_schema" not in effective({}, response_format={"type": "text"})[0]


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": {"maximum": 2**70}}},
    ],
)
def test_a_format_that_no_engine_can_hold(wanted: dict[str, Any]) -> None:
    """A clear error, never free prose."""
    with pytest.raises(ProxyError) as caught:
        effective({}, response_format=wanted)
    assert caught.value.kind == "bad_request"
