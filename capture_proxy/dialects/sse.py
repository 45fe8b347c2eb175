"""Server-sent events, as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import orjson

from capture_proxy.reply import Json

STREAM_HEADERS: Mapping[str, str] = MappingProxyType(
    {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
)


def data_event(value: Json) -> bytes:
    """An unnamed event with a JSON value."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named_event(name: bytes, value: Json) -> bytes:
    """An event with an `event:` line, which some clients can't do without."""
    return b"event: " + name + b"\ndata: " + orjson.dumps(value) + b"\n\n"
