"""Where Responses clients knock."""

from __future__ import annotations

import pytest

from capture_proxy.dialects import detect
from capture_proxy.dialects.detect import hint_of


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/s/abc/v1/responses", "/s/abc/responses/", "/v1/responses?x=1"])  # fmt: skip
def test_b71_base_urls_that_work(path: str) -> None:
    """With and without `/v1`, with the session in the path or not, with a slash at the end."""
    route = detect("POST", path, {"authorization": "Bearer k"})
    assert route is not None
    assert (route.dialect, route.operation) == ("openai_responses", "generate")
    assert route.secret == ("abc" if "abc" in path else "k")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1//responses", "/v1/responses"),
        ("/v1/v1/responses", "/v1/responses"),
        ("/s/abc/openai/v1/responses", "/v1/responses"),
        ("/api/chat/completions", "/v1/chat/completions"),
        ("/anthropic/v1/messages", "/v1/messages"),
        ("/x/messages/count_tokens", "/v1/messages/count_tokens"),
    ],
)
def test_b71_others_are_told_the_right_path(path: str, meant: str) -> None:
    """A base URL that was put together wrongly has no route, and the error names the right one."""
    assert detect("POST", path, {}) is None
    assert f"POST to {meant}," in hint_of(path)
    assert "abc" not in hint_of(path)
    assert hint_of("/v1/embeddings") == ""


def test_token_counts_have_a_route() -> None:
    """The vendor's own endpoint."""
    route = detect("POST", "/s/a/v1/responses/input_tokens", {})
    assert route is not None
    assert (route.dialect, route.operation) == ("openai_responses", "count_tokens")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses/compact"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("GET", "/v1/responses"),
    ],
)
def test_b67_what_needs_a_store_has_no_route(method: str, path: str) -> None:
    """No stored responses, no compaction by the server."""
    assert detect(method, path, {}) is None
    assert hint_of(path)
