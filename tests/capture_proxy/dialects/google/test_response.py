"""generateContent answers as one body, and the small endpoints, checked against the vendor's own types."""

from __future__ import annotations

from typing import Any

import orjson
from google.genai import types

from capture_proxy.dialects import ModelEntry
from capture_proxy.dialects.google import DIALECT
from capture_proxy.reply import Reply, TokenLogprob, ToolCall
from capture_proxy.turn_ids import completion_of, turn_token

ID = "11112222-3333-4444-5555-666677778888"


def reply(**more: Any) -> Reply:
    """A finished reply with defaults."""
    return Reply(
        **{
            "completion_id": ID,
            "model": "org/m:7b",
            "text": "",
            "finish_reason": "stop",
            "prompt_tokens": 12,
            "completion_tokens": 9,
            "created_at": 1_700_000_000_123,
            "echo": {"thoughts": True, "array": False},
            **more,
        }
    )


def whole(**more: Any) -> dict[str, Any]:
    """The answer, after the vendor's own type took it without leaving a field out."""
    value: dict[str, Any] = orjson.loads(DIALECT.encode_whole(reply(**more)))
    typed = types.GenerateContentResponse.model_validate(value)
    assert typed.model_extra in (None, {})
    assert typed.candidates is not None
    assert typed.candidates[0].finish_reason in types.FinishReason
    return value


def test_a_whole_reply() -> None:
    """Thought, text and call in order, each with the turn's mark; the arguments are the sampled object, number forms and all."""
    sampled = '{"n": 1.0,\n "s": "é"}'
    value = whole(
        reasoning="r", text="hi", tool_calls=(ToolCall("c", "f", sampled),), finish_reason="tool_calls",
        reasoning_tokens=4, cached_tokens=2,
    )  # fmt: skip
    [candidate] = value["candidates"]
    assert (candidate["index"], candidate["finishReason"], candidate["content"]["role"]) == (0, "STOP", "model")
    thought, text, call = candidate["content"]["parts"]
    assert (thought["text"], thought["thought"], text["text"]) == ("r", True, "hi")
    assert "thought" not in text
    assert call["functionCall"] == {"id": "c", "name": "f", "args": {"n": 1.0, "s": "é"}}
    assert {completion_of(part["thoughtSignature"]) for part in (thought, text, call)} == {ID}
    assert value["usageMetadata"] == {
        "promptTokenCount": 12,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 4,
        "totalTokenCount": 21,
        "cachedContentTokenCount": 2,
    }
    assert (value["modelVersion"], value["responseId"]) == ("org/m:7b", ID.replace("-", ""))
    assert value["createTime"] == "2023-11-14T22:13:20.123Z"


def test_thoughts_only_for_those_who_ask() -> None:
    """As with the vendor; the text still carries the turn's mark."""
    parts = whole(reasoning="r", text="hi", echo={"thoughts": False})["candidates"][0]["content"]["parts"]
    assert parts == [{"text": "hi", "thoughtSignature": turn_token(ID)}]


def test_b79_finish_reasons() -> None:
    """There is no reason for calls; a cut is MAX_TOKENS; an empty reply still has a part."""
    call = (ToolCall("c", "f", ""),)
    assert whole(tool_calls=call, finish_reason="tool_calls")["candidates"][0]["finishReason"] == "STOP"
    assert whole(tool_calls=call, finish_reason="stop")["candidates"][0]["finishReason"] == "STOP"
    cut = whole(finish_reason="length")["candidates"][0]
    assert cut["finishReason"] == "MAX_TOKENS"
    assert [part["text"] for part in cut["content"]["parts"]] == [""]


def test_logprobs_as_the_vendor_gives_them() -> None:
    """Chosen and top candidates per token."""
    tokens = (TokenLogprob("a", [97], -0.5, (TokenLogprob("b", [98], -1.5),)), TokenLogprob("c", [99], -1.5))
    candidate = whole(text="ac", logprobs=tokens)["candidates"][0]
    assert candidate["avgLogprobs"] == -1.0
    assert candidate["logprobsResult"] == {
        "chosenCandidates": [{"token": "a", "logProbability": -0.5}, {"token": "c", "logProbability": -1.5}],
        "topCandidates": [{"candidates": [{"token": "b", "logProbability": -1.5}]}, {"candidates": []}],
    }


def test_b85_counting_and_listing() -> None:
    """Token counts and models in the vendor's shape."""
    assert orjson.loads(DIALECT.encode_count(42)) == {"totalTokens": 42}
    listed = orjson.loads(DIALECT.encode_models([ModelEntry("org/a", 100, 0), ModelEntry("b")]))
    assert [model["name"] for model in listed["models"]] == ["models/org/a", "models/b"]
    assert [model.get("inputTokenLimit") for model in listed["models"]] == [100, None]
    one = orjson.loads(DIALECT.encode_model(ModelEntry("b")))
    assert "generateContent" in one["supportedGenerationMethods"]
