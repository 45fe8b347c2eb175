"""Routes and secrets."""

from __future__ import annotations

import pytest

from capture_proxy.dialects import DIALECTS, detect
from capture_proxy.dialects.detect import secret_of, split_secret


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        (
            "POST",
            "/v1/chat/completions",
            {"Authorization": "Bearer k"},
            ("openai_chat", "generate", "/v1/chat/completions", "k"),
        ),
        ("POST", "/s/a.b_~-/v1/chat/completions", {}, ("openai_chat", "generate", "/v1/chat/completions", "a.b_~-")),
        ("POST", "/s/a/v1/messages?beta=true", {"x-api-key": "k"}, ("anthropic", "generate", "/v1/messages", "a")),
        (
            "POST",
            "/v1/messages/count_tokens?beta=true",
            {"X-Api-Key": "k"},
            ("anthropic", "count_tokens", "/v1/messages/count_tokens", "k"),
        ),
        ("GET", "/v1/models?limit=1000", {"anthropic-version": "1"}, ("anthropic", "list_models", "/v1/models", None)),
        ("GET", "/s/a/v1/models/", {}, ("openai_chat", "list_models", "/v1/models", "a")),
        ("HEAD", "/", {}, ("openai_chat", "probe", "/", None)),
        ("HEAD", "/s/a/api/hello", {"x-api-key": "k"}, ("anthropic", "probe", "/api/hello", "a")),
        ("HEAD", "/s/a", {}, ("openai_chat", "probe", "/", "a")),
    ],
)
def test_routes(method: str, path: str, headers: dict[str, str], expected: tuple[str, str, str, str | None]) -> None:
    """Dialect, operation, bare path and secret; the query is ignored and the path's secret wins."""
    route = detect(method, path, headers)
    assert route is not None
    assert (route.dialect, route.operation, route.path, route.secret) == expected
    assert route.dialect in DIALECTS


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/embeddings"), ("GET", "/v1/chat/completions"), ("POST", "/s/"), ("POST", "/")]
)
def test_unknown_endpoints(method: str, path: str) -> None:
    """What no dialect offers has no route."""
    assert detect(method, path, {}) is None


def test_a_model_can_be_named() -> None:
    """One model's page says which, slashes included."""
    route = detect("GET", "/v1/models/org/m:7b", {})
    assert route is not None
    assert route.model == "org/m:7b"


def test_secrets() -> None:
    """Only a bearer token or a known key header counts; empty ones don't."""
    assert secret_of({"authorization": "bearer  x "}, "/") == "x"
    assert secret_of({"authorization": "Basic x"}, "/") is None
    assert secret_of({"x-api-key": " "}, "/s//v1/messages") is None
    assert split_secret("/sx/v1") == ("/sx/v1", None)
