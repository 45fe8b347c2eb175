"""Which of the vendor's methods a path calls: model names with slashes, colons and escapes included."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qs, unquote

from capture_proxy.dialects.base import Operation, Route

_VERSION: Final = r"/+(?:v1|v1beta|v1alpha)"
_CALL: Final = re.compile(rf"(?:{_VERSION})?/+models/(?P<model>.+):(?P<method>[A-Za-z]+)", re.DOTALL)
_LIST: Final = re.compile(rf"{_VERSION}/+models(?:/(?P<model>.+))?", re.DOTALL)

_OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(
    {"generateContent": "generate", "streamGenerateContent": "generate", "countTokens": "count_tokens"}
)


@dataclass(frozen=True, slots=True)
class Target:
    """What a path asks for. `is_sse` says how a stream is framed: as events, or as one JSON array."""

    model: str
    method: str
    is_sse: bool

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes in pieces."""
        return self.method == "streamGenerateContent"


def read_target(path: str) -> Target | None:
    """The model and method of a path without a secret, with its query; None where it calls no method.

    The method stands behind the last colon: clients send model names such as `org/name:7b` unescaped.
    """
    bare, _, query = path.partition("?")
    found = _CALL.fullmatch(unquote(bare))
    if found is None:
        return None
    wanted = parse_qs(query)
    # `alt` may be given twice: one SDK appends its own to the client's.
    is_sse = "sse" in [*wanted.get("alt", ()), *wanted.get("$alt", ())]
    return Target(found["model"], found["method"], is_sse)


def find_route(method: str, path: str, secret: str | None, *, is_ours: bool) -> Route | None:
    """The route of a path (without the secret's segment, with its query), or None for what isn't offered.

    `is_ours` says that the request carries the vendor's key: `/v1/models` alone could be anybody's.
    """
    bare = path.partition("?")[0]
    if method == "POST" and (target := read_target(path)) is not None and target.method in _OPERATIONS:
        kept = bare + ("?alt=sse" if target.is_sse else "")  # of the query nothing else is needed, least of all a key
        operation = _OPERATIONS[target.method]
        return Route(dialect="google", operation=operation, path=kept, secret=secret, model=target.model)
    listed = _LIST.fullmatch(unquote(bare).rstrip("/"))
    if method in {"GET", "HEAD"} and listed is not None and (is_ours or bare.lstrip("/").startswith("v1beta/")):
        return Route(dialect="google", operation="list_models", path=bare, secret=secret, model=listed["model"])
    return None


def key_of(query: str) -> str | None:
    """The API key in a query string."""
    return next((key.strip() for key in parse_qs(query).get("key", ()) if key.strip()), None)
