"""Paths of the generateContent API."""

from __future__ import annotations

import pytest

from capture_proxy.dialects import detect
from capture_proxy.dialects.detect import likely_dialect
from capture_proxy.dialects.google import DIALECT

BODY = b'{"contents": [{"parts": [{"text": "Hi"}]}]}'


@pytest.mark.parametrize(
    ("path", "operation", "model"),
    [
        ("/v1beta/models/gemini-x:generateContent", "generate", "gemini-x"),
        ("/v1/models/gemini-x:generateContent", "generate", "gemini-x"),
        ("/models/gemini-x:generateContent", "generate", "gemini-x"),
        ("//v1beta/models/gemini-x:generateContent", "generate", "gemini-x"),
        ("/v1beta/models/org%2Fm:generateContent", "generate", "org/m"),
        ("/v1beta/models/org/m:streamGenerateContent?alt=sse", "generate", "org/m"),
        ("/v1beta/models/my-local/model:7b:streamGenerateContent?alt=sse", "generate", "my-local/model:7b"),
        ("/v1beta/models/my-local%2Fmodel%3A7b%3AgenerateContent", "generate", "my-local/model:7b"),
        ("/v1beta/models/gemini-x:countTokens", "count_tokens", "gemini-x"),
    ],
)
def test_b85_methods_and_model_names(path: str, operation: str, model: str) -> None:
    """The method stands behind the last colon; slashes, colons and escapes before it belong to the model's name."""
    for prefix in ("", "/s/a.b_~-"):
        route = detect("POST", prefix + path, {"x-goog-api-key": "k"})
        assert route is not None
        assert (route.dialect, route.operation, route.model) == ("google", operation, model)
        assert route.secret == ("a.b_~-" if prefix else "k")
        parse = DIALECT.parse_count if operation == "count_tokens" else DIALECT.parse_request
        assert parse(route.path, {}, BODY).model == model


@pytest.mark.parametrize(
    ("query", "stream", "array"),
    [
        (":generateContent", False, False),
        (":generateContent?alt=json", False, False),
        (":streamGenerateContent", True, True),
        (":streamGenerateContent?alt=sse", True, False),
        (":streamGenerateContent?alt=sse&alt=sse", True, False),
        (":streamGenerateContent?%24alt=json%3Benum-encoding%3Dint&$alt=sse", True, False),
    ],
)
def test_how_the_answer_is_framed(query: str, stream: bool, array: bool) -> None:
    """The method says whether it comes in pieces, `alt` whether they are events or one JSON array."""
    route = detect("POST", f"/v1beta/models/m{query}", {})
    assert route is not None
    request = DIALECT.parse_request(route.path, {}, BODY)
    assert (request.stream, request.echo["array"]) == (stream, array)


def test_b85_a_key_in_the_query_opens_the_session_and_goes_no_further() -> None:
    """It is the secret, unless the path or a header has one; the route's path, which is logged, doesn't hold it."""
    route = detect("POST", "/v1beta/models/m:streamGenerateContent?key=hidden&alt=sse", {})
    assert route is not None
    assert route.secret == "hidden"
    assert "hidden" not in route.path
    for headers, path in (({"x-goog-api-key": "k"}, ""), ({}, "/s/k")):
        route = detect("POST", f"{path}/v1beta/models/m:generateContent?key=hidden", headers)
        assert route is not None
        assert route.secret == "k"


@pytest.mark.parametrize(
    ("path", "headers", "model"),
    [
        ("/v1beta/models", {}, None),
        ("/v1beta/models/?pageSize=50", {}, None),
        ("/v1beta/models/org/m:7b", {}, "org/m:7b"),
        ("/v1/models?key=k", {}, None),
        ("/v1/models/m", {"X-Goog-Api-Key": "k"}, "m"),
    ],
)
def test_model_pages(path: str, headers: dict[str, str], model: str | None) -> None:
    """The list and single models; `/v1/models` is this vendor's where the key is."""
    route = detect("GET", path, headers)
    assert route is not None
    assert (route.dialect, route.operation, route.model) == ("google", "list_models", model)


@pytest.mark.parametrize(
    "path",
    [
        "/v1beta/models/m:embedContent",
        "/v1beta/models/m:batchEmbedContents",
        "/v1beta/models/m",
        "/v1beta/cachedContents",
        "/upload/v1beta/files?key=k",
    ],
)
def test_b85_other_methods_have_no_route(path: str) -> None:
    """What isn't offered has no route, and its error is in this vendor's shape."""
    assert detect("POST", path, {}) is None
    assert likely_dialect(path, {}) == "google"


def test_others_keep_their_endpoints() -> None:
    """Without a sign of this vendor, shared paths belong to whom they belonged before."""
    assert likely_dialect("/v1/models", {}) == "openai_chat"
    assert likely_dialect("/v1/models", {"x-api-key": "k"}) == "anthropic"
    route = detect("GET", "/v1/models", {})
    assert route is not None
    assert route.dialect == "openai_chat"
