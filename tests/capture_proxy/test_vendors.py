"""The vendors' hosts as data: names, paths, side calls."""

from __future__ import annotations

import pytest

from capture_proxy.vendors import SIDE_CALLS, VENDORS, HostList, Vendor, more_vendors, our_path, side_call


@pytest.mark.parametrize(
    ("host", "path", "ours"),
    [
        ("api.openai.com", "/v1/responses", "/v1/responses"),
        ("chatgpt.com", "/backend-api/codex/responses", "/v1/responses"),
        ("dashscope.aliyuncs.com", "/compatible-mode/v1/chat/completions", "/v1/chat/completions"),
        ("openrouter.ai", "/api/v1/chat/completions?x=1", "/v1/chat/completions?x=1"),
        ("api.z.ai", "/api/anthropic/v1/messages", "/v1/messages"),
        ("api.z.ai", "/api/coding/paas/v4/chat/completions", "/v1/chat/completions"),
        ("generativelanguage.googleapis.com", "/v1beta/models/m:generateContent", "/v1beta/models/m:generateContent"),
        ("generativelanguage.googleapis.com", "/v1beta/openai/chat/completions", "/v1/chat/completions"),
        ("openrouter.ai", "/api/v10/models", "/api/v10/models"),
        ("api.deepseek.com", "/anthropic", "/"),
    ],
)
def test_a_vendors_path_becomes_ours(host: str, path: str, ours: str) -> None:
    """Whole segments only; the longest prefix wins; the query stays."""
    vendor = HostList.of(VENDORS).vendor(host)
    assert vendor is not None
    assert our_path(vendor, path) == ours


def test_hosts_are_compared_as_names() -> None:
    """Case and the root's dot don't matter; a name that only looks alike isn't one."""
    hosts = HostList.of(VENDORS, ("pypi.org", "mirror.example:8443"))
    assert hosts.vendor("API.Anthropic.com.") is hosts.vendor("api.anthropic.com")
    assert hosts.vendor("api.anthropic.com.evil.test") is None
    assert hosts.vendor("xapi.anthropic.com") is None
    assert hosts.is_passed_through("PyPI.org", 443)
    assert hosts.is_passed_through("mirror.example", 8443)
    assert not hosts.is_passed_through("pypi.org", 80)
    assert not hosts.is_passed_through("mirror.example", 443)


def test_refused_hosts_have_a_reason() -> None:
    """A known telemetry host and what is below it, or simply unknown."""
    hosts = HostList.of(VENDORS)
    assert hosts.why_refused("o1.ingest.sentry.io") == "telemetry_host"
    assert hosts.why_refused("notsentry.io") == "unknown_host"


def test_side_calls_never_cover_the_model() -> None:
    """What is answered with a fixed body is never a call that a model should answer."""
    model_paths = {
        "api.anthropic.com": ("/v1/messages", "/v1/messages/count_tokens", "/v1/models"),
        "api.openai.com": ("/v1/responses", "/v1/chat/completions", "/v1/models", "/v1/models/m"),
        "chatgpt.com": ("/backend-api/codex/responses",),
        "openrouter.ai": ("/api/v1/chat/completions", "/api/v1/models"),
        "generativelanguage.googleapis.com": ("/v1beta/models/m:streamGenerateContent", "/v1beta/models"),
    }
    for vendor in VENDORS:
        assert [path for path in model_paths.get(vendor.host, ()) if side_call(vendor, path)] == []
    assert {call.host for call in SIDE_CALLS} <= {vendor.host for vendor in VENDORS}


def test_more_vendors_are_written_by_hand() -> None:
    """Hosts by commas, with a prefix where the API stands behind one; anything else is refused."""
    assert more_vendors(" llm.example , other.example/api/v3=/v1,") == (
        Vendor(host="llm.example"),
        Vendor(host="other.example", prefixes={"/api/v3": "/v1"}),
    )
    assert more_vendors("") == ()
    for wrong in ("=x", "host/prefix", "/v1=/v1", "host=/v1"):
        with pytest.raises(ValueError, match="neither HOST nor"):
            more_vendors(wrong)
