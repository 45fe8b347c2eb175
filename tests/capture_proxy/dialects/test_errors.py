"""Errors in each vendor's shape."""

from __future__ import annotations

from typing import get_args

import orjson
import pytest

from capture_proxy.dialects import DIALECTS
from capture_proxy.reply import ChatRequest, ErrorKind, Failed, ProxyError

REQUEST = ChatRequest(dialect="any", model="policy", messages=[{"role": "user", "content": "Hi"}], stream=True)
ANTHROPIC = {
    "unauthorized": (401, "authentication_error"),
    "lease_ended": (409, "invalid_request_error"),
    "bad_request": (400, "invalid_request_error"),
    "context_overflow": (400, "invalid_request_error"),
    "overloaded": (429, "rate_limit_error"),
    "engine_unavailable": (529, "overloaded_error"),
    "engine_error": (500, "api_error"),
    "not_found": (404, "not_found_error"),
    "too_large": (413, "request_too_large"),
    "internal": (500, "api_error"),
}
GOOGLE = {
    "unauthorized": (401, "UNAUTHENTICATED"),
    "lease_ended": (409, "FAILED_PRECONDITION"),
    "bad_request": (400, "INVALID_ARGUMENT"),
    "context_overflow": (400, "INVALID_ARGUMENT"),
    "overloaded": (429, "RESOURCE_EXHAUSTED"),
    "engine_unavailable": (503, "UNAVAILABLE"),
    "engine_error": (500, "INTERNAL"),
    "not_found": (404, "NOT_FOUND"),
    "too_large": (413, "INVALID_ARGUMENT"),
    "internal": (500, "INTERNAL"),
}


@pytest.mark.parametrize("kind", get_args(ErrorKind))
@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_every_kind_in_every_dialect(name: str, kind: ErrorKind) -> None:
    """Status, JSON content type and the vendor's object; retries are invited with a time, or called off."""
    status, headers, body = DIALECTS[name].encode_error(ProxyError(kind, "what happened"))
    value = orjson.loads(body)
    assert headers["content-type"] == "application/json"
    assert "what happened" in value["error"]["message"]
    assert (status in {429, 503, 529}) == ("retry-after" in headers)
    assert not ("retry-after" in headers and "x-should-retry" in headers)
    if name == "anthropic":
        assert value["type"] == "error"
        assert (status, value["error"]["type"]) == ANTHROPIC[kind]
    elif name == "google":
        assert (value["error"]["code"], value["error"]["status"]) == (status, GOOGLE[kind][1])
        assert status == GOOGLE[kind][0]
    else:
        assert set(value["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("name", ["anthropic", "openai_chat"])
def test_a_stream_says_the_status_of_what_may_be_asked_again(name: str) -> None:
    """Inside a stream the text is all that a client has: Pi asks again only where it finds a status in it; a final error has none."""
    encoder = DIALECTS[name].stream_encoder

    def text(kind: ErrorKind) -> str:
        data = encoder(REQUEST).encode(Failed(ProxyError(kind, "what happened")))
        return str(orjson.loads(data.rpartition(b"data: ")[2])["error"]["message"])

    assert text("engine_error") == "500 what happened"
    assert text("engine_unavailable") == "503 what happened"
    assert text("overloaded") == "429 what happened"
    assert text("lease_ended") == "what happened"


def test_retry_after_is_whole_seconds_of_at_least_one() -> None:
    """Clients parse an integer; zero would be a busy loop."""
    for given, sent in ((7.0, "7"), (0.0, "1"), (1.2, "2")):
        headers = DIALECTS["openai_chat"].encode_error(ProxyError("overloaded", "x", retry_after_s=given))[1]
        assert headers["retry-after"] == sent


def test_a_full_context_is_recognised() -> None:
    """The words and the code that make clients compact instead of retrying."""
    error = ProxyError("context_overflow", "9000 tokens > 8192 maximum", param="messages")
    assert orjson.loads(DIALECTS["anthropic"].encode_error(error)[2])["error"]["message"].startswith(
        "prompt is too long"
    )
    chat = orjson.loads(DIALECTS["openai_chat"].encode_error(error)[2])["error"]
    assert (chat["code"], chat["param"]) == ("context_length_exceeded", "messages")
