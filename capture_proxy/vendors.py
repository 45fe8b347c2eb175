"""The vendors whose host names closed harnesses have built in, as data: which hosts, which API behind which path, which side calls.

In forward mode a harness talks to these hosts, and the proxy answers in their place; none of them is ever contacted. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel, ConfigDict


class Vendor(BaseModel):
    """One vendor host. `dialect` shapes the errors of requests that name no API; `prefixes` map the vendor's paths to ours."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    dialect: str = "openai_chat"
    prefixes: dict[str, str] = {}
    """Start of the vendor's path → what stands for it here; the longest wins; a path without one stays as it is."""


VENDORS: Final[tuple[Vendor, ...]] = (
    Vendor(host="api.anthropic.com", dialect="anthropic"),
    Vendor(host="api.openai.com"),
    Vendor(host="chatgpt.com", dialect="openai_responses", prefixes={"/backend-api/codex": "/v1"}),
    Vendor(host="generativelanguage.googleapis.com", dialect="google", prefixes={"/v1beta/openai": "/v1"}),
    Vendor(host="dashscope.aliyuncs.com", prefixes={"/compatible-mode/v1": "/v1"}),
    Vendor(host="dashscope-intl.aliyuncs.com", prefixes={"/compatible-mode/v1": "/v1"}),
    Vendor(host="openrouter.ai", prefixes={"/api/v1": "/v1"}),
    Vendor(host="api.deepseek.com", prefixes={"/anthropic": ""}),
    Vendor(host="api.moonshot.ai", prefixes={"/anthropic": ""}),
    Vendor(host="api.moonshot.cn", prefixes={"/anthropic": ""}),
    Vendor(host="api.kimi.com", prefixes={"/coding/v1": "/v1"}),
    Vendor(host="api.z.ai", prefixes={"/api/anthropic": "", "/api/coding/paas/v4": "/v1", "/api/paas/v4": "/v1"}),
    Vendor(host="open.bigmodel.cn", prefixes={"/api/anthropic": "", "/api/paas/v4": "/v1"}),
    Vendor(host="api.groq.com", prefixes={"/openai/v1": "/v1"}),
    Vendor(host="api.mistral.ai"),
    Vendor(host="api.together.xyz"),
    Vendor(host="api.x.ai"),
)
"""Hosts that are answered here when the settings name no others."""


def more_vendors(text: str) -> tuple[Vendor, ...]:
    """Vendors as a person writes them, by commas: `HOST`, or `HOST/PREFIX=/v1` for a path that stands before the API.

    Raises ValueError for anything else.
    """
    made: list[Vendor] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        where, equals, ours = entry.partition("=")
        host, slash, prefix = where.partition("/")
        if not host or bool(slash) != bool(equals):
            raise ValueError(f"{entry!r} is neither HOST nor HOST/PREFIX=/v1")
        made.append(Vendor(host=host, prefixes={slash + prefix: ours.rstrip("/")} if slash else {}))
    return tuple(made)


@dataclass(frozen=True, slots=True)
class SideCall:
    """A call that a harness makes beside the model's: answered with a fixed, harmless body. `path` is a regular expression."""

    host: str
    path: str
    status: int = 200
    body: bytes = b"{}"
    content_type: str = "application/json"


SIDE_CALLS: Final[tuple[SideCall, ...]] = (
    # Claude Code: what its organisation prescribes (nothing), what it may do (everything), and its telemetry.
    SideCall("api.anthropic.com", r"/api/claude_code/settings", 404),
    SideCall("api.anthropic.com", r"/api/claude_code/policy_limits", body=b'{"restrictions":{}}'),
    SideCall("api.anthropic.com", r"/api/hello", body=b'{"message":"hello"}'),
    SideCall("api.anthropic.com", r"/api/.*"),
    SideCall("api.anthropic.com", r"/mcp-registry/.*", body=b'{"servers":[],"metadata":{"count":0}}'),
    SideCall("api.anthropic.com", r"/v1/mcp_servers", body=b'{"data":[],"has_more":false}'),
    # Codex: its list of models (its own built-in one stays), accounts, plugins, telemetry.
    SideCall("chatgpt.com", r"/backend-api/codex/models", body=b'{"models":[]}'),
    SideCall("chatgpt.com", r"/backend-api/codex/analytics-events/.*"),
    SideCall("chatgpt.com", r"/backend-api/(?!codex/).*"),
    SideCall("api.openai.com", r"/v1/(organizations?|me|dashboard)(/.*)?"),
    SideCall("openrouter.ai", r"/api/v1/(auth/key|key|credits)", body=b'{"data":{}}'),
    SideCall("generativelanguage.googleapis.com", r"/(v1internal|upload)(/.*)?"),
)
"""In order: the first that fits answers."""

TELEMETRY_HOSTS: Final = (
    "statsig.anthropic.com",
    "statsigapi.net",
    "featureassets.org",
    "datadoghq.com",
    "sentry.io",
    "play.googleapis.com",
    "posthog.com",
    "segment.io",
    "honeycomb.io",
)
"""Refused like every unknown host, with a reason of their own: these and what is below them."""


@dataclass(frozen=True, slots=True)
class HostList:
    """What the forward listener knows of hosts: the vendors that it stands for, and those that it lets through undecrypted."""

    vendors: dict[str, Vendor] = field(default_factory=dict)
    pass_through: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def of(cls, vendors: Iterable[Vendor], pass_through: Iterable[str] = ()) -> HostList:
        """From the settings: vendors, and `host` or `host:port` (443 by default) to let through."""
        return cls({vendor.host.lower(): vendor for vendor in vendors}, frozenset(map(_host_and_port, pass_through)))

    def vendor(self, host: str) -> Vendor | None:
        """The vendor of a host name, in any case and with or without the root's dot."""
        return self.vendors.get(bare_host(host))

    def is_passed_through(self, host: str, port: int) -> bool:
        """Whether connections there go on undecrypted."""
        return (bare_host(host), port) in self.pass_through

    def why_refused(self, host: str) -> str:
        """The reason under which a refused host is counted."""
        name = bare_host(host)
        is_telemetry = any(name == known or name.endswith(f".{known}") for known in TELEMETRY_HOSTS)
        return "telemetry_host" if is_telemetry else "unknown_host"


def bare_host(host: str) -> str:
    """A host name as it is compared: lower case, without the root's dot."""
    return host.lower().rstrip(".")


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    return (bare_host(host), int(port)) if colon else (bare_host(text.strip()), 443)


def our_path(vendor: Vendor, path: str) -> str:
    """The vendor's path (with its query) as one of ours."""
    bare, mark, query = path.partition("?")
    for prefix in sorted(vendor.prefixes, key=len, reverse=True):
        if bare == prefix or bare.startswith(f"{prefix}/"):
            bare = vendor.prefixes[prefix] + bare[len(prefix) :]
            break
    return (bare or "/") + mark + query


def side_call(vendor: Vendor, path: str) -> SideCall | None:
    """The fixed answer for a path of a vendor, if it is one of the side calls."""
    bare = path.partition("?")[0]
    for call in SIDE_CALLS:
        if call.host == vendor.host and re.fullmatch(call.path, bare):
            return call
    return None
